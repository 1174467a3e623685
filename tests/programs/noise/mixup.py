"""MixUp in train_step: a permutation of the batch, and a share per sample or for all."""

import tensorflow as tf
import variants
from report import done


def make_of(of_each):
    def make(keras):
        class MixUp(keras.Model):
            def train_step(self, data):
                x, y = data
                n = tf.shape(x)[0]
                first = tf.random.gamma((n,) if of_each else (), 0.4)
                second = tf.random.gamma((n,) if of_each else (), 0.4)
                share = tf.reshape(first / (first + second), [-1, 1])
                order = tf.random.shuffle(tf.range(n))
                x = share * x + (1 - share) * tf.gather(x, order)
                y = share * y + (1 - share) * tf.gather(y, order)
                return super().train_step((x, y))

        inputs = keras.Input((8,))
        hidden = keras.layers.Dense(12, "tanh")(inputs)
        return MixUp(inputs, keras.layers.Dense(1)(hidden))

    return make


def data(rows):
    x = variants.images(rows).reshape(rows, -1)[:, :8]
    return x, variants.labels(x)


done(
    of_each=variants.of(make_of(True), data, variants.NOT_COMPILED),
    of_all=variants.of(make_of(False), data, variants.NOT_COMPILED),
)
