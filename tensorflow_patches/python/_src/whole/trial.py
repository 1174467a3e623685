"""Whether a step of the script's own must be given the whole batch on every rank.

A train_step, test_step or compute_loss that the script has written is traced once, in a function
that is never run, and what it takes the gradient of is looked at (kinds.py). If that is a function
of several samples at once, or if the step keeps something of samples for later (a queue of
embeddings, centers of classes), and the script gathers nothing (tf.mpi.gather_batch), no rank can
compute it of its part. Then every rank is given the whole batch: that is what one process does, at
its speed; rank 0 says so.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.average import compiled
from tensorflow.mpi._src.runtime import hooking, hooks, log
from tensorflow.mpi._src.whole import batch, results, states
from tensorflow.mpi._src.whole.kind import Kind
from tensorflow.mpi._src.whole.losses import is_keras

APART = "_tf_mpi_drawing"  # on a random generator's variable: it is set apart by rank
_FOUND = "_tf_mpi_needs_whole"  # on a model: by the kind of step
_said: set[str] = set()


def needs_whole(model: Any, kind: str, step: Callable[[Any], Any], shard: Any) -> bool:
    """Whether `step` (`kind`: "train_step" or "test_step") is to be given the whole batch.

    Asked when it is traced, or run eagerly: the same on all ranks.
    """
    found: dict[Any, bool] = model.__dict__.setdefault(_FOUND, {})
    if kind not in found:
        kept = _own_state(model) if kind == "train_step" else {}
        looked_at = _is_own(model, kind) or _adds_losses(model) or bool(kept)
        why = None
        if looked_at and _can_be_whole(shard):
            why = _why_whole(model, kind, step, shard, kept)
        found[kind] = why is not None
        if why is not None:
            _say(model, kind, why)
            _draw_alike(model)
    return found[kind]


def is_given_whole(model: Any, kind: str) -> bool:
    """Whether needs_whole has said so; the states of its metrics are then the same everywhere."""
    return bool(model.__dict__.get(_FOUND, {}).get(kind, False))


def _is_own(model: Any, kind: str) -> bool:
    """Whether the script has written what the step does, more than a call of Keras's step."""
    step = vars(model).get(kind) or getattr(type(model), kind)
    code = getattr(inspect.unwrap(step), "__code__", None)
    names = set(getattr(code, "co_names", ()))
    only_calls = kind in names and not names & {"GradientTape", "gradient", "minimize"}
    methods = [type(model).compute_loss, *([] if only_calls else [step])]
    return not all(is_keras(getattr(method, "__module__", "")) for method in methods)


def _adds_losses(model: Any) -> bool:
    """Whether a layer of the script's own adds a loss, which may be of several samples at once."""
    own = [layer for layer in model._flatten_layers() if not is_keras(type(layer).__module__)]
    return any("add_loss" in getattr(_call(layer), "co_names", ()) for layer in own)


def _call(layer: Any) -> Any:
    return getattr(inspect.unwrap(type(layer).call), "__code__", None)


def _own_state(model: Any) -> dict[int, str]:
    """What layers of the script's own keep and do not train, by the id of its handle: its name."""
    found = {}
    for layer in model._flatten_layers():
        if is_keras(type(layer).__module__):
            continue
        lists = ("_non_trainable_variables", "_non_trainable_weights")  # Keras 3's, tf_keras's
        own: Any = next((getattr(layer, name) for name in lists if hasattr(layer, name)), ())
        for variable in map(states.tf_variable, own):
            if hasattr(variable, "handle"):
                found[id(variable.handle)] = str(variable.name)
    return found


def _can_be_whole(shard: Any) -> bool:
    """Ragged, sparse and string tensors are not gathered, nor uneven parts in compiled code."""
    import tensorflow as tf

    parts = [leaf for leaf in tf.nest.flatten(shard.data) if leaf is not None]
    if not all(isinstance(leaf, tf.Tensor) and leaf.dtype != tf.string for leaf in parts):
        return False
    even = not hasattr(shard, "weight") and all(leaf.shape.is_fully_defined() for leaf in parts)
    return even or not compiled.is_compiled()


def _why_whole(
    model: Any, kind: str, step: Callable[[Any], Any], shard: Any, kept: dict[int, str]
) -> str | None:
    """What of the step only the whole batch can tell; None: nothing. `kept`: see _own_state."""
    import numpy as np
    import tensorflow as tf

    eagerly = tf.executing_eagerly()
    seen: set[Kind] = set()
    told: set[Kind] = set()
    changed: set[int] = set()
    leaves = tf.nest.flatten(shard.data)
    specs = [
        None if leaf is None else tf.TensorSpec(_of_any_length(leaf.shape), leaf.dtype)
        for leaf in leaves
    ]

    def trial(*given: Any) -> None:
        there = iter(given)
        parts = [None if spec is None else next(there) for spec in specs]
        data = tf.nest.pack_sequence_as(shard.data, parts)
        with batch.step_on(batch.Trial(data)) as part:
            part.seen, part.told = seen, told
            logs = hooking.as_here(step)(data)
            for _, value in results.leaves(logs if isinstance(logs, dict) else {}):
                if id(value) not in part.results:
                    told.add(part.kind(value))
            changed.update(states.made_of_samples(tf.compat.v1.get_default_graph(), None, part))

    given = [spec for spec in specs if spec is not None]
    drawn = random.getstate(), np.random.get_state()
    try:
        tf.function(trial, autograph=hooking.converts()).get_concrete_function(*given)
    except Exception as error:  # of the script: the step itself says so
        log.debug(f"a step of model '{model.name}' was not looked at: {error}")
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
    # In eager code nobody will be able to tell a sum from a mean.
    wrong = {Kind.MIXED, Kind.LINEAR} | ({Kind.SUM} if eagerly else set())
    if (seen | (told if kind == "test_step" else set())) & wrong:
        return "computes what is no mean over samples (as a contrastive loss, or a root of a mean)"
    names = sorted(name for handle, name in kept.items() if handle in changed)
    if names:
        return f"keeps something of the samples in '{names[0]}' (as a queue, or a running mean)"
    if told & wrong:
        _say_values(model)
    return None


def _of_any_length(shape: Any) -> Any:
    import tensorflow as tf

    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape


def _draw_alike(model: Any) -> None:
    """Its random generators, which fit has set apart for each rank's own samples, are alike again.

    So dropout of whole batches is one process's.
    """
    import numpy as np
    import tensorflow as tf

    for variable in model.non_trainable_variables:
        if not getattr(variable, APART, False):
            continue
        setattr(variable, APART, False)
        with tf.init_scope():
            state = np.array(states.tf_variable(variable).numpy())
            if state.shape == (2,):
                state[1] -= hooks.rank << 20
                variable.assign(state)


def _say_values(model: Any) -> None:
    if hooks.rank or "values" in _said:
        return
    _said.add("values")
    log.say(
        f"train_step of model '{model.name}' tells of a value of several samples at once, which is "
        "no mean over samples: the logs show the mean of what each rank has of its part of the "
        "batch. Give it to a metric class of your own, or compute it of tf.mpi.gather_batch(x)"
    )


def _say(model: Any, kind: str, why: str) -> None:
    if hooks.rank or kind in _said:
        return
    _said.add(kind)
    log.say(
        f"{kind} of model '{model.name}' {why}, so every rank computes whole batches: that is one "
        "process's result, and no faster. To share the work, compute that of "
        "tf.mpi.gather_batch(x), of predictions, targets or what is kept"
    )
