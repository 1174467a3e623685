"""Names inside TensorFlow and Keras on which nothing but speed, or an error's text, depends.

What everything depends on has a test of its own: docs/tensorflow-internals.md.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import determinism
from tensorflow.python.framework import op_def_registry

# module -> what is looked for in it
LOOKED_FOR = {
    "tensorflow.python.training.optimizer": "_deduplicate_indexed_slices",
    "tf_keras.src.optimizers.legacy.optimizer_v2": "_deduplicate_indexed_slices",
    "tf_keras.src.optimizers.optimizer": "_BaseOptimizer._deduplicate_sparse_grad",
    "keras.src.backend.tensorflow.optimizer": "TFOptimizer._all_reduce_sum_gradients",
}


def has(module: str, path: str) -> bool:
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


arrays = tf.data.Dataset.from_tensor_slices(np.arange(6))
shuffled = arrays.shuffle(6, seed=1)
mapped = shuffled.map(lambda number: number + 1)
batched = mapped.batch(2)

result(
    {
        "missing": [f"{m}: {path}" for m, path in LOOKED_FOR.items() if not has(m, path)],
        "no ops": [op for op in sorted(determinism._HARMLESS) if op_def_registry.get(op) is None],
        "sources": [type(source).__name__ for source in determinism._sources(batched)],
        "functions": len(mapped._functions()),
        "seeds": [determinism._constant(shuffled._seed), determinism._constant(shuffled._seed2)],
        "arrays": [tensor.numpy().tolist() for tensor in arrays._tensors],
        "batch": [int(batched._batch_size), type(batched._input_dataset).__name__],
    }
)
