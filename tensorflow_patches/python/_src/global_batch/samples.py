"""Which tensors of a batch have samples along their first dimension, and how many."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def is_batched(spec: Any) -> bool:
    """Whether a value that `spec` describes has samples along its first dimension."""
    if not isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        return _is_batched_otherwise(spec)
    return spec.shape.rank is None or spec.shape.rank > 0


def _is_batched_otherwise(spec: Any) -> bool:
    """Whether it is a batch of a type that defines its samples, as BatchableExtensionTypes do."""
    from tensorflow.python.data.util import structure
    from tensorflow.python.framework import type_spec

    absent = (tf.OptionalSpec, structure.NoneTensorSpec)
    if isinstance(spec, absent) or not isinstance(spec, type_spec.BatchableTypeSpec):
        return False
    try:
        spec._unbatch()
    except (ValueError, NotImplementedError):
        return False
    return True


def length(part: Any) -> Any:
    """The number of samples of `part`: an int64 scalar, a constant if the shape is static."""
    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    if isinstance(part, tf.RaggedTensor):
        return tf.cast(part.nrows(), tf.int64)
    if isinstance(part, tf.__internal__.CompositeTensor):
        part = encoded(part)[0]
    static = part.shape[0] if part.shape.rank else None
    return tf.shape(part, tf.int64)[0] if static is None else tf.constant(static, tf.int64)


def encoded(part: Any) -> list[Any]:
    """The tensors, with samples first, in which tf.data stores a batch of an extension type."""
    return list(part._type_spec._to_batched_tensor_list(part))
