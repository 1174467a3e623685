"""Plans for fit, evaluate and predict: whether each rank takes a part of every batch.

Before any data are fed, the model's step is traced once on a whole batch, with an unknown number of
samples, in a function that never runs. The analysis (kinds.py) finds how the losses whose gradients
are taken, the arguments of losses and metrics, the state, and the returned values depend on the
samples.

- SPLIT: each rank takes a part of every batch.
- GATHER: as SPLIT, but some losses or metrics are computed from the gathered batch.
- WHOLE: every rank computes whole batches, because something depends on several samples at once, or
  cannot be analyzed. That is one process's result, at one process's speed; rank 0 says so.

TF_MPI_LOG_LEVEL=debug shows each plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi._src.global_batch import batch, kinds, python_state, results, states
from tensorflow.mpi._src.global_batch.kinds import ROWS, Kind
from tensorflow.mpi._src.global_batch.rules_functions import BRANCHES, branches_of
from tensorflow.mpi._src.global_batch.sites import (
    ARGUMENT,
    Findings,
    How,
    Plan,
    Verdict,
    Why,
    location,
)
from tensorflow.mpi._src.runtime import group, hooks, log
from tensorflow.mpi._src.variables import unwrap

_PLANS = "_tf_mpi_plans"  # attribute of a model: its plans by key
_CURRENT = "_tf_mpi_plan"  # attribute of a model: the plan of the last call, by step
STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}


class Step(NamedTuple):
    """A step of a model, and how it will run.

    Attributes:
      model: a model of Keras or tf_keras.
      call: "fit", "evaluate" or "predict".
      function: the step; takes a batch.
      fresh: Keras will make its train, test or predict function again, as after compile(), so the
        step may have changed.
      eagerly: it runs without a graph.
      compiled: it is compiled by XLA.
      converted: it is converted by AutoGraph.
      own_loop: the script's own loop, which cannot be analyzed, iterates the batches.
    """

    model: Any
    call: str
    function: Callable[[Any], Any]
    fresh: bool
    eagerly: bool
    compiled: bool
    converted: bool
    own_loop: bool


def plan_for(step: Step, spec: Any, is_even: bool, why: Why | None, whole_batches: bool) -> Plan:
    """The plan for batches of `spec`. Collective: all ranks call it at the same point.

    Args:
      is_even: every rank will have the same number of samples.
      why: the reason if the batches cannot be split into samples; None otherwise.
      whole_batches: every rank can be fed whole batches; otherwise each rank has its own batches,
        which are gathered if the plan is WHOLE.
    """
    if tf.config.functions_run_eagerly():
        step = step._replace(eagerly=True, compiled=False)
    plans = vars(step.model).setdefault(_PLANS, {})
    static = _has_static_rows(spec)
    described = repr(tf.nest.map_structure(_with_unknown_rows, spec))
    key = (step.call, described, static, is_even, why, whole_batches)
    if step.fresh:
        for stale in [one for one in plans if one[0] == step.call]:
            del plans[stale]
    if key not in plans:
        plans[key] = _make(step, spec, is_even, why, whole_batches)
    plan: Plan = plans[key]
    vars(step.model).setdefault(_CURRENT, {})[STEPS[step.call]] = plan
    return plan


def call_ended(model: Any) -> None:
    """Forgets the current plan of `model`, so that steps that the script calls get none."""
    vars(model).pop(_CURRENT, None)


def current(model: Any, step_name: str) -> Plan | None:
    """The plan of the last call that runs `step_name`, such as "train_step"; None without one."""
    found: Plan | None = vars(model).get(_CURRENT, {}).get(step_name)
    return found


def _make(step: Step, spec: Any, is_even: bool, why: Why | None, whole_batches: bool) -> Plan:
    findings = Findings(step.eagerly)
    even_and_static = is_even and _has_static_rows(spec)
    if step.own_loop:
        what = "the script's own loop over the batches (make_train_function)"
        findings.whys.append(Why(what, way_out="leave the loop to Keras"))
    elif why is not None:
        findings.whys.append(why)
    else:
        findings = _analyze(step, spec, whole_batches)
        inline = f"remove the tf.function, as Keras traces {STEPS[step.call]} itself"
        findings.whys = [
            one._replace(way_out=inline) if one.op == ARGUMENT else one for one in findings.whys
        ]
    way_out = f"use batches of one size that is a multiple of {group.size}"
    if findings.nested_draws and not is_even:
        what = "a random draw in a tf.function that the step calls"
        findings.whys.append(Why(what, way_out=f"{way_out}, or remove that tf.function"))
    # Compiled code cannot gather parts with weights. With draws by kernels all have one (feeds.py).
    if findings.gathered and step.compiled and (findings.draws_by_kernels or not even_and_static):
        first = findings.gathered[0]
        way_out = f"set jit_compile=False, or {way_out}"
        findings.whys.append(
            first._replace(what=f"{first.what} in a compiled step", way_out=way_out)
        )
    verdict = (
        Verdict.WHOLE if findings.whys else Verdict.GATHER if findings.gathered else Verdict.SPLIT
    )
    plan = Plan(verdict, findings, plain=step.own_loop)
    can_be_whole = whole_batches or _can_be_gathered(spec, step.compiled, even_and_static)
    if plan.is_whole and not can_be_whole:
        plan.verdict = Verdict.SPLIT
        for site in plan.sites:
            site.how = How.PART if site.how is How.WHOLE else site.how
        _warn_of_parts(step, plan)
    if findings.foreign_draw and not plan.is_whole:
        _warn_of_restored_draw(step, findings.foreign_draw)
    averages = step.call == "fit" or any(site.how is not How.PART for site in plan.sites)
    if averages and (plan.is_whole or whole_batches):
        batch.send_distinct_gradient()
    if step.call == "fit" and not plan.is_whole:
        for what in _not_combinable(findings):
            _warn_of_value(step, what)
    _report(step, plan)
    return plan


def _has_static_rows(spec: Any) -> bool:
    shapes = [leaf.shape for leaf in tf.nest.flatten(spec) if hasattr(leaf, "shape")]
    return all(shape[:1].is_fully_defined() for shape in shapes)


def _can_be_gathered(spec: Any, compiled: bool, even_and_static: bool) -> bool:
    dense = all(
        isinstance(leaf, tf.TensorSpec) and leaf.dtype != tf.string
        for leaf in tf.nest.flatten(spec)
        if leaf is not None
    )
    return dense and (even_and_static or not compiled)


def _analyze(step: Step, spec: Any, whole_batches: bool) -> Findings:
    specs = [_with_unknown_rows(leaf) for leaf in tf.nest.flatten(spec)]
    present = [one for one in specs if one is not None]
    found: list[Findings] = []

    def trial(*given: Any) -> None:
        # tf.function traces again because variables were created.
        if found and found[-1].suffices:
            return
        tensors = iter(given)
        leaves = [None if one is None else next(tensors) for one in specs]
        data = tf.nest.pack_sequence_as(spec, leaves)
        findings = Findings(step.eagerly)
        found.append(findings)
        with batch.step_on(batch.AnalyzedBatch(data), findings=findings) as part:
            graph = tf.compat.v1.get_default_graph()
            outputs = step.function(data)
            _judge_outputs(step, part, findings, outputs)
            _judge_states(step, part, findings, graph, own_rows=not whole_batches)
            _judge_conditions(part, findings)
            _judge_draws(part, findings, graph)

    changed: list[str] = []
    try:
        with python_state.only_traced(step.model, changed):
            tf.function(trial, autograph=step.converted).get_concrete_function(*present)
    except Exception as error:  # the script's own; the step itself raises it, too
        log.debug(f"{step.call} of model '{step.model.name}' could not be analyzed: {error}")
        findings = Findings(step.eagerly)
        what = f"a step that cannot be traced into a graph ({_first_line(error)})"
        findings.whys.append(Why(what, way_out="use TensorFlow's ops only"))
        return findings
    if changed and step.eagerly:  # the step's Python code may branch on it
        way_out = "keep it in a tf.Variable, or turn off run_eagerly"
        found[-1].whys.append(Why(changed[0], way_out=way_out))
    return found[-1]


def _first_line(error: Exception) -> str:
    """The first informative line: Keras begins with the location of the error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    informative = [
        line for line in lines if not line.startswith("Exception encountered when calling")
    ]
    return re.sub(r"\x1b\[\d*m", "", next(iter(informative), type(error).__name__))[:200]


def _judge_outputs(step: Step, part: batch.Part, findings: Findings, outputs: Any) -> None:
    if step.call == "predict":
        for one in tf.nest.flatten(outputs):
            if isinstance(one, tf.Tensor) and part.kind(one) not in {*ROWS, Kind.CONST}:
                findings.whys.append(Why("a prediction of the model", part.why(one)))
            elif isinstance(one, tf.__internal__.CompositeTensor):
                findings.whys.append(Why("an output that is not a dense tensor"))
        return
    results.record_returned(step.model, part, findings, outputs)
    if step.call == "evaluate":
        findings.whys += map(Why, _not_combinable(findings))


def _not_combinable(findings: Findings) -> list[str]:
    """Describes the returned values that cannot be combined into the whole batch's."""
    allowed = {Kind.MEAN, Kind.CONST, Kind.SUM, Kind.GRADIENT}
    if not findings.eagerly:
        allowed |= {Kind.RATIO, Kind.LINEAR}
    paths = [path for path, kind in findings.values.items() if kind not in allowed]
    return [f"the returned value '{'/'.join(path)}'" for path in paths]


def _judge_states(
    step: Step, part: batch.Part, findings: Findings, graph: Any, own_rows: bool
) -> None:
    """Analyzes state: a kept value that depends on samples must be that of the whole batch.

    Args:
      own_rows: each rank has its own batches, so a state with one row per sample may be its own.
    """
    operations = [op for op in graph.get_operations() if op.name not in findings.judged]
    for handle, added in states.assigned(graph, operations):
        kind = _assigned_kind(part, handle, added, operations)
        if kind in (Kind.CONST, Kind.GRADIENT) or (own_rows and kind in ROWS):
            continue
        findings.whys.append(Why(f"the value assigned to {_name(step.model, handle)}"))
    for op in operations:
        if op.type in hooks.apply_ops and not _is_gradient(part, op):
            findings.whys.append(Why("the update of an optimizer op", location(op)))
    if step.call == "predict" and any(site.kind == "metric" for site in findings.sites):
        findings.whys.append(Why("a metric that the model updates"))


def _judge_conditions(part: batch.Part, findings: Findings) -> None:
    """Analyzes the conditions of optimizers' updates: all ranks must take the same branch."""
    for graph in findings.updates:
        while kinds.is_body(graph):
            for op in graph.outer_graph.get_operations():
                if op.type not in BRANCHES or graph.name not in branches_of(op):
                    continue
                if part.kind(op.inputs[0]) not in (Kind.CONST, Kind.GRADIENT):
                    way_out = "let it depend on gradients, which are averaged"
                    findings.whys.append(Why("the condition of an update", location(op), way_out))
            graph = graph.outer_graph


def _is_gradient(part: batch.Part, op: Any) -> bool:
    """Whether an optimizer op applies a gradient of the step, or something without samples."""
    name, _ = hooks.apply_ops[op.type]
    names = [argument.name for argument in op.op_def.input_arg]
    return part.kind(op.inputs[names.index(name)]) in (Kind.CONST, Kind.GRADIENT)


def _judge_draws(part: batch.Part, findings: Findings, graph: Any) -> None:
    """Analyzes the draws that were not decided while the step was traced."""
    loop_draw = kinds.find_drawing_loop(part.analysis, graph)
    in_loops = [op for op in part.analysis.foreign_draws if part.is_of_step(op.graph)]
    # In functions that were loaded from a file.
    restored = [op for op in part.analysis.foreign_draws if not part.is_of_step(op.graph)]
    if (op := next(filter(None, (loop_draw, *in_loops)), None)) is not None:
        way_out = "draw for all samples at once, before the loop"
        findings.whys.append(Why("a random draw in a loop", location(op), way_out))
    findings.foreign_draw = next(map(location, restored), "")
    findings.nested_draws = kinds.draws_in_functions(graph)
    for i, drawn in findings.draws_with_factor:
        outer = kinds.outer_of_draw(part.analysis, drawn)
        findings.draws[i] = findings.draws[i]._replace(outer=outer)


def _assigned_kind(part: batch.Part, handle: Any, added: Any, operations: list[Any]) -> Kind:
    """The kind of the values assigned to a variable; `added`: see states.assigned.

    If there are several, the first kind that is not constant, a gradient or rows; without such a
    kind, rows if any value is.
    """
    worst = Kind.CONST
    for op in operations:
        if op.type in states.ASSIGNS and kinds.origin(op.inputs[0]) is handle:
            values = [part.kind(value) for value in op.inputs[1:]]
        elif added is None and op.type not in states.ASSIGNS and _uses(op, handle):
            values = [part.kind(value) for value in op.inputs]
        else:
            continue
        for kind in values:
            if kind not in (Kind.CONST, Kind.GRADIENT) and worst in (Kind.CONST, *ROWS):
                worst = kind
    return worst


def _uses(op: Any, handle: Any) -> bool:
    resources = (source for source in op.inputs if source.dtype.name == "resource")
    return any(kinds.origin(source) is handle for source in resources)


def _name(model: Any, handle: Any) -> str:
    for variable in model.variables:
        if getattr(unwrap.tf_variable(variable), "handle", None) is handle:
            return f"'{getattr(variable, 'path', variable.name)}'"
    return "a variable of the script"


def _with_unknown_rows(leaf: Any) -> Any:
    """The spec with an unknown number of samples; None for leaves that are not tensors."""
    if isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
        shape = leaf.shape
        return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, leaf.dtype)
    return leaf if isinstance(leaf, tf.TypeSpec) and not isinstance(leaf, tf.OptionalSpec) else None


def _report(step: Step, plan: Plan) -> None:
    name = f"{step.call}() of model '{step.model.name}'"
    gathered = ", ".join(map(_at, plan.gathered))
    if plan.is_whole:
        assert plan.why is not None
        why = _explained(plan.why)
        log.once(
            f"{name}: {why}, so every rank computes whole batches. The result is that of "
            f"one process, and so is the speed. To share the work, {plan.why.way_out}",
            key=why,
        )
        because, to_do = _at(plan.why), plan.why.way_out
    else:
        because = f"needs all samples: {gathered}" if gathered else "samples are independent"
        to_do = "nothing"
    if group.rank == 0:
        _row("model", "call", "a batch is", "because", "to do", once=True)
        _row(step.model.name, step.call, plan.verdict.value, because, to_do)


def _row(
    model: str, call: str, batch_is: str, because: str, to_do: str, once: bool = False
) -> None:
    """Logs a row of the table of plans."""
    line = f"plan: {model:20} | {call:8} | {batch_is:10} | {because:50} | {to_do}"
    log.debug(line, once=once)


def _warn_of_restored_draw(step: Step, op: str) -> None:
    log.once(
        f"{step.call}() of model '{step.model.name}': {op} draws random numbers for samples in a "
        "function that was restored from a file, so every rank draws the same numbers for its "
        "samples, where one process draws new ones for each sample. To match it, build the layer "
        "in the script and load its weights"
    )


def _warn_of_parts(step: Step, plan: Plan) -> None:
    assert plan.why is not None
    log.once(
        f"{step.call}() of model '{step.model.name}': {_explained(plan.why)}; batches of ragged, "
        "sparse or string tensors, or of unknown size in a compiled step, cannot be gathered, so "
        "each rank computes it from its own batch, and the average is not one process's result. "
        "Use dense batches, and jit_compile=False where their size varies"
    )


def _explained(why: Why) -> str:
    return f"{_at(why)} may need all samples of a batch"


def _at(why: Why) -> str:
    return f"{why.what} ({why.op})" if why.op else why.what


def _warn_of_value(step: Step, what: str) -> None:
    log.once(
        f"train_step of model '{step.model.name}': {what} depends on several samples at once and "
        "is not a mean over samples, so the logs show the mean of the ranks' values for their "
        "parts. Compute it in a metric, or from tf.mpi.gather_batch(x)"
    )
