"""The GPU wheel with simulated GPUs: which transport gradients take, and that averages arrive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from installed import flavour, needs_tensorflow
from tiers import full
from wheelbuilder.layout import GPU

STANDIN = Path(__file__).parent / "standin"
BUILT = STANDIN.parents[2] / ".cache" / "standin" / "lib"
KERNELS = 116  # number of optimizer kernels for GPUs
STEPS = 10

pytestmark = [
    pytest.mark.skipif(flavour() is not GPU, reason="needs the GPU wheel: ./install.sh --gpu"),
    needs_tensorflow("2.21", "the stand-in for CUDA"),
]

# Ranks, GPUs, variables, and rank 0's words for the transport.
Case = tuple[int, int, dict[str, str], str]
STAGED: Case = (
    2,
    2,
    {"TF_MPI_GPU_TRANSPORT": "staged"},
    "staged through the host: TF_MPI_GPU_TRANSPORT=staged",
)
LIBRARY = {"TF_MPI_GPU_TRANSPORT": str(BUILT / "libnccl.so.2")}
NCCL: Case = (2, 2, LIBRARY, "NCCL 2.28.3 on all ranks")
SHARED: Case = (2, 1, {}, "which all ranks share: cuIpcGetMemHandle")
NODES: Case = (
    4,
    4,
    {"TF_MPI_TOPOLOGY": "2x2", **LIBRARY},
    "NCCL 2.28.3 inside each of 2 nodes of 2 ranks, MPI",
)

CASES = pytest.mark.parametrize(
    "case",
    [STAGED, NCCL, full(SHARED), full(NODES)],
    ids=["staged", "nccl", "shared GPU", "nodes"],
)


@pytest.fixture(name="built", scope="module", autouse=True)
def built_fixture() -> None:
    command = [str(STANDIN / "run.sh"), sys.executable, "-c", "pass"]
    subprocess.run(command, check=True, timeout=300)


def run(launch, script: str, ranks: int, gpus: int, env: dict[str, str], way: str):
    env = {
        "LD_LIBRARY_PATH": str(BUILT),
        "FAKE_CUDA_DEVICES": str(gpus),
        **env,
    }
    ended = launch(STANDIN / script, np=ranks, env=env, timeout=400).check()
    assert way in ended.stderr[0], ended.report()
    return ended


@CASES
def test_every_optimizer_kernel_receives_the_average(launch, case) -> None:
    ended = run(launch, "apply_ops.py", *case)
    for rank, text in enumerate(ended.stdout):
        assert f"rank {rank}: {KERNELS} kernels, 0 differ" in text, ended.report()


@CASES
def test_steps_compiled_by_xla_receive_the_average(launch, case) -> None:
    ranks, gpus, env, way = case
    ended = run(launch, "compiled_steps.py", ranks, gpus, {"FAKE_CUDA_DELAY_US": "300", **env}, way)
    for rank, text in enumerate(ended.stdout):
        assert f"rank {rank}: {STEPS} steps, 0 without an average" in text, ended.report()
