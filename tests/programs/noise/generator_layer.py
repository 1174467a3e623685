"""tf.random.Generator in a layer: noise per sample, a strength per batch, and its state."""

import tensorflow as tf
import variants
from report import done


def make(keras):
    class Noisy(keras.layers.Layer):
        def __init__(self, seed, **more):
            super().__init__(**more)
            self.generator = tf.random.Generator.from_seed(seed)

        def call(self, x, training=False):
            if not training:
                return x
            strength = self.generator.uniform([], 0.0, 0.2)
            return x + strength * self.generator.normal(tf.shape(x))

    first, second = Noisy(3), Noisy(4)
    stack = [keras.Input((8,)), first, keras.layers.Dense(8, "tanh"), second, keras.layers.Dense(1)]
    model = keras.Sequential(stack)
    model.generators = [first.generator, second.generator]
    return model


def data(rows):
    x = variants.images(rows).reshape(rows, -1)[:, :8]
    return x, variants.labels(x)


def states(model, _):
    return [[str(word) for word in one.state.numpy()] for one in model.generators]


done(
    variants=variants.of(make, data, after=states),
    eager=variants.of(make, data, variants.EAGER, steps=10, after=states),
)
