"""A Keras without a name that we hook into: TensorFlow continues, and importing Keras fails."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
from typing import Any

LOST = "keras.src.backend.tensorflow.trainer"


class Takes(importlib.abc.MetaPathFinder):
    """Removes a method before anything hooks into it, or expects a module that does not exist."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "tensorflow.mpi._src.interpose.hooking":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)

            def take(trainer: Any) -> None:
                delattr(*module.find(trainer, "TensorFlowTrainer|Trainer._make_function"))

            if "module" in sys.argv:
                module.when_imported("keras.src.gone.trainer", print)
            else:
                module.when_imported(LOST, take)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Takes())
import tensorflow as tf  # noqa: E402

said = []
for _ in range(2):
    try:
        import keras  # noqa: F401
    except ImportError as error:
        said.append(str(error))
try:
    tf.keras.Sequential()
except ImportError as error:
    said.append(str(error))
print("RESULT", json.dumps({"said": said, "sum": tf.mpi.allreduce(1.0, op="sum").item()}))
