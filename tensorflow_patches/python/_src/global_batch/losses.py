"""Loss objects on this rank's part of a batch: the ranks' average must be the whole batch's loss.

A mean over samples needs nothing: the average of the parts' means, weighted by their samples, is
the batch's mean. A loss that sums, or divides by the weights or the mask of its samples, is scaled:
the ranks add up their divisors, one number each. A loss that depends on several samples at once, or
cannot be analyzed, is computed from the whole batch on every rank. The analysis of the step
(plan.py) decides which case it is. For Keras 3 and for tf_keras, whose Loss has the same form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.global_batch import batch, python_state
from tensorflow.mpi._src.global_batch.kinds import ROWS, Kind
from tensorflow.mpi._src.global_batch.sites import Findings, How, Leaf, Site, Why
from tensorflow.mpi._src.interpose import hooking


class Keras(NamedTuple):
    """Functions that differ between Keras 3 and tf_keras.

    Attributes:
      mask_of: returns the mask that Keras has attached to a tensor, or None.
      put_mask: attaches a mask to a tensor.
      loss: returns the base class of all losses.
    """

    mask_of: Callable[[Any], Any]
    put_mask: Callable[[Any, Any], None]
    loss: Callable[[], Any]


def on_part(keras: Keras, original: Any) -> Any:
    """Wraps a loss class's __call__(y_true, y_pred, sample_weight); a script's may take others."""

    @hooking.without_autograph
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        python_state.note_call(self)
        part = batch.current()
        function = hooking.with_callers_autograph(original)
        if part is None or part.is_suspended:
            return function(self, *args, **kwargs)
        given = _Given(keras, args, kwargs)
        if part.findings is not None:
            # Keras's own __call__ reduces the result of `call` by weights, mask and `reduction`.
            reduces = keras.loss().__call__.__wrapped__ is original
            return _analyze(part, part.findings, self, function, given, reduces)
        site = part.planned.next("loss")
        if site is None or site.how is How.WHOLE:
            return _of_whole(part, site, self, function, given)
        value = function(self, *given.args, **given.kwargs)
        if site.how is How.SCALED:
            value = _scaled(self, part, site, value, given)
            part.note(value, Kind.MEAN)
        return value

    return call


class _Given:
    """The arguments of a loss's call, and the masks that Keras has attached to its predictions."""

    def __init__(self, keras: Keras, args: Any, kwargs: Any) -> None:
        self.keras = keras
        self.args, self.kwargs = tf.nest.map_structure(_tensor, (args, kwargs))
        names = ("y_true", "y_pred", "sample_weight")
        named = dict(zip(names, self.args)) | self.kwargs
        self.y_true, self.y_pred, self.sample_weight = map(named.get, names)
        self.masks = [keras.mask_of(one) for one in tf.nest.flatten(self.y_pred)]

    @property
    def mask(self) -> Any:
        """The mask of predictions that are a single tensor."""
        return self.masks[0] if len(self.masks) == 1 else None

    def leaves(self) -> list[Any]:
        return [*tf.nest.flatten((self.args, self.kwargs)), *self.masks]


def _tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _analyze(
    part: Any, findings: Findings, loss: Any, function: Any, given: _Given, reduces: bool
) -> Any:
    """Decides how the loss is computed; returns its value in the analyzed graph."""
    site, mark = findings.enter("loss")
    value = function(loss, *given.args, **given.kwargs)
    kind = part.kind(value)
    of_rows = (
        reduces
        and tf.is_tensor(value)
        and value.shape.rank == 0
        and part.is_by_sample((given.sample_weight, given.masks))
        and _gives_rows(part, loss, given)
    )
    terms = None
    if of_rows or kind in (Kind.MEAN, Kind.CONST, Kind.SUM) or (kind in ROWS and value.shape.rank):
        how = How.PART
        if of_rows and (_sums(loss) or _divisor(loss, given, tf.float32) is not None):
            how, kind = How.SCALED, Kind.ROWS
        elif kind is Kind.SUM:
            how = How.SCALED
    elif (terms := part.terms(value)) is not None and not findings.eagerly:
        how = How.SCALED
    else:
        how = How.WHOLE
    if how is not How.WHOLE and len(findings.whys) == mark.whys:
        site.how, site.terms = how, [kind] if terms is None else [term.kind for term in terms]
        if how is How.SCALED:
            part.note(value, Kind.MEAN)
        return value
    why = next(iter(findings.whys[mark.whys :]), Why(f"the loss '{loss.name}'", part.why(value)))
    findings.restart(mark)
    leaves = [part.leaf(one) for one in given.leaves()]
    if None in leaves:
        findings.whys.append(why)
    site.how, site.leaves = How.WHOLE, [leaf for leaf in leaves if leaf is not None]
    findings.gathered.append(why)
    part.note(value, Kind.CONST)
    return value


def _gives_rows(part: Any, loss: Any, given: _Given) -> bool:
    """Whether `loss.call` returns one value per sample, without a mask of its own."""
    mark = part.findings.mark()
    rows = hooking.with_callers_autograph(loss.call)(given.y_true, given.y_pred)
    part.findings.restart(mark)  # the step itself calls it once
    masked = given.keras.mask_of(rows) is not None
    return tf.is_tensor(rows) and not masked and part.kind(rows) in ROWS


def _of_whole(part: Any, site: Site | None, loss: Any, function: Any, given: _Given) -> Any:
    """The loss of the whole batch; without a site, tensors are gathered, or averaged if scalars."""
    leaves: list[Leaf | None] = list(site.leaves) if site is not None else []
    leaves += [None] * (len(given.leaves()) - len(leaves))
    whole = [part.whole(one, leaf, loss.name) for one, leaf in zip(given.leaves(), leaves)]
    masks = whole[len(whole) - len(given.masks) :]
    arguments = whole[: len(whole) - len(masks)]
    of_whole = _Given(given.keras, *tf.nest.pack_sequence_as((given.args, given.kwargs), arguments))
    for prediction, mask in zip(tf.nest.flatten(of_whole.y_pred), masks, strict=True):
        if mask is not None:
            given.keras.put_mask(prediction, mask)
    with batch.outside_part(part):
        value = function(loss, *of_whole.args, **of_whole.kwargs)
    part.note(value, Kind.CONST)
    return value


def _sums(loss: Any) -> bool:
    return _reduction(loss) == "sum"


def _reduction(loss: Any) -> str:
    return str(loss.reduction).lower()


def _divisor(loss: Any, given: _Given, dtype: Any) -> Any:
    """The sum of weights or of the mask by which Keras divides; None if it divides by neither."""
    weights, mask = given.sample_weight, given.mask
    if _reduction(loss) == "mean_with_sample_weight":
        return _weights(weights, mask, dtype)
    if mask is None or _sums(loss):
        return None
    return tf.reduce_sum(tf.cast(mask, dtype))


def _scaled(loss: Any, part: Any, site: Site, value: Any, given: _Given) -> Any:
    if site.terms == [Kind.SUM] or (site.terms == [Kind.ROWS] and _sums(loss)):
        return value * part.to_sum(value.dtype)
    if site.terms != [Kind.ROWS]:
        return part.scaled(value, site.terms)
    divisor = _divisor(loss, given, value.dtype)
    total = batch.sum_over_ranks(divisor, part, f"divisor of {loss.name}")
    return value * tf.math.divide_no_nan(divisor * part.to_sum(value.dtype), total)


def _weights(sample_weight: Any, mask: Any, dtype: Any) -> Any:
    """The sum of the weights of samples that are not masked."""
    if sample_weight is None:
        return None if mask is None else tf.reduce_sum(tf.cast(mask, dtype))
    weights = tf.cast(sample_weight, dtype)
    if mask is None:
        return tf.reduce_sum(weights)
    mask = tf.cast(mask, dtype)
    if weights.shape.rank == mask.shape.rank + 1:
        weights = tf.squeeze(weights, -1)
    while weights.shape.rank < mask.shape.rank:
        weights = weights[..., None]
    return tf.reduce_sum(weights * mask)
