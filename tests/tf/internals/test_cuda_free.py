"""Our libraries do not need CUDA, and without a GPU none of CUDA's is loaded; for both wheels."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from installed import distribution
from wheelbuilder.layout import LIBRARIES, LIBRARY_DIR

# The driver, the runtime, the math libraries, NCCL.
_CUDA = re.compile(r"/?lib(cu|nv|nccl)[^/]*\.so[.\d]*$")


def _of_cuda(names: list[str]) -> list[str]:
    return [name for name in names if _CUDA.search(name)]


def test_cuda_libraries_are_recognized_by_name() -> None:
    known = ["/usr/lib/libcuda.so.1", "libcudart.so.12", "libnccl.so.2", "libnvrtc.so.12"]
    known += ["libcublasLt.so.12.9.1.4", "libcudnn_ops.so.9", "libnvidia-ml.so.1"]
    assert _of_cuda(known) == known
    assert not _of_cuda(["/nvidia/libmpi.so.40", "libtensorflow_cc.so.2", "libcurl.a"])


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_our_libraries_do_not_need_cuda(library) -> None:
    """The wheel also provides every symbol that they use, except those of MPIs that are not
    installed."""
    found = distribution()
    assert found
    path = Path(str(found.locate_file(f"{LIBRARY_DIR}/{library.name}")))
    run = subprocess.run(["ldd", "-r", path], capture_output=True, text=True, timeout=120)
    needs = [line.split()[0] for line in run.stdout.splitlines() if line.startswith("\t")]
    assert set(library.needs) <= set(needs), run.stdout
    assert not _of_cuda(needs)
    left = [line for line in (run.stdout + run.stderr).splitlines() if "not found" in line]
    absent = bool(left) and all(line.strip().startswith("libmpi") for line in left)
    assert absent or not left, run.stdout
    symbols = re.findall(r"undefined symbol: (\w+)", run.stdout + run.stderr)
    assert not [name for name in symbols if not (absent and name.startswith("MPI_"))]


def test_without_a_gpu_no_cuda_library_is_loaded(launch, scripts) -> None:
    run = launch(scripts / "cuda_free.py", np=2, pooled=True).check()
    for rank in run.results:
        assert rank["ranks"] == 2 and rank["losses"] == run.results[0]["losses"]
        assert any("libtensorflow_mpi.so" in name for name in rank["mapped"])
        if not rank["gpus"]:  # with a GPU, TensorFlow loads them all
            assert not _of_cuda(rank["mapped"])
