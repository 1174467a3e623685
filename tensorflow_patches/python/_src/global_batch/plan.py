"""Whether ranks take parts of the batches of a call of fit, evaluate or predict: one plan for each.

Before data are fed, the model's step is traced once on the whole batch, of any number of samples,
in a function that never runs, and what it does with samples is looked at (kinds.py): what it takes
gradients of, what it gives to losses and metrics, what it keeps and what it returns.

- SPLIT: each rank takes a part of every batch.
- GATHER: so it does, and some losses or metrics are computed of the whole batch, gathered.
- WHOLE: every rank computes whole batches, as something is a function of several samples at once,
  or that cannot be told. That is one process's result, at its speed; rank 0 says so.

TF_MPI_LOG_LEVEL=debug shows each plan.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tensorflow.mpi._src.global_batch import batch, kinds, results, states
from tensorflow.mpi._src.global_batch.kinds import ROWS, Kind
from tensorflow.mpi._src.global_batch.sites import How, Look, Plan, Verdict, Why, place
from tensorflow.mpi._src.runtime import group, hooks, log
from tensorflow.mpi._src.variables import unwrap

_PLANS = "_tf_mpi_plans"  # on a model: by key
_NOW = "_tf_mpi_plan"  # on a model: that of the last call, by step
STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}


class Step(NamedTuple):
    """A step of a model, and how it will run.

    Attributes:
      model: Keras's, or tf_keras's.
      call: "fit", "evaluate" or "predict".
      function: takes a batch.
      fresh: Keras will make its function anew, as after compile(): the step may be another.
      eagerly: it runs without a graph.
      compiled: ... by XLA.
      converted: ... by AutoGraph.
      own_loop: a loop of the script's own iterates the batches, which nobody can look at.
    """

    model: Any
    call: str
    function: Callable[[Any], Any]
    fresh: bool
    eagerly: bool
    compiled: bool
    converted: bool
    own_loop: bool


class _Data(NamedTuple):
    data: Any


def of(step: Step, spec: Any, divides: bool, why: str | None, whole_batches: bool) -> Plan:
    """The plan for batches of `spec`; all ranks call it at the same point.

    Args:
      divides: every rank will have as many samples.
      why: they are no samples that ranks could share.
      whole_batches: every rank can be fed whole batches; else each rank has batches of its own,
        which are gathered where the plan is WHOLE.
    """
    plans = vars(step.model).setdefault(_PLANS, {})
    static = _has_static_rows(spec)
    known = (step.call, _described(spec), static, divides, why, whole_batches)
    if step.fresh:
        for stale in [key for key in plans if key[0] == step.call]:
            del plans[stale]
    if known not in plans:
        plans[known] = _made(step, spec, divides, why, whole_batches)
    plan: Plan = plans[known]
    vars(step.model).setdefault(_NOW, {})[STEPS[step.call]] = plan
    return plan


def over(model: Any) -> None:
    """The script's call of `model` has ended: what it gives a step itself is of no plan."""
    vars(model).pop(_NOW, None)


def current(model: Any, kind: str) -> Plan | None:
    """That of the last call with steps of `kind`, such as "train_step"; None if there was none."""
    found: Plan | None = vars(model).get(_NOW, {}).get(kind)
    return found


def _described(spec: Any) -> str:
    import tensorflow as tf

    return repr(tf.nest.map_structure(_of_any_number, spec))


def _made(step: Step, spec: Any, divides: bool, why: str | None, whole_batches: bool) -> Plan:
    look = Look(step.eagerly)
    even = divides and _has_static_rows(spec)
    if step.own_loop:
        what = "a loop of the script's own over the batches (make_train_function)"
        look.whys.append(Why(what, way_out="leave the loop to Keras"))
    elif why is not None:
        look.whys.append(Why(why, way_out="give samples one first dimension"))
    else:
        look = _looked_at(step, spec, whole_batches)
    way_out = "use batches of one size that the ranks divide"
    if look.nested_draws and not divides:
        what = "what is drawn in a tf.function that the step calls"
        look.whys.append(Why(what, way_out=f"{way_out}, or call it without tf.function"))
    if look.gathered and step.compiled and (look.draws_by_kernels or not even):
        first = look.gathered[0]
        way_out = f"set jit_compile=False, or {way_out}"
        look.whys.append(first._replace(what=f"{first.what}, compiled,", way_out=way_out))
    verdict = Verdict.WHOLE if look.whys else Verdict.GATHER if look.gathered else Verdict.SPLIT
    plan = Plan(verdict, look, plain=step.own_loop)
    if plan.is_whole and not whole_batches and not _can_be_gathered(spec, step.compiled, even):
        plan.verdict = Verdict.SPLIT
        for site in plan.sites:
            site.how = How.PART if site.how is How.WHOLE else site.how
        _say_part(step, plan)
    if look.foreign_draw and not plan.is_whole:
        _say_foreign(step, look.foreign_draw)
    if plan.is_whole and step.call == "fit":
        batch.send_distinct_gradient()
    _tell(step, plan)
    return plan


def _has_static_rows(spec: Any) -> bool:
    import tensorflow as tf

    shapes = [leaf.shape for leaf in tf.nest.flatten(spec) if hasattr(leaf, "shape")]
    return all(shape[0] is not None for shape in shapes if shape.rank)


def _can_be_gathered(spec: Any, compiled: bool, even: bool) -> bool:
    """Whether ranks can put the batches together that each of them has for itself."""
    import tensorflow as tf

    dense = all(
        isinstance(leaf, tf.TensorSpec) and leaf.dtype != tf.string
        for leaf in tf.nest.flatten(spec)
        if leaf is not None
    )
    return dense and (even or not compiled)


def _looked_at(step: Step, spec: Any, whole_batches: bool) -> Look:
    import tensorflow as tf

    specs = [_of_any_number(leaf) for leaf in tf.nest.flatten(spec)]
    present = [one for one in specs if one is not None]
    found: list[Look] = []

    def trial(*given: Any) -> None:
        if found and found[-1].is_plain:  # traced again only because it has made variables
            return
        there = iter(given)
        data = tf.nest.pack_sequence_as(spec, [None if s is None else next(there) for s in specs])
        look = Look(step.eagerly)
        found.append(look)
        with batch.step_on(_Data(data), look=look) as part:
            graph = tf.compat.v1.get_default_graph()
            made = step.function(data)
            _judge(step, part, look, made)
            _judge_states(step, part, look, graph, own_rows=not whole_batches)
            _judge_draws(part, look, graph)

    counted: list[str] = []
    try:
        with only_traced(step.model, counted):
            tf.function(trial, autograph=step.converted).get_concrete_function(*present)
    except Exception as error:  # of the script: the step itself says so
        log.debug(f"{step.call} of model '{step.model.name}' could not be looked at: {error}")
        look = Look(step.eagerly)
        what = f"a step of which no graph can be made ({_first_line(error)})"
        look.whys.append(Why(what, way_out="compute it by TensorFlow's ops alone"))
        return look
    if counted and step.eagerly:  # the step's Python code may take another way at each number
        way_out = "keep it in a tf.Variable, or do not run it eagerly"
        found[-1].whys.append(Why(f"what it counts in '{counted[0]}'", way_out=way_out))
    return found[-1]


@contextlib.contextmanager
def only_traced(model: Any, counted: list[str] | None = None) -> Iterator[None]:
    """Around a trace of `model` that one process does not make: what Python counts is put back.

    What the trace builds stays built, and so do the numbers by which it is.

    counted: gets the names of the model's own numbers that the trace has changed.
    """
    import numpy as np

    drawn, numbers = (random.getstate(), np.random.get_state()), _numbers(model)
    was_built = _is_built(model)
    held = [(one, kept, _is_built(one)) for one in _held(model) if (kept := _numbers(one))]
    try:
        yield
    finally:
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
        changed = _put_back(model, numbers, builds=_is_built(model) != was_built)
        for owner, before, owner_was_built in held:
            if _is_built(owner) == owner_was_built:
                owner.__dict__.update(before)
        if counted is not None:
            counted += changed


def _is_built(owner: Any) -> bool:
    return bool(getattr(owner, "built", True))


def _numbers(owner: Any) -> dict[str, float]:
    """The Python numbers that it has as attributes."""
    attributes = getattr(owner, "__dict__", {})
    return {name: one for name, one in attributes.items() if type(one) in (int, float)}


def _held(model: Any) -> list[Any]:
    """Its layers and what they track: tf_keras's generators number the traces, for their seeds."""
    from tensorflow.python.trackable import base

    layers = list(model._flatten_layers(include_self=False))
    tracked = [one for layer in layers for one in vars(layer).values()]
    return [*layers, *(one for one in tracked if isinstance(one, base.Trackable))]


def _put_back(model: Any, before: dict[str, float], builds: bool) -> list[str]:
    """The names of those that have changed since, which are as before then.

    builds: the model has been built since, and keeps what it has new.
    """
    changed = []
    for name, number in _numbers(model).items():
        if name not in before:
            if builds:
                continue
            delattr(model, name)
        elif number != before[name]:
            setattr(model, name, before[name])
        else:
            continue
        changed.append(name)
    return changed


def _first_line(error: Exception) -> str:
    """That says something: Keras begins with where it was."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return re.sub(r"\x1b\[\d*m", "", next(iter(said), type(error).__name__))[:200]


def _judge(step: Step, part: batch.Part, look: Look, made: Any) -> None:
    """By what the step returns."""
    import tensorflow as tf

    if step.call == "predict":
        for one in tf.nest.flatten(made):
            if isinstance(one, tf.Tensor) and part.kind(one) not in {*ROWS, Kind.CONST}:
                look.whys.append(Why("what the model makes of a sample", part.why(one)))
            elif isinstance(one, tf.__internal__.CompositeTensor):
                look.whys.append(Why("an output that is no dense tensor"))
        return
    results.looked_at(part, look, made)
    allowed = {Kind.MEAN, Kind.CONST, Kind.SUM, Kind.GRADIENT}
    if not look.eagerly:
        allowed |= {Kind.RATIO, Kind.LINEAR}
    for path, kind in look.values.items():
        if kind not in allowed:
            what = f"the value '{'/'.join(path)}' that it returns"
            if step.call == "evaluate":
                look.whys.append(Why(what))
            else:
                _say_value(step, what)


def _judge_states(step: Step, part: batch.Part, look: Look, graph: Any, own_rows: bool) -> None:
    """What the step keeps of samples is the whole batch's only where all of them are.

    `own_rows`: a state that has a row for each sample is each rank's own, as its batches are.
    """
    operations = [op for op in graph.get_operations() if op.name not in look.judged]
    for handle, added in states.assigned(graph, operations):
        kind = _kept(part, graph, handle, added, operations)
        if kind in (Kind.CONST, Kind.GRADIENT) or (own_rows and kind in ROWS):
            continue
        look.whys.append(Why(f"what it keeps in {_name(step.model, handle)}"))
    for op in operations:
        if op.type in hooks.apply_ops and not _is_gradient(part, op):
            look.whys.append(Why("what an optimizer op updates by", place(op)))
    if step.call == "predict" and any(site.kind == "metric" for site in look.sites):
        look.whys.append(Why("a metric that the model updates"))


def _is_gradient(part: batch.Part, op: Any) -> bool:
    """Whether an optimizer op updates by a gradient of the step's, or what is no sample's."""
    name, _ = hooks.apply_ops[op.type]
    names = [argument.name for argument in op.op_def.input_arg]
    return part.kind(op.inputs[names.index(name)]) in (Kind.CONST, Kind.GRADIENT)


def _judge_draws(part: batch.Part, look: Look, graph: Any) -> None:
    """What is drawn where nobody could tell for whom, when it was traced."""
    loop = kinds.draws_by_samples(part.analysis, graph)
    in_loops = [op for op in part.analysis.foreign_draws if part.is_of_step(op.graph)]
    restored = [op for op in part.analysis.foreign_draws if not part.is_of_step(op.graph)]
    for op in [one for one in (loop, *in_loops) if one is not None][:1]:
        way_out = "draw for all samples at once, before the loop"
        look.whys.append(Why("what is drawn in a loop", place(op), way_out))
    look.foreign_draw = next(map(place, restored), "")
    look.nested_draws = kinds.draws_in_functions(graph)
    for number, drawn in look.several:
        outer = kinds.outer(part.analysis, drawn)
        look.draws[number] = look.draws[number]._replace(outer=outer)


def _kept(part: batch.Part, graph: Any, handle: Any, added: Any, operations: list[Any]) -> Kind:
    """Of what is assigned to a variable; of several assignments, the worst."""
    worst = Kind.CONST
    for op in operations:
        if op.type in states.ASSIGNS and kinds.origin(op.inputs[0]) is handle:
            values = [part.kind(value) for value in op.inputs[1:]]
        elif added is None and op.type not in states.ASSIGNS and handle in _outside(op):
            values = [part.kind(value) for value in op.inputs]
        else:
            continue
        for kind in values:
            if kind not in (Kind.CONST, Kind.GRADIENT) and worst in (Kind.CONST, *ROWS):
                worst = kind
    return worst


def _outside(op: Any) -> list[Any]:
    return _Same([kinds.origin(source) for source in op.inputs if source.dtype.name == "resource"])


class _Same(list[Any]):
    """By identity: tensors have no other that says yes or no."""

    def __contains__(self, one: object) -> bool:
        return any(one is mine for mine in self)


def _name(model: Any, handle: Any) -> str:
    for variable in model.variables:
        if getattr(unwrap.tf_variable(variable), "handle", None) is handle:
            return f"'{getattr(variable, 'path', variable.name)}'"
    return "a variable of the script"


def _of_any_number(leaf: Any) -> Any:
    """Of any number of samples; None of what is no tensor."""
    import tensorflow as tf

    if isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
        shape = leaf.shape
        return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, leaf.dtype)
    return leaf if isinstance(leaf, tf.TypeSpec) and not isinstance(leaf, tf.OptionalSpec) else None


def _tell(step: Step, plan: Plan) -> None:
    name = f"{step.call}() of model '{step.model.name}'"
    gathered = ", ".join(map(_at, plan.gathered))
    if plan.is_whole:
        assert plan.why is not None
        why = _explained(plan.why)
        log.once(
            f"{name}: {why}, so every rank computes whole batches: that is one "
            f"process's result, and no faster. To share the work, {plan.why.way_out}",
            key=why,
        )
        because, to_do = _at(plan.why), plan.why.way_out
    else:
        because = f"needs all samples: {gathered}" if gathered else "each sample for itself"
        to_do = "nothing"
    if group.rank == 0:
        _row("model", "call", "a batch is", "because", "to do", once=True)
        _row(step.model.name, step.call, plan.verdict.value, because, to_do)


def _row(
    model: str, call: str, batch_is: str, because: str, to_do: str, once: bool = False
) -> None:
    """Of the table of plans, in the log."""
    line = f"plan: {model:20} | {call:8} | {batch_is:10} | {because:50} | {to_do}"
    log.debug(line, once=once)


def _say_foreign(step: Step, op: str) -> None:
    log.once(
        f"{step.call}() of model '{step.model.name}': {op} draws for samples in a function that "
        "was made elsewhere (restored), the same on every rank: one process draws other numbers. "
        "For its numbers, build the layer anew and load its weights"
    )


def _say_part(step: Step, plan: Plan) -> None:
    assert plan.why is not None
    log.once(
        f"{step.call}() of model '{step.model.name}': {_explained(plan.why)}; batches of ragged, "
        "sparse or string tensors, or of any size in a compiled step, cannot be put together, so "
        "each rank computes it of its own batch, and the average is not one process's result"
    )


def _explained(why: Why) -> str:
    return f"{_at(why)} is of several samples at once, or that cannot be told"


def _at(why: Why) -> str:
    return f"{why.what} ({why.op})" if why.op else why.what


def _say_value(step: Step, what: str) -> None:
    log.once(
        f"train_step of model '{step.model.name}': {what} is of several samples at once, which is "
        "no mean over samples: the logs show the mean of what each rank has of its part. "
        "Give it to a metric class of your own, or compute it of tf.mpi.gather_batch(x)"
    )
