"""A rank starts threads for its share of the node's cores; idle cores are reported."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from tensorflow.mpi import config
from tensorflow.mpi._src.lifecycle import cores

from tiers import full

MPIRUN = "Open MPI's mpirun"


@pytest.mark.full
def test_a_rank_bound_to_one_core_starts_threads_for_one(launch, scripts):
    own = len(os.sched_getaffinity(0))
    for one in launch(scripts / "affinity.py", np=2, timeout=120).check().results:
        assert one["threads"]["tf_mpi_comm"] == 1
        assert one["threads"]["tf_Compute"] == 1, "TensorFlow used all cores"
        assert one["stay"]
        assert one["cores"] == min(own, 2)


@pytest.mark.full
def test_ranks_bound_to_the_same_core_start_threads_for_one(launch, scripts):
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, scripts / "affinity.py"]
    for one in launch(command, np=2, timeout=120).check().results:
        assert one["cores"] == 1


@pytest.mark.parametrize("np", [2, full(4)])
def test_unbound_ranks_share_the_cores(launch, scripts, np):
    """--oversubscribe binds no rank. Settings in the environment are kept."""
    own = len(os.sched_getaffinity(0))
    env = {"OMP_NUM_THREADS": "3", "TF_NUM_INTRAOP_THREADS": None, "TF_NUM_INTEROP_THREADS": None}
    for one in launch(scripts / "affinity.py", np=np, args=["free"], env=env).check().results:
        assert one["threads"]["tf_Compute"] == max(1, own // np)
        assert one["openmp"] == "3"


@pytest.mark.parametrize(
    "ranks, own, packages, quota, way",
    [
        (4, 1, (16,), 1000, "1 of its 16 cores; to use all cores, pass mpirun --map-by slot:PE=4"),
        (3, 1, (16,), 1000, "1 of its 16 cores; to use all cores, pass mpirun --map-by slot:PE=5"),
        (
            3,
            1,
            (8, 8),
            1000,
            "1 of its 16 cores; to use all cores, pass mpirun --bind-to none",
        ),  # 5, 5 and 3 + 2
        (4, 1, (16,), 8, "1 of its 8 cores; to use all cores, pass mpirun --map-by slot:PE=2"),
        (2, 4, (16,), 1000, "4 of its 16 cores; to use all cores, pass mpirun --map-by slot:PE=8"),
        (4, 1, (16,), 4, None),
        (4, 1, (4,), 1000, None),
        (3, 1, (4,), 1000, None),  # one core is left, and no rank can have two
        (2, 16, (16,), 1000, None),  # not bound
    ],
)
def test_idle_cores_are_reported_with_the_mpirun_option(
    monkeypatch, ranks, own, packages, quota, way
):
    """With two threads per core, as `_topology_value` reads them."""
    of_core = [package for package, number in enumerate(packages) for _ in range(number)]

    def told(processor, what):
        core = processor // 2
        return str(of_core[core] if what == "physical_package_id" else core)

    process = SimpleNamespace(cores=lambda: set(range(2 * len(of_core))))
    library = SimpleNamespace(topology=lambda: (0, ranks, 0, ranks, 1), quota_cores=lambda: quota)
    monkeypatch.setattr(cores, "_topology_value", told)
    monkeypatch.setattr(cores, "c_api", library)
    monkeypatch.setattr(cores, "watch", SimpleNamespace(started_by=lambda: process))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2 * own)))
    said = cores.idle(config.Launcher(MPIRUN, ranks, 0, ranks, 0))
    if way is None:
        assert said is None
    else:
        assert said == f"each of the {ranks} ranks on this node is bound to {way}"
    assert cores.idle(config.Launcher("Slurm's srun --mpi=pmix", ranks, 0, ranks, 0)) is None
