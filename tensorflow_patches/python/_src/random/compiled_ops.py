"""Random ops for this rank's samples, in a step that XLA compiles.

XLA takes no seeds, and draws the same in every process. All ranks draw a seed so, mix their number
into it, and go on by it. The functions take the arguments of the ops of gen_random_ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.runtime import group

_MANY = 2**31 - 1


def is_compiled() -> bool:
    """Whether what is traced now is compiled as a whole."""
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))


def _this_ranks() -> Any:
    import tensorflow as tf

    return tf.bitwise.bitwise_xor(
        tf.random.uniform([2], 0, _MANY, tf.int32), tf.constant([0, group.rank << 20])
    )


def _normal(shape: Any, dtype: Any, **_: Any) -> Any:
    import tensorflow as tf

    return tf.random.stateless_normal(shape, _this_ranks(), dtype=dtype)


def _truncated_normal(shape: Any, dtype: Any, **_: Any) -> Any:
    import tensorflow as tf

    return tf.random.stateless_truncated_normal(shape, _this_ranks(), dtype=dtype)


def _uniform(shape: Any, dtype: Any, **_: Any) -> Any:
    import tensorflow as tf

    return tf.random.stateless_uniform(shape, _this_ranks(), dtype=dtype)


def _uniform_int(shape: Any, minval: Any, maxval: Any, **_: Any) -> Any:
    import tensorflow as tf

    return tf.random.stateless_uniform(shape, _this_ranks(), minval, maxval, minval.dtype)


def _categorical(logits: Any, num_samples: Any, output_dtype: Any = None, **_: Any) -> Any:
    import tensorflow as tf

    dtype = output_dtype or tf.int64
    return tf.random.stateless_categorical(logits, num_samples, _this_ranks(), dtype)


OPS: dict[str, Callable[..., Any]] = {
    "random_standard_normal": _normal,
    "truncated_normal": _truncated_normal,
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "multinomial": _categorical,
}
