"""Shared by horovod.keras and horovod.tensorflow.keras: everything that works on either Keras."""

from typing import Any

import tensorflow as tf
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from horovod.tensorflow.mpi_ops import Average
from tensorflow.mpi._src.horovod import collectives, objects, reductions
from tensorflow.mpi._src.horovod.keras_optimizer import (  # noqa: F401
    DistributedOptimizer,
    PartialDistributedOptimizer,
)
from tensorflow.mpi._src.horovod.reductions import Compression


def _now(value: Any) -> Any:
    """In graph mode, runs `value` in Keras's session."""
    if tf.executing_eagerly():
        return value
    return tf.compat.v1.keras.backend.get_session().run(value)


def broadcast_global_variables(root_rank: int) -> Any:
    return _now(objects.broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    given = dict(locals())
    tensor = tf.constant(given.pop("value"), name=given.pop("name"))
    return _now(reductions.allreduce(tensor, **given))


def allgather(value: Any, name: str | None = None) -> Any:
    return _now(collectives.allgather(tf.constant(value, name=name)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    return _now(collectives.broadcast(tf.constant(value, name=name), root_rank))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    return _now(reductions.reducescatter(tf.constant(value, name=name), op=op))
