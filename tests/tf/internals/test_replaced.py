"""The table of replacements is complete."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def ranks(launch, scripts) -> list[dict[str, Any]]:
    env = {"TF_MPI_SHARD": "dataset"}  # which has its own rows
    return launch(scripts / "replaced.py", np=2, env=env, timeout=120).check().results


def test_the_table_lists_all_replacements(ranks):
    """Except rows whose condition does not hold; and nothing else refers to objects of ours."""
    not_here = {
        *("_get_current_learning_rate", "_decayed_lr", "learning_rate"),  # per-rank:linear
        *("model_supports_jit", "ensure_initialized"),  # TensorFlow before 2.20, several GPUs
    }
    on_rank_0 = {":write"}
    on_others = {
        *(":_cache", ":_snapshot", "_delete_file_if_exists", "print_msg", "io_utils"),
        *("file_utils", "CSVLogger.on_train_begin", "_configure_embeddings"),
        "RemoteMonitor.on_epoch_end",
    }
    for rank, other in zip(ranks, (on_others, on_rank_0), strict=True):
        assert rank["no row"] == []
        assert len(rank["replaced"]) > 140
        missing = {name for name in rank["not replaced"]}
        assert {n for n in missing if not n.endswith(tuple(not_here | other))} == set()
        assert not any(name.endswith(tuple(other)) for name in rank["replaced"])


def test_a_scripts_own_class_is_wrapped(ranks):
    assert [rank["own class"] for rank in ranks] == [True, True]


def test_orbax_writes_on_rank_0_only(ranks):
    if ranks[0]["orbax"] is None:
        pytest.skip("Keras before 3.13 has no OrbaxCheckpoint")
    assert [rank["orbax"] for rank in ranks] == [[3], []]


def test_every_rank_prints_a_summary_of_tf_keras_models(ranks):
    assert [rank["summary"] for rank in ranks] == [True, True]
