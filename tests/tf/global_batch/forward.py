"""Models and steps that mix the samples of a batch, and others that do not: prints the results.

Arguments: tf_keras, eager; names of cases, default all. One process and N ranks run the same code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, keras_of, result, single_threaded_ops

keras: Any = keras_of(sys.argv)
layers: Any = keras.layers
LEGACY, EAGER = "tf_keras" in sys.argv, "eager" in sys.argv
drawn = np.random.default_rng(0)
X = drawn.normal(size=(48, 8)).astype(np.float32)
Y = (np.tanh(X @ drawn.normal(size=(8, 1))) > 0).astype(np.float32)
IDS, ACTIONS = drawn.integers(0, 9, size=(48, 2)), drawn.integers(0, 3, size=48)
UNEVEN = 45


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {name: encode(np.asarray(value, np.float32)) for name, value in values.items()}


def used(model: Any, x: np.ndarray = X, samples: int = 48) -> dict[str, Any]:
    """Runs fit, with validation, and predict in batches, which determine what is mixed."""
    metrics = ["mae", *([] if LEGACY else [keras.metrics.TruePositives(name="positives")])]
    loss = "binary_crossentropy"
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, run_eagerly=EAGER)
    x, y = x[:samples], Y[:samples]
    options = {"batch_size": 16, "verbose": 0}
    fitted = model.fit(
        *(x, y),
        **{"validation_data": (x, y), "validation_batch_size": 16, "shuffle": False},
        **{**options, "epochs": 2},
    )
    weights = {f"weight {number}": value for number, value in enumerate(model.get_weights())}
    return numbers({**fitted.history, **weights, "predicted": model.predict(x, **options)})


class Recommender(keras.Model):
    """From keras.io; its tensordot also sums over users."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.movies = layers.Embedding(9, 4), layers.Embedding(9, 4)

    def call(self, x: Any) -> Any:
        users, movies = self.users(x[:, 0]), self.movies(x[:, 1])
        return tf.nn.sigmoid(tf.tensordot(users, movies, 2) + users[:, :1])


def recommender() -> dict[str, Any]:
    return used(Recommender(), IDS, UNEVEN)


class Flat(keras.Model):
    """Treats 16 samples as one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = layers.Dense(4, "tanh"), layers.Dense(16, "sigmoid")

    def call(self, x: Any) -> Any:
        return tf.reshape(self.out(tf.reshape(self.inner(x), [1, 64])), [16, 1])


def flat() -> dict[str, Any]:
    return used(Flat())


class Centered(layers.Layer):
    """Mixes samples in training only."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x - tf.reduce_mean(x, 0) if training else x


def centered() -> dict[str, Any]:
    inputs = keras.Input((8,))
    out = layers.Dense(1, "sigmoid")(Centered()(layers.Dense(6)(inputs)))
    return used(keras.Model(inputs, out), samples=UNEVEN)


class Heads(layers.Layer):
    """Turns a row into several and back; positions in a sequence are not samples."""

    def __init__(self) -> None:
        super().__init__()
        self.query = layers.Dense(8)

    def call(self, x: Any) -> Any:
        rows = tf.shape(x)[0]
        queries = self.query(tf.reshape(x, [rows, 4, 2]))
        heads = tf.transpose(tf.reshape(queries, [rows, 4, 2, 4]), [0, 2, 1, 3])
        scores = tf.nn.softmax(tf.matmul(heads, heads, transpose_b=True))
        both = tf.transpose(tf.matmul(scores, heads), [0, 2, 1, 3])
        places = tf.cast(tf.range(tf.shape(both)[1]), tf.float32)
        return tf.reshape(both + 0.1 * places[None, :, None, None], [rows, 32])


class Attends(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = Heads(), layers.Dense(1, "sigmoid")

    def call(self, x: Any) -> Any:
        return self.out(self.heads(x))


def attends() -> dict[str, Any]:
    return used(Attends(), samples=UNEVEN)


class Hidden(keras.Model):
    """Mixes samples, which its last layer, initialized to zeros, hides at first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers.Dense(6, "tanh")
        self.out = layers.Dense(1, "sigmoid", kernel_initializer="zeros")

    def call(self, x: Any) -> Any:
        inner = self.inner(x)
        return self.out(inner * tf.tensordot(inner, inner, [[0], [0]])[:1])


def hidden() -> dict[str, Any]:
    return used(Hidden(), samples=UNEVEN)


def stateful() -> dict[str, Any]:
    """Needs whole batches because of its state; one process's masks, and metrics that count
    once."""
    if LEGACY:  # its states have another format
        return {}
    inputs = keras.Input(batch_shape=(16, 4, 2))
    inner = layers.Dropout(0.3)(layers.LSTM(4, stateful=True)(inputs))
    return used(keras.Model(inputs, layers.Dense(1, "sigmoid")(inner)), X.reshape(-1, 4, 2))


class Counts(layers.Layer):
    """Returns what its own metric has seen so far."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.metrics.Mean()

    def call(self, x: Any) -> Any:
        self.mean.update_state(x)
        return tf.reshape(self.mean.result(), [1])


def counted() -> dict[str, Any]:
    inputs = keras.Input((8,))
    model = keras.Model(inputs, Counts()(inputs))
    return numbers({"predicted": model.predict(X, batch_size=16, verbose=0)})


class Steps(keras.Model):
    """A model with a custom train_step, whose loss is `loss_of(q, x, actions)`."""

    def __init__(self, loss_of: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.q = keras.Sequential([keras.Input((8,)), layers.Dense(6, "tanh"), layers.Dense(3)])
        self.loss_of = loss_of

    def call(self, x: Any) -> Any:
        return self.q(x)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.q, data[0], tf.cast(data[1], tf.int32))
        weights = self.q.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"error": loss}


def stepped(loss_of: Callable[[Any, Any, Any], Any], steps: Any = Steps) -> dict[str, Any]:
    model = steps(loss_of)
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=EAGER)
    data = X[:UNEVEN], ACTIONS[:UNEVEN]
    history = model.fit(*data, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    weights = {f"weight {number}": value for number, value in enumerate(model.get_weights())}
    return numbers({**history, **weights})


def chosen() -> dict[str, Any]:
    """Like DQN: a sample's index selects its own row."""

    def loss_of(q: Any, x: Any, actions: Any) -> Any:
        places = tf.stack([tf.range(tf.shape(x)[0]), actions], 1)
        return tf.reduce_mean(tf.square(tf.gather_nd(q(x), places) - 1))

    return stepped(loss_of)


def numbered() -> dict[str, Any]:
    """The index of a sample in its batch is used as a time, or as a weight."""

    def loss_of(q: Any, x: Any, _: Any) -> Any:
        times = tf.cast(tf.range(tf.shape(x)[0]) % 10, tf.float32)[:, None] / 10
        return tf.reduce_mean(tf.square(q(x * (1 - times)) - 1))

    return stepped(loss_of)


def of_function() -> dict[str, Any]:
    """The contents of a tf.function cannot be analyzed, so the analysis tries it."""

    @tf.function
    def error(guess: Any) -> Any:
        return tf.reduce_mean(tf.square(guess - 1))

    return stepped(lambda q, x, _: error(q(x)))


def root_of_function() -> dict[str, Any]:
    @tf.function
    def error(guess: Any) -> Any:
        return tf.sqrt(tf.reduce_mean(tf.square(guess - 1)))

    return stepped(lambda q, x, _: error(q(x)))


def sum_of_function() -> dict[str, Any]:
    @tf.function
    def error(guess: Any) -> Any:
        return 0.05 * tf.reduce_sum(tf.square(guess - 1))

    return stepped(lambda q, x, _: error(q(x)))


class FunctionSteps(Steps):
    @tf.function
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def step_in_function() -> dict[str, Any]:
    """A function is analyzed when it is traced, and then the samples are its arguments."""
    return stepped(lambda q, x, _: tf.reduce_mean(tf.square(q(x) - 1)), FunctionSteps)


def numbered_in_function() -> dict[str, Any]:
    @tf.function
    def weights(x: Any) -> Any:
        return tf.cast(tf.range(tf.shape(x)[0]), tf.float32)

    def loss_of(q: Any, x: Any, _: Any) -> Any:
        return tf.reduce_mean(tf.reduce_sum(tf.square(q(x) - 1), 1) * weights(x))

    return stepped(loss_of)


def rolled() -> dict[str, Any]:
    """As in CutMix: a part of each sample is its neighbour's; the loss is Keras's own."""
    error = keras.losses.MeanSquaredError()

    def loss_of(q: Any, x: Any, _: Any) -> Any:
        other = tf.roll(x, 1, 0)
        cut = tf.concat([x[:, :5], other[:, 5:]], 1)
        return 0.7 * error(x[:, :3], q(cut)) + 0.3 * error(other[:, :3], q(cut))

    return stepped(loss_of)


def turned() -> dict[str, Any]:
    """Like MixUp, with the reversed batch."""
    error = keras.losses.MeanSquaredError()

    def loss_of(q: Any, x: Any, _: Any) -> Any:
        return error(x[:, :3], q(0.7 * x + 0.3 * x[::-1]))

    return stepped(loss_of)


@tf.custom_gradient
def clipped_back(x: Any) -> Any:
    """The backward pass clips by the norm over all samples."""
    return tf.identity(x), lambda upstream: tf.clip_by_norm(upstream, 0.02)


def own_gradient() -> dict[str, Any]:
    return stepped(lambda q, x, _: tf.reduce_mean(tf.square(clipped_back(q(x)) - 1)))


def own_gradient_in_functions() -> dict[str, Any]:
    function = tf.function(lambda x: tf.cond(tf.constant(True), lambda: clipped_back(x), lambda: x))
    return stepped(lambda q, x, _: tf.reduce_mean(tf.square(function(q(x)) - 1)))


def gradient_by_sample() -> dict[str, Any]:
    """TensorFlow also gives silu a custom gradient."""
    function = tf.function(tf.nn.silu)
    return stepped(lambda q, x, _: tf.reduce_mean(tf.square(function(tf.nn.silu(q(x))) - 1)))


class Private(keras.Model):
    """Like differential privacy: clips the gradients of microbatches one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.q = keras.Sequential([keras.Input((8,)), layers.Dense(3)])

    def call(self, x: Any) -> Any:
        return self.q(x)

    def train_step(self, data: Any) -> Any:
        weights = self.q.trainable_variables
        with tf.GradientTape(persistent=True) as tape:  # persistent for eager code
            losses = tf.reduce_mean(tf.square(self.q(data[0]) - 1), 1)
            groups = tf.reduce_mean(tf.reshape(losses, [4, -1]), 1)
        clipped = []
        for one in tape.jacobian(groups, weights, experimental_use_pfor=False):
            norms = tf.norm(tf.reshape(one, [4, -1]), axis=1)
            shape = [4] + [1] * (one.shape.rank - 1)
            clipped.append(tf.reduce_mean(one * tf.reshape(tf.minimum(1.0, 0.3 / norms), shape), 0))
        self.optimizer.apply_gradients(zip(clipped, weights))
        return {"error": tf.reduce_mean(losses)}


def private() -> dict[str, Any]:
    model = Private()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=EAGER)
    history = model.fit(X, ACTIONS, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return numbers({"error": history["error"], "weight": model.get_weights()[0]})


def asserted() -> dict[str, Any]:
    """A part of the batch cannot satisfy an assertion about the whole."""

    @tf.function
    def error(x: Any, guess: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_min(x), 9.0)]):
            return tf.reduce_mean(tf.square(guess - 1))

    return stepped(lambda q, x, _: error(x, q(x)))


def untold() -> dict[str, Any]:
    """A NumPy function: what cannot be analyzed gets the whole batch."""

    def loss_of(q: Any, x: Any, _: Any) -> Any:
        centered = tf.numpy_function(lambda v: v - v.mean(0), [x], tf.float32)
        return tf.reduce_mean(tf.square(q(tf.ensure_shape(centered, [None, 8])) - 1))

    return stepped(loss_of)


class Looks(keras.Model):
    """Reads a value of its samples, so it cannot be traced to a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.q = keras.Sequential([keras.Input((8,)), layers.Dense(3)])

    def call(self, x: Any) -> Any:
        return self.q(x)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.q(data[0]) - 1)) * float(data[0].numpy().std() > 0)
        weights = self.q.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"error": loss}


def looks() -> dict[str, Any]:
    model = Looks()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    data = X[:UNEVEN], ACTIONS[:UNEVEN]
    history = model.fit(*data, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    weights = {f"weight {number}": value for number, value in enumerate(model.get_weights())}
    return numbers({**history, **weights})


class OwnLoop(Looks):
    """Iterates over the batches itself."""

    def make_train_function(self, force: bool = False) -> Any:
        def function(iterator: Any) -> Any:
            return self.train_step(next(iterator))

        self.train_function = function
        return function


def own_loop() -> dict[str, Any]:
    model = OwnLoop()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    history = model.fit(X, ACTIONS, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return numbers({"error": history["error"], "weight": model.get_weights()[0]})


MIXED = (recommender, flat, centered, hidden, stateful, counted)
MIXED_STEPS = (
    *(numbered, root_of_function, numbered_in_function, rolled, turned),
    *(own_gradient, own_gradient_in_functions, private, step_in_function),
)
APART = (attends, chosen, of_function, sum_of_function, gradient_by_sample, asserted)
UNTOLD = (untold, looks, own_loop)
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    case.__name__: case for case in (*MIXED, *MIXED_STEPS, *APART, *UNTOLD)
}


def main() -> None:
    single_threaded_ops()
    chosen_cases = [name for name in sys.argv[1:] if name in CASES] or list(CASES)
    found = {}
    for name in chosen_cases:
        keras.utils.set_random_seed(1)
        print(f"CASE {name}", file=sys.stderr, flush=True)
        found[name] = CASES[name]()
    result(found)


if __name__ == "__main__":
    main()
