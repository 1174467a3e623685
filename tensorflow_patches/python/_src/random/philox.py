"""Counter-based random ops: they can draw a rank's rows without drawing the others.

TensorFlow's stateless ops fill a result in groups: group g is the generator's output after g steps
of its counter, on CPUs and GPUs (random_op_cpu.h, random_op_gpu.h). So the numbers from index p on
are those of a counter advanced by p / (group size) steps. Stateful ops do the same, from a state
that TfMpiRandomState keeps (glue/kernels). XLA's normal numbers are in another order, which depends
on their count.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# By op: the steps of the counter for each number; 0: one step for a whole group of numbers. A
# truncated normal number may take many steps.
_STEPS = {
    "stateless_random_uniform_v2": 0,
    "stateless_random_normal_v2": 0,
    "stateless_random_uniform_int_v2": 0,
    "stateless_random_uniform_full_int_v2": 0,
    "stateless_truncated_normal_v2": 64,
}
_STATEFUL = {
    "random_uniform": "stateless_random_uniform_v2",
    "random_standard_normal": "stateless_random_normal_v2",
    "random_uniform_int": "stateless_random_uniform_int_v2",
    "truncated_normal": "stateless_truncated_normal_v2",
}
PHILOX, _BY_DEVICE = 1, 3  # algorithms


def draw_rows(
    op: Any, given: dict[str, Any], shape: Any, first: Any, whole: Any, stateful: bool
) -> Any:
    """This rank's draw, of `shape`: rows from `first` on, of the `whole` that one process draws.

    None if the op is not counter-based.

    Args:
      given: the arguments of `op`, by name.
      stateful: whether stateful ops may be replaced. In eager code several calls share a kernel and
        its state.
    """
    name = op.__name__
    if name not in _STEPS and not (stateful and name in _STATEFUL):
        return None
    if "minval" in given:
        dtype = tf.convert_to_tensor(given["minval"]).dtype
    else:
        dtype = tf.as_dtype(given["dtype"])
    row = tf.reduce_prod(tf.cast(shape[1:], tf.int64))
    static_row_size = tf.get_static_value(row)
    if name in _STATEFUL:
        if not (given["seed"] or given["seed2"]):
            return None  # its kernel draws the seeds
        op, given = _stateless(name, given, tf.cast(whole, tf.int64) * row)
    elif tf.get_static_value(given["alg"]) not in (PHILOX, _BY_DEVICE):
        return None
    in_group = 16 // max(dtype.size, 4)  # numbers in a group of 128 bits
    start = tf.cast(first, tf.int64) * row
    steps = start // in_group * (_STEPS[op.__name__] * in_group or 1)
    given = {**given, "counter": advance(tf.convert_to_tensor(given["counter"]), steps)}
    if static_row_size is not None and static_row_size % in_group == 0:
        return op(**given)
    # From the start of a group: a few numbers more, of which `count` are taken.
    count = tf.cast(shape[0], tf.int64) * row
    given["shape"] = tf.reshape(count + in_group - 1, [1])
    numbers = op(**given)
    return tf.reshape(tf.slice(numbers, [start % in_group], [count]), shape)


def _stateless(name: str, given: dict[str, Any], numbers: Any) -> tuple[Any, Any]:
    """A stateless op, with arguments, that draws what the stateful op `name` would."""
    from tensorflow.python.framework import op_def_library

    with tf.device("CPU"):
        key, counter = op_def_library.apply_op(
            "TfMpiRandomState",
            numbers=numbers,
            seed=int(given["seed"] or 0),
            seed2=int(given["seed2"] or 0),
        )
    return _stateless_call(name, given, key, counter)


def _stateless_call(name: str, given: dict[str, Any], key: Any, counter: Any) -> tuple[Any, Any]:
    from tensorflow.python.ops import gen_stateless_random_ops_v2

    arguments = {"shape": given["shape"], "key": key, "counter": counter, "alg": PHILOX}
    arguments |= {one: given[one] for one in ("dtype", "minval", "maxval") if one in given}
    return getattr(gen_stateless_random_ops_v2, _STATEFUL[name]), arguments


def has_stateless_form(name: str) -> bool:
    """Whether `name` is a stateful op with a stateless counterpart."""
    return name in _STATEFUL


def draw_by_key(name: str, given: dict[str, Any], key: Any, counter: Any) -> Any:
    """The draw of a stateful op that has a stateless form, from a key and a counter."""
    op, arguments = _stateless_call(name, given, key, counter)
    return op(**arguments)


def seed_by_key(key: Any, counter: Any) -> Any:
    """A seed of Keras: two uint32."""
    from tensorflow.python.ops import gen_stateless_random_ops_v2 as ops

    return ops.stateless_random_uniform_full_int_v2([2], key, counter, PHILOX, tf.uint32)


def advance(counter: Any, steps: Any) -> Any:
    """A 128-bit counter, in two words, the lower first, advanced by `steps`."""
    steps = tf.cast(steps, counter.dtype)
    low = counter[0] + steps
    return tf.stack([low, counter[1] + tf.cast(low < steps, counter.dtype)])
