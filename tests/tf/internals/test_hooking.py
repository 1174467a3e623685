"""Hooks into Keras: a missing target is an error that names it; newer versions are named."""

from __future__ import annotations

import sys

import pytest

NEWER = "is newer than"


@pytest.fixture(scope="module")
def run(launch, scripts):
    return launch(scripts / "hooking.py", np=2).check()


def test_existing_targets_are_wrapped(run):
    assert run.results[0]["wrapped"] == ["fit, wrapped", "Trains."]


def test_missing_targets_are_named(run):
    """The module, the attribute, the version and the remedy, for every way to hook in."""
    said = run.results[0]["said"]
    assert len(said) == 4 * 6
    for path, text in said:
        assert text.startswith("keras.src.trainers.trainer of keras 3."), path
        assert f"has no {path}, which tensorflow.mpi needs" in text
        assert "install keras" in text and "==3." in text and text.endswith("set TF_MPI_ENABLE=0")


def test_any_of_several_names_by_version_is_found(run):
    assert run.results[0]["by either name"] == ["Trainer.fit", "Trainer.fit"]


def test_a_missing_name_that_is_used_directly_is_the_same_error(run):
    """The first target exists; of the others the module or the attribute is missing."""
    found, *lost = run.results[0]["used"]
    assert found == "Loss"
    missing = ("module keras.src.gone", "Gone|Lost")
    for text, what in zip(lost, missing, strict=True):
        assert f"has no {what}, which tensorflow.mpi needs" in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "where", "lost"),
    [
        ("method", "tensorflow.trainer of keras 3.", "TensorFlowTrainer|Trainer._make_function"),
        ("module", "keras 3.", "module keras.src.gone.trainer"),
    ],
)
def test_a_keras_without_a_hooked_name_cannot_be_imported(launch, scripts, what, where, lost):
    """Each import on each rank says why; TensorFlow, which imports Keras, continues."""
    run = launch(scripts / "lost_something.py", np=2, args=[what]).check()
    for rank, text in zip(run.results, run.stderr):
        assert rank["sum"] == 2
        assert len(rank["said"]) == 3
        for said in rank["said"][:2]:
            assert where in said and f"has no {lost}, which" in said
        assert "Keras cannot be imported" in rank["said"][2]  # tf.keras's own message
        assert text.count(f"has no {lost}") == 1


def test_rank_0_names_versions_newer_than_the_last_tested(run):
    """tf_keras, whose tested version the script lowers; Keras is the tested one."""
    (line,) = [line for line in run.stderr[0].splitlines() if NEWER in line]
    assert line.startswith("tensorflow.mpi rank 0/2: tf_keras 2."), line
    assert f"{NEWER} 2.15.9" in line and "install tf_keras==2.15.9" in line
    assert NEWER not in run.stderr[1]


def test_keras_may_be_imported_before_tensorflow(run):
    """It then imports TensorFlow itself, while half of its modules are loaded."""
    assert run.results[0]["weights"] == run.results[1]["weights"]


@pytest.mark.full
def test_tf_keras_may_be_imported_before_tensorflow(launch):
    script = (
        "import tf_keras as keras, tensorflow as tf; assert tf.mpi.size() == 2\n"
        "model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)\n"
        "print('RESULT', '{\"weights\": %s}' % model.get_weights()[0].tolist())"
    )
    run = launch([sys.executable, "-c", script], np=2).check()
    assert run.results[0] == run.results[1]
    assert NEWER not in run.stderr[0]


@pytest.mark.full
def test_with_averaging_off_nothing_is_printed(launch, scripts):
    run = launch(scripts / "hooking.py", np=0, env={"TF_MPI_ENABLE": "0"}).check()
    assert NEWER not in run.stderr[0]
