"""Batch normalization by the moments of the whole batch.

Of layers with synchronized=True, and with TF_MPI_SYNC_BATCHNORM=1 of all; else each rank normalizes
by its own part of the batch, and says so once, also in a loop of the script's own. Here the ranks
average mean and mean square, weighted by their samples, in one operation per layer and direction;
the gradient of that average is the same average of the gradients, so a step is the one process's.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.global_batch import batch
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import log
from tensorflow.mpi._src.variables import unwrap


def is_synchronized(layer: Any) -> bool:
    """Whether the ranks normalize by one another's samples, too."""
    everywhere = config.get("TF_MPI_SYNC_BATCHNORM") == "1"
    return bool(everywhere or getattr(layer, "synchronized", False))


def is_looked_at() -> bool:
    """Whether a step is only looked at: what this layer makes is as if of each sample for itself.

    Elsewhere is seen to what it makes of several.
    """
    part = batch.current()
    return part is not None and part.look is not None


def say_if_of_part(layer: Any) -> None:
    """Once, in a step that has a part of a batch: of a layer that normalizes by that."""
    part = batch.current()
    if part is None:
        _say_if_in_own_loop(layer)
    if part is None or part.look is not None:
        return
    log.once(
        f"layer '{layer.name}' normalizes by each rank's part of the batch, and so may others. For "
        "one process's batch normalization give them synchronized=True, or set "
        "TF_MPI_SYNC_BATCHNORM=1",
        key="batch norm of a part",
    )


def _say_if_in_own_loop(layer: Any) -> None:
    """Once, where ranks see different data, and no fit makes their moving averages one."""
    own_data = scope.is_shared_out() or config.get("TF_MPI_SHARD") != "auto"
    if not own_data or calls.innermost() is not None:
        return
    log.once(
        f"in a loop of the script's own, layer '{layer.name}' normalizes by each rank's batch, and "
        "its moving averages drift apart: each rank's are its own, and rank 0's are saved. With "
        "synchronized=True, or TF_MPI_SYNC_BATCHNORM=1 for all layers, they are the whole batch's",
        key="batch norm in a loop",
    )


def over_ranks(own_moments: Any) -> Any:
    """Wraps a layer's _moments(inputs, ..., mask), which returns mean and variance.

    The mask is the last argument.
    """

    def moments(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        mean, variance = own_moments(self, *args, **kwargs)
        if is_looked_at():
            moving = self.moving_mean, self.moving_variance
            return tuple(tf.cast(unwrap.tf_variable(one), mean.dtype) for one in moving)
        if not is_synchronized(self):
            say_if_of_part(self)
            return mean, variance
        self._tf_mpi_synchronized = True
        mask = kwargs.get("mask", args[-1] if len(args) in _WITH_MASK else None)
        return of_all_ranks(mean, variance, f"batch norm {self.name}", mask)

    return moments


_WITH_MASK = (2, 4)  # arguments, of Keras 3 and of tf_keras


def of_all_ranks(mean: Any, variance: Any, name: str, mask: Any) -> tuple[Any, Any]:
    """In float64, in which E[x^2] - E[x]^2 loses nothing that float32 could show."""
    import tensorflow as tf

    weight = scope.current_weight()
    as_now = scope.also_later()
    counting, share = weight, None
    if mask is not None:
        part = batch.current()
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        if part is not None and part.counts is not None:
            valid = tf.where(part.counts, valid, 0.0)
        (mean_valid,) = averaging.average([valid], ["valid"], f"{name} mask")
        counting = tf.math.divide_no_nan(valid, mean_valid)
        share = counting if weight is None else tf.math.divide_no_nan(counting, weight)

    @tf.custom_gradient
    def average(first: Any, second: Any) -> tuple[tuple[Any, Any], Any]:
        def gradient(upstream_first: Any, upstream_second: Any) -> list[Any]:
            with as_now():
                found = averaging.average_of_upstream(
                    [upstream_first, upstream_second],
                    ["mean", "square"],
                    f"{name} gradient",
                    weight,
                )
            return found if share is None else [g * tf.cast(share, g.dtype) for g in found]

        averages = averaging.average([first, second], ["mean", "square"], name, counting)
        return tuple(averages), gradient

    wide = tf.cast(mean, tf.float64)
    square = tf.cast(variance, tf.float64) + tf.square(wide)
    wide, square = average(wide, square)
    spread = tf.maximum(square - tf.square(wide), 0)
    return tf.cast(wide, mean.dtype), tf.cast(spread, variance.dtype)
