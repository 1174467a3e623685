"""The lines that say why a batch is not split, tested in this process with made-up steps."""

from __future__ import annotations

import types
from typing import Any

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


def look(plan: Any, monkeypatch: Any, **found: Any) -> Any:
    """Sets what the analysis of the step finds."""
    made = plan.Look(False)
    vars(made).update(found)
    monkeypatch.setattr(plan, "_analyze", lambda *_: made)
    return made


SPEED = (
    "so every rank computes whole batches. The result is that of one process, and so is the speed"
)


def test_a_draw_in_a_function_is_reported_with_a_remedy(plan, said, monkeypatch):
    look(plan, monkeypatch, nested_draws=True)
    assert plan._make(step(), None, False, None, True).is_whole
    line = (
        "evaluate() of model 'net': a random draw in a tf.function that the step calls depends on"
    )
    assert said[0].startswith(line) and SPEED in said[0]
    way_out = "To share the work, use batches of one size that is a multiple of 2, or remove that"
    assert way_out in said[0]


def test_a_whole_batch_in_a_compiled_step_is_reported_with_a_remedy(plan, said, monkeypatch):
    look(plan, monkeypatch, gathered=[plan.Why("the loss 'dice'")])
    plan._make(step(compiled=True), None, False, None, True)
    assert said[0].startswith("evaluate() of model 'net': the loss 'dice', compiled, depends on")
    assert "To share the work, set jit_compile=False, or use batches of one size that is" in said[0]


def test_inputs_of_different_lengths_are_reported_with_a_remedy(plan, said):
    why = "a batch whose tensors have different first dimensions (3 and 4)"
    plan._make(step(), None, True, why, True)
    assert said[0].endswith("To share the work, give all inputs the same first dimension")


def test_batches_that_cannot_be_gathered_are_reported_with_a_remedy(plan, said, monkeypatch):
    monkeypatch.setattr(plan, "_can_be_gathered", lambda *_: False)
    found = look(plan, monkeypatch)
    found.whys.append(plan.Why("the loss 'dice'", "Mean in train.py:8"))
    assert not plan._make(step(), None, True, None, False).is_whole
    assert said[0].startswith("evaluate() of model 'net': the loss 'dice' (Mean in train.py:8) dep")
    assert (
        "each rank computes it from its own batch, and the average is not one process's" in said[0]
    )
    assert said[0].endswith("Use dense batches, and jit_compile=False where their size varies")


def test_the_table_of_plans_gives_the_reason(plan, said, monkeypatch):
    look(plan, monkeypatch)
    plan._make(step(), None, True, None, True)
    assert "samples are independent" in said[-1] and said[-1].endswith("| nothing")
    look(plan, monkeypatch, gathered=[plan.Why("the loss 'dice'")])
    plan._make(step(), None, True, None, True)
    assert "needs all samples: the loss 'dice'" in said[-1]


def test_a_restored_function_that_draws_is_reported(plan, said, monkeypatch):
    look(plan, monkeypatch, foreign_draw="RandomUniform")
    plan._make(step(), None, True, None, True)
    assert "RandomUniform" in said[0] and "load its weights" in said[0]


def test_values_that_are_not_means_are_reported_with_a_remedy(plan, said):
    plan._say_value(step(), "the returned value 'median'")
    line = (
        "train_step of model 'net': the returned value 'median' depends on several samples at once"
    )
    assert said[0].startswith(f"{line} and is not a mean over samples")
    assert said[0].endswith("Compute it in a metric, or from tf.mpi.gather_batch(x)")


@pytest.mark.parametrize("call", ["predict", "fit"])
def test_values_that_a_step_stores_are_listed(plan, monkeypatch, call):
    """A value of samples in a variable, an optimizer op and, in predict, a metric."""
    monkeypatch.setattr(plan.states, "assigned", lambda *_: [("handle", None)])
    monkeypatch.setattr(plan, "_kept", lambda *_: plan.Kind.MIXED)
    monkeypatch.setattr(plan, "_is_gradient", lambda *_: False)
    monkeypatch.setattr(plan.hooks, "apply_ops", {"ApplyAdam": ("grad", False)})
    op = types.SimpleNamespace(name="update", type="ApplyAdam", traceback=())
    graph = types.SimpleNamespace(get_operations=lambda: [op])
    found = plan.Look(False)
    found.enter("metric")
    plan._judge_states(step(call=call), None, found, graph, False)
    metric = ["a metric that the model updates"] * (call == "predict")
    assert [why.what for why in found.whys] == [
        "the value assigned to a variable of the script",
        "the update of an optimizer op",
        *metric,
    ]
