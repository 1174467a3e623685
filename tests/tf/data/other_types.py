"""Datasets whose elements are not tensors, passed to fit: prints losses and weights by kind.

With the argument `off` each rank has its own samples, in unequal numbers.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from common import encode, place, result
from tensorflow.python.framework import composite_tensor, type_spec

RANK, SIZE = place()
OFF = "off" in sys.argv[1:]
ROWS = 22  # in batches of 8, so the last batch is short
RANDOM = np.random.default_rng(0)
WORK = RANDOM.normal(size=(ROWS, 3, 4)).astype("f")
BAND = RANDOM.normal(size=(ROWS, 3)).astype("f")
Y = RANDOM.normal(size=(ROWS, 1)).astype("f")
WORDS = tf.RaggedTensor.from_row_lengths(RANDOM.normal(size=ROWS * 2).astype("f"), [1, 3] * 11)


class Plain(tf.experimental.ExtensionType):
    """A type whose samples are unknown."""

    work: tf.Tensor
    band: tf.Tensor


class Network(tf.experimental.BatchableExtensionType):
    work: tf.Tensor
    band: tf.Tensor


class Sentence(tf.experimental.BatchableExtensionType):
    words: tf.RaggedTensor
    weight: tf.Tensor


class Graph(composite_tensor.CompositeTensor):
    """Like the types of graph libraries: a custom spec that contains a map."""

    def __init__(self, parts: dict[str, Any], size: Any) -> None:
        self.parts, self.size = parts, size

    @property
    def _type_spec(self) -> Any:
        return GraphSpec({k: tf.TensorSpec.from_tensor(v) for k, v in self.parts.items()})


class GraphSpec(type_spec.TypeSpec):
    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    value_type = property(lambda self: Graph)

    def _serialize(self) -> Any:
        return (self.parts,)

    @property
    def _component_specs(self) -> Any:
        return self.parts

    def _to_components(self, value: Any) -> Any:
        return value.parts

    def _from_components(self, components: Any) -> Any:
        return Graph(components, None)


def of(network: Any) -> Any:
    return tf.reduce_mean(network.work * network.band[..., None], -2)


def of_words(inputs: Any) -> Any:
    total = tf.reduce_sum(inputs["sentence"].words, 1) * inputs["sentence"].weight
    return tf.concat([total[:, None], inputs["band"]], 1)


def of_graph(graph: Any) -> Any:
    return tf.reduce_mean(graph.parts["work"] * graph.parts["band"][..., None], -2)


def noisy(*batch: Any) -> Any:
    """The same in one process, but a rank cannot know that another one has the same."""
    return tf.nest.map_structure(lambda part: part + 0 * tf.random.uniform([]), batch)


def batches(part: np.ndarray, size: int) -> Any:
    numbers = [WORK[part], BAND[part], Y[part]]
    return tf.data.Dataset.from_tensor_slices(tuple(numbers)).batch(size)


def datasets(part: np.ndarray, size: int) -> dict[str, Any]:
    network = Network(work=tf.constant(WORK[part]), band=tf.constant(BAND[part]))
    sliced = tf.data.Dataset.from_tensor_slices((network, Y[part])).batch(size)
    sentence = Sentence(words=tf.gather(WORDS, part), weight=tf.constant(BAND[part][:, 0]))
    inputs = {"sentence": sentence, "band": BAND[part]}
    sentences = tf.data.Dataset.from_tensor_slices((inputs, Y[part])).batch(size)
    plain = batches(part, size).map(lambda w, b, y: (Plain(work=w, band=b), y))
    graphs = batches(part, size).map(lambda w, b, y: (Graph({"work": w, "band": b}, None), y))
    found = {"batchable": (of, sliced), "ragged inside": (of_words, sentences)}
    if not OFF:
        fed = batches(part, size).map(lambda w, b, y: (Network(work=w, band=b), y))
        found["from rank 0"] = (of, fed.map(lambda x, y: (x, y + 0 * tf.random.uniform([]))))
        found |= {"plain": (of, plain), "graph": (of_graph, graphs)}
    return found


class Model(keras.Model):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.dense = function, keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(self.function(inputs))


def trained(function: Any, dataset: Any, **arguments: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(1)
    model = Model(function)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(dataset, epochs=2, verbose=0, **arguments).history
    return {
        "loss": encode(np.array(history["loss"])),
        "weights": encode(np.concatenate([w.ravel() for w in model.get_weights()])),
    }


EVERY = np.arange(ROWS)
if not OFF:
    cases = datasets(EVERY, 8)
elif SIZE > 1:
    cases = datasets(*[(EVERY[:16], 8), (EVERY[16:], 6)][RANK])
else:  # the two ranks together have 8 and 6, then 8
    both, rest = datasets(np.r_[EVERY[:8], EVERY[16:]], 14), datasets(EVERY[8:16], 8)
    cases = {
        case: (function, dataset.concatenate(rest[case][1]))
        for case, (function, dataset) in both.items()
    }
found = {}
for case, one in cases.items():
    found[case] = trained(*one)
result(found)
