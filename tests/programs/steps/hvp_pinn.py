import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(310, 8)).astype("float32")
y = (np.tanh(x @ rng.normal(size=(8, 1))) + 0.1).astype("float32")
yc = (y[:, 0] > 0).astype("int32")


def mlp(out=1, act=None):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(out, act)]
    )


m = mlp()
o = keras.optimizers.Adam(0.01)
X = tf.constant(x)


@tf.function
def step():
    with tf.GradientTape() as t:
        with tf.GradientTape() as q:
            q.watch(X)
            u = m(X)
        du = q.gradient(u, X)
        l = tf.reduce_mean(tf.square(du[:, :1] - u)) + tf.reduce_mean(tf.square(u - y))
    o.apply_gradients(zip(t.gradient(l, m.trainable_variables), m.trainable_variables))
    return l


out = [float(step()) for _ in range(12)]
done(m, None, out=out)
