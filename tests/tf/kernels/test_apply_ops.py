"""The library's table of optimizer ops against TensorFlow's own registry of ops."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def ops(launch, scripts) -> dict[str, Any]:
    """The registry's optimizer ops, and the table's, of a process that averages."""
    run = launch(scripts / "apply_ops.py", np=0, env={"TF_MPI_ENABLE": "1"})
    return run.check().results[0]


def test_every_optimizer_op_is_in_the_table(ops):
    """Fails when TensorFlow gains an Apply op: it would train each rank on its own."""
    assert set(ops["registry"]) == set(ops["table"])
    assert len(ops["table"]) >= 57


def test_the_gradient_input_is_the_right_one(ops):
    for name, inputs in ops["registry"].items():
        gradient, sparse = ops["table"][name]
        assert gradient in ("grad", "delta") and inputs.count(gradient) == 1, name
        # No op has both, so none could be averaged in the wrong place.
        assert len({"grad", "delta"} & set(inputs)) == 1, name
        assert sparse == ("Sparse" in name) == ("indices" in inputs), name


def test_each_kernel_of_these_ops_is_decorated(ops):
    assert ops["decorated"] == ops["registered"] >= 2 * len(ops["table"])
