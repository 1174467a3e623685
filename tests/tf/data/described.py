"""What the ranks know about each other's datasets: pairs that are equal and pairs that differ."""

import os

import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import determinism, packing
from tensorflow.python.framework import composite_tensor, type_spec, type_spec_registry
from tensorflow.python.ops import composite_tensor_ops

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
Data = tf.data.Dataset


def table(words):
    values = tf.range(len(words), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, values), -1)


def looked_up(words):
    found = table(words)
    return Data.from_tensors("a").map(found.lookup)


def of_kind(kind, words):
    """A table of a given kind, which maps the words to 0, 1, ... in its dtype."""
    keys, values = kind
    numbers = tf.cast(tf.range(len(words)), tf.int64)
    from_words = words if keys == "string" else [ord(word) for word in words]
    to = tf.strings.as_string(numbers) if values == "string" else tf.cast(numbers, values)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(from_words, keys), to)
    found = tf.lookup.StaticHashTable(initializer, tf.zeros([], values))
    return Data.from_tensors(tf.constant(from_words[:1], keys)).map(found.lookup)


def mutable(dense, words):
    """A table of vectors."""
    keys = [ord(word) for word in words]
    if dense:
        arguments = {"empty_key": -1, "deleted_key": -2}
        found = tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.int64, default_value=-1, **arguments
        )
        found.insert(tf.constant(keys, tf.int64), tf.range(len(keys), dtype=tf.int64))
    else:
        found = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([3]))
        found.insert(
            tf.constant(keys, tf.int64), tf.reshape(tf.range(3.0 * len(keys)), [len(keys), 3])
        )
    return Data.from_tensors(tf.constant([keys[0]], tf.int64)).map(found.lookup)


KINDS = [
    *((keys, values) for keys in ("string", "int64") for values in ("string", "int64", "float32")),
    ("string", "int32"),
    ("int32", "int32"),
]


def gathered(order):
    order = tf.constant(order)
    return Data.range(3).map(lambda i: order[i])


def mapped(function):
    return Data.range(3).map(function)


def scaled(value):
    factor = tf.Variable(value)
    return Data.range(3).map(lambda i: tf.cast(i, tf.float32) * factor)


class Graph(composite_tensor.CompositeTensor):
    """Like the types of graph libraries; its spec contains a map."""

    def __init__(self, parts):
        self.parts = parts

    @property
    def _type_spec(self):
        return GraphSpec(
            {name: tf.TensorSpec.from_tensor(part) for name, part in self.parts.items()}
        )


@type_spec_registry.register("tests.GraphSpec")
class GraphSpec(type_spec.TypeSpec):
    _component_specs = None  # a property in the base class

    def __init__(self, parts):
        self._component_specs = parts

    value_type = property(lambda self: Graph)

    def _serialize(self):
        return (self._component_specs,)

    def _to_components(self, value):
        return value.parts

    def _from_components(self, components):
        return Graph(components)


def graphs(value):
    """Each graph is one tensor, as these libraries store them in datasets."""

    def made(i):
        parts = {f"part {n}": tf.cast(i, tf.float32) * n + value for n in range(9)}
        return composite_tensor_ops.composite_tensor_to_variants(Graph(parts))

    return Data.range(3).map(made)


class Plain(tf.experimental.ExtensionType):
    """A type that TensorFlow cannot encode."""

    value: tf.Tensor


def iterated(times):
    data = Data.range(9).shuffle(9)
    for _ in range(times):
        list(data)
    return data


big = np.zeros(2**20, "f")
other = big.copy()
other[2**19 + 5] = 1
# name: (a dataset, a different one)
PAIRS = {
    "strings": (Data.from_tensor_slices(["a", "b"]), Data.from_tensor_slices(["b", "a"])),
    "files": [Data.from_tensor_slices([f"/a/{n}", f"/a/{3 - n}"]) for n in (1, 2)],
    "ragged": [Data.from_tensor_slices(tf.ragged.constant([[1, n], [3]])) for n in (2, 4)],
    "sparse": [Data.from_tensor_slices(tf.sparse.from_dense([[0, n], [3, 0]])) for n in (2, 4)],
    "large": [Data.from_tensors(values) for values in (big, other)],
    "captured": [gathered(order) for order in ([0, 1, 2], [2, 1, 0])],
    "code": [mapped(function) for function in (lambda i: i + 1, lambda i: i - 1)],
    "constants": [mapped(lambda i, n=n: i + n) for n in (1, 2)],
    "variable": [scaled(value) for value in (1.0, 2.0)],
    "table": [looked_up(words) for words in (["a", "b"], ["b", "a"])],
    **{
        f"table of {kind}": [of_kind(kind, words) for words in (["a", "b"], ["b", "a"])]
        for kind in KINDS
    },
    "mutable table": [mutable(False, words) for words in (["a", "b"], ["b", "a"])],
    "dense table": [mutable(True, words) for words in (["a", "b"], ["b", "a"])],
    "graphs": [graphs(value) for value in (1.0, 2.0)],
    "part": [Data.range(8).shard(2, index) for index in (0, 1)],
    "skipped": [Data.range(8).skip(number) for number in (0, 1)],
    "iterated": [iterated(times) for times in (0, 1)],
}
if RANK:  # what a rank created earlier must not matter
    for _ in range(3):
        looked_up(["c"]), gathered([1]), tf.function(lambda x: x)(tf.constant(1))


def again(name):
    """Creates the first of a pair again, on every rank."""
    return {
        "table": lambda: looked_up(["a", "b"]),
        "graphs": lambda: graphs(1.0),
        "dense table": lambda: mutable(True, ["a", "b"]),
        "captured": lambda: gathered([0, 1, 2]),
        "constants": lambda: mapped(lambda i, n=1: i + n),
        "variable": lambda: scaled(1.0),
        "shuffle": lambda: Data.range(9).shuffle(9),
        "folder": lambda: tf.data.TextLineDataset([f"/tmp/{RANK}/{n}" for n in (1, 2)]),
    }[name]()


result(
    {
        "first": {name: determinism.description(pair[0]) for name, pair in PAIRS.items()},
        "second": {name: determinism.description(pair[1]) for name, pair in PAIRS.items()},
        "specs": [
            packing.encode_spec({f"column {n}": tf.TensorSpec([None]) for n in range(12)}),
            packing.encode_spec({"x": Plain.Spec(tf.TensorSpec([None])), "y": tf.TensorSpec([])}),
        ],
        "again": {
            name: determinism.description(again(name))
            for name in (
                "table",
                "graphs",
                "dense table",
                "captured",
                "constants",
                "variable",
                "shuffle",
                "folder",
            )
        },
    }
)
