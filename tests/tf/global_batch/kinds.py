"""Prints the kinds of common losses and metrics, and whether their values agree.

Runs on one process. For each mean, sum, quotient or rows of samples, computes the value of a batch
and of its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import result
from tensorflow.mpi._src.global_batch import kinds
from tensorflow.mpi._src.global_batch.sites import Draw

ops = keras.ops
WIDE, IMAGES = tf.TensorSpec([None, 16]), tf.TensorSpec([None, 8, 8, 1])
FLAT, ONE = tf.TensorSpec([None]), tf.TensorSpec([None, 1])
LONG = tf.TensorSpec([None, None])


def drawn(shape: Any, factor: int = 1) -> Any:
    """A draw in the form that random/own_rows.py gives it in a step."""
    return kinds.draw_marked(lambda: tf.random.uniform(shape), Draw("uniform", 2, 0, factor))


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
    """Each row's element in the column that `y` selects."""
    places = tf.stack([tf.range(tf.shape(y)[0]), tf.cast(y[:, 0], tf.int32)], 1)
    return tf.reduce_mean(tf.square(tf.gather_nd(guess, places)))


def by_number(y: Any, guess: Any) -> Any:
    numbers = tf.cast(tf.range(tf.shape(y)[0]), tf.float32)
    return tf.reduce_mean(tf.reduce_sum(square(y, guess), -1) * numbers)


def by_place(y: Any, guess: Any) -> Any:
    """Within a row, where positions are not samples."""
    return tf.reduce_mean(square(y, guess) * tf.cast(tf.range(tf.shape(y)[1]), tf.float32))


def in_turns(y: Any, guess: Any) -> Any:
    """A recurrent network's loop over positions in a row."""
    state = tf.zeros([tf.shape(y)[0], 4])
    found = tf.TensorArray(tf.float32, 4)
    for turn in tf.range(4):
        state = tf.tanh(state + guess[:, :4] * tf.cast(turn, tf.float32))
        found = found.write(turn, state)
    return tf.reduce_mean(tf.square(tf.transpose(found.stack(), [1, 0, 2])[:, -1] - y[:, :4]))


def until_small(y: Any, guess: Any) -> Any:
    """Loops as often as the largest sample needs."""
    while tf.reduce_max(tf.abs(guess)) > 0.1:
        guess = guess / 2
    return tf.reduce_mean(guess)


def turned_in_turns(y: Any, guess: Any) -> Any:
    """The first iteration leaves `found` unchanged; later ones mix samples."""
    found = y
    for _ in tf.range(3):
        found, guess = guess, guess[::-1]
    return tf.reduce_mean(y * found)


def one_by_one(y: Any, guess: Any) -> Any:
    found = tf.TensorArray(tf.float32, tf.shape(y)[0])
    for sample in tf.range(tf.shape(y)[0]):
        found = found.write(sample, tf.reduce_max(y[sample] * guess[sample]))
    return tf.reduce_mean(found.stack())


def carried(y: Any, guess: Any) -> Any:
    """State carried from sample to sample."""
    return tf.reduce_mean(tf.scan(lambda last, one: last / 2 + one, y * guess))


def carried_from_zero(y: Any, guess: Any) -> Any:
    start = tf.zeros([16])
    return tf.reduce_mean(tf.scan(lambda last, one: last / 2 + one, y * guess, start))


def fading(y: Any, guess: Any) -> Any:
    """A constant that changes from sample to sample."""
    found = tf.TensorArray(tf.float32, tf.shape(y)[0])
    factor = tf.constant(1.0)
    for sample in tf.range(tf.shape(y)[0]):
        found = found.write(sample, factor * tf.reduce_max(y[sample] * guess[sample]))
        factor *= 0.9
    return tf.reduce_mean(found.stack())


def until_large(y: Any, guess: Any) -> Any:
    """A loop over samples that one of them may end."""
    found = tf.TensorArray(tf.float32, tf.shape(y)[0])
    for sample in tf.range(tf.shape(y)[0]):
        largest = tf.reduce_max(y[sample] * guess[sample])
        found = found.write(sample, largest)
        if largest > 2:
            break
    return tf.reduce_mean(found.stack())


def at_most_five(y: Any, guess: Any) -> Any:
    def step(sample: Any, found: Any) -> Any:
        return sample + 1, found.write(sample, tf.reduce_max(y[sample] * guess[sample]))

    def within(sample: Any, found: Any) -> Any:
        return sample < tf.shape(y)[0]

    found = tf.TensorArray(tf.float32, tf.shape(y)[0])
    _, found = tf.while_loop(within, step, (0, found), maximum_iterations=5)
    return tf.reduce_mean(found.stack())


def penalty(y: Any, guess: Any) -> Any:
    """A penalty on gradients with respect to samples, as in WGAN-GP."""
    kernel = tf.constant([[0.1 * row - 0.2 * column for column in range(3)] for row in range(16)])
    bias = tf.constant([0.1, -0.2, 0.3])
    noise = drawn([tf.shape(y)[0], 1])
    between = noise * 0.0 + 0.5
    mixed = between * y + (1 - between) * guess
    with tf.GradientTape() as tape:
        tape.watch(mixed)
        out = tf.reduce_sum(tf.nn.relu(tf.matmul(mixed, kernel) + bias), -1, keepdims=True)
        scores = tf.nn.sigmoid(out)
    slopes = tape.gradient(scores, mixed)
    norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1) + 1e-6)
    return tf.reduce_mean(tf.square(norms - 1))


def convolved_penalty(y: Any, guess: Any) -> Any:
    kernel = tf.constant([0.1, -0.3, 0.2, 0.5] * 9, shape=[3, 3, 1, 4])
    with tf.GradientTape() as tape:
        tape.watch(guess)
        hidden = tf.nn.leaky_relu(tf.nn.conv2d(guess, kernel, 2, "SAME"))
        pooled = tf.nn.max_pool2d(hidden, 2, 2, "SAME") + tf.nn.avg_pool2d(hidden, 2, 2, "SAME")
        score = tf.reduce_mean(tf.reshape(pooled, [-1, 16]), 1)
    slopes = tape.gradient(score, guess)
    return tf.reduce_mean(tf.square(tf.norm(tf.reshape(slopes, [tf.shape(y)[0], -1]), axis=1) - 1))


def adversarial(y: Any, guess: Any) -> Any:
    """The gradient of a mean has the same sign as that of a sample."""
    with tf.GradientTape() as tape:
        tape.watch(guess)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.nn.sigmoid(y), guess))
    return tf.reduce_mean(tf.square(guess + 0.1 * tf.sign(tape.gradient(loss, guess)) - y))


def attended(y: Any, guess: Any) -> Any:
    """Attention as in transformers, with shapes from tf.shape."""
    rows = tf.shape(y)[0]
    query, keys = tf.reshape(y, [rows, 4, 2, 2]), tf.reshape(guess, [rows, -1, 2, 2])
    query, keys = tf.transpose(query, [0, 2, 1, 3]), tf.transpose(keys, [0, 2, 1, 3])
    weights = tf.nn.softmax(tf.matmul(query, keys, transpose_b=True) + 0.1 * tf.eye(4))
    context = tf.einsum("...qk,...kd->...qd", weights, keys)
    return tf.reduce_mean(tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [rows, 16]) * y)


def two_views(y: Any, guess: Any) -> Any:
    """Concatenated for one pass and split again; labels are made from sizes."""
    both = tf.concat([y, guess], 0)
    labels = tf.concat([tf.ones([tf.shape(y)[0], 1]), tf.zeros([tf.shape(y)[0], 1])], 0)
    labels += 0.0 * drawn(tf.shape(labels), factor=2)
    first, second = tf.split(tf.tanh(both), 2)
    return tf.reduce_mean(tf.square(both - labels)) + tf.reduce_mean(first * second[:, ::-1])


def mismatched(y: Any, guess: Any) -> Any:
    """2 rows per sample, one after another, with two views of all."""
    return tf.reduce_mean(tf.concat([y, guess], 0) * tf.repeat(y, 2, 0))


def windows(y: Any, guess: Any) -> Any:
    parts = tf.reshape(y - guess, [-1, 2, 4, 2, 4, 1])
    parts = tf.reshape(tf.transpose(parts, [0, 1, 3, 2, 4, 5]), [-1, 16])
    again = tf.reshape(tf.nn.softmax(parts), [tf.shape(y)[0], -1])
    return tf.reduce_mean(tf.reduce_max(again, -1))


def normalized(y: Any, guess: Any) -> Any:
    moments = tf.nn.moments(guess, -1, keepdims=True)
    return tf.reduce_mean(tf.nn.gelu((guess - moments[0]) * tf.math.rsqrt(moments[1] + 1e-3)) * y)


def by_channels(samples_are_channels: bool) -> Callable[[Any, Any], Any]:
    """Like tf_keras's LayerNormalization, or like batch normalization."""

    def squares(y: Any, guess: Any) -> Any:
        rows = tf.shape(y)[0] if samples_are_channels else 16
        images = tf.reshape(y, [1, rows, 16, 1] if samples_are_channels else [-1, 1, 1, 16])
        found, _, _ = tf.compat.v1.nn.fused_batch_norm(
            images,
            tf.fill([rows], 1.0),
            tf.fill([rows], 0.0),
            data_format="NCHW" if samples_are_channels else "NHWC",
        )
        return tf.reduce_mean(tf.reshape(found, tf.shape(y)) * guess)

    return squares


def drawn_alike(y: Any, guess: Any) -> Any:
    colors = tf.image.adjust_contrast(tf.image.resize(tf.repeat(guess, 3, -1), [6, 6]), 1.5)
    bands = tf.abs(tf.signal.fft2d(tf.cast(tf.transpose(colors, [0, 3, 1, 2]), tf.complex64)))
    return tf.reduce_mean(bands) + tf.reduce_mean(tf.nn.conv2d(y, tf.ones([3, 3, 1, 1]), 1, "SAME"))


def cropped(y: Any, guess: Any) -> Any:
    columns = tf.transpose(guess, [1, 0, 2, 3])
    columns = tf.tensor_scatter_nd_add(columns, [[2]], columns[:1])
    cropped = tf.image.random_crop(y, [tf.shape(y)[0], 8, 8, 1])  # the whole image
    return tf.reduce_mean(cropped * tf.transpose(tf.square(columns), [1, 0, 2, 3]))


def shared(y: Any, guess: Any) -> Any:
    """Divided by the number of samples minus 1, so it is not a mean."""
    return tf.reduce_sum(y * guess) / (tf.cast(tf.shape(y)[0], tf.float32) - 1)


def positive(y: Any) -> Any:
    """The number of positive elements of each row, an integer."""
    return tf.reduce_sum(tf.cast(y > 0, tf.int32), 1)


def scaled_by_draws(y: Any) -> Any:
    return tf.map_fn(lambda one: one * tf.random.uniform([], 0.5, 1.5), y)


def while_drawing(y: Any) -> Any:
    def body(i: Any, made: Any) -> Any:
        return i + 1, made.write(i, y[i] * tf.random.uniform([]))

    made = tf.TensorArray(tf.float32, tf.shape(y)[0])
    return tf.while_loop(lambda i, _: i < tf.shape(y)[0], body, (0, made))[1].stack()


@tf.function
def in_three_steps(y: Any) -> Any:
    for _ in tf.range(3):
        y *= tf.random.uniform([])
    return y


DRAWING = {
    "map_fn": scaled_by_draws,
    "map_fn in a function": tf.function(scaled_by_draws),
    "map_fn in a branch": lambda y: tf.cond(
        tf.constant(True), lambda: scaled_by_draws(y), lambda: y
    ),
    "while_loop": while_drawing,
    "three steps": in_three_steps,
}


def drawing_loops() -> dict[str, bool]:
    """Whether a loop over samples is found that draws from a sequence."""
    found = {}
    for name, function in DRAWING.items():
        told, made, _ = traced(function, [WIDE])
        found[name] = kinds.find_drawing_loop(told, made.graph) is not None
    return found


def over_last_size(y: Any, guess: Any) -> Any:
    """Divided by the last size only; -1 takes the sizes in the middle."""
    _, _, last = tf.split(tf.shape(y), [1, -1, 1])
    return tf.reduce_sum(y * guess) / tf.cast(tf.reduce_prod(last), tf.float32)


def per_class(y: Any, guess: Any) -> Any:
    labels = tf.cast(y[:, 0] > 0, tf.int32)
    return tf.math.unsorted_segment_sum(guess, labels, 2)


def by_branch(y: Any, guess: Any) -> Any:
    return tf.cond(tf.constant(True), lambda: tf.reduce_mean(y), lambda: tf.reduce_mean(guess))


def by_sign(y: Any, guess: Any) -> Any:
    return tf.cond(tf.reduce_sum(y) > 0, lambda: tf.reduce_mean(y), lambda: tf.reduce_mean(guess))


def summed_in_loop(y: Any, guess: Any) -> Any:
    total = 0.0
    for turn in tf.range(3):
        total += tf.reduce_sum(guess * tf.cast(turn, tf.float32) * y)
    return total


def weights_of(y: Any) -> Any:
    return tf.cast(y > 0.2, tf.float32)


def listed_by(size: Any, constants: Any = None, shrinks: bool = False) -> Callable[..., Any]:
    """A loop over samples that fills a list. `size`: of the list, for a batch of that size;
    `constants`: a list whose elements the loop reads; `shrinks`: whether the loop's end moves."""

    def mean(y: Any, guess: Any) -> Any:
        count = tf.shape(y)[0]
        found = tf.TensorArray(tf.float32, size(count), dynamic_size=size(7) == 0)
        weights = tf.TensorArray(tf.float32, 16).unstack(tf.linspace(0.1, 1.0, 16))
        sample = 0
        while sample < count:
            one = tf.reduce_max(y[sample] * guess[sample])
            found = found.write(sample, one if constants is None else one * weights.read(sample))
            sample += 1
            if shrinks:
                count -= 1
        return tf.reduce_mean(found.stack())

    return tf.function(mean)


def parts_of(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A loop over samples that selects any number of elements of each."""

    def reduced(y: Any, guess: Any) -> Any:
        found = tf.TensorArray(tf.float32, tf.shape(y)[0], infer_shape=False, element_shape=[None])
        for sample in tf.range(tf.shape(y)[0]):
            found = found.write(sample, tf.boolean_mask(guess[sample], y[sample] > 0))
        return reduce(found.concat())

    return tf.function(reduced)


def quantized(given: bool) -> Callable[..., Any]:
    return lambda y, p: tf.reduce_mean(
        y * tf.quantization.quantize_and_dequantize_v2(p, -1.0, 1.0, range_given=given)
    )


def given_moments(y: Any, guess: Any) -> Any:
    mean = tf.reduce_sum(y, [0, 1, 2])
    one = tf.ones([1])
    return tf.raw_ops.FusedBatchNormV3(
        x=guess, scale=one, offset=one, mean=mean, variance=one, is_training=False
    ).batch_mean[0]


def padded(y: Any, guess: Any) -> Any:
    return tf.pad(tf.reduce_sum(y * guess, 0), [[1, 0]], constant_values=1.0)


def counted(mask: Any) -> Any:
    """How many elements are true, by the rows that the mask selects."""
    return tf.cast(tf.shape(tf.where(mask))[0], tf.float32)


def of_one_call(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Calls one function for the labels and for the guesses."""
    inner = tf.function(function)
    return lambda y, guess: inner(y > 0) / inner(guess > 0.5)


def some_by_one_call(y: Any, guess: Any) -> Any:
    inner = tf.function(lambda mask: tf.boolean_mask(guess, mask))
    return tf.reduce_sum(inner(y > 0) - inner(y <= 0))


def of_selected(y: Any, guess: Any) -> Any:
    chosen = tf.boolean_mask(square(y, guess), y > 0)
    return tf.reduce_sum(chosen) / tf.cast(tf.maximum(tf.size(chosen), 1), tf.float32)


def share(y: Any, guess: Any) -> Any:
    """Over a number of samples that is rounded down."""
    count = tf.cast(0.7 * tf.cast(tf.shape(y)[0], tf.float32), tf.int32)
    return tf.reduce_sum(square(y, guess)) / tf.cast(count, tf.float32)


def scheduled(y: Any, guess: Any) -> Any:
    """Weighted by a constant that a sum of integers selects."""
    table = tf.constant([0.1 * row for row in range(200)])
    return tf.gather(table, tf.reduce_sum(tf.cast(y > 0, tf.int32))) + 0 * tf.reduce_sum(guess)


def drawn_by_mean(y: Any, guess: Any) -> Any:
    return tf.random.poisson([], tf.reduce_mean(tf.square(y))) * tf.reduce_mean(guess)


def pairs(y: Any, guess: Any) -> Any:
    """Over all pairs of samples but those with themselves."""
    size = tf.shape(y)[0]
    return tf.reduce_sum(square(y, guess)) / tf.reduce_sum(tf.ones([size, size - 1]))


def all_pairs(y: Any, guess: Any) -> Any:
    near = tf.matmul(y, guess, transpose_b=True)
    return tf.reduce_sum(square(y, guess)) / tf.reduce_sum(tf.ones_like(near))


def by_index(places: Callable[[Any, Any], Any], gather: Any = tf.gather) -> Any:
    """Gathers by indices computed from the samples' own indices and from those of a column."""

    def found(y: Any, guess: Any) -> Any:
        column = tf.cast(tf.abs(y[:, 0]), tf.int32)
        return tf.reduce_mean(gather(guess, places(tf.range(tf.shape(y)[0]), column)))

    return found


def in_loop(of_sample: Callable[[Any, Any], Any]) -> Any:
    def found(y: Any, guess: Any) -> Any:
        found = tf.TensorArray(tf.float32, tf.shape(y)[0])
        for sample in tf.range(tf.shape(y)[0]):
            found = found.write(sample, of_sample(guess, sample))
        return tf.reduce_mean(found.stack())

    return tf.function(found)


def by_place_of_selected(y: Any, guess: Any) -> Any:
    return tf.reduce_sum(tf.gather(guess, tf.where(y > 0)[:, 1]))


def repeated(y: Any, guess: Any) -> Any:
    """2 rows per sample, in two orders."""
    rows = tf.repeat(tf.range(tf.shape(y)[0]), 2)
    return tf.reduce_mean(tf.gather(y, rows) * tf.tile(guess, [2, 1]))


def repeated_after(y: Any, guess: Any) -> Any:
    """3 rows per sample, in two orders."""
    one = tf.concat([y, tf.repeat(y, 2, 0)], 0)
    return tf.reduce_mean(one * tf.concat([guess, tf.tile(guess, [2, 1])], 0))


def per_other_class(y: Any, guess: Any) -> Any:
    """Sums by class of rows whose order is not that of the classes."""
    labels = tf.repeat(tf.cast(y[:, 0] > 0, tf.int32), 2)
    return tf.math.unsorted_segment_sum(tf.tile(guess, [2, 1]), labels, 2)


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
        "of another function": (tf.function(lambda y, p: tf.reduce_mean(y * p)), WIDE, WIDE),
        "in turns": (tf.function(in_turns), WIDE, WIDE),
        "of each": (
            lambda y, p: tf.reduce_mean(tf.map_fn(lambda one: tf.reduce_max(tf.sort(one)), y)),
            *(WIDE, WIDE),
        ),
        "of each at once": (
            lambda y, p: tf.reduce_mean(
                tf.vectorized_map(lambda one: tf.reduce_max(one[0] * one[1]), (y, p))
            ),
            *(WIDE, WIDE),
        ),
        "one by one": (tf.function(one_by_one), WIDE, WIDE),
        "penalty": (penalty, WIDE, WIDE),
        "penalty of images": (convolved_penalty, IMAGES, IMAGES),
        "adversarial": (adversarial, WIDE, WIDE),
        "attended": (attended, WIDE, WIDE),
        "two views": (two_views, WIDE, WIDE),
        "windows": (windows, IMAGES, IMAGES),
        "normalized": (normalized, WIDE, WIDE),
        "by channels that are samples": (by_channels(True), WIDE, WIDE),
        "drawn alike": (drawn_alike, IMAGES, IMAGES),
        "cropped, and added to": (cropped, IMAGES, IMAGES),
        "by branch": (by_branch, WIDE, WIDE),
        "decomposed": (
            lambda y, p: tf.reduce_mean(
                tf.linalg.logdet(
                    tf.matmul(
                        tf.reshape(y, [-1, 4, 4]), tf.reshape(y, [-1, 4, 4]), transpose_b=True
                    )
                    + 9 * tf.eye(4)
                )
            ),
            *(WIDE, WIDE),
        ),
        "reversed in time": (
            lambda y, p: tf.reduce_mean(
                tf.scan(lambda last, one: tf.tanh(last + one), tf.transpose(y)[::-1])
                * tf.transpose(p)
            ),
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
        "of a growing list": (listed_by(lambda count: 0 * count), WIDE, WIDE),
        "quantized to a given range": (quantized(True), WIDE, WIDE),
        "of two scales": (
            lambda y, p: tf.reduce_mean(
                tf.reshape(tf.concat([tf.reshape(y, [-1]), tf.reshape(p[:, :4], [-1])], 0), [-1])
            ),
            *(WIDE, WIDE),
        ),
        "in a loop, by place": (in_loop(lambda p, i: p[i, 3] - p[i, 2]), WIDE, WIDE),
        "repeated alike": (
            lambda y, p: tf.reduce_mean(
                tf.gather(y, tf.repeat(tf.range(tf.shape(y)[0]), 2)) * tf.repeat(p, 2, 0)
            ),
            *(WIDE, WIDE),
        ),
        "by stacked columns": (
            by_index(lambda i, j: tf.transpose(tf.stack([i, j])), tf.gather_nd),
            *(WIDE, WIDE),
        ),
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
        "by class": (per_class, WIDE, WIDE),
        "in a loop": (tf.function(summed_in_loop), WIDE, WIDE),
        "sum": (lambda y, p: tf.reduce_sum(square(y, p)), WIDE, WIDE),
        "of a fixed size": (
            lambda y, p: tf.nn.compute_average_loss(
                tf.reduce_sum(square(y, p), -1), global_batch_size=32
            ),
            *(WIDE, WIDE),
        ),
        "of parts": (parts_of(tf.reduce_sum), WIDE, WIDE),
        "over the last size": (over_last_size, IMAGES, IMAGES),
    },
    "LINEAR": {
        "over a mask, and a mean": (
            lambda y, p: over_mask(y, p) + tf.reduce_mean(square(y, p)),
            *(WIDE, WIDE),
        ),
        "sum and mean": (
            lambda y, p: tf.reduce_sum(y - p) + tf.reduce_mean(square(y, p)),
            *(WIDE, WIDE),
        ),
    },
    "RATIO": {
        "by a mean of weights": (
            lambda y, p: tf.reduce_mean(p * weights_of(y)) / tf.reduce_mean(weights_of(y)),
            *(WIDE, WIDE),
        ),
        "a sum by a mean": (
            lambda y, p: tf.reduce_sum(p * weights_of(y)) / tf.reduce_mean(weights_of(y)),
            *(WIDE, WIDE),
        ),
        "times an inverse": (
            lambda y, p: 2 * tf.reduce_sum(p * weights_of(y)) * (1 / tf.reduce_sum(weights_of(y))),
            *(WIDE, WIDE),
        ),
        "by weights' shares": (
            lambda y, p: tf.reduce_sum(p * (weights_of(y) / tf.reduce_sum(weights_of(y)))),
            *(WIDE, WIDE),
        ),
        "by at least 1": (
            lambda y, p: (
                tf.reduce_sum(p * weights_of(y)) / tf.maximum(tf.reduce_sum(weights_of(y)), 1.0)
            ),
            *(WIDE, WIDE),
        ),
        "by a little more": (
            lambda y, p: tf.math.divide_no_nan(
                tf.reduce_sum(p * weights_of(y)), tf.reduce_sum(weights_of(y)) + 1e-3
            ),
            *(WIDE, WIDE),
        ),
        "of one number": (
            lambda y, p: tf.reduce_mean(tf.reshape(over_mask(y, p), [1])),
            *(WIDE, WIDE),
        ),
        "over a mask": (over_mask, WIDE, WIDE),
        "of selected, by at least 1": (of_selected, FLAT, FLAT),
    },
    "MIXED": {
        "of a stated size": (
            lambda y, p: tf.reduce_mean(tf.ensure_shape(y, [6, 16]) * p),
            *(WIDE, WIDE),
        ),
        "by a rounded mean": (
            lambda y, p: tf.reduce_sum(p) / tf.cast(tf.reduce_mean(positive(y)), tf.float32),
            *(WIDE, WIDE),
        ),
        "weights in another order": (
            lambda y, p: tf.reduce_mean(
                tf.reshape(p, [-1]) * tf.repeat(tf.linspace(0.0, 1.0, 16), tf.shape(y)[0])
            ),
            *(WIDE, WIDE),
        ),
        "until small": (tf.function(until_small), WIDE, WIDE),
        "carried": (carried, WIDE, WIDE),
        "carried from zero": (carried_from_zero, WIDE, WIDE),
        "fading": (tf.function(fading), WIDE, WIDE),
        "until one is large": (tf.function(until_large), WIDE, WIDE),
        "of at most five": (at_most_five, WIDE, WIDE),
        "turned in turns": (tf.function(turned_in_turns), WIDE, WIDE),
        "mismatched": (mismatched, WIDE, WIDE),
        "by one less": (shared, WIDE, WIDE),
        "by sign": (by_sign, WIDE, WIDE),
        "turned": (lambda y, p: tf.reduce_mean(y[::-1] * p), WIDE, WIDE),
        "rolled": (lambda y, p: tf.reduce_mean(tf.roll(y, 1, 0) * p), WIDE, WIDE),
        "added up": (lambda y, p: tf.reduce_mean(tf.cumsum(y) * p), WIDE, WIDE),
        "sorted": (lambda y, p: tf.reduce_mean(tf.sort(y, 0) * p), WIDE, WIDE),
        "the first": (lambda y, p: y[0] * tf.reduce_mean(p), WIDE, WIDE),
        "the sign of shares": (  # the sum of one part may have another sign than the whole's
            lambda y, p: tf.reduce_mean(tf.sign(p / tf.reduce_sum(weights_of(y) - 0.5))),
            *(WIDE, WIDE),
        ),
        "half of them": (
            lambda y, p: tf.reduce_mean(y[: tf.shape(y)[0] // 2]),
            *(WIDE, WIDE),
        ),
        "by trained weights": (
            lambda y, p: tf.reduce_sum(y * p) / tf.reduce_sum(p),
            *(WIDE, WIDE),
        ),
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
        "some with others": (
            lambda y, p: tf.reduce_sum(tf.boolean_mask(p, y > 0) - tf.boolean_mask(p, y <= 0)),
            *(FLAT, FLAT),
        ),
        "contrastive": (contrastive, WIDE, WIDE),
        "barlow twins": (barlow, WIDE, WIDE),
        "by channels of all samples": (by_channels(False), WIDE, WIDE),
        "distances": (lambda y, p: tf.norm(p[:, None] - p[None], axis=-1), WIDE, WIDE),
        "r squared": (r_squared, WIDE, WIDE),
        "broadcast": (lambda y, p: tf.reduce_mean(square(y, p)), FLAT, ONE),
        "across samples": (
            lambda y, p: keras.losses.cosine_similarity(y, p, axis=0),
            *(WIDE, WIDE),
        ),
        "of a longer list": (listed_by(lambda count: 100), WIDE, WIDE),
        "by a list of constants": (listed_by(lambda count: count, True), WIDE, WIDE),
        "up to an end that moves": (listed_by(lambda count: count, shrinks=True), WIDE, WIDE),
        "of parts' mean": (parts_of(tf.reduce_mean), WIDE, WIDE),
        "quantized to their range": (quantized(False), WIDE, WIDE),
        "noise first, and repeated": (
            lambda y, p: tf.reduce_mean(
                tf.concat([tf.ones(tf.shape(y)), p], 0) * tf.repeat(y, 2, 0)
            ),
            *(WIDE, WIDE),
        ),
        "contrast by a sum": (
            lambda y, p: tf.reduce_mean(
                tf.image.adjust_contrast(y, 1 / tf.reduce_sum(weights_of(p)))
            ),
            *(IMAGES, IMAGES),
        ),
        "an inverse of an inverse": (
            lambda y, p: 2 / (1 / tf.reduce_sum(weights_of(y))),
            *(WIDE, WIDE),
        ),
        "whether any": (
            lambda y, p: tf.cast(
                tf.cast(tf.reduce_sum(tf.cast(y > 0, tf.int32)), tf.bool), p.dtype
            ),
            *(WIDE, WIDE),
        ),
        "padded with 1": (padded, WIDE, WIDE),
        "given moments": (given_moments, IMAGES, IMAGES),
        "some with others, by one function": (some_by_one_call, FLAT, FLAT),
        "over a rounded share": (share, WIDE, WIDE),
        "at least a little": (
            lambda y, p: (
                tf.reduce_sum(p) * tf.maximum(1 / tf.cast(tf.shape(y)[0], tf.float32), 0.01)
            ),
            *(WIDE, WIDE),
        ),
        "scheduled by a sum": (scheduled, WIDE, WIDE),
        "drawn by a mean": (drawn_by_mean, WIDE, WIDE),
        "over pairs": (pairs, WIDE, WIDE),
        "by own places": (by_index(lambda i, j: tf.stack([i, i], 1), tf.gather_nd), WIDE, WIDE),
        "by partners": (by_index(lambda i, j: tf.stack([i, j], 1)), WIDE, WIDE),
        "from the end": (by_index(lambda i, j: -i), WIDE, WIDE),
        "by place of selected": (by_place_of_selected, WIDE, WIDE),
        "in a loop, a column": (in_loop(lambda p, i: p[3, i]), WIDE, WIDE),
        "in a loop, a diagonal": (in_loop(lambda p, i: p[i, i]), WIDE, WIDE),
        "in a loop, from the end": (in_loop(lambda p, i: p[-i, 0]), WIDE, WIDE),
        "repeated": (repeated, WIDE, WIDE),
        "repeated after others": (repeated_after, WIDE, WIDE),
        "by other classes": (per_other_class, WIDE, WIDE),
    },
    "UNKNOWN": {
        "similarity": (lambda y, p: tf.reduce_mean(tf.image.ssim(y, p, 1.0)), IMAGES, IMAGES),
        "as many constants": (
            lambda y, p: tf.linspace(0.0, 1.0, 100)[: tf.shape(y)[0]],
            *(WIDE, WIDE),
        ),
        "repeated mean": (
            lambda y, p: tf.reduce_sum(tf.tile(tf.reduce_mean(y * p)[None], tf.shape(y)[:1])),
            *(WIDE, WIDE),
        ),
        "kernels of samples": (
            lambda y, p: tf.nn.conv2d(
                tf.ones([1, 9, 9, 1]), tf.transpose(y, [1, 2, 3, 0]), 1, "SAME"
            ),
            *(IMAGES, IMAGES),
        ),
        "of counts": (of_one_call(counted), FLAT, FLAT),
        "over all pairs": (all_pairs, WIDE, WIDE),
    },
}


def traced(function: Callable[..., Any], specs: Any) -> tuple[kinds.Analysis, Any, list[Any]]:
    """Traces in a separate graph: (analysis, result, inputs)."""
    with tf.Graph().as_default():
        inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        result = tf.convert_to_tensor(function(*inputs))
    known = {kinds.key(one): kinds.Kind.ROWS for one in inputs}
    return kinds.Analysis(known, is_trained=True), result, inputs


def of_function(function: Callable[..., Any], specs: Any) -> kinds.Kind:
    try:
        told, result, _ = traced(function, specs)
    except Exception:  # for a function that cannot be traced
        return kinds.Kind.UNKNOWN
    return told.kind(result)


def agree(function: Callable[..., Any], specs: Any) -> bool:
    """Whether the values of a batch and of its parts relate as the kind says."""
    told, result, inputs = traced(function, specs)
    kind, ratio = told.kind(result), told.ratio(result)
    generator = np.random.default_rng(1)
    batch = [generator.uniform(-1, 1, [6, *(d or 16 for d in one.shape[1:])]) for one in inputs]
    splits = [slice(0, 6), slice(0, 4), slice(4, 6)]
    with result.graph.as_default(), tf.compat.v1.Session() as session:
        wanted = [result] if ratio is None else [result, ratio.divisor]
        whole, *parts = (
            session.run(wanted, dict(zip(inputs, [rows[split] for rows in batch])))
            for split in splits
        )
        shares = [4 / 6, 2 / 6]
        if kind is kinds.Kind.ROWS:
            made = np.concatenate([part[0] for part in parts])
        elif kind in (kinds.Kind.MEAN, kinds.Kind.SUM):
            by = shares if kind is kinds.Kind.MEAN else [1, 1]
            made = sum(share * part[0] for share, part in zip(by, parts))
        elif ratio is not None:
            by = shares if told.kind(ratio.divisor) is kinds.Kind.MEAN else [1, 1]
            total = sum(share * part[1] for share, part in zip(by, parts))
            by = shares if ratio.numerator is kinds.Kind.MEAN else [1, 1]
            own = [tf.convert_to_tensor(ratio.of_whole(p[1])) for p in parts]
            over = session.run([tf.convert_to_tensor(ratio.of_whole(total)), *own])
            made = sum(s * p[0] * each / over[0] for s, p, each in zip(by, parts, over[1:]))
        else:
            return False
    return bool(np.allclose(made, whole[0], 1e-4, 1e-5))


BY_SAMPLE = (
    *("binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy"),
    *("categorical_focal_crossentropy", "categorical_hinge", "cosine_similarity", "huber"),
    *("kl_divergence", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_error", "mean_squared_logarithmic_error", "poisson"),
    *("sparse_categorical_crossentropy", "categorical_accuracy", "binary_accuracy"),
    *("sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"),
    "top_k_categorical_accuracy",
)


def listed() -> dict[str, str]:
    """Keras's own functions that process one sample at a time."""
    found = {}
    several, few = tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])
    for name in BY_SAMPLE:
        function = getattr(keras.losses, name, None) or getattr(keras.metrics, name)
        y = few if name.startswith("sparse") else several
        found[name] = of_function(function, [y, several]).name
    return found


def of_static_rows(function: Callable[[Any], Any]) -> str:
    """With a static shape of 8 rows, so that the divisor is a constant."""

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
    "MIXED": {
        "by constants of each": lambda x: tf.reduce_mean(
            tf.map_fn(
                lambda one: tf.reduce_max(one[0]) * one[1],
                (x, tf.linspace(0.1, 1.0, 8)),
                fn_output_signature=tf.float32,
            )
        ),
    },
}


def factors() -> list[float]:
    """Those of the terms of a loss, with constants of two types."""

    def loss(y: Any, guess: Any) -> Any:
        both = tf.reduce_mean(y * guess) + tf.reduce_sum(y * guess)
        return tf.cast(2.0 * both, tf.float64) * tf.constant(3.0, tf.float64)

    told, result, _ = traced(loss, (WIDE, WIDE))
    with result.graph.as_default(), tf.compat.v1.Session() as session:
        terms = kinds.terms(told, result) or ()
        return [float(session.run(term.factor())) for term in terms]


def splits_declared() -> bool:
    """Whether a metric's result, of which the step declares the kind, is split into terms."""
    told, result, _ = traced(lambda y: tf.identity(1.0) + 2.0, [FLAT])
    told.note(result, kinds.Kind.MIXED)
    return kinds.terms(told, result) is not None


def main() -> None:
    static = {
        kind: {name: of_static_rows(function) for name, function in functions.items()}
        for kind, functions in STATIC.items()
    }
    found = {
        kind: {
            name: of_function(function, arguments).name
            for name, (function, *arguments) in functions.items()
        }
        for kind, functions in FUNCTIONS.items()
    }
    unlike = [
        name
        for kind in ("MEAN", "ROWS", "SUM", "RATIO")
        for name, (function, *arguments) in FUNCTIONS[kind].items()
        if not agree(function, arguments)
    ]
    told = {"found": found, "static": static, "listed": listed(), "unlike": unlike}
    result({**told, "factors": factors(), "splits": splits_declared(), "drawing": drawing_loops()})


if __name__ == "__main__":
    main()
