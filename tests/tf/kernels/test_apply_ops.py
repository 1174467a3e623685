"""Compares the library's table of optimizer ops with TensorFlow's op registry."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def ops(launch, scripts) -> dict[str, Any]:
    """The optimizer ops in the registry and in the table, from a process that averages."""
    run = launch(scripts / "apply_ops.py", np=0, env={"TF_MPI_ENABLE": "1"})
    return run.check().results[0]


def test_every_optimizer_op_is_in_the_table(ops):
    """Fails if TensorFlow adds an Apply op, which would train each rank separately."""
    assert set(ops["registry"]) == set(ops["table"])
    assert len(ops["table"]) >= 57


def test_the_table_names_the_gradient_input_of_each_op(ops):
    for name, inputs in ops["registry"].items():
        gradient, sparse = ops["table"][name]
        assert gradient in ("grad", "delta") and inputs.count(gradient) == 1, name
        # No op has both, so the wrong one cannot be averaged.
        assert len({"grad", "delta"} & set(inputs)) == 1, name
        assert sparse == ("Sparse" in name) == ("indices" in inputs), name


def test_each_kernel_of_the_ops_is_decorated(ops):
    assert ops["decorated"] == ops["registered"] >= 2 * len(ops["table"])
