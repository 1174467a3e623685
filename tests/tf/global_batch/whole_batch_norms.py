"""The models of whole_batch.py that normalize by a batch's moments, over all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode

drawn = np.random.default_rng(5)
IMAGES = drawn.normal(1, 2, size=(70, 4, 4, 3)).astype(np.float32)
WORDS = drawn.integers(1, 20, size=(70, 9))
WORDS[np.arange(9)[None] >= drawn.integers(0, 10, size=70)[:, None]] = 0
WORDS[1:32:2] = 0  # one of two ranks has nothing valid in the first batches


def cases(
    keras: Any, Steps: Any, fit: Any, compiled: Any, mode: dict[str, Any], data: Any
) -> dict[str, Callable[[], dict[str, Any]]]:
    """The cases by name; the arguments are those of whole_batch.py."""
    layers, Norm = keras.layers, keras.layers.BatchNormalization
    legacy = not hasattr(keras, "ops")  # tf_keras
    jit = bool(mode.get("jit_compile"))

    def net(*norms: Any, dtype: Any = None) -> Any:
        made = [layers.Conv2D(4, 2, use_bias=False, dtype=dtype)]
        for norm in norms:
            made += [norm, layers.Activation("softplus", dtype=dtype)]
        return keras.Sequential([keras.Input((4, 4, 3)), *made, layers.Flatten(), layers.Dense(1)])

    def train(model: Any, **more: Any) -> dict[str, Any]:
        options = {"x": IMAGES[:33], "validation_data": (IMAGES[:7], data[1][:7]), **more}
        if jit:  # 64 samples; of the batches, 2 ranks divide only the last, of 4, evenly
            options = {"x": IMAGES[:64], "batch_size": 15}
        return fit(model, **options)

    def norms() -> dict[str, Any]:
        stack = [Norm(momentum=0.8), Norm(axis=2, scale=False), Norm(center=False, epsilon=1e-6)]
        model = net(*stack)
        model.add(Norm(momentum=0.9))  # one number per sample
        model.add(layers.Dense(1))
        return train(compiled(model, "mse"))

    def frozen() -> dict[str, Any]:
        still = Norm()
        model = net(still, Norm())
        still.trainable = False
        return train(compiled(model, "mse"))

    def renormed() -> dict[str, Any]:
        limits = {"rmax": 1.5, "rmin": 0.5, "dmax": 2.0}
        return train(compiled(net(Norm(renorm=True, renorm_clipping=limits), Norm()), "mse"))

    def masked_norm() -> dict[str, Any]:
        stack = [layers.Embedding(20, 6, mask_zero=True), Norm(), layers.LSTM(4), layers.Dense(1)]
        model = compiled(keras.Sequential([keras.Input((9,)), *stack]), "mse")
        return {} if jit else fit(model, x=WORDS[:33])

    def half() -> dict[str, Any]:
        """Moments are float32; the normalized values are float16, which rounds differently."""
        model = net(Norm(dtype="mixed_float16"), dtype="mixed_float16")
        return train(compiled(model, "mse"))

    class Evaluates(Steps):
        """Also normalizes by the batch in evaluation and prediction."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()

        def call(self, x: Any, training: bool = False) -> Any:
            return self.net(self.norm(x, training=True), training=training)

        def step(self, x: Any, y: Any) -> Any:
            return tf.reduce_mean(tf.square(y - self(x, training=True)))

        def train_step(self, batch: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.step(*batch)
            self.update(tape, loss)
            return {"error": loss}

        def test_step(self, batch: Any) -> Any:
            return {"error": self.step(*batch)}

    def in_training_always() -> dict[str, Any]:
        model = Evaluates().ready()
        found = fit(model, **({} if jit else {"validation_data": (data[0][:7], data[1][:7])}))
        if not jit:
            found["predicted"] = encode(model.predict(data[0][:19], batch_size=7, verbose=0))
        return found

    class Penalized(Steps):
        """The slope of each sample's output, through the moments of all samples."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()

        def call(self, x: Any, training: bool = False) -> Any:
            return self.net(tf.tanh(self.norm(x, training=training)), training=training)

        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    guess = self(x, training=True)
                slopes = tf.reduce_sum(tf.square(inner.gradient(guess, x)), 1)
                loss = tf.reduce_mean(tf.square(y - guess)) + tf.reduce_mean(tf.square(slopes - 1))
            self.update(tape, loss)
            return {"penalized": loss}

    def slopes() -> dict[str, Any]:
        return fit(Penalized().ready())

    def of_tf_keras() -> dict[str, Any]:
        """Several axes; the fused kernel with three dimensions before the channels; virtual
        batches."""
        if not legacy or jit:
            return {}
        stack = [layers.Reshape((2, 2, 4, 3)), Norm(), layers.Reshape((4, 4, 3)), Norm(axis=[1, 3])]
        model = keras.Sequential([keras.Input((4, 4, 3)), *stack, layers.Flatten()])
        model.add(layers.Dense(1))
        found = train(compiled(model, "mse"))
        model = compiled(net(Norm(virtual_batch_size=4, fused=False)), "mse")
        again = fit(model, 32, x=IMAGES[:32])
        return found | {f"{name} virtual": value for name, value in again.items()}

    made = (norms, frozen, renormed, masked_norm, half, in_training_always, slopes, of_tf_keras)
    return {case.__name__: case for case in made}
