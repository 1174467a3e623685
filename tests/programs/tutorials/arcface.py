import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(28)


class Arc(keras.layers.Layer):
    def __init__(self, n, s=8.0, mg=0.2):
        super().__init__()
        self.n, self.s, self.mg = n, s, mg

    def build(self, shapes):
        self.w = self.add_weight(shape=(shapes[0][-1], self.n), initializer="glorot_uniform")

    def call(self, inputs):
        e, lab = inputs
        cos = tf.matmul(tf.nn.l2_normalize(e, 1), tf.nn.l2_normalize(self.w, 0))
        th = tf.acos(tf.clip_by_value(cos, -0.999, 0.999))
        oh = tf.one_hot(tf.cast(lab[:, 0], tf.int32), self.n)
        return self.s * tf.cos(th + self.mg * oh)


rng = np.random.default_rng(0)
x = rng.normal(size=(150, 6)).astype("float32")
y = rng.integers(0, 4, (150, 1))
i, l = keras.Input((6,)), keras.Input((1,), dtype="int32")
m = keras.Model([i, l], Arc(4)([keras.layers.Dense(5)(i), l]))
m.compile(
    "adam",
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
)
h = m.fit([x, y], y, batch_size=32, epochs=3, verbose=0)
emb = keras.Model(i, m.layers[1].output).predict(x[:50], verbose=0)
sim = emb @ emb.T
done(m, h, sim=sim.mean())
