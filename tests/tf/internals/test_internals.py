"""What is only slower, or harder to explain, if TensorFlow or Keras call it otherwise.

Without these tests nobody would notice: docs/tensorflow-internals.md has the list of all that is
assumed.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(launch, scripts) -> dict[str, Any]:
    return launch(scripts / "internals.py", np=0, pooled=True).check().results[0]


def test_what_makes_updates_faster_is_there(found):
    assert found["missing"] == []


def test_ops_that_are_called_harmless_exist(found):
    """In tf.data's functions: else the stream of rank 0 would be sent, which is slower."""
    assert found["no ops"] == []


def test_a_dataset_tells_what_it_is_made_of(found):
    assert [name.strip("_") for name in found["sources"]] == [
        "BatchDataset",
        "MapDataset",
        "ShuffleDataset",
        "TensorSliceDataset",
    ]
    assert found["functions"] == 1
    assert None not in found["seeds"] and found["seeds"][1] == 1
    assert found["arrays"] == [[0, 1, 2, 3, 4, 5]]
    assert found["batch"] == [2, found["sources"][1]]


def test_what_makes_batches_is_told(found):
    """One that TensorFlow has under no such name would be split as elements, or the reverse."""
    assert found["classes"] == []
    assert found["batches"] == {"batches": found["all batches"], "elements": []}
    assert found["prefetch"] == [True, False]


def test_functions_that_slice_and_count_begin_at_once(found):
    """A seventh of the time was seen; an attribute that TensorFlow forgets saves nothing."""
    assert found["functions on cpu"]["wrong"] == []
    quick, plain = found["functions on cpu"]["seconds"]
    assert quick < plain / 2
