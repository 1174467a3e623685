"""A rank that is bound to one core uses one core."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.full


def test_threads_of_a_rank_with_one_core(launch, scripts):
    for one in launch(scripts / "affinity.py", np=2, timeout=120).check().results:
        assert one["threads"]["tf_mpi_comm"] == 1
        assert one["threads"]["tf_Compute"] == 1, "TensorFlow took the machine for its own"
        assert one["stay"]
