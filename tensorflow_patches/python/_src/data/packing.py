"""Elements of datasets as bytes, made by TensorFlow ops, to send them to other ranks.

Layout: a block whose first byte is not END and whose second word is the total number of bytes. Then
for each tensor an int64 vector [number of dimensions, their sizes..., number of bytes, for strings
the length of each], and its bytes. Vectors and bytes begin at a multiple of BLOCK, so that
TensorFlow's slices share memory. An Optional is sent as a string, TensorFlow's serialization of it.
"""

from __future__ import annotations

import base64
from typing import Any

import tensorflow as tf

END = 0  # the first byte of a message that is not an element
BLOCK = 64  # bytes
_WORD = 8  # bytes of an int64
_NOT_ENCODED = "not encoded: "


def encode_spec(spec: Any) -> str:
    """The structure of a dataset's elements as text, equal for equal structures."""
    from tensorflow.python.saved_model import nested_structure_coder

    # TensorFlow warns when it encodes other types. catch_warnings would suppress that, but makes
    # Python forget, and repeat, the warnings that it shows once.
    encoded = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec, tf.OptionalSpec)
    if not all(type(leaf) in encoded for leaf in tf.nest.flatten(spec)):
        return _NOT_ENCODED + _described(spec)
    try:
        proto = nested_structure_coder.encode_structure(spec)
    except (nested_structure_coder.NotEncodableError, NotImplementedError, TypeError, ValueError):
        return _NOT_ENCODED + _described(spec)
    # The order of its maps differs between processes.
    return base64.b64encode(proto.SerializeToString(deterministic=True)).decode()


def _described(spec: Any) -> str:
    """Describes a spec by the class of each leaf and its component tensors."""
    from tensorflow.python.util import nest

    leaves = [
        [path, type(leaf).__qualname__, nest.flatten(leaf, expand_composites=True)]
        for path, leaf in nest.flatten_with_joined_string_paths(spec)
    ]
    return repr(leaves)


def decode_spec(text: str, own: Any) -> Any:
    """The spec that another rank passed to `encode_spec`; `own` if it cannot be decoded."""
    from tensorflow.core.protobuf import struct_pb2
    from tensorflow.python.saved_model import nested_structure_coder

    if text.startswith(_NOT_ENCODED):
        return own
    proto = struct_pb2.StructuredValue.FromString(base64.b64decode(text))
    return nested_structure_coder.decode_proto(proto)


def pack(element: Any) -> Any:
    """`element` as a uint8 vector of at least one block."""
    parts = []
    for part in tf.nest.flatten(element, expand_composites=True):
        if part is None:  # its spec has no components
            continue
        if part.dtype == tf.variant:
            part = tf.io.serialize_tensor(part)
        data, lengths = _bytes(part)
        words = [[tf.rank(part)], tf.shape(part), [tf.size(data)]]
        vector = tf.concat([tf.cast(word, tf.int64) for word in words] + [lengths], 0)
        header = tf.reshape(tf.bitcast(vector, tf.uint8), [-1])
        parts += [header, _filling(header), data, _filling(data)]
    return message(1, parts)


def message(first: int, parts: list[Any]) -> Any:
    """A block whose first word is `first`, followed by `parts`, byte vectors."""
    size = tf.add_n([tf.constant(BLOCK), *map(tf.size, parts)])
    words = [[first], tf.reshape(tf.cast(size, tf.int64), [1]), [0] * (BLOCK // _WORD - 2)]
    block = tf.concat([tf.cast(word, tf.int64) for word in words], 0)
    return tf.concat([tf.reshape(tf.bitcast(block, tf.uint8), [-1]), *parts], 0)


def read_header(data: Any, offset: Any) -> tuple[Any, Any]:
    """The first word and the end of the message at `offset`, an int64."""
    words, _ = _words(data, offset, 2)
    return words[0], offset + words[1]


def _filling(data: Any) -> Any:
    return tf.zeros([tf.math.floormod(-tf.size(data), BLOCK)], tf.uint8)


def _next_block(offset: Any) -> Any:
    return (offset + (BLOCK - 1)) // BLOCK * BLOCK


def _bytes(part: Any) -> tuple[Any, Any]:
    """(bytes as a uint8 vector, lengths of strings as an int64 vector)."""
    if part.dtype == tf.string:
        flat = tf.reshape(part, [-1])
        data = tf.io.decode_raw(tf.strings.reduce_join(flat), tf.uint8)
        return data, tf.cast(tf.strings.length(flat), tf.int64)
    if part.dtype == tf.bool:
        part = tf.cast(part, tf.uint8)
    return tf.reshape(tf.bitcast(part, tf.uint8), [-1]), tf.zeros([0], tf.int64)


def unpack(spec: Any, packed: Any, begin: Any = 0) -> Any:
    """The element that was packed at `begin`."""
    offset = tf.cast(begin, tf.int64) + BLOCK
    parts = []
    for component in tf.nest.flatten(spec, expand_composites=True):
        dtype = tf.string if component.dtype == tf.variant else component.dtype
        dimensions, offset = _words(packed, offset, tf.constant(1, tf.int64))
        shape, offset = _words(packed, offset, dimensions[0])
        size, offset = _words(packed, offset, tf.constant(1, tf.int64))
        lengths = tf.zeros([0], tf.int64)
        if dtype == tf.string:
            lengths, offset = _words(packed, offset, tf.reduce_prod(shape))
        offset = _next_block(offset)
        data = packed[offset : offset + size[0]]
        offset = _next_block(offset + size[0])
        part = tf.reshape(_values(data, lengths, dtype), shape)
        if component.dtype == tf.variant:
            part = tf.io.parse_tensor(part, tf.variant)
        parts.append(tf.ensure_shape(part, component.shape))
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)


def _words(packed: Any, offset: Any, count: Any) -> tuple[Any, Any]:
    """(`count` int64 values at `offset`, where they end)."""
    end = offset + count * _WORD
    return tf.bitcast(tf.reshape(packed[offset:end], [-1, _WORD]), tf.int64), end


def _values(data: Any, lengths: Any, dtype: Any) -> Any:
    if dtype == tf.string:
        letters = tf.constant([bytes([code]) for code in range(256)])
        each = tf.RaggedTensor.from_row_lengths(
            tf.gather(letters, tf.cast(data, tf.int32)), lengths
        )
        return tf.strings.reduce_join(each, axis=1)
    if dtype == tf.bool:
        return tf.cast(data, tf.bool)
    if dtype.size == 1:
        return tf.bitcast(data, dtype)
    return tf.bitcast(tf.reshape(data, [-1, dtype.size]), dtype)
