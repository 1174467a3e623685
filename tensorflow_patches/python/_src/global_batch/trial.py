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
import itertools
import random
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.average import compiled
from tensorflow.mpi._src.global_batch import batch, gradients, probe, results, states
from tensorflow.mpi._src.global_batch.kind import Kind
from tensorflow.mpi._src.global_batch.losses import is_keras
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import log
from tensorflow.mpi._src.variables import unwrap

_FOUND = "_tf_mpi_needs_whole"  # on a model: by the kind of step
_FED_WHOLE = "_tf_mpi_fed_whole"  # ... too
_MIXES = "_tf_mpi_mixes"  # ... by whether it trains, or by its own predict_step
_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}
_trials = itertools.count(1)  # that were run, in program order


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
            batch.tell_alike()
    return found[kind]


def is_given_whole(model: Any, kind: str) -> bool:
    """Whether needs_whole has said so, or it is fed whole batches; the states of its metrics are
    then the same everywhere."""
    found = model.__dict__.get(_FOUND, {}).get(kind, False)
    return bool(found) or is_fed_whole(model, kind)


def note_feed(model: Any, call: str, whole: bool) -> None:
    """`call`, "fit" or "evaluate", iterates batches that every rank has whole, or a part of."""
    model.__dict__.setdefault(_FED_WHOLE, {})[_STEPS[call]] = whole
    if whole and call == "fit":
        batch.tell_alike()


def is_fed_whole(model: Any, kind: str) -> bool:
    """Whether every rank iterates whole batches, for steps of `kind`."""
    return bool(model.__dict__.get(_FED_WHOLE, {}).get(kind, False))


def mixes_samples(model: Any, call: str, spec: Any) -> bool:
    """Whether what the model makes of one sample depends on others of the batch.

    Where a step of the script's own calls it, needs_whole looks at what comes of it.

    Args:
      call: "fit", "evaluate" or "predict".
      spec: of the batches that it iterates.
    """
    step = _STEPS[call]
    own = _is_own(model, step)
    if own and call != "predict":
        return False
    key = step if own else call == "fit"
    found: dict[Any, bool] = model.__dict__.setdefault(_MIXES, {})
    if key not in found:
        found[key] = (own or not _is_kerass(model)) and _mixes(model, call, spec, own)
    return found[key]


def _is_kerass(model: Any) -> bool:
    """Whether it is made of nothing but Keras's own layers, which look at one sample at a time."""
    for layer in [model, *model._flatten_layers()]:
        if type(layer).__name__ in ("Functional", "Sequential"):
            operations = getattr(layer, "operations", ())
            if not is_keras(type(layer).__module__) or not all(
                hasattr(operation, "trainable_variables") for operation in operations
            ):
                return False
        elif not gradients.is_by_sample(layer):
            return False
    return True


def _mixes(model: Any, call: str, spec: Any, own: bool) -> bool:
    import tensorflow as tf

    if not own:
        spec = spec[0] if isinstance(spec, tuple) else spec
    outputs: list[Any] = []

    def look(data: Any, part: batch.Part) -> None:
        outputs.clear()  # a model that is built here is traced twice
        if own:
            made = model.predict_step(data)
        elif getattr(model, "_call_has_training_arg", True):
            made = model(data, training=call == "fit")
        else:
            made = model(data)
        outputs.extend(one for one in tf.nest.flatten(made) if isinstance(one, tf.Tensor))
        part.seen.update(map(part.kind, outputs))
        graph = tf.compat.v1.get_default_graph()
        if call == "predict" and states.made_of_samples(graph, None, part):
            part.seen.add(Kind.MIXED)  # a layer's metric, which it may return

    part, graph = _traced(model, spec, look)
    if part is None:
        return False  # the step itself says what is wrong
    apart = {Kind.ROWS, Kind.ONES, Kind.CONST}
    if Kind.UNKNOWN in part.seen and part.seen <= apart | {Kind.UNKNOWN}:
        untold = [one for one in outputs if part.kind(one) is Kind.UNKNOWN]
        return bool(_tried(model, call, graph, part, untold, is_rows=True))
    return not part.seen <= apart


def _is_own(model: Any, kind: str) -> bool:
    """Whether the script has written what the step does, more than a call of Keras's step."""
    step = vars(model).get(kind) or getattr(type(model), kind)
    code = getattr(inspect.unwrap(step), "__code__", None)
    names = set(getattr(code, "co_names", ()))
    only_calls = kind in names and not names & {"GradientTape", "gradient", "minimize"}
    losses = [type(model).compute_loss] if kind != "predict_step" else []
    methods = [*losses, *([] if only_calls else [step])]
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
        for variable in map(unwrap.tf_variable, own):
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
    import tensorflow as tf

    eagerly = tf.executing_eagerly()
    changed: set[int] = set()

    def look(data: Any, part: batch.Part) -> None:
        logs = hooking.as_here(step)(data)
        for _, value in results.leaves(logs if isinstance(logs, dict) else {}):
            if id(value) not in part.results:
                part.told.add(part.kind(value))
        changed.update(states.made_of_samples(tf.compat.v1.get_default_graph(), None, part))

    part, graph = _traced(model, shard.data, look)
    if part is None or part.gathers:
        return None
    # In eager code nobody will be able to tell a sum from a mean.
    wrong = {Kind.MIXED, Kind.LINEAR, Kind.RATIO} | ({Kind.SUM} if eagerly else set())
    seen = part.seen | (part.told if kind == "test_step" else set())
    if not seen & wrong and part.untold:
        seen |= _tried(model, kind, graph, part, part.untold)
    if seen & wrong:
        return "computes what is no mean over samples (as a contrastive loss, or a root of a mean)"
    names = sorted(name for handle, name in kept.items() if handle in changed)
    if names:
        return f"keeps something of the samples in '{names[0]}' (as a queue, or a running mean)"
    if part.told & wrong:
        _say_values(model)
    return None


def _traced(
    model: Any, data: Any, look: Callable[[Any, batch.Part], None]
) -> tuple[batch.Part | None, Any]:
    """What `look(data, part)` leaves in its part, and its graph: a function that is never run.

    Args:
      data: tensors or specs, the first dimension of which may be any.

    Returns:
      (None, None) if it cannot be traced.
    """
    import numpy as np
    import tensorflow as tf

    specs = [_spec(leaf) for leaf in tf.nest.flatten(data)]
    found: list[batch.Part] = []

    def trial(*given: Any) -> None:
        there = iter(given)
        parts = [None if spec is None else next(there) for spec in specs]
        with batch.step_on(batch.Trial(tf.nest.pack_sequence_as(data, parts))) as part:
            look(part.data, part)
        found.append(part)

    given = [spec for spec in specs if spec is not None]
    drawn = random.getstate(), np.random.get_state()
    try:
        graph = tf.function(trial, autograph=hooking.converts()).get_concrete_function(*given).graph
    except Exception as error:  # of the script: the step itself says so
        log.debug(f"a step of model '{model.name}' was not looked at: {error}")
        return None, None
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
    return found[-1], graph


def _tried(
    model: Any, kind: str, graph: Any, part: batch.Part, tensors: list[Any], is_rows: bool = False
) -> set[Kind]:
    """By numbers (probe.py); the same on all ranks, which may hold other weights yet."""
    import tensorflow as tf

    leaves = [leaf for leaf in tf.nest.flatten(part.data) if leaf is not None]
    trained = map(unwrap.tf_variable, model.trainable_variables)
    with_handles = [variable for variable in trained if hasattr(variable, "handle")]
    found = probe.of_graph(graph, leaves, tensors, is_rows, with_handles)
    label = f"kind of {kind} {next(_trials)}"
    everyone = set(control_plane.headers(label, found.name))
    log.debug(f"{kind} of model '{model.name}' was tried: {', '.join(sorted(everyone))}")
    if everyone & {"MIXED", "SUM"}:
        return {Kind.MIXED}
    if "UNKNOWN" in everyone:
        _say_untold(model, kind)
    return set()


def _spec(leaf: Any) -> Any:
    """Of any number of samples; None of what is no tensor."""
    import tensorflow as tf

    if isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
        shape = leaf.shape
        return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, leaf.dtype)
    return leaf if isinstance(leaf, tf.TypeSpec) else None


def _say_untold(model: Any, kind: str) -> None:
    log.once(
        f"{kind} of model '{model.name}': nobody can tell whether it computes each sample for "
        "itself, and their mean; each rank computes its part of the batch. If it does not, compute "
        "that of tf.mpi.gather_batch(x), or set TF_MPI_SHARD=off, which gives each rank all of it",
        key="step untold",
    )


def _say_values(model: Any) -> None:
    log.once(
        f"train_step of model '{model.name}' tells of a value of several samples at once, which is "
        "no mean over samples: the logs show the mean of what each rank has of its part of the "
        "batch. Give it to a metric class of your own, or compute it of tf.mpi.gather_batch(x)",
        key="step values",
    )


def _say(model: Any, kind: str, why: str) -> None:
    log.once(
        f"{kind} of model '{model.name}' {why}, so every rank computes whole batches: that is one "
        "process's result, and no faster. To share the work, compute that of "
        "tf.mpi.gather_batch(x), of predictions, targets or what is kept",
        key=f"step {kind}",
    )
