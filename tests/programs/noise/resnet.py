"""Batch norm, augmentation layers and dropout."""

import variants
from report import done


def make(keras):
    layers = keras.layers

    def block(x, filters, strides):
        y = layers.Conv2D(filters, 3, strides, "same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, 1, "same", use_bias=False)(y))
        if strides > 1:
            x = layers.BatchNormalization()(layers.Conv2D(filters, 1, strides, use_bias=False)(x))
        return layers.ReLU()(layers.Add()([x, y]))

    x = inputs = keras.Input((8, 8, 3))
    x = layers.RandomFlip("horizontal", seed=1)(x)
    x = layers.RandomTranslation(0.1, 0.1, seed=2)(x)
    x = layers.RandomRotation(0.1, seed=3)(x)
    x = layers.RandomZoom(0.1, seed=4)(x)
    x = layers.RandomContrast(0.2, seed=5)(x)
    x = layers.ReLU()(
        layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))
    )
    for filters, strides in ((8, 1), (12, 2)):
        x = block(x, filters, strides)
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(1)(x))


def data(rows):
    x = variants.images(rows)
    return x, variants.labels(x)


# tf_keras's layers that move images have no XLA kernel, in one process either.
COMPILED = [one for one in variants.ALL if one[:2] != ("tf_keras", "jit")]
done(variants=variants.of(make, data, COMPILED))
