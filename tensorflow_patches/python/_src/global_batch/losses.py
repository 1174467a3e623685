"""A loss object's value on this rank's part of a batch, so that the ranks' average is the whole's.

A mean over samples, each of which depends on that sample alone, needs nothing: the average of the
parts' means, weighted by their samples, is the batch's mean. Where a loss divides by the weights or
the mask of its samples, or sums them, its value is scaled: the ranks add up their divisors, a
number each. Where it is a function of several samples at once, or nobody can tell, it is computed
of the whole batch on every rank (batch.py). Of Keras 3 and of tf_keras, whose Loss has the
same form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from tensorflow.mpi._src.global_batch import batch, kinds
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import group, log

# Functions of Keras's own that look at one sample at a time, along its last axis unless they are
# told another. (Others may look at several: dice, circle.)
_BY_SAMPLE = {
    "binary_accuracy", "binary_crossentropy", "binary_focal_crossentropy", "categorical_accuracy",
    "categorical_crossentropy", "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy", "categorical_hinge", "cosine_proximity",
    "cosine_similarity", "ctc", "hinge", "huber", "kl_divergence", "kld", "log_cosh", "logcosh",
    "mae", "mape", "mean_absolute_error", "mean_absolute_percentage_error", "mean_squared_error",
    "mean_squared_logarithmic_error", "mse", "msle", "poisson", "sparse_categorical_accuracy",
    "sparse_categorical_crossentropy", "sparse_categorical_matches",
    "sparse_top_k_categorical_accuracy", "sparse_top_k_categorical_matches", "squared_hinge",
    "top_k_categorical_accuracy",
}  # fmt: skip
_KINDS = "_tf_mpi_kinds"  # on a loss or a metric: what its function makes, by shapes


class Keras(NamedTuple):
    """What Keras 3 and tf_keras have under other names.

    mask_of: the mask that Keras has put on a tensor, or None. put_mask(tensor, mask).
    """

    mask_of: Callable[[Any], Any]
    put_mask: Callable[[Any, Any], None]


def is_keras(module: str | None) -> bool:
    return str(module).partition(".")[0] in ("keras", "tf_keras")


def are_rows(part: Any, inputs: Any) -> bool:
    """Whether tensors of a step's graph have samples along their first dimension, each for itself.

    What has passed an op that nobody knows, as tf.roll, may hold something of other samples.
    """
    import tensorflow as tf

    apart = {*kinds.ROWS, Kind.CONST}
    tensors = [one for one in tf.nest.flatten(inputs) if isinstance(one, tf.Tensor)]
    return all(part.kind(tensor) in apart for tensor in tensors)


def on_part(keras: Keras, original: Any) -> Any:
    """Wraps a loss class's __call__(y_true, y_pred, sample_weight)."""

    @hooking.not_converted
    @functools.wraps(original)
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        import tensorflow as tf

        part = batch.current()
        if part is None or part.is_whole or type(self).__name__ == "CompileLoss":
            return hooking.as_here(original)(self, y_true, y_pred, sample_weight)
        y_true, y_pred = _tensor(y_true), _tensor(y_pred)
        if tf.nest.is_nested(y_pred) or tf.nest.is_nested(y_true):
            value = _of_structure(part, self, original, y_true, y_pred, sample_weight)
            part.note(value, Kind.CONST)
            return value
        mask = keras.mask_of(y_pred)
        plain = sample_weight is None and mask is None
        if not part.is_batched(y_pred) or not part.is_batched(y_true):
            _say_if_of_part(self, y_true, y_pred)
            return hooking.as_here(original)(self, y_true, y_pred, sample_weight)
        kind = _kind(self, original, y_true, y_pred)
        # A trial follows other samples to where they come from.
        note = not part.is_trial or are_rows(part, (y_true, y_pred, sample_weight))
        if kind is Kind.ROWS or (kind is Kind.MEAN and plain):
            value = hooking.as_here(original)(self, y_true, y_pred, sample_weight)
            if tf.is_tensor(value) and value.shape.rank == 0:
                if kind is Kind.ROWS:
                    value = _scaled(self, part, value, sample_weight, mask)
                if note:
                    part.note(value, Kind.MEAN)
            return value
        whole = part.whole(y_pred)
        if mask is not None:
            keras.put_mask(whole, part.whole(mask))
        weights = None if sample_weight is None else part.whole(_tensor(sample_weight))
        with batch.of_whole(part):
            value = hooking.as_here(original)(self, part.whole(y_true), whole, weights)
        if note:
            part.note(value, Kind.CONST)
        return value

    return call


def _of_structure(part: Any, loss: Any, original: Any, *samples: Any) -> Any:
    """A loss of several outputs together: of the whole batch, as nobody knows what each is of."""
    import tensorflow as tf

    whole = tf.nest.map_structure(lambda leaf: part.whole(_tensor(leaf)), samples)
    with batch.of_whole(part):
        return hooking.as_here(original)(loss, *whole)


def _say_if_of_part(loss: Any, *samples: Any) -> None:
    """Of samples that cannot be gathered, where the loss is not known to look at one at a time."""
    import tensorflow as tf

    odd = (tf.RaggedTensor, tf.SparseTensor)
    if not any(isinstance(s, odd) or getattr(s, "dtype", None) == tf.string for s in samples):
        return
    function = getattr(loss, "fn", None)
    settings = getattr(loss, "_fn_kwargs", {})
    name = loss.name or type(loss).__name__
    if group.rank or function is not None and by_sample(function, settings):
        return
    log.once(
        f"the loss {name} of ragged, sparse or string samples is computed of each rank's part "
        "of the batch, and averaged: one process's, if it is a mean over samples. Give it dense "
        "tensors, or set TF_MPI_SHARD=off, with which every rank has the whole batch"
    )


def _tensor(value: Any) -> Any:
    import numpy as np
    import tensorflow as tf

    of_numbers = isinstance(value, list) and not any(map(tf.is_tensor, tf.nest.flatten(value)))
    return tf.convert_to_tensor(value) if of_numbers or isinstance(value, np.ndarray) else value


def _kind(loss: Any, original: Any, y_true: Any, y_pred: Any) -> Kind:
    """What the loss's function makes of samples; ROWS or MEAN if each counts for itself."""
    if not is_keras(getattr(original, "__module__", "")):  # a __call__ of the script's own
        found = of_function(loss, functools.partial(original, loss), y_true, y_pred)
        return Kind.MEAN if found is Kind.MEAN else Kind.UNKNOWN
    function = getattr(loss, "fn", None)
    settings = getattr(loss, "_fn_kwargs", {})
    if function is not None and by_sample(function, settings):
        return Kind.ROWS
    return of_function(loss, loss.call, y_true, y_pred)


def by_sample(function: Any, settings: dict[str, Any]) -> bool:
    """Whether it is a function of Keras's own that looks at one sample at a time."""
    axis = settings.get("axis", -1)
    return (
        is_keras(getattr(function, "__module__", ""))
        and getattr(function, "__name__", "") in _BY_SAMPLE
        and isinstance(axis, int)
        and axis == -1
    )


def of_function(owner: Any, function: Any, *arguments: Any) -> Kind:
    """What `function`, of the loss or metric `owner`, makes of rows; it is asked once."""
    known = owner.__dict__.setdefault(_KINDS, {})
    shapes = str([(argument.dtype, argument.shape[1:]) for argument in arguments])
    if shapes not in known:
        known[shapes] = kinds.of_function(function, arguments)
    found: Kind = known[shapes]
    return found


def _scaled(loss: Any, part: Any, value: Any, sample_weight: Any, mask: Any) -> Any:
    """For one that sums over its samples, or divides by their weights or their mask."""
    import tensorflow as tf

    reduction = str(loss.reduction).lower()
    if reduction == "sum":
        return value * part.share(value.dtype)
    if reduction == "mean_with_sample_weight":
        divisor = _weights(sample_weight, mask, value.dtype)
    elif mask is not None:
        divisor = tf.reduce_sum(tf.cast(mask, value.dtype))
    else:
        return value
    if divisor is None:
        return value
    total = batch.sum_over_ranks(divisor, part, f"divisor of {loss.name}")
    return value * tf.math.divide_no_nan(divisor * part.share(value.dtype), total)


def _weights(sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """The sum of the samples' weights, where they are not masked."""
    import tensorflow as tf

    if sample_weight is None:
        return None if mask is None else tf.reduce_sum(tf.cast(mask, dtype))
    weights = tf.cast(_tensor(sample_weight), dtype)
    if mask is None:
        return tf.reduce_sum(weights)
    mask = tf.cast(mask, dtype)
    if weights.shape.rank == mask.shape.rank + 1:
        weights = tf.squeeze(weights, -1)
    while weights.shape.rank < mask.shape.rank:
        weights = weights[..., None]
    return tf.reduce_sum(weights * mask)
