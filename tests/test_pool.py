"""Persistent ranks: settings of earlier scripts are undone, and a broken job is replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import launch
import pool
from launch import LaunchError, LaunchTimeout

SCRIPT = """
import json, os, random, sys, time
import numpy as np, keras, tensorflow as tf
way = sys.argv[1]
if way == "ends":
    sys.exit(7)
if way == "fail" and tf.mpi.rank() == 1:
    raise ValueError("of this script")
if way == "leave" and tf.mpi.rank() == 1:
    sys.exit(7)
if way == "vanish" and tf.mpi.rank() == 1:
    os._exit(3)
if way == "hang":
    tf.mpi.barrier("never") if tf.mpi.rank() else time.sleep(1000)
found = {
    "process": os.getpid(), "rank": tf.mpi.rank(), "words": sys.argv[1:], "folder": os.getcwd(),
    "set": os.environ.get("SET_BY_SCRIPT"), "policy": keras.config.dtype_policy().name,
    "eager": tf.config.functions_run_eagerly(), "name": keras.layers.Dense(1).name,
    "sum": float(tf.mpi.allreduce(np.float32(tf.mpi.rank() + 1), "sum")),
    "drawn": [random.random(), float(np.random.rand())],
}
os.environ["SET_BY_SCRIPT"] = "1"
os.chdir("/")
keras.config.set_dtype_policy("mixed_bfloat16")
tf.config.run_functions_eagerly(True)
keras.utils.set_random_seed(3)
print("RESULT " + json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Separate pools for this test."""
    monkeypatch.setattr(pool, "_jobs", {})
    yield
    pool.end()


def found(script: Path, np: int, way: str = "well") -> list[dict[str, Any]]:
    return pool.run(script, np, [way], 300).check().results


@pytest.mark.full
def test_ranks_persist_but_their_state_does_not(script: Path) -> None:
    first, second = found(script, 2), found(script, 2)
    for rank, (before, after) in enumerate(zip(first, second)):
        assert before["process"] == after["process"]
        assert before == after
        assert after["rank"] == rank and after["sum"] == 3 and after["words"] == ["well"]
        assert after["set"] is None and after["folder"] == os.getcwd()
        assert (after["policy"], after["eager"], after["name"]) == ("float32", False, "dense")


@pytest.mark.full
def test_each_script_gets_a_new_plain_process(script: Path) -> None:
    (first,) = found(script, 0)
    assert pool.run(script, 0, ["ends"], 300).returncode == 7
    (second,) = found(script, 0)
    assert first["process"] != second["process"]
    assert second["set"] is None and second["policy"] == "float32"


@pytest.mark.full
@pytest.mark.parametrize(
    ("way", "code", "words"),
    [("fail", 1, "ValueError: of this script"), ("leave", 7, ""), ("vanish", None, "")],
)
def test_a_failing_script_ends_only_its_own_job(script: Path, way, code, words) -> None:
    (process, _) = (rank["process"] for rank in found(script, 2))
    failed = pool.run(script, 2, [way], 300)
    assert failed.returncode == code if code else failed.returncode != 0
    assert words in failed.stderr[1]
    with pytest.raises(LaunchError):
        failed.check()
    deadline = time.monotonic() + 10
    while launch._alive(process):
        assert time.monotonic() < deadline, "a rank of the broken job is still alive"
        time.sleep(0.1)
    assert found(script, 2)[0]["process"] != process


@pytest.mark.full
def test_a_hanging_script_is_ended_and_its_stacks_are_shown(script: Path) -> None:
    found(script, 2)
    with pytest.raises(LaunchTimeout) as caught:
        pool.run(script, 2, ["hang"], 10)
    assert len(caught.value.stacks) == 2
    assert "script.py" in caught.value.stacks[0]
