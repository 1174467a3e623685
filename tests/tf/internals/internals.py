"""Names inside TensorFlow and Keras on which nothing but speed, or an error's text, depends.

What everything depends on has a test of its own: docs/tensorflow-internals.md.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import determinism, transformations
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

fours = arrays.batch(4, drop_remainder=True)
numbers = tf.data.Dataset.range(2)
DATASETS = {
    "batches": {
        "batch": fours,
        "map and parallel batch": arrays.batch(4, num_parallel_calls=2).map(lambda x: x + 1),
        "padded": arrays.padded_batch(4),
        "rebatch": fours.rebatch(2),
        "sparse": arrays.map(lambda x: x[None]).sparse_batch(4, [1]),
        "one after another": fours.concatenate(fours).prefetch(1),
        "chosen": tf.data.Dataset.choose_from_datasets([fours, fours], numbers),
    },
    "elements": {
        "arrays": arrays.shuffle(6),
        "unbatched": fours.unbatch(),
        "flat": fours.flat_map(tf.data.Dataset.from_tensor_slices),
        "interleaved": fours.interleave(tf.data.Dataset.from_tensor_slices, num_parallel_calls=2),
        "packed": numbers.map(lambda x: x[None]),
    },
}
CLASSES = (
    "_MAKE_BATCHES", "_TAKE_APART", "_PREFETCH", "_GENERATOR", "_MAP", "_BATCH", "_PADDED_BATCH",
    "_ZIP", "_SHUFFLE", "_OPTIONS", "_COUNTED", "_SHARD", "_CACHE", "_TENSORS",
)  # fmt: skip

result(
    {
        "classes": [
            f"{module}.{name}"
            for table in CLASSES
            for module, names in getattr(transformations, table).items()
            for name in names
            if not has(module, name)
        ],
        "batches": {
            what: sorted(name for name, one in kind.items() if transformations.has_batches(one))
            for what, kind in DATASETS.items()
        },
        "all batches": sorted(DATASETS["batches"]),
        "prefetch": [transformations.is_prefetch(one) for one in (arrays.prefetch(1), arrays)],
        "missing": [f"{m}: {path}" for m, path in LOOKED_FOR.items() if not has(m, path)],
        "no ops": [op for op in sorted(determinism._HARMLESS) if op_def_registry.get(op) is None],
        "sources": [type(source).__name__ for source in determinism.sources(batched)],
        "functions": len(mapped._functions()),
        "seeds": [determinism._constant(shuffled._seed), determinism._constant(shuffled._seed2)],
        "arrays": [tensor.numpy().tolist() for tensor in arrays._tensors],
        "batch": [int(batched._batch_size), type(batched._input_dataset).__name__],
    }
)
