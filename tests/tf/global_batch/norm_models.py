"""Real models with batch normalization: prints losses by epoch and weights after 50 steps.

Arguments: resnet, mobilenet or unet; tf_keras, jit; even: batches that the ranks divide evenly;
smooth: without relu, because rounding may decide which units are active. Controls are runs of one
process with the rows of each batch in another order, selected by a number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from common import encode, keras_of, result, single_threaded_ops

keras: Any = keras_of(sys.argv)
layers: Any = keras.layers
SAMPLES = 80 if "even" in sys.argv else 73
EPOCHS, BATCH = 5, 8
RELU = "softplus" if "smooth" in sys.argv else "relu"


def normed(x: Any, activation: str | None = RELU) -> Any:
    x = layers.BatchNormalization()(x)
    return x if activation is None else layers.Activation(activation)(x)


def relu6(x: Any) -> Any:
    return layers.Activation(RELU)(x) if "smooth" in sys.argv else layers.ReLU(6.0)(x)


def resnet() -> Any:
    """20 batch normalization layers."""
    start = keras.Input((16, 16, 3))
    x = normed(layers.Conv2D(8, 3, padding="same", use_bias=False)(start))
    for number in range(9):
        filters, strides = (8, 16, 16)[number // 3], 2 if number in (3, 6) else 1
        shortcut = x
        y = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        y = normed(y)
        y = normed(layers.Conv2D(filters, 3, padding="same", use_bias=False)(y), None)
        if strides > 1:
            shortcut = layers.Conv2D(filters, 1, strides, use_bias=False)(x)
        if number == 3:
            shortcut = normed(shortcut, None)
        x = layers.Activation(RELU)(layers.add([y, shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(start, layers.Dense(4, "softmax")(x))


def mobilenet() -> Any:
    """Depthwise convolutions and relu6."""
    start = keras.Input((16, 16, 3))
    x = start
    for filters, strides in ((8, 1), (16, 2), (16, 1), (32, 2)):
        y = layers.Conv2D(filters * 2, 1, use_bias=False)(x)
        y = relu6(normed(y, None))
        y = layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)(y)
        y = relu6(normed(y, None))
        y = normed(layers.Conv2D(filters, 1, use_bias=False)(y), None)
        x = layers.add([x, y]) if x.shape[1:] == y.shape[1:] else y
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(start, layers.Dense(4, "softmax")(x))


def unet() -> Any:
    start = keras.Input((16, 16, 3))
    x, kept = start, []
    for filters in (6, 12):
        x = normed(layers.Conv2D(filters, 3, padding="same")(x))
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = normed(layers.Conv2D(16, 3, padding="same")(x))
    for filters, left in zip((12, 6), reversed(kept)):
        x = normed(layers.Conv2DTranspose(filters, 2, 2)(x))
        x = layers.concatenate([x, left])
        x = normed(layers.Conv2D(filters, 3, padding="same")(x))
    return keras.Model(start, layers.Conv2D(4, 1, activation="softmax")(x))


MODELS: dict[str, Callable[[], Any]] = {one.__name__: one for one in (resnet, mobilenet, unet)}


def main() -> None:
    single_threaded_ops()
    keras.utils.set_random_seed(3)
    drawn = np.random.default_rng(0)
    x = drawn.normal(0.3, 1, size=(SAMPLES, 16, 16, 3)).astype(np.float32)
    name = next(name for name in sys.argv if name in MODELS)
    y = (x[..., 0] > 0) + 2 * (x[..., 1] > 0.5)
    y = y.astype(int) if name == "unet" else (y.mean((1, 2)) * 8).astype(int) % 4
    order = [int(word) for word in sys.argv[1:] if word.isdigit()]
    if order:
        shuffled = np.random.default_rng(order[0])
        starts = range(0, SAMPLES, BATCH)
        places = [shuffled.permutation(np.arange(s, min(s + BATCH, SAMPLES))) for s in starts]
        x, y = x[np.concatenate(places)], y[np.concatenate(places)]
    model = MODELS[name]()
    model.compile(
        keras.optimizers.SGD(0.01),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile="jit" in sys.argv,
    )
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=EPOCHS, **options).history
    numbers = {key: encode(np.asarray(values, np.float32)) for key, values in history.items()}
    tested = encode(np.asarray(model.evaluate(x, y, batch_size=BATCH, verbose=0), np.float32))
    weights = np.concatenate([np.asarray(weight).ravel() for weight in model.get_weights()])
    result({"numbers": numbers | {"tested": tested}, "weights": encode(weights)})


if __name__ == "__main__":
    main()
