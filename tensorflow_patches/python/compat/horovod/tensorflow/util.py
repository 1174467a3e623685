"""horovod.tensorflow.util."""

from typing import Any

import tensorflow as tf
from horovod.common.util import _cache  # noqa: F401


def _make_subgraph(function: Any) -> Any:
    return tf.function(function)


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def vars_to_refs(variables: Any) -> Any:
    if isinstance(variables, list):
        return tuple(vars_to_refs(variable) for variable in variables)
    return variables.ref()


def refs_to_vars(refs: Any) -> Any:
    if isinstance(refs, tuple):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
