"""Prints the kinds of losses and metrics as people write them; on one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from common import result
from tensorflow.mpi._src.global_batch import kinds, losses

ops = keras.ops
WIDE, IMAGES = tf.TensorSpec([None, 16]), tf.TensorSpec([None, 8, 8, 1])
FLAT, ONE = tf.TensorSpec([None]), tf.TensorSpec([None, 1])
LONG = tf.TensorSpec([None, None])


def dice(y: Any, guess: Any) -> Any:
    both = tf.reduce_sum(y * guess)
    return 1 - (2 * both + 1) / (tf.reduce_sum(y) + tf.reduce_sum(guess) + 1)


def barlow(a: Any, b: Any) -> Any:
    a = (a - tf.reduce_mean(a, 0)) / tf.math.reduce_std(a, 0)
    b = (b - tf.reduce_mean(b, 0)) / tf.math.reduce_std(b, 0)
    both = tf.matmul(a, b, transpose_a=True) / tf.cast(tf.shape(a)[0], tf.float32)
    return tf.reduce_sum(tf.square(both - tf.eye(16)))


def contrastive(a: Any, b: Any) -> Any:
    near = tf.matmul(tf.math.l2_normalize(a, 1), tf.math.l2_normalize(b, 1), transpose_b=True)
    labels = tf.range(tf.shape(a)[0])
    found = keras.losses.sparse_categorical_crossentropy(labels, near, from_logits=True)
    return tf.reduce_mean(found)


def focal(y: Any, guess: Any) -> Any:
    guess = tf.clip_by_value(guess, 1e-7, 1 - 1e-7)
    right = tf.where(tf.equal(y, 1), guess, 1 - guess)
    return -tf.reduce_mean(0.25 * tf.pow(1 - right, 2) * tf.math.log(right))


def over_mask(y: Any, guess: Any) -> Any:
    mask = tf.cast(y > 0, tf.float32)
    return tf.reduce_sum(tf.square(y - guess) * mask) / tf.reduce_sum(mask)


def triplet(y: Any, guess: Any) -> Any:
    near = tf.reduce_sum(tf.square(guess[:, :8] - guess[:, 8:]), -1)
    return tf.reduce_mean(tf.maximum(near - tf.reduce_sum(tf.square(y), -1) + 0.2, 0.0))


def divergence(mean: Any, log: Any) -> Any:
    return tf.reduce_mean(tf.reduce_sum(-0.5 * (1 + log - tf.square(mean) - tf.exp(log)), axis=1))


def r_squared(y: Any, guess: Any) -> Any:
    spread = tf.reduce_sum(tf.square(y - tf.reduce_mean(y)))
    return 1 - tf.reduce_sum(tf.square(y - guess)) / spread


def shifted(y: Any, guess: Any) -> Any:
    return tf.reduce_mean(tf.square(y - guess) + 0.1 * tf.reduce_mean(tf.square(y)))


def square(y: Any, guess: Any) -> Any:
    return tf.square(y - guess)


def chosen(y: Any, guess: Any) -> Any:
    """Each row's element of the column that `y` says."""
    places = tf.stack([tf.range(tf.shape(y)[0]), tf.cast(y[:, 0], tf.int32)], 1)
    return tf.reduce_mean(tf.square(tf.gather_nd(guess, places)))


def by_number(y: Any, guess: Any) -> Any:
    numbers = tf.cast(tf.range(tf.shape(y)[0]), tf.float32)
    return tf.reduce_mean(tf.reduce_sum(square(y, guess), -1) * numbers)


def by_place(y: Any, guess: Any) -> Any:
    """In a row: places in it are no samples."""
    return tf.reduce_mean(square(y, guess) * tf.cast(tf.range(tf.shape(y)[1]), tf.float32))


FUNCTIONS: dict[str, dict[str, tuple[Callable[..., Any], Any, Any]]] = {
    "MEAN": {
        "mean": (lambda y, p: tf.reduce_mean(square(y, p)), ONE, ONE),
        "sum by size": (
            lambda y, p: tf.reduce_sum(square(y, p)) / tf.cast(tf.shape(y)[0], tf.float32),
            *(WIDE, WIDE),
        ),
        "sum times inverse": (
            lambda y, p: tf.reduce_sum(square(y, p)) * (1 / tf.cast(tf.shape(y)[0], tf.float32)),
            *(WIDE, WIDE),
        ),
        "of flattened": (lambda y, p: ops.mean(ops.abs(ops.ravel(y) - ops.ravel(p))), WIDE, WIDE),
        "of images": (
            lambda y, p: tf.reduce_mean(tf.abs(tf.reshape(y, [-1, 64]) - tf.reshape(p, [-1, 64]))),
            *(IMAGES, IMAGES),
        ),
        "focal": (focal, WIDE, WIDE),
        "triplet": (triplet, WIDE, WIDE),
        "chosen": (chosen, WIDE, WIDE),
        "by place": (by_place, LONG, LONG),
        "divergence": (divergence, WIDE, WIDE),
        "shifted": (shifted, WIDE, WIDE),
        "quantile": (
            lambda y, p: tf.reduce_mean(tf.maximum(0.9 * (y - p), -0.1 * (y - p))),
            *(WIDE, WIDE),
        ),
        "log-sum-exp": (lambda y, p: tf.reduce_mean(tf.reduce_logsumexp(y - p, -1)), WIDE, WIDE),
    },
    "ROWS": {
        "rows": (lambda y, p: tf.reduce_mean(square(y, p), -1), WIDE, WIDE),
        "likelihood": (lambda y, p: -tf.reduce_sum(y * tf.nn.log_softmax(p), -1), WIDE, WIDE),
        "dice of images": (
            lambda y, p: keras.losses.dice(y, p, axis=(1, 2, 3)),
            *(IMAGES, IMAGES),
        ),
    },
    "SUM": {
        "sum": (lambda y, p: tf.reduce_sum(square(y, p)), WIDE, WIDE),
        "of a fixed size": (
            lambda y, p: tf.nn.compute_average_loss(
                tf.reduce_sum(square(y, p), -1), global_batch_size=32
            ),
            *(WIDE, WIDE),
        ),
    },
    "LINEAR": {
        "sum and mean": (
            lambda y, p: tf.reduce_sum(y - p) + tf.reduce_mean(square(y, p)),
            *(WIDE, WIDE),
        ),
    },
    "RATIO": {
        "over a mask": (over_mask, WIDE, WIDE),
    },
    "MIXED": {
        "root": (lambda y, p: ops.sqrt(ops.mean(ops.square(y - p))), WIDE, WIDE),
        "log of mean": (lambda y, p: tf.math.log(tf.reduce_mean(tf.exp(y - p))), WIDE, WIDE),
        "by number": (by_number, WIDE, WIDE),
        "products of rows": (lambda y, p: tf.matmul(y, p), LONG, WIDE),
        "rows made one": (lambda y, p: tf.reshape(y - p, [1, 64]), WIDE, WIDE),
        "largest": (lambda y, p: tf.reduce_max(tf.abs(y - p)), WIDE, WIDE),
        "dice": (dice, WIDE, WIDE),
        "dice in another function": (tf.function(dice), WIDE, WIDE),
        "Keras's dice": (keras.losses.dice, IMAGES, IMAGES),
        "of some": (
            lambda y, p: tf.reduce_mean(tf.boolean_mask(square(y, p), y > 0)),
            *(WIDE, WIDE),
        ),
        "contrastive": (contrastive, WIDE, WIDE),
        "barlow twins": (barlow, WIDE, WIDE),
        "distances": (lambda y, p: tf.norm(p[:, None] - p[None], axis=-1), WIDE, WIDE),
        "r squared": (r_squared, WIDE, WIDE),
        "broadcast": (lambda y, p: tf.reduce_mean(square(y, p)), FLAT, ONE),
        "across samples": (
            lambda y, p: keras.losses.cosine_similarity(y, p, axis=0),
            *(WIDE, WIDE),
        ),
    },
    "UNKNOWN": {
        "similarity": (lambda y, p: tf.reduce_mean(tf.image.ssim(y, p, 1.0)), IMAGES, IMAGES),
    },
}


def listed() -> dict[str, str]:
    """Of the functions of Keras's own that global_batch/losses.py takes for granted."""
    found = {}
    several, few = tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])
    for name in sorted(losses._BY_SAMPLE):
        function = getattr(keras.losses, name, None) or getattr(keras.metrics, name, None)
        # These look whether all labels of a batch are 0 or 1: of data that is mixed so.
        if function is None or name in ("hinge", "squared_hinge", "ctc"):
            continue
        y = few if name.startswith("sparse") else several
        found[name] = kinds.of_function(function, [y, several]).name
    return found


def of_static_rows(function: Callable[[Any], Any]) -> str:
    """Of 8 rows, as the shape says: what they are divided by comes as a constant."""

    @tf.function
    def traced(x: Any) -> Any:
        return function(x)

    concrete = traced.get_concrete_function(tf.TensorSpec([8, 16]))
    (rows,) = concrete.inputs
    known = {kinds.key(rows): kinds.Kind.ROWS}
    return kinds.Analysis(known, 8).kind(concrete.outputs[0]).name


STATIC: dict[str, dict[str, Callable[[Any], Any]]] = {
    "MEAN": {
        "by tf.shape, as tf_keras's activity regularizers": lambda x: tf.math.divide_no_nan(
            tf.nn.l2_loss(x), tf.cast(tf.shape(x)[0], x.dtype)
        ),
        "by its inverse": lambda x: tf.reduce_sum(x) * (1 / tf.cast(tf.shape(x)[0], x.dtype)),
        "by the shape": lambda x: tf.reduce_sum(x) / x.shape[0],
        "by tf.size": lambda x: tf.reduce_sum(x) / tf.cast(tf.size(x), x.dtype),
    },
    "SUM": {
        "sum": tf.reduce_sum,
        "by another dimension": lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[1], x.dtype),
    },
}


def main() -> None:
    static = {
        kind: {name: of_static_rows(function) for name, function in functions.items()}
        for kind, functions in STATIC.items()
    }
    found = {
        kind: {
            name: kinds.of_function(function, arguments).name
            for name, (function, *arguments) in functions.items()
        }
        for kind, functions in FUNCTIONS.items()
    }
    result({"found": found, "static": static, "listed": listed()})


if __name__ == "__main__":
    main()
