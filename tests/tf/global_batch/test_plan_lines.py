"""The lines that say why a batch is not split, tested in this process with made-up steps."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any
from unittest import mock

import pytest

from extras import load


@pytest.fixture(name="plan", scope="module")
def plan_fixture() -> Any:
    return load("tensorflow.mpi._src.global_batch.plan")


@pytest.fixture(name="said")
def said_fixture(plan: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of fit for batches of any size on 2 ranks."""
    said: list[str] = []
    for how in ("once", "debug"):
        monkeypatch.setattr(plan.log, how, lambda line, **_: said.append(line))
    monkeypatch.setattr(plan.group, "size", 2)
    monkeypatch.setattr(plan, "_has_static_rows", lambda _: False)
    monkeypatch.setattr(plan, "_can_be_gathered", lambda *_: True)
    return said


def step(**other: Any) -> Any:
    facts = {"call": "evaluate", "own_loop": False, "compiled": False, "eagerly": False}
    model = types.SimpleNamespace(name="net", variables=[])
    return types.SimpleNamespace(model=model, **facts | other)


def findings(plan: Any, monkeypatch: Any, **found: Any) -> Any:
    """Sets what the analysis of the step finds."""
    made = plan.Findings(False)
    vars(made).update(found)
    monkeypatch.setattr(plan, "_analyze", lambda *_: made)
    return made


SPEED = (
    "so every rank computes whole batches. The result is that of one process, and so is the speed"
)


def test_a_draw_in_a_function_is_reported_with_a_remedy(plan, said, monkeypatch):
    findings(plan, monkeypatch, nested_draws=True)
    assert plan._make(step(), None, False, None, True).is_whole
    line = "evaluate() of model 'net': a random draw in a tf.function that the step calls may need"
    assert said[0].startswith(line) and SPEED in said[0]
    way_out = "use batches of one size that is a multiple of 2, or remove that tf.function"
    assert said[0].endswith(f"To share the work, {way_out}")


def test_a_whole_batch_in_a_compiled_step_is_reported_with_a_remedy(plan, said, monkeypatch):
    findings(plan, monkeypatch, gathered=[plan.Why("the loss 'dice'")])
    plan._make(step(compiled=True), None, False, None, True)
    line = "evaluate() of model 'net': the loss 'dice' in a compiled step may need all samples of a"
    assert said[0].startswith(line)
    assert "To share the work, set jit_compile=False, or use batches of one size that is" in said[0]


def test_inputs_of_different_lengths_are_reported_with_a_remedy(plan, said):
    why = plan.Why("a batch whose tensors have different lengths", way_out="give all one length")
    plan._make(step(), None, True, why, True)
    assert said[0].endswith("To share the work, give all one length")


def test_batches_that_cannot_be_gathered_are_reported_with_a_remedy(plan, said, monkeypatch):
    monkeypatch.setattr(plan, "_can_be_gathered", lambda *_: False)
    found = findings(plan, monkeypatch)
    found.whys.append(plan.Why("the loss 'dice'", "Mean in train.py:8"))
    assert not plan._make(step(), None, True, None, False).is_whole
    assert said[0].startswith("evaluate() of model 'net': the loss 'dice' (Mean in train.py:8) may")
    assert (
        "each rank computes it from its own batch, and the average is not one process's" in said[0]
    )
    assert said[0].endswith("Use dense batches, and jit_compile=False where their size varies")


def test_the_table_of_plans_gives_the_reason(plan, said, monkeypatch):
    findings(plan, monkeypatch)
    plan._make(step(), None, True, None, True)
    assert "samples are independent" in said[-1] and said[-1].endswith("| nothing")
    findings(plan, monkeypatch, gathered=[plan.Why("the loss 'dice'")])
    plan._make(step(), None, True, None, True)
    assert "needs all samples: the loss 'dice'" in said[-1]


def test_a_restored_function_that_draws_is_reported(plan, said, monkeypatch):
    findings(plan, monkeypatch, foreign_draw="RandomUniform")
    plan._make(step(), None, True, None, True)
    assert "RandomUniform" in said[0] and "load its weights" in said[0]


def test_values_that_are_not_means_are_reported_with_a_remedy(plan, said):
    plan._warn_of_value(step(), "the returned value 'median'")
    line = (
        "train_step of model 'net': the returned value 'median' depends on several samples at once"
    )
    assert said[0].startswith(f"{line} and is not a mean over samples")
    assert said[0].endswith("Compute it in a metric, or from tf.mpi.gather_batch(x)")


@pytest.mark.parametrize("call", ["predict", "fit"])
def test_values_that_a_step_stores_are_listed(plan, monkeypatch, call):
    """A value of samples in a variable, an optimizer op and, in predict, a metric."""
    monkeypatch.setattr(plan.states, "assigned", lambda *_: [("handle", None)])
    monkeypatch.setattr(plan, "_assigned_kind", lambda *_: plan.Kind.MIXED)
    monkeypatch.setattr(plan, "_is_gradient", lambda *_: False)
    monkeypatch.setattr(plan.hooks, "apply_ops", {"ApplyAdam": ("grad", False)})
    op = types.SimpleNamespace(name="update", type="ApplyAdam", traceback=())
    graph = types.SimpleNamespace(get_operations=lambda: [op])
    found = plan.Findings(False)
    found.enter("metric")
    plan._judge_states(step(call=call), None, found, graph, False)
    metric = ["a metric that the model updates"] * (call == "predict")
    assert [why.what for why in found.whys] == [
        "the value assigned to a variable of the script",
        "the update of an optimizer op",
        *metric,
    ]


@pytest.mark.parametrize("kind", ["MEAN", "GRADIENT"])
def test_a_condition_of_an_update_that_depends_on_samples_is_named(plan, monkeypatch, kind):
    """In a branch within a branch; only its own condition depends on samples."""

    def conditional(condition: str, graph: Any) -> Any:
        names = {"then_branch": graph, "else_branch": types.SimpleNamespace(name="other")}
        return types.SimpleNamespace(
            type="StatelessIf", inputs=[condition], traceback=(), get_attr=names.get
        )

    def graph(name: str, outer: Any) -> Any:
        made = types.SimpleNamespace(name=name, outer_graph=outer)
        made.get_operations = lambda: [types.SimpleNamespace(type="Mul"), *made.conditionals]
        return made

    step = graph("step", None)
    branch = graph("branch", step)
    inner = graph("inner", branch)
    step.conditionals = [conditional("counter", branch)]
    branch.conditionals = [conditional("loss", inner), conditional("elsewhere", step)]
    monkeypatch.setattr(plan.kinds, "is_body", lambda one: one is not step)
    found = plan.Findings(False)
    found.updates.append(inner)
    kinds = {"counter": plan.Kind.CONST, "loss": plan.Kind[kind]}
    plan._judge_conditions(types.SimpleNamespace(kind=kinds.get), found)
    way_out = "let it depend on gradients, which are averaged"
    said = [("the condition of an update (StatelessIf)", way_out)] * (kind == "MEAN")
    assert [(plan._at(why), why.way_out) for why in found.whys] == said


@pytest.fixture(name="tensorflow")
def tensorflow_fixture(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `import tensorflow` return a module that does nothing, of lists."""
    made = mock.MagicMock()
    made.nest.flatten = lambda values, **_: values if isinstance(values, list) else [values]
    made.Tensor = Tensor
    made.__internal__ = types.SimpleNamespace(CompositeTensor=Ragged)
    monkeypatch.setitem(sys.modules, "tensorflow", made)
    return made


class Tensor:
    """Replaces tf.Tensor."""


class Ragged:
    """Replaces tf.RaggedTensor."""


def test_outputs_of_predict_that_prevent_a_split_are_named(plan, tensorflow):
    part = types.SimpleNamespace(kind=lambda _: plan.Kind.MIXED, why=lambda _: "Mean in train.py:8")
    found = plan.Findings(False)
    plan._judge_outputs(step(call="predict"), part, found, [Tensor(), Ragged()])
    assert [plan._at(why) for why in found.whys] == [
        "a prediction of the model (Mean in train.py:8)",
        "an output that is not a dense tensor",
    ]


def test_a_draw_in_a_loop_is_named_with_a_remedy(plan, monkeypatch):
    op = types.SimpleNamespace(type="RandomUniform", traceback=(), graph=None)
    monkeypatch.setattr(plan.kinds, "find_drawing_loop", lambda *_: op)
    monkeypatch.setattr(plan.kinds, "draws_in_functions", lambda _: False)
    part = types.SimpleNamespace(analysis=types.SimpleNamespace(foreign_draws=[]))
    found = plan.Findings(False)
    plan._judge_draws(part, found, None)
    (why,) = found.whys
    assert plan._at(why) == "a random draw in a loop (RandomUniform)"
    assert why.way_out == "draw for all samples at once, before the loop"


@pytest.mark.parametrize("kind", ["AssignAddVariableOp", "ResourceScatterUpdate"])
def test_states_that_a_stand_in_changes_are_found(plan, monkeypatch, tensorflow, kind: str) -> None:
    """A dense value, and rows by their indices: only those of samples."""
    graph = types.SimpleNamespace()

    def tensor(name: str, *inputs: Any) -> Any:
        made: Any = Tensor()
        made.graph, made.value_index = graph, 0
        made.op = types.SimpleNamespace(name=name, type="Mul", inputs=inputs, graph=graph)
        return made

    monkeypatch.setattr(plan.states.carrier, "averaged_names", lambda _: [])
    sample, handle, outer = tensor("sample"), tensor("handle"), object()
    graph.captures = [(outer, handle)]
    part = types.SimpleNamespace(data=[sample])
    for value, found in ((tensor("of_sample", sample), {id(outer)}), (tensor("other"), set())):
        op = types.SimpleNamespace(type=kind, inputs=[handle, tensor("index"), value])
        op.inputs[1:2] = [] if kind.startswith("Assign") else op.inputs[1:2]
        assert plan.states._assigned_from_samples(graph, [op], part) == found


def test_a_step_that_cannot_be_analyzed_is_logged(plan, said, monkeypatch, tensorflow):
    monkeypatch.setattr(plan.python_state, "only_traced", lambda *_: contextlib.nullcontext())
    tensorflow.function.side_effect = TypeError("net needs real tensors")
    found = plan._analyze(step(converted=False), [], True)
    assert said == ["evaluate of model 'net' could not be analyzed: net needs real tensors"]
    why = "a step that cannot be traced into a graph (net needs real tensors)"
    assert found.whys[0].what == why


def test_a_metric_that_cannot_be_analyzed_is_logged_and_as_before(plan, monkeypatch, tensorflow):
    metrics = load("tensorflow.mpi._src.global_batch.metrics")
    said: list[str] = []
    monkeypatch.setattr(metrics.log, "debug", said.append)
    metric = types.SimpleNamespace(name="recall", _seen=["a batch"], last="a batch")

    def trace(*_: Any, **__: Any) -> None:
        metric._seen.append("a tensor of the trace")
        metric.last = "a tensor of the trace"
        raise TypeError("recall needs real tensors")

    tensorflow.function.side_effect = trace
    assert metrics.analyze_update(metric, (), {}) is None
    assert (metric._seen, metric.last) == (["a batch"], "a batch")
    assert said == ["the metric 'recall' could not be analyzed: recall needs real tensors"]


def test_a_loss_outside_of_steps_gets_the_scripts_arguments(monkeypatch, tensorflow):
    losses = load("tensorflow.mpi._src.global_batch.losses")
    monkeypatch.setattr(losses.hooking, "with_callers_autograph", lambda function: function)
    call = losses.on_part(None, lambda self, y, guess, *, scale: (y, guess, scale))
    assert call(object(), 1, guess=2, scale=3) == (1, 2, 3)


@pytest.fixture(name="gradients", scope="module")
def gradients_fixture() -> Any:
    return load("tensorflow.mpi._src.global_batch.gradients")


def test_a_gradient_that_is_not_an_average_is_named(gradients, monkeypatch, tensorflow):
    found = load("tensorflow.mpi._src.global_batch.sites").Findings(False)
    part = types.SimpleNamespace(
        findings=found, kind=lambda _: gradients.Kind.MIXED, why=lambda _: "Mean in train.py:8"
    )
    monkeypatch.setattr(gradients.batch, "current", lambda: part)
    assert gradients.intercept_in_trace([None, (Tensor(), "kernel")])
    (why,) = found.whys
    assert (why.what, why.op) == ("a gradient that the optimizer receives", "Mean in train.py:8")


@pytest.mark.parametrize("is_by_sample", [True, False])
def test_upstream_gradients_of_several_samples_prevent_a_split(
    gradients, monkeypatch, is_by_sample: bool
) -> None:
    """As in tape.gradient(loss, weights, output_gradients=tf.reduce_sum(y))."""
    monkeypatch.setattr(gradients.own_gradients, "find_mixing_op", lambda *_: None)
    found = load("tensorflow.mpi._src.global_batch.sites").Findings(False)
    kind = gradients.Kind.MEAN
    part = types.SimpleNamespace(
        analysis=None,
        kind=lambda _: kind,
        terms=lambda target: [gradients.Term(target, kind)],
        why=lambda _: "",
        is_by_sample=lambda _: is_by_sample,
    )
    gradients._analyze(part, found, [Tensor()], Tensor())
    assert [why.what for why in found.whys] == [gradients.LOSS] * (not is_by_sample)


def test_a_gradient_of_something_else_than_a_mean_is_said(gradients, monkeypatch, tensorflow):
    said: list[str] = []
    monkeypatch.setattr(gradients.log, "once", said.append)
    monkeypatch.setattr(gradients.batch, "is_symbolic", lambda _: True)
    monkeypatch.setattr(gradients, "_terms", lambda *_: None)
    part = types.SimpleNamespace(planned=types.SimpleNamespace(next=lambda _: None))
    target = Tensor()
    assert gradients._scaled(part, target) == (target, None)
    (line,) = said
    assert "a gradient is taken of a value that is neither a mean nor a sum over samples" in line


def test_samples_of_unknown_number_in_a_compiled_step_are_an_error(monkeypatch, tensorflow):
    batch = load("tensorflow.mpi._src.global_batch.batch")
    monkeypatch.setattr(batch.group, "size", 2)
    shape = mock.MagicMock(is_fully_defined=lambda: False, __str__=lambda _: "(None, 3)")
    words = "In a compiled step every rank must then have the same, static number of samples, but"
    with pytest.raises(NotImplementedError, match=words) as error:
        batch._compiled(types.SimpleNamespace(shape=shape), None)
    assert "but a tensor has the shape (None, 3). Set jit_compile=False, or" in str(error.value)
    assert "use a batch size that is a multiple of 2 and drop_remainder" in str(error.value)


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_a_model_that_only_its_step_can_build_is_logged(monkeypatch, tensorflow, package):
    data = load(f"tensorflow.mpi._src.{package}.data")
    said: list[str] = []
    monkeypatch.setattr(data.log, "debug", said.append)
    monkeypatch.setattr(data.python_state, "only_traced", lambda _: contextlib.nullcontext())
    if package == "keras":
        build = mock.Mock(side_effect=TypeError("needs real tensors"))
        model = types.SimpleNamespace(name="net", built=False, _symbolic_build=build)
        model.run_eagerly, model._distribute_strategy = False, None
        monkeypatch.setattr(data.batch_shard, "MaybeShard", Ragged)
        util = types.SimpleNamespace(structure=mock.MagicMock())
        monkeypatch.setitem(sys.modules, "tensorflow.python.data.util", util)
        monkeypatch.setattr(data.batch_shard, "data_of", lambda _: None)
        monkeypatch.setitem(sys.modules, "tensorflow.python.data.util", mock.Mock())
        data._build_states(model, Tensor())
    else:
        tensorflow.function.side_effect = TypeError("needs real tensors")
        data._try(types.SimpleNamespace(name="net"), None, None)
    assert said == ["model 'net' is built by its first step: needs real tensors"]


def test_moments_of_a_normalization_in_an_analyzed_step_are_named(monkeypatch, tensorflow):
    batch_norm = load("tensorflow.mpi._src.keras.batch_norm")
    found = load("tensorflow.mpi._src.global_batch.sites").Findings(False)
    monkeypatch.setattr(batch_norm.batch, "current", lambda: types.SimpleNamespace(findings=found))
    monkeypatch.setattr(batch_norm.unwrap, "tf_variable", lambda one: one)
    tensorflow.custom_gradient = lambda function: lambda x: function(x)[1]() and (None, None)
    layer = types.SimpleNamespace(name="norm", moving_mean=0, moving_variance=0)
    batch_norm._constants(layer, types.SimpleNamespace(shape=(8, 2), dtype="f"), [0])
    (why,) = found.whys
    assert why.what == "a gradient of samples that passes through the moments of layer 'norm'"


@pytest.mark.parametrize("call", ["fit", "evaluate"])
@pytest.mark.parametrize("whole_batches", [True, False], ids=["one batch", "own batches"])
@pytest.mark.parametrize("how", ["PART", "SCALED"])
def test_equal_values_of_parts_are_not_reported(
    plan, said, monkeypatch, call, whole_batches, how
) -> None:
    """If all samples are equal, so are the ranks' gradients, which says nothing of their data."""
    site = types.SimpleNamespace(kind="loss", how=plan.How[how])
    findings(plan, monkeypatch, sites=[site])
    sent: list[None] = []
    monkeypatch.setattr(plan.batch, "send_distinct_gradient", lambda: sent.append(None))
    plan._make(step(call=call), None, True, None, whole_batches)
    assert len(sent) == (whole_batches and (call == "fit" or how == "SCALED"))
