"""The training script: an LSTM language model in a custom loop with a compat.v1 optimizer.

The embedding's gradient is sparse (IndexedSlices of tf.gather); the softmax is full. Each process
trains on rows rank, rank + size, ... of every batch: a single process on the whole batch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.workloads import peers
from benchmarks.workloads.clock import digest


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=Path, required=True, help=".npy of word numbers, int32")
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoint and results")
    parser.add_argument("--peer", choices=["none", "mwms", "horovod"], default="none")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="rows per batch, over all ranks")
    parser.add_argument("--length", type=int, default=20, help="words per row")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument(
        "--width", type=int, default=128, help="width of the embedding and the LSTM"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--permute", action="store_true", help="reverse the rows of each batch")
    options = parser.parse_args()
    environment = os.environ
    options.rank = int(environment.get("OMPI_COMM_WORLD_RANK", environment.get("RANK", "0")))
    options.size = int(environment.get("OMPI_COMM_WORLD_SIZE", environment.get("SIZE", "1")))
    return options


OPTIMIZERS = {
    "sgd": lambda: tf.compat.v1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf.compat.v1.train.AdamOptimizer(1e-3),
}


def make_variables(options: argparse.Namespace) -> dict[str, Any]:
    """Small uniform values, the same in every process: each variable's seed is its position."""
    width, vocabulary = options.width, options.vocabulary
    shapes = {
        "embedding": [vocabulary, width],
        "lstm_kernel": [2 * width, 4 * width],
        "lstm_bias": [4 * width],
        "softmax_kernel": [width, vocabulary],
        "softmax_bias": [vocabulary],
    }
    return {
        name: tf.Variable(
            tf.random.stateless_uniform(shape, [options.seed, place], -0.1, 0.1), name=name
        )
        for place, (name, shape) in enumerate(shapes.items())
    }


def loss_of(variables: dict[str, Any], words: Any) -> Any:
    """The mean cross-entropy of each next word; words is int32 [rows, length + 1]."""
    inputs = tf.gather(variables["embedding"], words[:, :-1])  # [rows, length, width]
    hidden = cell = tf.zeros_like(inputs[:, 0])
    outputs = []
    for place in range(inputs.shape[1]):
        joined = tf.concat([inputs[:, place], hidden], axis=1)
        gates = tf.matmul(joined, variables["lstm_kernel"]) + variables["lstm_bias"]
        candidate, input_gate, forget_gate, output_gate = tf.split(gates, 4, axis=1)
        cell = tf.sigmoid(forget_gate + 1.0) * cell
        cell += tf.sigmoid(input_gate) * tf.tanh(candidate)
        hidden = tf.sigmoid(output_gate) * tf.tanh(cell)
        outputs.append(hidden)
    features = tf.reshape(tf.stack(outputs, axis=1), [-1, hidden.shape[1]])
    logits = tf.matmul(features, variables["softmax_kernel"]) + variables["softmax_bias"]
    targets = tf.reshape(words[:, 1:], [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))


def batches(options: argparse.Namespace) -> Sequence[np.ndarray]:
    """This rank's rows of every batch, int32 [iterations][rows, length + 1]."""
    text = np.load(options.tokens)
    generator = np.random.default_rng(options.seed)
    places = np.arange(options.length + 1)
    found = []
    for _ in range(options.iterations):
        starts = generator.integers(len(text) - len(places), size=options.batch)
        if options.permute:
            starts = starts[::-1]
        found.append(text[starts[options.rank :: options.size, None] + places])
    return found


def main() -> None:
    options = parse()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    peer = peers.start(options)
    with peer.scope():
        variables = make_variables(options)
        optimizer = OPTIMIZERS[options.optimizer]()
    trained = list(variables.values())

    def local_step(words: Any) -> Any:
        with peer.tape(tf.GradientTape()) as tape:
            loss = loss_of(variables, words)
            scaled = peer.loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, trained), trained))
        return loss

    @tf.function
    def step(words: Any) -> Any:
        return peer.run(local_step, (words,))

    losses, seconds = [], []
    for words in batches(options):
        begin = time.perf_counter()
        loss = step(tf.constant(words))
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)

    path = peer.checkpoint_path(options.folder / "final", options.rank)
    if path is not None:
        tf.train.Checkpoint(**variables).write(str(path))
    values = [peer.local(variable).numpy() for variable in trained]
    result = {
        "losses": losses,
        "seconds": seconds,
        "affinity": sorted(os.sched_getaffinity(0)),
        "digests": [digest(value) for value in values],
    }
    (options.folder / f"result.{options.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
