"""Gradients averaged over MPI ranks: what a script may ask, if it wants to know.

A script needs nothing of this: under `mpirun -np N` its optimizers average their gradients by
themselves (`TF_MPI_ENABLE` turns that on and off), and Keras takes each rank's part of the data.
This module, also `tf.mpi`, is for scripts that partition their own data, or print on one rank only.

All functions work with averaging off, as on one rank; in a process that a rank has forked, which is
no rank, collectives raise RuntimeError. Collectives must be called by all ranks, with
the same dtype and shape; each waits for the others, at most TF_MPI_STALL_TIMEOUT seconds. Numbers
and numpy arrays are exchanged at once, also while a tf.function is traced: pass tensors there.
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
    """tf.mpi.data and tf.mpi.datasets: loaded when they are used."""
    if name in ("data", "datasets"):
        import importlib

        return importlib.import_module(f"tensorflow.mpi.{name}")
    raise AttributeError(f"module 'tensorflow.mpi' has no attribute '{name}'")


def is_enabled() -> bool:
    """True if the optimizers of this process average their gradients over the ranks."""
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
    """With TF_MPI_FAULT=shrink ranks may have died."""
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
    if not group.connected():
        return (0, 1, 0, 1, 1)
    from tensorflow.mpi._src.runtime import c_api

    return c_api.topology()


def barrier(name: str | None = None) -> None:
    """Returns when every rank has called it.

    Runs at once, in Python; not part of a graph or a tf.function.

    Args:
      name: under which the ranks meet; needed only where they may call barriers in different
        orders.

    Raises:
      tf.errors.DeadlineExceededError: some ranks did not come within TF_MPI_STALL_TIMEOUT.
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
      name: under which the ranks meet. By default calls meet in the order in which each rank makes
        them; inside tf.function, by their place in the function.

    Returns:
      A tf.Tensor for a tensor or variable, else a numpy array; shape and dtype of `tensor`. Inside
      tf.function and graphs it is part of the graph.

    Raises:
      ValueError: `op` is none of these.
      tf.errors.InvalidArgumentError: the ranks differ in dtype, shape or op; or op and dtype do
        not go together.
      tf.errors.DeadlineExceededError, tf.errors.UnavailableError: as for barrier.
    """
    ops = ("average", "sum", "min", "max", "product")
    if op not in ops:
        raise ValueError(f"op={op!r}; accepted: {', '.join(ops)}")
    return _collective("allreduce", tensor, name, op=op)


def allgather(tensor: Any, name: str | None = None) -> Any:
    """Every rank's `tensor`, one after another along the first dimension, in rank order.

    Args:
      tensor: as for allreduce, of rank 1 or more; the first dimension may differ by rank, and
        may be 0.
      name: as for allreduce.

    Returns:
      As for allreduce; shape [sum of first dimensions, ...].

    Raises:
      As for allreduce.
    """
    return _collective("allgather", tensor, name)


def broadcast(tensor: Any, root: int = 0, name: str | None = None) -> Any:
    """Rank `root`'s `tensor`.

    Args:
      tensor: as for allreduce, on all ranks; only its value on `root` matters.
      root: from 0 to size() - 1.
      name: as for allreduce.

    Returns:
      As for allreduce.

    Raises:
      As for allreduce.
    """
    return _collective("broadcast", tensor, name, root=root)


def broadcast_variables(variables: Iterable[Any], root: int = 0) -> None:
    """Makes rank `root`'s values of `variables` every rank's.

    Training does this by itself before its first step; this is for variables changed later, such as
    weights that one rank has loaded.

    Args:
      variables: tf.Variables that have values; as many, in the same order, on all ranks. Eager code
        only.
      root: from 0 to size() - 1.

    Raises:
      As for allreduce.
    """
    for variable in variables:
        variable.assign(broadcast(variable, root))
    if group.connected():
        from tensorflow.mpi._src.variables import replica_check

        replica_check.mark_synchronized()


def gather_batch(x: Any) -> Any:
    """What all ranks have of `x`, a tensor of this rank's samples: that of the whole batch.

    For a loss or a metric that looks at several samples at once, in a train_step or in a loop of
    the script's own:

        embeddings = tf.mpi.gather_batch(encoder(images, training=True))
        labels = tf.mpi.gather_batch(labels)
        loss = contrastive_loss(labels, embeddings)  # each sample with all of the batch
        gradients = tape.gradient(loss, encoder.trainable_variables)
        optimizer.apply_gradients(zip(gradients, encoder.trainable_variables))

    It is differentiable: what flows back to this rank's samples is scaled so that the average of
    the ranks' gradients, which the optimizer applies, is the gradient of the mean of the ranks'
    losses: of this loss, if all compute it of the whole batch.

    Args:
      x: a tf.Tensor with samples along its first dimension, of numbers or bools; the other
        dimensions are the same on all ranks, the first may differ. All ranks must call this, in
        the same order.

    Returns:
      A tf.Tensor, the same on all ranks: rank 0's samples, then rank 1's, and so on, which is the
      order of a batch that fit, evaluate or tf.mpi.shard has split. `x` itself on one rank. In a
      compiled function the shape of `x` must be static, and the same on all ranks.

    Raises:
      ValueError: `x` is a scalar.
      NotImplementedError: in a compiled function, if the shape is not static.
      As for allreduce.
    """
    _refuse_where_left_to_script("gather_batch", "horovod's allgather")
    if not hooks.active or group.size == 1:
        return x
    from tensorflow.mpi._src.global_batch import batch

    return batch.gather_batch(x)


def shard(dataset: Any, batched: bool | None = None) -> Any:
    """This rank's part of `dataset`, for a loop of the script's own.

    Keras's fit, evaluate and predict take their part by themselves: give them the whole dataset.
    TF_MPI_SHARD=dataset does this for every dataset that a script iterates. A script that takes its
    part by rank() itself says own_data() instead.

    Args:
      dataset: a tf.data.Dataset of the same data on all ranks, which must all call this. One whose
        elements differ by rank (a shuffle without a seed, random ops, a generator) is iterated on
        rank 0 alone, and its elements are sent to all.
      batched: True: elements are batches, and each rank gets its samples of each; a rank that gets
        none of a small last batch has another rank's. False: each rank gets whole elements, all
        ranks as many; up to size() - 1 elements at the end are left out. By default it is looked
        for: a batch() in the dataset, or a first dimension that is not known.

    Returns:
      A tf.data.Dataset with elements of the same structure; `dataset` itself on one rank.

    Raises:
      TypeError: it is no tf.data.Dataset.
      ValueError: `batched` is True, and its elements have no dimension to split.
    """
    _refuse_where_left_to_script("shard", "dataset.shard(hvd.size(), hvd.rank())")
    if not hooks.active:
        return dataset
    from tensorflow.mpi._src.data import dataset_shard

    return dataset_shard.shard(dataset, batched)


def own_data() -> None:
    """This script gives each rank data of its own, by rank() or otherwise: nobody splits them.

    From here on it is as under TF_MPI_SHARD=off: fit, evaluate and predict take what each rank
    gives them, weighted by its samples; ranks draw random numbers of their own; gradients of an
    eager loop are averaged where they are taken. Rank 0 goes on to write the files. To be called
    before data are made; again, it does nothing. Without it ranks are taken to run one program on
    the same data: asking for rank() or size() changes nothing.

    All ranks must call this; each waits for the others.

    Raises:
      As for barrier.
    """
    if hooks.active and group.size > 1:
        from tensorflow.mpi._src.data import own_part

        own_part.declare()


def _refuse_where_left_to_script(name: str, instead: str) -> None:
    if group.connected() and not hooks.active:
        raise RuntimeError(
            f"tf.mpi.{name} in a script that averages and partitions its data itself, by the API "
            f"of another library: use {instead}, or leave that library's init() out"
        )


def _collective(
    kind: str, tensor: Any, name: str | None, op: str = "average", root: int = 0
) -> Any:
    from tensorflow.mpi._src.messaging import graph_collectives

    return graph_collectives.collective(kind, tensor, name, op, root)
