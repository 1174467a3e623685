"""What one step draws for each of its samples, with every function: prints it by call.

Arguments: where a step draws (layer, evaluate, predict, train_step, loss, loop, shard); tf_keras,
eager, jit; names of families or of draws, default all that the mode supports.

22 rows in batches of 10 leave 2 for the last batch, so that one of 3 ranks may have none. A row
contains its number, and the output is [number of the row, what was drawn for it], by call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras as keras_3
import numpy as np
import tensorflow as tf
from common import keras_of, result, single_threaded_ops

keras: Any = keras_of(sys.argv)
WORDS = set(sys.argv[1:])
LEGACY, EAGER, JIT = ("tf_keras" in WORDS, "eager" in WORDS, "jit" in WORDS)
ROWS, BATCH, EPOCHS, WIDE = 22, 10, 2, 3
X = np.arange(ROWS, dtype=np.float32)[:, None] * np.ones(WIDE, np.float32)
K: Any = keras_3.random
Draw = Callable[[Any, Any], Any]  # (rows of X, object that holds its state) -> by sample


def rows(x: Any) -> Any:
    return tf.shape(x)[0]


def turned(value: Any) -> Any:
    """Turns [t, samples, ...] into values by sample."""
    rest = range(2, len(value.shape))
    return tf.transpose(value, [1, 0, *rest])


# keras.random with a generator that the step holds
KERAS: dict[str, Draw] = {
    "normal": lambda x, s: K.normal((rows(x), 3), seed=s),
    "normal of shape": lambda x, s: K.normal(tf.shape(x), seed=s),
    "uniform": lambda x, s: K.uniform((rows(x), 5), -1, 2, seed=s),
    "truncated": lambda x, s: K.truncated_normal((rows(x), 2, 3), seed=s),
    "randint": lambda x, s: K.randint((rows(x), 3), 0, 10**6, seed=s),
    "gamma": lambda x, s: K.gamma((rows(x), 3), 0.7, seed=s),
    "gamma of rows": lambda x, s: K.gamma((rows(x), 3), 1 + x[:, :1] + tf.zeros([3]), seed=s),
    "binomial": lambda x, s: K.binomial((rows(x), 3), 9.0, 0.4, seed=s),
    "beta": lambda x, s: K.beta((rows(x), 2), 0.5, 2.0, seed=s),
    "categorical": lambda x, s: K.categorical(tf.zeros((rows(x), 1000)), 3, seed=s),
    "categorical of rows": lambda x, s: K.categorical(tf.concat([x, -x], 1), 4, seed=s),
    "dropout": lambda x, s: K.dropout(x + 1, 0.5, seed=s),
    "dropout of one": lambda x, s: K.dropout(x[:, None] + tf.ones((8, 1)), 0.5, (None, 8, 1), s),
    "dropout of all": lambda x, s: K.dropout(x[:, None] + tf.ones((8, 1)), 0.5, (1, 8, 3), s),
    "shuffle of a sample": lambda x, s: K.shuffle(x + tf.range(3.0), axis=1, seed=s),
    "half": lambda x, s: K.normal((rows(x), 3), dtype="float16", seed=s),
    "bfloat16": lambda x, s: K.uniform((rows(x), 3), dtype="bfloat16", seed=s),
    "double": lambda x, s: K.normal((rows(x), 3), dtype="float64", seed=s),
    "global": lambda x, s: K.normal((rows(x), 3)),
    "number": lambda x, s: K.normal((rows(x), 3), seed=11),
    "by hand": lambda x, s: tf.random.stateless_normal([rows(x), 3], s.next()),
}
# For all samples of a batch together, or with ops that cannot be analyzed: ranks have whole
# batches.
KERAS_TOGETHER: dict[str, Draw] = {"shuffle": lambda x, s: K.shuffle(x, seed=s)}

# TensorFlow's kernels with a seed of the op; the global seed is also set
OPS: dict[str, Draw] = {
    "normal": lambda x, _: tf.random.normal([rows(x), 3], seed=1),
    "normal of shape": lambda x, _: tf.random.normal(tf.shape(x), 1.0, 2.0, seed=2),
    "no seed": lambda x, _: tf.random.normal([rows(x), 3]),
    "uniform": lambda x, _: tf.random.uniform([rows(x), 5], -1, 2, seed=3),
    "uniform of rows": lambda x, _: tf.random.uniform([rows(x), 3], x, x + 1, seed=3),
    "int": lambda x, _: tf.random.uniform([rows(x), 3], 0, 10**6, tf.int32, seed=4),
    "long": lambda x, _: tf.random.uniform([rows(x)], 0, 10**6, tf.int64, seed=5),
    "truncated": lambda x, _: tf.random.truncated_normal([rows(x), 7], seed=6),
    "gamma": lambda x, _: tf.random.gamma([rows(x)], [0.5, 2.0], seed=7),
    "gamma of rows": lambda x, _: tf.random.gamma([], 0.5 + x, seed=8),
    "gamma, turned": lambda x, _: turned(tf.random.gamma([4], 0.5 + x, seed=9)),
    "poisson": lambda x, _: tf.random.poisson([rows(x)], [5.0, 50.0], seed=10),
    "poisson of rows": lambda x, _: tf.random.poisson([], 0.5 + x, seed=11),
    "poisson, turned": lambda x, _: turned(tf.random.poisson([4], 0.5 + x, seed=12)),
    "categorical": lambda x, _: tf.random.categorical(tf.zeros([rows(x), 1000]), 3, seed=13),
    "categorical of rows": lambda x, _: tf.random.categorical(tf.concat([x, -x], 1), 4, seed=13),
    "dropout": lambda x, _: tf.nn.dropout(x + 1, 0.5, seed=14),
    "dropout of one": lambda x, _: tf.nn.dropout(
        x[:, None] + tf.ones((8, 1)), 0.5, [rows(x), 8, 1], seed=15
    ),
    "dropout of all": lambda x, _: tf.nn.dropout(
        x[:, None] + tf.ones((8, 1)), 0.5, [1, 8, 3], seed=16
    ),
    "half": lambda x, _: tf.random.normal([rows(x), 3], dtype=tf.float16, seed=17),
    "bfloat16": lambda x, _: tf.random.uniform([rows(x), 3], dtype=tf.bfloat16, seed=18),
    "double": lambda x, _: tf.random.normal([rows(x), 3], dtype=tf.float64, seed=19),
    "for all": lambda x, _: x + tf.random.normal([3], seed=21) + tf.random.uniform([], seed=22),
}
OPS_TOGETHER: dict[str, Draw] = {
    "parameterized": lambda x, _: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=tf.shape(x), means=[0.0], stdevs=[1.0], minvals=[-1.0], maxvals=[2.0], seed=20
    ),
    "shuffle": lambda x, _: tf.random.shuffle(x, seed=23),
}

GENERATOR: dict[str, Draw] = {
    "normal": lambda x, g: g.normal([rows(x), 3]),
    "uniform": lambda x, g: g.uniform([rows(x), 5], -1, 2),
    "int": lambda x, g: g.uniform([rows(x), 3], 0, 10**6, tf.int32),
    "full": lambda x, g: g.uniform_full_int([rows(x), 3], tf.int64),
    "truncated": lambda x, g: g.truncated_normal([rows(x), 3]),
    "binomial": lambda x, g: g.binomial([rows(x), 3], 9.0, 0.4),
    "double": lambda x, g: g.normal([rows(x), 3], dtype=tf.float64),
    "half": lambda x, g: g.uniform([rows(x), 3], dtype=tf.float16),
    "seeds": lambda x, g: tf.transpose(g.make_seeds(rows(x))),
    "for all": lambda x, g: x + g.normal([3]),
    "threefry": lambda x, g: g.normal([rows(x), 3]),
}

SEED = (5, 6)
S: Any = tf.random
STATELESS: dict[str, Draw] = {
    "normal": lambda x, n: S.stateless_normal([rows(x), 3], SEED),
    "by step": lambda x, n: S.stateless_normal([rows(x), 3], tf.stack([n, 6])),
    "folded": lambda x, n: S.stateless_normal(
        [rows(x), 3], S.experimental.stateless_fold_in(SEED, n)
    ),
    "split": lambda x, n: S.stateless_uniform([rows(x), 3], S.split(SEED, 2)[1]),
    "uniform": lambda x, n: S.stateless_uniform([rows(x), 5], SEED, -1, 2),
    "int": lambda x, n: S.stateless_uniform([rows(x), 3], SEED, 0, 10**6, tf.int32),
    "full": lambda x, n: S.stateless_uniform([rows(x), 3], SEED, None, None, tf.int64),
    "truncated": lambda x, n: S.stateless_truncated_normal([rows(x), 3], SEED),
    "parameterized": lambda x, n: S.stateless_parameterized_truncated_normal(
        [rows(x), 3], SEED, 0.0, 1.0, -1.0, 2.0
    ),
    "gamma": lambda x, n: S.stateless_gamma([rows(x), 3], SEED, 0.7),
    "gamma of rows": lambda x, n: S.stateless_gamma([rows(x), 3], SEED, 0.5 + x),
    "poisson": lambda x, n: S.stateless_poisson([rows(x), 3], SEED, 5.0),
    "binomial": lambda x, n: S.stateless_binomial([rows(x), 3], SEED, 9.0, 0.4),
    "categorical": lambda x, n: S.stateless_categorical(tf.zeros([rows(x), 1000]), 3, SEED),
    "dropout": lambda x, n: tf.nn.experimental.stateless_dropout(x + 1, 0.5, SEED),
    "threefry": lambda x, n: S.stateless_normal([rows(x), 3], SEED, alg="threefry"),
    "half": lambda x, n: S.stateless_normal([rows(x), 3], SEED, dtype=tf.float16),
    "double": lambda x, n: S.stateless_uniform([rows(x), 3], SEED, dtype=tf.float64),
    "flips": lambda x, n: tf.image.stateless_random_flip_left_right(
        x[:, None, :, None] + tf.range(3.0)[:, None], SEED
    ),
    "for all": lambda x, n: x + S.stateless_normal([3], SEED),
}
STATELESS_TOGETHER: dict[str, Draw] = {
    "seed of each row": lambda x, n: tf.map_fn(
        lambda i: S.stateless_normal([3], tf.stack([i, 4])),
        tf.cast(x[:, 0], tf.int32),
        fn_output_signature=tf.float32,
    ),
    "index": lambda x, n: S.experimental.index_shuffle(
        tf.cast(x[:, 0], tf.int32), tf.constant([1, 2], tf.uint32), ROWS
    ),
    "shuffle": lambda x, n: S.experimental.stateless_shuffle(x, SEED),
}

# The position of the samples in what is drawn; with a generator, as above
SHAPES: dict[str, Draw] = {
    "one": lambda x, s: K.normal((rows(x),), seed=s),
    "one each": lambda x, s: K.normal((rows(x), 1, 1), seed=s) * tf.ones((4, 2)),
    "times, folded": lambda x, s: tf.reshape(K.normal((rows(x) * 4, 2), seed=s), [-1, 4, 2]),
    "times first": lambda x, s: turned(K.normal((4, rows(x), 2), seed=s)),
    "two views": lambda x, s: turned(
        tf.reshape(tf.tile(x, [2, 1]) + K.normal((2 * rows(x), 3), seed=s), [2, -1, 3])
    ),
    "last": lambda x, s: tf.transpose(K.normal((3, rows(x)), seed=s)),
    "by size": lambda x, s: tf.reshape(K.normal((tf.size(x),), seed=s), tf.shape(x)),
    "for all": lambda x, s: x + K.normal((1, 3), seed=s),
    "as many as a batch": lambda x, s: x[:, :1] + K.normal((BATCH,), seed=s),
    "in a branch": lambda x, s: tf.cond(
        tf.random.uniform([], seed=41) > 2, lambda: x, lambda: S.stateless_normal(tf.shape(x), SEED)
    ),
    "given on": lambda x, s: (
        x + S.stateless_normal(tf.shape(x), tf.cast(K.randint((2,), 0, 99, seed=s), tf.int32))
    ),
}
SHAPES_EVEN: dict[str, Draw] = {
    "in a function": lambda x, s: tf.function(lambda v: S.stateless_normal(tf.shape(v), SEED))(x),
}
SHAPES_TOGETHER: dict[str, Draw] = {
    "function that goes on": lambda x, s: tf.function(lambda v: K.normal(tf.shape(v), seed=s))(x),
    "in a loop": lambda x, s: tf.while_loop(
        lambda i, _: i < 3,
        lambda i, v: (i + 1, v + S.stateless_normal(tf.shape(x), tf.stack([i, 9]))),
        (0, x),
    )[1],
    "branch that goes on": lambda x, s: tf.cond(
        tf.random.uniform([], seed=41) > 2, lambda: x, lambda: K.normal(tf.shape(x), seed=s)
    ),
    "two halves": lambda x, s: turned(tf.reshape(K.normal((2 * rows(x), 3), seed=s), [2, -1, 3])),
    "times first, folded": lambda x, s: turned(
        tf.reshape(K.normal((4 * rows(x), 2), seed=s), [4, -1, 2])
    ),
    "pairs": lambda x, s: tf.reduce_sum(K.normal((rows(x), rows(x)), seed=s), 1),
    "permuted": lambda x, s: tf.gather(x, tf.argsort(S.stateless_uniform([rows(x)], SEED))),
    "mapped": lambda x, s: tf.map_fn(  # sequentially, with a kernel's own state
        lambda row: row + tf.random.normal([3], seed=31), x, parallel_iterations=1
    ),
}
FAMILIES = {
    "keras": KERAS,
    "keras together": KERAS_TOGETHER,
    "ops": OPS,
    "ops together": OPS_TOGETHER,
    "generator": GENERATOR,
    "stateless": STATELESS,
    "stateless together": STATELESS_TOGETHER,
    "shapes": SHAPES,
    "shapes of even parts": SHAPES_EVEN,
    "shapes together": SHAPES_TOGETHER,
}
# Draws without an XLA kernel.
NOT_COMPILED = {
    "keras": {"gamma", "gamma of rows", "binomial", "beta"},
    "ops": {"gamma", "gamma of rows", "gamma, turned", "poisson", "poisson of rows",
            "poisson, turned", "parameterized"},
    "generator": {"binomial"},
    "stateless": {"gamma", "gamma of rows", "poisson", "binomial", "index"},
}  # fmt: skip


def chosen() -> dict[str, tuple[str, Draw]]:
    """By full name: (family, draw)."""
    found = {}
    for family, draws in FAMILIES.items():
        for name, draw in draws.items():
            if name in NOT_COMPILED.get(family, ()) if JIT else name == "threefry":
                continue
            named = {family, f"{family}: {name}"} & WORDS
            if named:
                found[f"{family}: {name}"] = family, draw
    return found


class Drawer:
    """Draws for the rows that it gets and records the results."""

    def __init__(self, where: str) -> None:
        self.draws = chosen()
        self.where = where
        self.calls: list[dict[str, Any]] = []
        self.count = tf.Variable(0, trainable=False, dtype=tf.int32)
        self.held: dict[str, Any] = {}
        for number, (name, (family, _)) in enumerate(self.draws.items()):
            if family.startswith(("keras", "shapes")):
                self.held[name] = K.SeedGenerator(number)
            elif family == "generator":
                threefry = name.endswith("threefry")
                algorithm = "threefry" if threefry else "philox"
                self.held[name] = tf.random.Generator.from_seed(number, alg=algorithm)
            elif family.startswith("stateless"):
                self.held[name] = self.count

    def __call__(self, x: Any) -> Any:
        """[samples, everything drawn]."""
        count = tf.identity(self.count)
        drawn = []
        for name, (_, draw) in self.draws.items():
            held = self.held.get(name)
            value = draw(x, count if held is self.count else held)
            value = tf.reshape(value, [rows(x), int(np.prod(value.shape[1:]))])
            drawn.append(value)
        self.count.assign_add(1)
        if not JIT:
            tf.numpy_function(self.note, [x[:, 0], *drawn], tf.float32)
        return tf.concat([tf.cast(value, tf.float32) for value in drawn], 1)

    def note(self, number: Any, *drawn: Any) -> Any:
        call: dict[str, Any] = {"rows": [int(one) for one in number]}
        for name, value in zip(self.draws, drawn):
            value = np.ascontiguousarray(value)
            call[name] = [row.tobytes().hex() for row in value]
        self.calls.append(call)
        return np.float32(0)


class Draws(keras.layers.Layer):
    """A layer whose output for a sample is what it drew for it, regardless of `training`."""

    def __init__(self, drawer: Drawer) -> None:
        super().__init__()
        self.drawer = drawer
        for name, held in drawer.held.items():  # so that Keras tracks generators
            if isinstance(held, K.SeedGenerator) and not LEGACY:
                setattr(self, name, held)

    def call(self, x: Any) -> Any:
        return self.drawer(x)


class Sums(keras.layers.Layer):
    """The drawn numbers of each row are its gradient, so the final weights contain them."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(ROWS, int(shape[1][-1])), initializer="zeros", name="t")

    def call(self, inputs: Any) -> Any:
        x, drawn = inputs
        own = tf.one_hot(tf.cast(x[:, 0], tf.int32), ROWS) @ self.table
        return tf.reduce_sum(own * tf.stop_gradient(drawn), 1, keepdims=True)


class InStep(keras.Model):
    """A train_step that draws."""

    drawer: Any = None

    def train_step(self, data: Any) -> Any:
        if self.drawer is not None:
            self.drawer(data[0])
        return super().train_step(data)


def model_of(where: str, drawer: Drawer) -> Any:
    x = keras.Input((WIDE,))
    drawn = Draws(drawer)(x) if where in ("layer", "evaluate", "predict", "callback") else x
    y = Sums()([x, drawn])
    model = InStep(x, drawn if where == "predict" else y)
    model.drawer = drawer if where == "train_step" else None

    def loss(number: Any, guess: Any) -> Any:
        if where == "loss":
            drawer(tf.tile(number, [1, WIDE]))
        return guess

    options = {"run_eagerly": EAGER, "jit_compile": JIT}
    model.compile(keras.optimizers.SGD(float(BATCH)), loss, **options)
    return model


def in_keras(where: str) -> dict[str, Any]:
    drawer = Drawer(where)
    model = model_of(where, drawer)
    options = {"batch_size": BATCH, "verbose": 0}
    found: dict[str, Any] = {}
    if where == "evaluate":
        for _ in range(EPOCHS):
            model.evaluate(X, X[:, :1], **options)
    elif where == "predict":
        found["predicted"] = [model.predict(X, **options).tolist() for _ in range(EPOCHS)]
    else:
        model.fit(X, X[:, :1], shuffle=False, epochs=EPOCHS, **options)
        found["weights"] = [weight.tolist() for weight in model.get_weights()]
    return {"calls": drawer.calls, **found}


def in_loop(where: str) -> dict[str, Any]:
    """A custom loop; `loop`: over a dataset that TF_MPI_SHARD divides."""
    drawer = Drawer(where)
    weight = tf.Variable(tf.zeros([WIDE]))

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            drawer(x)
            loss = tf.reduce_mean(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build([weight])
    run = step if EAGER else tf.function(step, jit_compile=JIT, reduce_retracing=True)
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(BATCH)
    if where == "shard":
        dataset = tf.mpi.shard(dataset) if hasattr(tf, "mpi") else dataset
    for _ in range(EPOCHS):
        for x in dataset:
            run(x)
    return {"calls": drawer.calls, "weights": [weight.numpy().tolist()]}


def main() -> None:
    single_threaded_ops(inter_op=2)
    keras.utils.set_random_seed(1)
    (where,) = WORDS & {"layer", "evaluate", "predict", "train_step", "loss", "loop", "shard"}
    result(in_loop(where) if where in ("loop", "shard") else in_keras(where))


if __name__ == "__main__":
    main()
