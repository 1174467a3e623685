"""Assumptions whose failure makes things only slower, or errors harder to understand.

Nothing else would reveal such a failure. docs/tensorflow-internals.md lists all assumptions.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(launch, scripts) -> dict[str, Any]:
    return launch(scripts / "internals.py", np=0, pooled=True).check().results[0]


def test_names_that_speed_up_updates_exist(found):
    assert found["missing"] == []


def test_ops_listed_as_harmless_exist(found):
    """In tf.data's functions; otherwise rank 0 would send its stream, which is slower."""
    assert found["no ops"] == []


def test_a_dataset_reveals_its_inputs(found):
    assert [name.strip("_") for name in found["sources"]] == [
        "BatchDataset",
        "MapDataset",
        "ShuffleDataset",
        "TensorSliceDataset",
    ]
    assert found["functions"] == 1
    assert None not in found["seeds"] and found["seeds"][1] == 1
    assert found["batch"] == [2, found["sources"][1]]


def test_batching_datasets_are_recognized(found):
    """If TensorFlow renames one, it would be split as elements, or vice versa."""
    assert found["classes"] == []
    assert found["batches"] == {"batches": found["all batches"], "elements": []}
    assert found["prefetch"] == [True, False]


def test_functions_that_slice_and_count_start_at_once(found):
    """They took a seventh of the time; without effect if TensorFlow ignores the attribute."""
    assert found["functions on cpu"]["wrong"] == []
    quick, plain = found["functions on cpu"]["seconds"]
    assert quick < plain / 2
