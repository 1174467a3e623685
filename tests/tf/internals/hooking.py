"""Hooks into modules that lack what is hooked into; and what a rank says of newer versions."""

from __future__ import annotations

import functools
import json
import types
from typing import Any

import tensorflow as tf  # noqa: F401 (before tensorflow.mpi)
from tensorflow.mpi._src.interpose import hooking

module = types.ModuleType("keras.src.trainers.trainer")


class Trainer:
    def fit(self) -> str:
        """Trains."""
        return "fit"


vars(module)["Trainer"] = Trainer
hooking.wrap(module, "Trainer.fit", lambda fit: lambda self: fit(self) + ", wrapped")
said = []
for path in ("Trainer.train_step", "Model.fit", "fit"):
    owner, _, name = path.rpartition(".")
    ways: list[Any] = [
        functools.partial(hooking.wrap, module, path, lambda original: original),
        functools.partial(hooking.before, module, path, print),
        functools.partial(hooking.after, module, path, print),
        functools.partial(hooking.find, module, path),
    ]
    if owner:
        makes = {name: lambda original: original}
        ways.append(functools.partial(hooking.wrap_in_subclasses, module, owner, makes))
    for way in ways:
        try:
            way()
        except ImportError as error:
            said.append([path, str(error)])
        else:
            said.append([path, ""])

hooking.LAST_TESTED["tf_keras"] = "2.15.9"
import tf_keras  # noqa: E402, F401

facts = {"wrapped": [Trainer().fit(), Trainer.fit.__doc__], "said": said}
print("RESULT", json.dumps(facts))
