"""Hooks into modules that lack their target, and the lines about newer versions."""

from __future__ import annotations

import functools
import json
import types
from typing import Any

import keras  # first, so that it imports TensorFlow while half of its own modules are loaded
import tensorflow as tf
from tensorflow.mpi._src.interpose import hooking, replacement_table
from tensorflow.mpi._src.interpose.replacement_table import How

module = types.ModuleType("keras.src.trainers.trainer")


class Trainer:
    def fit(self) -> str:
        """Trains."""
        return "fit"


vars(module)["Trainer"] = Trainer


def row(path: str, how: How, wrapper: Any) -> None:
    replacement_table._install(
        replacement_table.Row(f"{module.__name__}:{path}", how, wrapper, "", ""), path, module
    )


row("Trainer.fit", How.WRAP, lambda fit: lambda self: fit(self) + ", wrapped")
said = []
for path in ("Trainer.train_step", "Model.__init__", "fit", "Model|Trainer.train|fits"):
    ways: list[Any] = [functools.partial(hooking.find, module, path)]
    for how in (How.WRAP, How.BEFORE, How.AFTER, How.SUBCLASSES, How.CLASSES):
        ways.append(functools.partial(row, path, how, print))
    for way in ways:
        try:
            way()
        except ImportError as error:
            said.append([path, str(error)])
        else:
            said.append([path, ""])

by_either_name = []
for path in ("Model|Trainer.fit", "Trainer|Model.fits|fit"):
    owner, name = hooking.find(module, path)
    by_either_name.append(f"{owner.__name__}.{name}")
used = [hooking.used("keras.src.losses.loss:Loss").__name__]
for target in ("keras.src.gone:Loss", "keras.src.losses.loss:Gone|Lost"):
    try:
        hooking.used(target)
    except hooking.HookError as error:
        used.append(str(error))

hooking.LAST_TESTED["tf_keras"] = "2.15.9"
import tf_keras  # noqa: E402, F401

model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)
facts = {
    "weights": model.get_weights()[0].tolist(),
    "wrapped": [Trainer().fit(), Trainer.fit.__doc__],
    "said": said,
    "by either name": by_either_name,
    "used": used,
}
print("RESULT", json.dumps(facts))
