"""A U-Net: batch norm, spatial dropout, and a Dice loss over the whole batch."""

import tensorflow as tf
import variants
from report import done


def dice(mask, guess):
    both = tf.reduce_sum(mask * guess)
    return 1 - (2 * both + 1) / (tf.reduce_sum(mask) + tf.reduce_sum(guess) + 1)


def make(keras):
    layers = keras.layers

    def twice(x, filters):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.Activation("swish")(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((8, 8, 3))
    x = layers.GaussianNoise(0.05, seed=1)(inputs)
    upper = twice(x, 6)
    x = layers.SpatialDropout2D(0.2, seed=2)(twice(layers.MaxPooling2D()(upper), 8))
    x = layers.Conv2DTranspose(6, 2, 2)(x)
    x = twice(layers.Concatenate()([x, upper]), 6)
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.wanted_loss = dice
    return model


def data(rows):
    x = variants.images(rows)
    return x, (x.sum(3, keepdims=True) > 1.5).astype("float32")


done(variants=variants.of(make, data))
