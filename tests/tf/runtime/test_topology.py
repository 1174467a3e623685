"""TF_MPI_TOPOLOGY and TF_MPI_COMPRESSION as a user sets them. The shapes themselves are tested in
tests/mpi and tests/core/transport/node_test.cc."""

from __future__ import annotations

import pytest

from tiers import full


@pytest.mark.parametrize(
    "shape, wire",
    [
        full("auto", "bf16"),
        full("2x1", "none"),
        ("2x1", "bf16"),
    ],
)
def test_compression_applies_between_nodes_only(launch, scripts, shape, wire):
    env = {"TF_MPI_TOPOLOGY": shape, "TF_MPI_COMPRESSION": wire}
    one, other = launch(scripts / "topology.py", np=2, env=env, timeout=120).check().results
    assert one == other
    assert one["exact"] == [1.5]
    (average,) = one["average"]
    if (shape, wire) == ("2x1", "bf16"):
        assert average == pytest.approx(1.001, rel=2**-7)
        assert abs(average - 1.001) > 1e-4, "nothing was rounded"
    else:
        assert average == pytest.approx(1.001, rel=1e-6)


@pytest.mark.full
def test_a_shape_for_another_number_of_ranks_is_refused(launch, scripts):
    env = {"TF_MPI_TOPOLOGY": "2x4"}
    ended = launch(scripts / "topology.py", np=2, env=env, timeout=120)
    assert ended.returncode != 0
    assert "TF_MPI_TOPOLOGY=2x4 is a group of 8 ranks, but 2 ranks started" in ended.stderr[0]
