"""Dropout inside and after attention, and stochastic depth, which drops a block per sample."""

import tensorflow as tf
import variants
from report import done


def make(keras):
    layers = keras.layers

    class StochasticDepth(layers.Layer):
        def __init__(self, rate, **more):
            super().__init__(**more)
            self.rate = rate
            if keras.__name__ == "keras":
                self.seeds = keras.random.SeedGenerator(9)

        def call(self, x, training=False):
            if not training:
                return x
            shape = (tf.shape(x)[0], 1, 1)
            if keras.__name__ == "keras":
                kept = keras.random.uniform(shape, seed=self.seeds) + 1 - self.rate
            else:
                kept = tf.random.uniform(shape, seed=9) + 1 - self.rate
            return x * tf.floor(kept) / (1 - self.rate)

    x = inputs = keras.Input((6, 4))
    x = layers.Dense(8)(x)
    for number in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(2, 4, dropout=0.2)(y, y)
        x = x + StochasticDepth(0.1 + 0.2 * number)(layers.Dropout(0.1)(y))
        y = layers.Dense(16, "gelu")(layers.LayerNormalization()(x))
        y = layers.Dense(8)(layers.Dropout(0.1)(y))
        x = x + StochasticDepth(0.1 + 0.2 * number)(y)
    x = layers.GaussianNoise(0.1)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Dense(1)(x))


def data(rows):
    x = variants.images(rows)[:, :6, :4, 0]
    return x, variants.labels(x)


done(variants=variants.of(make, data), eager=variants.of(make, data, variants.EAGER, steps=10))
