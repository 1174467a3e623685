"""Digests of what a dataset is made of (tensors, functions, tables), to compare ranks.

Only parts of large arrays are read. Content that cannot be read is left out, so a difference in it
is not noticed.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.data import transformations
from tensorflow.mpi._src.messaging import control_plane

# How many elements of an array are read at its beginning, middle and end; of strings a 16th.
_SAMPLED = 2**16
_NO_CONTENT = {"_variant_tensor_attr", "_seed", "_seed2", "_num_parallel_calls"}
_ELEMENTS = 256  # read at the beginning and the end of a dataset of ragged or sparse tensors
_ODD = np.uint64(0x9E3779B97F4A7C15)  # a multiplier for hashing
# Dtypes of tables' keys and values.
_TABLES = tuple(itertools.product(
    ("string", "int64", "int32"), ("int64", "string", "float32", "int32", "float64", "bool")
))  # fmt: skip


def of_source(source: Any) -> list[int]:
    """The digests of one transformation's eager tensors: its arrays, numbers and names."""
    tensors = list(getattr(source, "_tensors", ()))
    if not transformations.is_prefetch(source):  # a prefetch has only its buffer size
        held = sorted(vars(source).items())
        tensors += [value for name, value in held if name not in _NO_CONTENT and _is_eager(value)]
    found = [digest for tensor in tensors for digest in of_tensor(tensor)]
    if any(tensor.dtype.name == "variant" for tensor in getattr(source, "_tensors", ())):
        found += _of_elements(source)
    return found


def _is_eager(value: Any) -> bool:
    return hasattr(value, "_numpy_internal") and hasattr(value, "dtype")


def of_tensor(tensor: Any) -> list[int]:
    """The digests of an eager tensor that NumPy can represent; [] for others."""
    if not _is_eager(tensor) or not tensor.dtype.is_numpy_compatible:
        return []
    return of_array(tensor._numpy())  # numpy() would copy it


def of_array(array: Any) -> list[int]:
    """The digests of an array's parts; of strings, their number and one digest."""
    array = np.asarray(array)
    if array.dtype != object:
        return [control_plane.digest(part) for part in _parts(array)]
    texts = [value if isinstance(value, bytes) else str(value).encode()
             for part in _parts(array) for value in part]  # fmt: skip
    digest = 0
    for text in _without_common_folder(texts):
        digest = zlib.crc32(b"%d:%s" % (len(text), text), digest)
    return [array.size, digest]


def _without_common_folder(texts: list[bytes]) -> list[bytes]:
    """Paths without their common folder, which may be temporary."""
    if not texts or not all(b"/" in text for text in texts):
        return texts
    common: bytes = os.path.commonprefix(texts)  # type: ignore[assignment]
    folder = os.path.dirname(common + b"x") + b"/"
    return [text.removeprefix(folder) for text in texts]


def _parts(array: Any) -> list[Any]:
    flat = array.reshape(-1)
    sampled = _SAMPLED if array.dtype != object else _SAMPLED // 16
    if flat.size <= 3 * sampled:
        return [flat]
    middle = flat.size // 2
    return [flat[:sampled], flat[middle : middle + sampled], flat[-sampled:]]


def _of_elements(source: Any) -> list[int]:
    """The digest of a dataset of ragged or sparse tensors, which TensorFlow stores as variants."""
    length = int(source.cardinality())
    parts = [source.take(_ELEMENTS)]
    if length > _ELEMENTS:
        parts.append(source.skip(max(length - _ELEMENTS, _ELEMENTS)))
    digest = 0
    for part in parts:
        part._tf_mpi_undivided = True  # see dataset_shard.py
        for element in part:
            for tensor in tf.nest.flatten(element, expand_composites=True):
                digest = zlib.crc32(repr(of_tensor(tensor)).encode(), digest)
    return [length, digest]


def of_function(function: Any, graph_def: Any) -> list[int]:
    """The digest of a ConcreteFunction of tf.data: its ops and its captures."""
    found = [_of_nodes(graph_def.node)]
    # A sum, which does not depend on the order of the functions.
    found.append(sum(_of_nodes(inner.node_def) for inner in graph_def.library.function) % 2**32)
    for captured in function.captured_inputs:
        if _is_eager(captured) and captured.dtype.name == "resource":
            found += of_resource(captured)
        else:
            found += of_tensor(captured)
    return found


def _of_nodes(nodes: Any) -> int:
    """The digest of ops, attributes and edges, without names, which contain counters."""
    positions = {node.name: i for i, node in enumerate(nodes)}
    digest = 0
    for node in nodes:
        inputs = [positions.get(re.split("[:^]", name.lstrip("^"))[0], -1) for name in node.input]
        digest = zlib.crc32(f"{_unnumbered(node.op)} {inputs}".encode(), digest)
        for name in sorted(node.attr):
            if name[0] != "_" and name not in ("shared_name", "container", "config_proto"):
                digest = zlib.crc32(name.encode() + _of_attribute(node.op, node.attr[name]), digest)
    return digest


def _of_attribute(op: str, value: Any) -> bytes:
    if value.HasField("func"):
        return _unnumbered(value.func.name).encode()
    if op.startswith("CompositeTensorVariant") and value.HasField("s"):
        # A serialized proto; the order of its maps differs between processes.
        from tensorflow.core.protobuf import composite_tensor_variant_pb2

        value = composite_tensor_variant_pb2.CompositeTensorVariantMetadata.FromString(value.s)
    return bytes(value.SerializeToString(deterministic=True))


def _unnumbered(name: str) -> str:
    return re.sub(r"_\d+", "", name)


def of_resource(handle: Any) -> list[int]:
    """The digest of a variable's value, or of a table's keys and values, in any order; [] for
    other resources."""
    for data in getattr(getattr(handle, "_handle_data", None), "shape_and_type", ()):
        dtype = tf.as_dtype(data.dtype)
        return of_tensor(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype))
    for keys, values in _TABLES:
        if not _is_table_of(handle, keys, values):
            continue
        try:
            exported = tf.raw_ops.LookupTableExportV2(
                table_handle=handle, Tkeys=keys, Tvalues=values
            )
        except (tf.errors.OpError, ValueError, TypeError):
            continue
        return _of_pairs(*map(_numbers, exported))
    return []


def _is_table_of(handle: Any, keys: str, values: str) -> bool:
    """Whether a table maps dtype `keys` to dtype `values`. Call it before an export, which does not
    check dtypes and would crash the process."""
    try:
        tf.raw_ops.LookupTableFindV2(
            table_handle=handle, keys=tf.zeros([0], keys), default_value=tf.zeros([], values)
        )
    except (tf.errors.OpError, ValueError, TypeError) as error:
        return "shape" in str(error)  # dtypes are checked before the shape of values
    return True


def is_writable_resource(captured: Any) -> bool:
    """Whether `captured` is a resource that can be written: not a table that refuses inserts."""
    if not _is_eager(captured) or captured.dtype != tf.resource:
        return False
    for keys, values in _TABLES:
        if not _is_table_of(captured, keys, values):
            continue
        try:
            nothing = tf.zeros([0], keys), tf.zeros([0], values)
            tf.raw_ops.LookupTableInsertV2(
                table_handle=captured, keys=nothing[0], values=nothing[1]
            )
        except tf.errors.OpError:
            return False
    return True


def _numbers(values: Any) -> Any:
    """A table's keys or values as uint64; strings by their hashes."""
    if values.dtype == tf.string:
        values = tf.strings.to_hash_bucket_fast(values, 2**62)
    if values.dtype.is_floating:
        values = tf.bitcast(tf.cast(values, tf.float64), tf.int64)
    return tf.cast(values, tf.int64).numpy().reshape(-1).view(np.uint64)


def _of_pairs(keys: Any, values: Any) -> list[int]:
    """The digest of pairs in any order, without repeated keys: empty slots of a dense table."""
    _, first, times = np.unique(keys, return_index=True, return_counts=True)
    pairs = first[times == 1]
    keys, values = keys[pairs], values.reshape(len(keys), -1)[pairs]
    with np.errstate(over="ignore"):
        mixed = keys * _ODD
        for column in values.T:
            mixed = (mixed ^ (column + np.uint64(1))) * _ODD
            mixed ^= mixed >> np.uint64(29)
        return [int(mixed.sum(dtype=np.uint64) & np.uint64(2**53 - 1)), len(pairs)]


def nodes(graph_def: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The nodes of a function and of the functions that it calls.

    Nodes whose op is such a function are left out; PartitionedCall nodes are not. Each node comes
    with all nodes of its function, by name.
    """
    called = {inner.signature.name for inner in graph_def.library.function}
    for body in (graph_def.node, *(inner.node_def for inner in graph_def.library.function)):
        by_name = {node.name: node for node in body}
        yield from ((node, by_name) for node in body if node.op not in called)


def node_ops(graph_def: Any) -> Iterator[str]:
    """The names of the ops of `nodes`."""
    return (node.op for node, _ in nodes(graph_def))
