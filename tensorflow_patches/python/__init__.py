"""Gradients averaged over MPI ranks: the public API, also available as `tf.mpi`.

Scripts do not need it. Under `mpirun -np N` optimizers average their gradients automatically
(`TF_MPI_ENABLE` turns this on and off), and Keras gives each rank its part of the data. The API is
for scripts that partition their own data, or that print on one rank only.

All functions also work with averaging off, where they behave as on one rank. In a process that a
rank has forked, collectives raise RuntimeError, because that process is not a rank. All ranks must
call a collective, with the same dtype and shape; each rank waits for the others, for at most
TF_MPI_STALL_TIMEOUT seconds. Numbers and numpy arrays are exchanged immediately, even while a
tf.function is being traced: pass tensors there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorflow.mpi._src.runtime import group, hooks

__all__ = [
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "gather_batch",
    "is_enabled",
    "local_rank",
    "local_size",
    "own_data",
    "rank",
    "shard",
    "size",
]


def __getattr__(name: str) -> Any:
    """Loads tf.mpi.data and tf.mpi.datasets on first use."""
    if name in ("data", "datasets"):
        import importlib

        return importlib.import_module(f"tensorflow.mpi.{name}")
    raise AttributeError(f"module 'tensorflow.mpi' has no attribute '{name}'")


def is_enabled() -> bool:
    """True if the optimizers of this process average their gradients over all ranks."""
    return hooks.active


def rank() -> int:
    """This process's number among all ranks, from 0 to size() - 1; 0 with averaging off."""
    _follow()
    return group.group_rank


def size() -> int:
    """The number of ranks; 1 with averaging off."""
    _follow()
    return group.group_size


def _follow() -> None:
    """Updates rank and size: with TF_MPI_FAULT=shrink, ranks may have died."""
    if hooks.active:
        from tensorflow.mpi._src.presence import presence

        presence.follow()


def local_rank() -> int:
    """This process's number among the ranks of its node; 0 with averaging off."""
    return _topology()[2]


def local_size() -> int:
    """The number of ranks on this node; 1 with averaging off."""
    return _topology()[3]


def _topology() -> tuple[int, int, int, int, int]:
    """(rank, size, local_rank, local_size, nodes)."""
    if not group.connected():
        return (0, 1, 0, 1, 1)
    from tensorflow.mpi._src.runtime import c_api

    return c_api.topology()


def barrier(name: str | None = None) -> None:
    """Returns once every rank has called it.

    Runs immediately, in Python; it does not become part of a graph or a tf.function.

    Args:
      name: identifies the barrier on all ranks; needed only if ranks may call barriers in
        different orders.

    Raises:
      tf.errors.DeadlineExceededError: some ranks did not arrive within TF_MPI_STALL_TIMEOUT.
      tf.errors.UnavailableError: a rank has stopped, or the transport has failed.
    """
    if not group.connected() and group.forked_from is None:
        return
    from tensorflow.mpi._src.messaging import collectives

    collectives.barrier(name)


def allreduce(tensor: Any, op: str = "average", name: str | None = None) -> Any:
    """The element-wise average (or sum, …) of every rank's `tensor`.

    Args:
      tensor: a tf.Tensor, tf.Variable, numpy array or number of any shape, the same shape and dtype
        on all ranks. Half and bfloat16 are summed in float32.
      op: "average" (floating and complex dtypes), "sum", "min", "max" or "product".
      name: identifies the call on all ranks. By default calls are matched in the order in which
        each rank makes them; inside tf.function, by their position in the function.

    Returns:
      A tf.Tensor for a tensor or variable, otherwise a numpy array, with the shape and dtype of
      `tensor`. Inside tf.function and graphs it is part of the graph.

    Raises:
      ValueError: `op` is not one of these.
      tf.errors.InvalidArgumentError: the ranks differ in dtype, shape or op; or op does not
        support the dtype.
      tf.errors.DeadlineExceededError, tf.errors.UnavailableError: as for barrier.
    """
    ops = ("average", "sum", "min", "max", "product")
    if op not in ops:
        raise ValueError(f"op={op!r}; accepted: {', '.join(ops)}")
    return _collective("allreduce", tensor, name, op=op)


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Concatenates every rank's `tensor` along the first dimension, in rank order.

    Args:
      tensor: as for allreduce, with at least one dimension; the first may differ by rank, and may
        be 0.
      name: as for allreduce.

    Returns:
      As for allreduce; shape [sum of first dimensions, ...].

    Raises: as for allreduce.
    """
    return _collective("allgather", tensor, name)


def broadcast(tensor: Any, root: int = 0, name: str | None = None) -> Any:
    """Returns rank `root`'s `tensor` on every rank.

    Args:
      tensor: as for allreduce, on all ranks; only its value on `root` is used.
      root: from 0 to size() - 1.
      name: as for allreduce.

    Returns and raises: as for allreduce.
    """
    return _collective("broadcast", tensor, name, root=root)


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Assigns rank `root`'s values of `variables` on every rank.

    Training does this automatically before its first step. Use this for variables that change
    later, such as weights that one rank has loaded.

    Args:
      variables: initialized tf.Variables; the same number, in the same order, on all ranks. Eager
        code only.
      root: from 0 to size() - 1.

    Raises: as for allreduce.
    """
    for variable in variables:
        variable.assign(broadcast(variable, root))
    if group.connected():
        from tensorflow.mpi._src.variables import replica_check

        replica_check.mark_synchronized()


def gather_batch(x: Any) -> Any:
    """Concatenates `x`, this rank's samples, with the other ranks' into the whole batch.

    For a loss or a metric that relates several samples to one another, in a train_step or in a
    custom training loop:

        embeddings = tf.mpi.gather_batch(encoder(images, training=True))
        labels = tf.mpi.gather_batch(labels)
        loss = contrastive_loss(labels, embeddings)  # each sample with all of the batch
        gradients = tape.gradient(loss, encoder.trainable_variables)
        optimizer.apply_gradients(zip(gradients, encoder.trainable_variables))

    It is differentiable for floating and complex types. The gradient of this rank's samples is
    scaled so that the average of the ranks' gradients, which the optimizer applies, is the gradient
    of the mean of the ranks' losses. If every rank computes its loss from the whole batch, that is
    the gradient of this loss.

    Args:
      x: a tf.Tensor of numbers or bools with samples along its first dimension, which may differ
        by rank; the other dimensions are the same on all ranks. All ranks must call this, in the
        same order.

    Returns:
      A tf.Tensor, the same on all ranks: rank 0's samples, then rank 1's, and so on, which is the
      order of a batch that fit, evaluate or tf.mpi.shard has split. On one rank, `x` itself. In a
      compiled function the shape of `x` must be static, and the same on all ranks.

    Raises:
      ValueError: `x` is a scalar.
      NotImplementedError: the shape is not static in a compiled function.
      As for allreduce.
    """
    from tensorflow.mpi._src.messaging import collectives

    collectives.refuse_in_child("gather_batch")
    _refuse_where_left_to_script("gather_batch", "horovod's allgather")
    if not hooks.active or group.size == 1:
        return x
    from tensorflow.mpi._src.global_batch import batch

    return batch.gather_batch(x)


def shard(dataset: Any, batched: bool | None = None) -> Any:
    """Returns this rank's part of `dataset`, for a custom training loop.

    Keras's fit, evaluate and predict split their data automatically: give them the whole dataset.
    TF_MPI_SHARD=dataset does this for every dataset that a script iterates. A script that selects
    its part by rank() calls own_data() instead.

    Args:
      dataset: a tf.data.Dataset of the same data on all ranks, all of which must call this. If its
        elements may differ by rank (a shuffle without a seed, random ops, a generator), all ranks
        get rank 0's. Other ranks then iterate it only if it runs Python code or writes variables.
      batched: True: elements are batches, and each rank gets its samples of each batch; if a small
        last batch has none for it, it gets another rank's sample. False: each rank gets whole
        elements, the same number on all ranks; up to size() - 1 elements at the end are left out.
        By default this is detected: by a batch() in the dataset, or an unknown first dimension.

    Returns:
      A tf.data.Dataset with elements of the same structure; on one rank, `dataset` itself.

    Raises:
      TypeError: `dataset` is not a tf.data.Dataset.
      ValueError: `batched` is True, and the elements have no dimension to split.
    """
    _refuse_where_left_to_script("shard", "dataset.shard(hvd.size(), hvd.rank())")
    if not hooks.active:
        return dataset
    from tensorflow.mpi._src.data import dataset_shard

    return dataset_shard.shard(dataset, batched)


def own_data() -> None:
    """Declares that this script gives each rank its own data, by rank() or otherwise.

    From here on the job runs as with TF_MPI_SHARD=off: fit, evaluate and predict do not split
    data, and weight each rank by its samples; each rank draws its own random numbers; gradients of
    an eager loop are averaged where the tape computes them. Rank 0 still writes the files. Call it
    before creating data; calling it again has no effect. Without it, ranks are assumed to run one
    program on the same data: calling rank() or size() does not change that.

    All ranks must call this; each waits for the others.

    Raises: as for barrier.
    """
    if hooks.active and group.size > 1:
        from tensorflow.mpi._src.data import own_data

        own_data.declare()


def _refuse_where_left_to_script(name: str, instead: str) -> None:
    if group.connected() and not hooks.active:
        raise RuntimeError(
            f"tf.mpi.{name} is not available in a script that averages gradients and partitions "
            f"data itself through another library's API: use {instead}, or remove that library's "
            "init()"
        )


def _collective(
    kind: str, tensor: Any, name: str | None, op: str = "average", root: int = 0
) -> Any:
    from tensorflow.mpi._src.messaging import graph_collectives

    return graph_collectives.collective(kind, tensor, name, op, root)
