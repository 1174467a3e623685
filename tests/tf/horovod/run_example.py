"""Runs an example of Horovod's as it is, with little data and few steps: run_example.py SCRIPT ...

MNIST is replaced by digits of noise, of which each class has its own level, as nothing can be
downloaded. Prints the losses, digests of the models' weights, and what was written.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from common import result

STEPS, EPOCHS, ROWS = 12, 2, 1536
keras: Any = tf.keras
models: list[Any] = []
losses: list[float] = []


def digits(*_: Any, **__: Any) -> Any:
    """The same for every rank, as a download would be."""
    draw = np.random.RandomState(0)
    labels = draw.randint(0, 10, ROWS)
    pixels = draw.randint(0, 40, (ROWS, 28, 28)) + 20 * labels[:, None, None]
    return (pixels.astype(np.uint8), labels.astype(np.uint8)), (
        pixels[:200].astype(np.uint8),
        labels[:200].astype(np.uint8),
    )


def fewer(limits: dict[str, int]) -> Any:
    def make(original: Any) -> Any:
        def limited(self: Any, *args: Any, **kwargs: Any) -> Any:
            for name, limit in limits.items():
                if kwargs.get(name) is not None:
                    kwargs[name] = min(int(kwargs[name]), limit)
            history = original(self, *args, **kwargs)
            losses.extend(history.history.get("loss", []))
            return history

        return limited

    return make


def noted(original: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        models.append(self)

    return init


class Listening:
    """Standard output, which also notes losses that a script prints."""

    def __init__(self, out: Any) -> None:
        self.out = out

    def write(self, text: str) -> int:
        losses.extend(float(number) for number in re.findall(r"Loss: ([\d.]+)", text))
        return int(self.out.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)


keras.datasets.mnist.load_data = digits
model = keras.Model
model.fit = fewer({"epochs": EPOCHS, "steps_per_epoch": STEPS})(model.fit)
model.__init__ = noted(model.__init__)
take = tf.data.Dataset.take
tf.data.Dataset.take = lambda self, count, **kwargs: take(self, min(int(count), STEPS), **kwargs)

script, sys.argv = sys.argv[1], sys.argv[1:]
sys.stdout = Listening(sys.stdout)
runpy.run_path(script, run_name="__main__")
weights = [
    zlib.crc32(np.asarray(weight).tobytes()) for one in models for weight in one.trainable_weights
]
result({"losses": losses, "weights": weights, "files": sorted(os.listdir("."))})
