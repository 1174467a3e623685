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


class F1(keras.metrics.Metric):
    def __init__(self, name="f1"):
        super().__init__(name=name)
        self.v = self.add_weight(name="v", initializer="zeros")
        self.n = self.add_weight(name="n", initializer="zeros")

    def update_state(self, t, p, sample_weight=None):
        t = tf.cast(tf.reshape(t, [-1]), tf.float32)
        p = tf.cast(tf.reshape(p, [-1]) > 0.5, tf.float32)
        tp = tf.reduce_sum(t * p)
        self.v.assign_add(2 * tp / (tf.reduce_sum(t) + tf.reduce_sum(p) + 1e-7))
        self.n.assign_add(1)

    def result(self):
        return self.v / self.n

    def reset_state(self):
        self.v.assign(0)
        self.n.assign(0)


m = mlp(1, "sigmoid")
m.compile(
    keras.optimizers.SGD(0.1),
    "binary_crossentropy",
    metrics=[F1(), keras.metrics.AUC(), "accuracy", keras.metrics.R2Score()],
)
h = m.fit(
    x,
    yc.astype("float32")[:, None],
    batch_size=29,
    epochs=3,
    verbose=0,
    validation_data=(x[:77], yc[:77, None].astype("float32")),
)
done(m, h, ev=m.evaluate(x[:101], yc[:101, None].astype("float32"), verbose=0, batch_size=10))
