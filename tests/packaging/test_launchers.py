"""What the gate derives from each launcher's variables: launcher, rank, and possible MPIs."""

from __future__ import annotations

import pytest

from extras import load_config

MPI_4 = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
STEP |= {"SLURM_STEP_TASKS_PER_NODE": "1(x2),2", "SLURM_NODEID": "2", "SLURM_JOB_ID": "7"}
PMI = {"PMI_SIZE": "4", "PMI_RANK": "3", "PMI_FD": "9"}
ANY, ONLY_PMI = ("openmpi", "mpich", "abi", "debian"), ("mpich", "abi", "debian")

# As observed with Open MPI 5.0 and 4.1, MPICH 5.0 and Intel MPI 2021.19, and Slurm 22.05. Those of
# PALS, LSF and Flux come from their documentation.
TABLE = [
    (
        "Open MPI's mpirun",
        MPI_4 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        (4, 3, 2, 1),
        ("openmpi",),
    ),
    ("Open MPI's mpirun", MPI_4 | STEP | {"PMIX_RANK": "3"}, (4, 3, 0, -1), ("openmpi",)),
    (
        "MPICH's or Intel MPI's mpiexec",
        PMI | {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"},
        (4, 3, 2, 1),
        ONLY_PMI,
    ),
    # Hydra starts its proxies with srun, one per node.
    (
        "MPICH's or Intel MPI's mpiexec",
        PMI | STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "MPI_LOCALNRANKS": "2"},
        (4, 3, 2, -1),
        ONLY_PMI,
    ),
    ("Slurm's srun --mpi=pmix", STEP | {"PMIX_RANK": "3"}, (4, 3, 2, 1), ANY),
    ("Slurm's srun --mpi=pmi2", STEP | PMI, (4, 3, 2, 1), ONLY_PMI),
    (
        "PALS's mpiexec",
        {"PALS_RANKID": "3", "PMI_SIZE": "4", "PMI_RANK": "3", "PMI_LOCAL_RANK": "1"},
        (4, 3, 0, 1),
        ONLY_PMI,
    ),
    ("a launcher that speaks PMI", PMI, (4, 3, 0, -1), ONLY_PMI),  # Flux
    ("Open MPI's mpirun", MPI_4 | {"JSM_NAMESPACE_SIZE": "4"}, (4, 3, 0, -1), ("openmpi",)),  # LSF
]


@pytest.mark.parametrize(("name", "environ", "numbers", "abis"), TABLE)
def test_launcher_variables_give_rank_and_mpi(
    name: str, environ: dict[str, str], numbers: tuple[int, ...], abis: tuple[str, ...]
) -> None:
    config = load_config()
    found = config.launcher(environ)
    assert (found.name, found.abis) == (name, abis)
    assert (found.size, found.rank, found.local_size, found.local_rank) == numbers
    assert config.gate(environ).on


def test_variables_of_a_job_without_ranks_leave_the_gate_closed() -> None:
    config = load_config()
    gate = config.gate(STEP)
    assert not gate.on and gate.launcher.name == "Slurm's srun" and not gate.launcher.joins
    assert "srun --mpi=pmix, or --mpi=pmi2 for an MPICH" in gate.reason
    assert config.gate(STEP | {"TF_MPI_ENABLE": "1"}).on
    # A script started by sbatch, before any srun.
    batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_NPROCS": "4"}
    assert config.launcher(batch) is None
    assert config.launcher({}) is None


@pytest.mark.parametrize(
    ("counts", "node", "here"),
    [("2(x3),1", "3", 1), ("2(x3),1", "0", 2), ("4", "0", 4), ("4", "1", 0), ("", "0", 0)],
)
def test_slurms_tasks_per_node_are_parsed(counts: str, node: str, here: int) -> None:
    environ = STEP | {"PMIX_RANK": "3", "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": node}
    assert load_config().launcher(environ).local_size == here
