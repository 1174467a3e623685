"""A rank that is bound to one core uses one core; those that share a core know it."""

from __future__ import annotations

import os
import sys

import pytest

pytestmark = pytest.mark.full


def test_threads_of_a_rank_with_one_core(launch, scripts):
    own = len(os.sched_getaffinity(0))
    for one in launch(scripts / "affinity.py", np=2, timeout=120).check().results:
        assert one["threads"]["tf_mpi_comm"] == 1
        assert one["threads"]["tf_Compute"] == 1, "TensorFlow took the machine for its own"
        assert one["stay"]
        assert one["cores"] == min(own, 2)


def test_ranks_on_the_same_core_have_one(launch, scripts):
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, scripts / "affinity.py"]
    for one in launch(command, np=2, timeout=120).check().results:
        assert one["cores"] == 1
