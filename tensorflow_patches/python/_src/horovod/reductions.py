"""hvd.allreduce and related functions: compression, sparse tensors, groups of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.horovod import collectives, process_sets
from tensorflow.mpi._src.horovod.collectives import Adasum, Average, Sum
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set


class Compressor:
    """Converts a tensor to the form in which it travels, and back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """(the tensor that travels, the context for decompress)."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError


class NoneCompressor(Compressor):
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Rounds floating-point tensors to half before they travel; the sum is computed in float32 and
    rounded again."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        floating = tensor.dtype.is_floating
        return (tf.cast(tensor, tf.float16) if floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor


def on_device(device: str) -> contextlib.AbstractContextManager[Any]:
    context: contextlib.AbstractContextManager[Any] = tf.device(device)
    return context if device else contextlib.nullcontext()


def check_adasum(process_set: ProcessSet) -> None:
    """Raises NotImplementedError for the cases for which Horovod does."""
    size = len(process_sets.members(global_process_set))
    if process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if size & (size - 1):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


def check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround "
            "please pass sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")


def allreduce(
    tensor: Any,
    average: Any = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor or tf.IndexedSlices over the ranks of `process_set`; averages by default.

    For IndexedSlices returns all ranks' rows, concatenated in rank order, and divided by the number
    of ranks for an average.
    """
    op = collectives.chosen_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        check_sparse(op, prescale_factor, postscale_factor)
        with on_device(device_sparse):
            return _allreduce_slices(tensor, op, name, process_set)
    if op == Adasum:
        check_adasum(process_set)
    with on_device(device_dense):
        tensor = tf.convert_to_tensor(tensor)
        compressed, context = compression.compress(tensor)
        reduced = collectives.allreduce(
            compressed, name, op, prescale_factor, postscale_factor, process_set=process_set
        )
        return compression.decompress(reduced, context)


def _allreduce_slices(slices: Any, op: int, name: str | None, process_set: ProcessSet) -> Any:
    values = collectives.allgather(
        slices.values, name and f"{name} values", process_set=process_set
    )
    indices = collectives.allgather(
        slices.indices, name and f"{name} indices", process_set=process_set
    )
    if op == Average:
        values = values / tf.cast(len(process_sets.members(process_set)), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Any = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """allreduce() of each tensor; the engine decides which ones travel together."""
    given = dict(locals())
    del given["tensors"], given["name"]
    return [
        allreduce(tensor, name=_numbered(name, number), **given)
        for number, tensor in enumerate(tensors)
    ]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    return [
        collectives.allgather(tensor, _numbered(name, number), process_set=process_set)
        for number, tensor in enumerate(tensors)
    ]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """This rank's rows of the reduction; the first dimension is divided among the ranks."""
    with on_device(device_dense):
        compressed, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = collectives.reducescatter(
            compressed,
            name,
            op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    given = dict(locals())
    del given["tensors"]
    return [reducescatter(tensor, **given) for tensor in tensors]


def _numbered(name: str | None, number: int) -> str | None:
    return name if name is None or number == 0 else f"{name} {number}"
