"""Where a class's name or a stack walk determines what ranks do with Keras, the facts hold.

Fails if a new Keras renames, moves or adds something that the decision is based on.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from packaging.version import Version

from installed import is_before

FLAVOURS = ("keras", "tf_keras")


@pytest.fixture(scope="module")
def facts(launch, scripts) -> dict[str, Any]:
    script = scripts / "keras_assumptions.py"
    return launch(script, np=0, pooled=True).check().results[0]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_this_version_of_keras_is_the_last_tested(facts, flavour):
    """With a newer one, run all tests and then raise hooking.LAST_TESTED.

    An older TensorFlow has its own tf_keras, and Python 3.10 an older Keras.
    """
    found, last_tested = facts["versions"][flavour]
    last_tested = last_tested.partition("==")[2]
    if sys.version_info >= (3, 11) and not is_before("2.21"):
        assert found == last_tested
    assert Version(found) <= Version(last_tested)


def test_callbacks_listed_as_never_stopping_a_batch_do_not(facts):
    """By name (keras/fit.py): each exists, and its batch methods do not stop a training."""
    from_source = {flavour: set(facts["callbacks"][flavour]["stop"]) for flavour in FLAVOURS}
    may = {flavour: set(facts["callbacks"][flavour]["may stop"]) for flavour in FLAVOURS}
    known = {flavour: set(facts["callbacks"][flavour]["known"]) for flavour in FLAVOURS}
    for flavour in FLAVOURS:
        assert from_source[flavour] == {"TerminateOnNaN"}
        assert from_source[flavour] <= may[flavour]
        assert facts["callbacks"][flavour]["modules"] == [flavour]
    never = {flavour: known[flavour] - may[flavour] - {"Callback"} for flavour in FLAVOURS}
    both = {
        *("BackupAndRestore", "CSVLogger", "EarlyStopping", "History", "LearningRateScheduler"),
        *("ModelCheckpoint", "ProgbarLogger", "ReduceLROnPlateau", "RemoteMonitor", "TensorBoard"),
    }
    assert never == {"keras": both | {"SwapEMAWeights"}, "tf_keras": both}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_callbacks_that_read_logs_of_batches_are_listed(facts, flavour):
    read, may = (set(facts["callbacks"][flavour][key]) for key in ("read", "may read"))
    assert {"ModelCheckpoint", "TerminateOnNaN"} <= read
    # A progress bar shows rank 0's. BaseLogger, of compat.v1, replaces an epoch's logs.
    assert read - may <= {"CallbackList", "ProgbarLogger", "BaseLogger"}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_scripts_callback_may_stop_a_batch_if_it_looks_at_batches(facts, flavour):
    looking, others = facts["callbacks"][flavour]["own"]
    assert all(looking) and not any(others)


def test_data_adapters_have_the_expected_names_and_batches(facts):
    """Their names and the sizes of their batches: six rows in batches of four."""
    assert facts["adapters"] == {
        "keras sizes": [2, 4],
        "keras none": None,
        "keras generator": "GeneratorDataAdapter",
        "keras arrays": True,
        "keras iterator": [
            "_distributed_dataset",
            "_num_batches",
            "data_adapter",
            "steps_per_epoch",
        ],
        "keras dataset": True,
        "tf_keras sizes": [2, 4],
        "tf_keras generator": "GeneratorDataAdapter",
        "tf_keras handler": ["_adapter", "_dataset", "_inferred_steps", "_model"],
    }


def test_random_states_are_recognized_by_name(facts):
    """variables/states.py leaves them unchanged."""
    assert facts["random states"] == {
        "keras": True,
        "keras dropout": True,
        "keras shape": [2],
        "tensorflow": True,
        "weight": False,
        "value": True,
        "aggregation": "sum",
    }
