import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
lens = rng.integers(2, 11, 110)
x = np.zeros((110, 10), "int32")
for i, l in enumerate(lens):
    x[i, :l] = rng.integers(1, 15, l)
y = np.roll(x, -1, 1)


def masked_loss(label, pred):
    mask = label != 0
    l = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(label, pred)
    mask = tf.cast(mask, l.dtype)
    return tf.reduce_sum(l * mask) / tf.reduce_sum(mask)


def masked_accuracy(label, pred):
    pred = tf.cast(tf.argmax(pred, 2), label.dtype)
    mask = label != 0
    match = tf.cast((label == pred) & mask, tf.float32)
    return tf.reduce_sum(match) / tf.reduce_sum(tf.cast(mask, tf.float32))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d, warm=10):
        self.d, self.warm = float(d), warm

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return tf.math.rsqrt(self.d) * tf.minimum(
            tf.math.rsqrt(step + 1e-9), step * self.warm**-1.5
        )


class Block(keras.layers.Layer):
    def __init__(self, d):
        super().__init__()
        self.att = keras.layers.MultiHeadAttention(2, d)
        self.n1, self.n2 = keras.layers.LayerNormalization(), keras.layers.LayerNormalization()
        self.ff = keras.Sequential([keras.layers.Dense(16, "relu"), keras.layers.Dense(d)])
        self.supports_masking = True

    def call(self, x):
        x = self.n1(x + self.att(x, x, x, use_causal_mask=True))
        return self.n2(x + self.ff(x))


class Pos(keras.layers.Layer):
    def __init__(self, n, d):
        super().__init__()
        self.emb = keras.layers.Embedding(n, d)
        self.p = np.random.RandomState(1).normal(size=(1, 10, d)).astype("float32")
        self.d = d

    def call(self, x):
        return self.emb(x) * tf.math.sqrt(float(self.d)) + tf.constant(self.p)


i = keras.Input((10,), dtype="int32")
z = Pos(15, 8)(i)
z = Block(8)(z)
o = keras.layers.Dense(15)(z)
m = keras.Model(i, o)
m.compile(
    keras.optimizers.Adam(Schedule(8), beta_2=0.98, epsilon=1e-9),
    masked_loss,
    metrics=[masked_accuracy],
)
h = m.fit(x, y, batch_size=25, epochs=3, verbose=0, validation_split=0.2)
done(m, h)
