"""The gradient of a loss that a train_step computes itself, of this rank's part of a batch.

Told from the ops between the samples and the loss (kinds.py): a mean over samples needs nothing; of
a sum the gradient is scaled, so that the ranks' average is the gradient of the whole sum; of what
looks at several samples at once, rank 0 says that it is a function of a part of the batch, and what
to do. Of a loss that nobody can tell, nothing is said.
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.mpi._src.global_batch import batch, kinds
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.global_batch.losses import are_rows, is_keras
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import group, log

_FUNCTIONS = {"Lambda", "TFSMLayer"}  # layers of Keras's that call a function of the script's


def noted_layer(original: Any) -> Any:
    """Wraps a layer's __call__: what Keras's own layers make of samples is rows.

    They see to batch normalization themselves; what a model makes of layers is looked at.
    """

    @hooking.not_converted
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = hooking.as_here(original)(self, *args, **kwargs)
        part = batch.current()
        if part is not None and is_by_sample(self):
            # Elsewhere inputs that are of several samples are seen where they come from.
            if not part.is_trial or are_rows(part, (args, kwargs)):
                _note(part, outputs)
        return outputs

    return call


def is_by_sample(layer: Any) -> bool:
    """Whether it is a layer of Keras's own that holds nothing of the script's but layers.

    What a model makes of layers is looked at, and functions of the script's.
    """
    kind = type(layer)
    if not is_keras(kind.__module__) or hasattr(layer, "train_step"):
        return False
    function = getattr(getattr(layer, "activation", None), "__module__", "keras")
    is_own = str(function).partition(".")[0] not in ("keras", "tf_keras", "tensorflow")
    return not (is_own or kind.__name__ in _FUNCTIONS or kind.__module__.endswith(".tf_op_layer"))


def _note(part: Any, outputs: Any) -> None:
    import tensorflow as tf

    for output in tf.nest.flatten(outputs):
        if not isinstance(output, tf.Tensor) or not output.shape.rank:
            continue
        rows, mine = output.shape[0], part.static_rows
        if rows is None or (mine and rows % mine == 0):
            part.note(output, Kind.ROWS)


def of_whole_batch(original: Any) -> Any:
    """Wraps GradientTape.gradient(target, sources, output_gradients=None, ...)."""

    @hooking.not_converted
    @functools.wraps(original)
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        part = batch.current()
        if part is not None and output_gradients is None and not part.is_whole:
            target, output_gradients = _of_whole(part, target, sources)
        return hooking.as_here(original)(self, target, sources, output_gradients, *args, **kwargs)

    return gradient


def _of_whole(part: Any, target: Any, sources: Any) -> tuple[Any, Any]:
    """Target and output_gradients, so that the average over ranks is the whole batch's gradient."""
    import tensorflow as tf

    targets = tf.nest.flatten(target)
    if not all(hasattr(one, "op") and not hasattr(one, "_numpy_internal") for one in targets):
        return target, None  # eager code, or no tensors
    if not any(map(_is_trained, tf.nest.flatten(sources))):
        return target, None
    terms: list[Any] = []
    for one in targets:
        linear = part.kind(one) is Kind.LINEAR and one.shape.rank == 0
        terms += (part.addends(one) if linear else None) or [one]
    found = [_summed(part.kind(one)) for one in terms]
    if part.is_trial:
        part.seen.update(found)
        untold = [term for one in targets for term in kinds.addends(one)]
        part.untold += [term for term in untold if part.kind(term) is Kind.UNKNOWN]
        return target, None
    wrong = {Kind.MIXED, Kind.LINEAR, Kind.RATIO} & set(found)
    if wrong and not part.gathers:
        _say(wrong.pop())
    if Kind.SUM not in found:
        return target, None
    upstream = [
        tf.ones_like(one) * part.share(one.dtype) if kind is Kind.SUM else tf.ones_like(one)
        for one, kind in zip(terms, found, strict=True)
    ]
    return terms, upstream


def _summed(kind: Kind) -> Kind:
    """A target that is no scalar stands for the sum of its elements."""
    return {Kind.ROWS: Kind.SUM, Kind.PARTS: Kind.MEAN}.get(kind, kind)


def _is_trained(source: Any) -> bool:
    return bool(getattr(source, "trainable", False))


def _say(kind: Kind) -> None:
    if kind is Kind.LINEAR:
        log.once(
            "a train_step's loss adds a sum over samples to something that is none, so each rank's "
            f"is the loss of its part of the batch, and their average 1/{group.size} of the sum. "
            "Use a mean over samples, or sum over tf.mpi.gather_batch(x)"
        )
        return
    log.once(
        "a train_step's loss is a function of several samples at once (as a contrastive loss, or a "
        "root of a mean), which is no mean over samples: each rank computes it of its part of the "
        "batch only. For one process's loss compute it of tf.mpi.gather_batch(predictions) and "
        "tf.mpi.gather_batch(targets)"
    )
