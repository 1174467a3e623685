import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(110, 6)).astype("float32")
y = keras.utils.to_categorical((x[:, 0] > 0.5).astype(int) + (x[:, 1] > 1), 3)


def balanced(t, p):
    n = tf.reduce_sum(t, 0)
    w = tf.math.divide_no_nan(tf.reduce_sum(n), 3 * n)
    return tf.reduce_mean(tf.reduce_sum(t * w, 1) * keras.losses.categorical_crossentropy(t, p))


@keras.saving.register_keras_serializable()
class Tversky(keras.losses.Loss):
    def __init__(self, a=0.3, **k):
        super().__init__(**k)
        self.a = a

    def call(self, t, p):
        tp = tf.reduce_sum(t * p, 0)
        fp = tf.reduce_sum((1 - t) * p, 0)
        fn = tf.reduce_sum(t * (1 - p), 0)
        return 1 - tf.reduce_mean((tp + 1) / (tp + self.a * fp + (1 - self.a) * fn + 1))


i = keras.Input((6,))
z = keras.layers.Dense(8, "relu")(i)
m = keras.Model(
    i,
    [keras.layers.Dense(3, "softmax", name="a")(z), keras.layers.Dense(3, "softmax", name="b")(z)],
)
m.compile(
    keras.optimizers.Adam(0.01),
    [balanced, Tversky()],
    loss_weights=[1, 0.5],
    metrics=[
        ["accuracy"],
        [keras.metrics.IoU(3, [0, 1], sparse_y_true=False, sparse_y_pred=False)],
    ],
)
h = m.fit(x, [y, y], batch_size=21, epochs=3, verbose=0, validation_split=0.2)
m.save("m.keras")
b = keras.models.load_model("m.keras", custom_objects={"balanced": balanced})
h2 = b.fit(x, [y, y], batch_size=40, epochs=2, verbose=0)
done(b, h2, h1=h.history, pos={k: v for k, v in h.history.items()})
