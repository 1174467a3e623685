"""Keras's layers one by one in a small model: fit and predict, as in one process.

Arguments: tf_keras, jit; names of layers, or 0, 1 or 2 for a third of them; default all. 22 rows
in batches of 10 leave 2 for the last. Images are up to 255 if layers expect that, and are scaled
behind the layer, so that SGD does not diverge.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, keras_of, result, single_threaded_ops

keras: Any = keras_of(sys.argv)
L: Any = keras.layers
WORDS = set(sys.argv[1:])
LEGACY, JIT = "tf_keras" in WORDS, "jit" in WORDS
THIRDS = {"0", "1", "2"}  # each takes every third layer: all of them take 15 minutes on 2 cores
NAMES = WORDS - THIRDS - {"tf_keras", "jit"}
drawn = np.random.RandomState(0)
IMAGES = drawn.rand(22, 8, 8, 3).astype("f")
SEQUENCES = drawn.rand(22, 6, 4).astype("f")
VECTORS = drawn.rand(22, 6).astype("f")
Y = drawn.rand(22, 1).astype("f")
Make = Callable[[], Any]

BOTH_IMAGES: dict[str, Make] = {
    "SpatialDropout2D": lambda: L.SpatialDropout2D(0.2, **seed()),
    "RandomFlip": lambda: L.RandomFlip(seed=1),
    "RandomRotation": lambda: L.RandomRotation(0.1, seed=1),
    "RandomZoom": lambda: L.RandomZoom(0.1, seed=1),
    "RandomTranslation": lambda: L.RandomTranslation(0.1, 0.1, seed=1),
    "RandomContrast": lambda: L.RandomContrast(0.1, seed=1),
    "RandomBrightness": lambda: L.RandomBrightness(0.1, seed=1),
    "RandomCrop": lambda: L.RandomCrop(6, 6, seed=1),
    "BatchNormalization": lambda: L.BatchNormalization(),
    "BatchNormalization renorm": lambda: L.BatchNormalization(renorm=True),
    "GroupNormalization": lambda: L.GroupNormalization(3),
    "SpectralNormalization": lambda: L.SpectralNormalization(L.Conv2D(4, 3)),
    "SeparableConv2D": lambda: L.SeparableConv2D(4, 3),
    "DepthwiseConv2D": lambda: L.DepthwiseConv2D(3),
    "Conv2DTranspose": lambda: L.Conv2DTranspose(4, 3),
    "GaussianNoise": lambda: L.GaussianNoise(0.1, seed=1),
    "GaussianDropout": lambda: L.GaussianDropout(0.1, seed=1),
    "AlphaDropout": lambda: L.AlphaDropout(0.1, seed=1),
    "Dropout": lambda: L.Dropout(0.1, seed=1),
    "Dropout of channels": lambda: L.Dropout(0.3, noise_shape=(None, 1, 1, 3), seed=1),
    "Dropout of all": lambda: L.Dropout(0.3, noise_shape=(1, 8, 8, 3), seed=1),
    "LayerNormalization": lambda: L.LayerNormalization(),
    "UnitNormalization": lambda: L.UnitNormalization(),
    "Resizing": lambda: L.Resizing(4, 4),
}
KERAS_IMAGES: dict[str, Make] = {
    "RandomErasing": lambda: L.RandomErasing(seed=1),
    "RandomHue": lambda: L.RandomHue(0.1, seed=1),
    "RandomSaturation": lambda: L.RandomSaturation(0.1, seed=1),
    "RandomGrayscale": lambda: L.RandomGrayscale(0.5, seed=1),
    "RandomShear": lambda: L.RandomShear(0.1, 0.1, seed=1),
    "RandomGaussianBlur": lambda: L.RandomGaussianBlur(seed=1),
    "RandomInvert": lambda: L.RandomInvert(seed=1),
    "RandomPosterization": lambda: L.RandomPosterization(4, seed=1),
    "RandomSharpness": lambda: L.RandomSharpness(0.1, seed=1),
    "RandomPerspective": lambda: L.RandomPerspective(seed=1),
    "RandomElasticTransform": lambda: L.RandomElasticTransform(seed=1),
    "RandomColorJitter": lambda: L.RandomColorJitter((0, 1), 0.1, 0.1, 0.1, 0.1, seed=1),
    "RandomColorDegeneration": lambda: L.RandomColorDegeneration(0.5, seed=1),
    "RandAugment": lambda: L.RandAugment(seed=1),
    "AugMix": lambda: L.AugMix(seed=1),
    "CutMix": lambda: Mixes(L.CutMix(seed=1)),
    "MixUp": lambda: Mixes(L.MixUp(seed=1)),
    "Solarization": lambda: L.Solarization(seed=1),
    "Equalization": lambda: L.Equalization(),
    "AutoContrast": lambda: L.AutoContrast(),
    "Pipeline": lambda: L.Pipeline([L.RandomFlip(seed=2), L.RandomContrast(0.1, seed=3)]),
}
BOTH_SEQUENCES: dict[str, Make] = {
    # Unrolled in tf_keras, like in_both_directions.
    "LSTM": lambda: L.LSTM(4, dropout=0.1, recurrent_dropout=0.1, unroll=LEGACY, **seed()),
    "LSTM unrolled": lambda: L.LSTM(4, dropout=0.1, recurrent_dropout=0.1, unroll=True, **seed()),
    "GRU": lambda: L.GRU(4, dropout=0.2, return_sequences=True, **seed()),
    "Bidirectional": lambda: in_both_directions(),
    "RNN": lambda: L.RNN(L.LSTMCell(3, dropout=0.2, recurrent_dropout=0.2), unroll=LEGACY),
    "StackedRNN": lambda: L.RNN(
        [L.GRUCell(3, dropout=0.2), L.GRUCell(2, recurrent_dropout=0.2)], unroll=LEGACY
    ),
    "SpatialDropout1D": lambda: L.SpatialDropout1D(0.2, **seed()),
    "TimeDistributed": lambda: L.TimeDistributed(L.Dense(3)),
    "TimeDistributed Dropout": lambda: L.TimeDistributed(L.Dropout(0.3, seed=1)),
    "Dropout of times": lambda: L.Dropout(0.2, noise_shape=(None, 1, 4), seed=1),
    "BatchNormalization of masked": lambda: keras.Sequential([L.Masking(), L.BatchNormalization()]),
    "MultiHeadAttention": lambda: Attends(L.MultiHeadAttention(2, 3, dropout=0.1)),
    "Attention": lambda: Attends(L.Attention(dropout=0.1, **seed())),
    "AdditiveAttention": lambda: Attends(L.AdditiveAttention(dropout=0.1, **seed())),
}
KERAS_SEQUENCES: dict[str, Make] = {
    "GroupQueryAttention": lambda: Attends(L.GroupQueryAttention(4, 2, 1, dropout=0.1, seed=1)),
}
BOTH_VECTORS: dict[str, Make] = {
    "BatchNormalization of vectors": lambda: L.BatchNormalization(),
    "ActivityRegularization": lambda: L.ActivityRegularization(l1=0.01),
    "PReLU": lambda: L.PReLU(),
    "RepeatVector": lambda: L.RepeatVector(3),
    "EinsumDense": lambda: L.EinsumDense("ab,bc->ac", output_shape=4),
}


def in_both_directions() -> Any:
    """Unrolled in tf_keras, which draws in each iteration of a loop whose iterations run in
    parallel."""
    return L.Bidirectional(L.SimpleRNN(4, dropout=0.2, recurrent_dropout=0.2, unroll=LEGACY))


def seed() -> dict[str, int]:
    """Empty for tf_keras, whose layers of these kinds take no seed."""
    return {} if LEGACY else {"seed": 1}


class Attends(L.Layer):
    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention = attention

    def call(self, x: Any, training: Any = None) -> Any:
        if isinstance(self.attention, (L.Attention, L.AdditiveAttention)):
            return self.attention([x, x], training=training)
        return self.attention(x, x, training=training)


class Mixes(L.Layer):
    """Mixes the samples of a batch, and their labels."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def call(self, x: Any, training: Any = None) -> Any:
        labels = tf.reshape(tf.reduce_mean(x, [1, 2, 3]), [-1, 1]) * tf.ones([2])
        mixed = self.layer({"images": x, "labels": labels}, training=training)
        return tf.concat([tf.reshape(mixed["images"], [-1, 192]), mixed["labels"]], 1)


def of(make: Make, x: np.ndarray) -> dict[str, Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    scaled = L.Rescaling(1 / x.max())
    model = keras.Sequential([keras.Input(x.shape[1:]), make(), scaled, L.Flatten(), L.Dense(1)])
    model.compile(keras.optimizers.SGD(0.005), "mse", jit_compile=JIT)
    options = {"batch_size": 10, "verbose": 0}
    history = model.fit(x, Y, epochs=2, shuffle=False, **options).history["loss"]
    predicted = model.predict(x, **options)
    found = {"loss": np.asarray(history, "f"), "predicted": np.asarray(predicted, "f")}
    weights = {f"weight {n}": np.asarray(w, "f") for n, w in enumerate(model.get_weights())}
    return {name: encode(value) for name, value in (found | weights).items()}


def main() -> None:
    single_threaded_ops(inter_op=2)
    groups = [(BOTH_IMAGES, IMAGES), (BOTH_SEQUENCES, SEQUENCES), (BOTH_VECTORS, VECTORS)]
    if not LEGACY:
        groups += [(KERAS_IMAGES, 255 * IMAGES), (KERAS_SEQUENCES, SEQUENCES)]
    found = {}
    for group, x in groups:
        for number, (name, make) in enumerate(group.items()):
            if NAMES and name not in NAMES:
                continue
            if WORDS & THIRDS and str(number % 3) not in WORDS:
                continue
            if "renorm" in name and not LEGACY:
                continue
            try:
                found[name] = of(make, x)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__} {str(error)[:300]}"}
                if os.environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
                    print(name, found[name], flush=True)
    result(found)


if __name__ == "__main__":
    main()
