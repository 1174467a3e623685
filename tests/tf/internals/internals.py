"""Names inside TensorFlow and Keras that only affect speed, or the text of an error.

Names that everything depends on have their own tests: docs/tensorflow-internals.md.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import determinism, on_cpu, transformations
from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper
from tensorflow.python.framework import op_def_registry

# module -> names expected in it
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


def pipeline(sliced: Any) -> Any:
    """Nested functions, with a branch."""

    def step(state: Any, rows: Any) -> Any:
        return state + 1, (tf.cond(tf.size(rows) > 3, lambda: rows, lambda: -rows), rows)

    def taken_apart(rows: Any, again: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices((rows, again)).map(lambda x, y: (y, x, y))

    return sliced.scan(0, step).flat_map(taken_apart).map(lambda x, y, z: x + y * z)


def functions_on_cpu() -> dict[str, Any]:
    """A pipeline as on_cpu.functions makes it: its elements under each of tf.data's options, and
    the start time of an iterator compared with the same pipeline without it."""
    original = StructuredFunctionWrapper.__init__
    StructuredFunctionWrapper.__init__ = on_cpu.traced(original)
    try:
        with on_cpu.functions():
            quick = pipeline(fours)
    finally:
        StructuredFunctionWrapper.__init__ = original
    plain = pipeline(fours)
    expected = [int(element) for element in plain]
    groups: list[Callable[[Any], Any]] = [
        lambda options: options,
        lambda options: options.experimental_optimization,
        lambda options: options.autotune,
    ]
    wrong = []
    for group in groups:
        kind = type(group(tf.data.Options()))
        for name in [n for n, v in sorted(vars(kind).items()) if isinstance(v, property)]:
            for value in (True, False):
                options = tf.data.Options()
                try:
                    setattr(group(options), name, value)
                    options._to_proto()
                except (TypeError, AttributeError):
                    continue  # does not take a boolean
                given: list[int] | str
                try:
                    given = [int(element) for element in quick.with_options(options).prefetch(1)]
                except tf.errors.OpError as error:
                    given = str(error)
                if given != expected:
                    wrong.append([name, value, given])
    seconds: list[list[float]] = [[], []]
    for _ in range(7):
        for dataset, taken in zip((quick, plain), seconds):
            begin = time.thread_time()
            iter(dataset)
            taken.append(time.thread_time() - begin)
    return {"wrong": wrong, "seconds": [sorted(taken)[3] for taken in seconds]}


result(
    {
        "functions on cpu": functions_on_cpu(),
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
        "seeds": [int(tf.get_static_value(seed)) for seed in (shuffled._seed, shuffled._seed2)],
        "batch": [int(batched._batch_size), type(batched._input_dataset).__name__],
    }
)
