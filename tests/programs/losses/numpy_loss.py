import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(26)
rng = np.random.default_rng(15)
X = rng.normal(size=(72, 5)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def weights_of(y):
    return np.where(y > 0.5, 2.0, 1.0).astype("float32")


def weighted(y, p):
    w = tf.numpy_function(weights_of, [y], tf.float32)
    w.set_shape(y.shape)
    return tf.reduce_mean(w * tf.square(y - p), axis=-1)


class Focal(keras.losses.Loss):
    def call(self, y, p):
        p = tf.clip_by_value(p, 1e-6, 1 - 1e-6)
        near = tf.where(y > 0.5, p, 1 - p)
        return tf.reduce_sum(-((1 - near) ** 2) * tf.math.log(near), axis=-1)


inputs = keras.Input((5,))
x = keras.layers.Dense(6, "selu")(inputs)
out = [keras.layers.Dense(1, "sigmoid", name=name)(x) for name in ("p", "q")]
m = keras.Model(inputs, out)
m.compile("rmsprop", [weighted, Focal()], metrics=[["AUC"], [keras.metrics.Precision()]])
h = m.fit(X, [Y, Y], batch_size=24, epochs=3, validation_split=0.3, verbose=0)
done(m, h)
