"""Cases that must stop soon with an error that says why, or print a warning."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
from compare import decode

from extras import load
from installed import is_before, needs_compiled_steps
from tiers import full

SOON = 20  # seconds from the end of one rank to the end of the job

# --- Training that this release cannot average is refused --------------------------------------

CUSTOM = ["NotImplementedError", "without one of TensorFlow's Apply ops", "tf.mpi.allreduce"]
DISAGREE = ["InvalidArgumentError", "the ranks disagree on"]
REFUSED = {
    "AssignsAll eager": [*CUSTOM, "AssignsAll"],
    "AssignsAll function": [*CUSTOM, "AssignsAll"],
    "AssignsAll session": [*CUSTOM, "AssignsAll"],
    "other_shape": [*DISAGREE, "rank 0 has", "float32 [2, 3]", "rank 1 has", "float32 [3, 3]"],
    "other_slot": [*DISAGREE, "'start of other_slot input 1'", "[4, 2]", "rank 1 has", "[5, 2]"],
    "other_dtype": [*DISAGREE, "rank 0 has", "float32 [2]", "rank 1 has", "float64 [2]"],
}
ACCEPTED = [
    "sparse_op_eager",
    "sparse_op_function",
    "sparse_op_session",
    "sparse_optimizer_eager",
    "sparse_optimizer_session",
    "AssignsOne eager",
    "AssignsOne function",
    "AssignsOne session",
    "Wraps eager",
    "Wraps function",
    "Wraps session",
    "agreed",
]
COMPILED = ["compiled_op", "compiled_optimizer_inside_a_function"]
if is_before("2.20"):
    refusal = ["UnimplementedError", "needs TensorFlow 2.20 or newer"]
    REFUSED |= dict.fromkeys(COMPILED, [*refusal, "Set jit_compile=False"])
else:
    ACCEPTED += COMPILED


@pytest.fixture(scope="module")
def refused(launch, scripts):
    """The results by rank and case."""
    return launch(scripts / "errors_refused.py", np=2).check().results


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_give_the_reason_and_a_remedy(refused, case):
    for rank in refused:
        for words in REFUSED[case]:
            assert words in rank[case]
        if REFUSED[case][:2] != DISAGREE:
            assert "TF_MPI_ENABLE=0" in rank[case]


def test_supported_training_is_not_refused(refused):
    """Also after all those errors, on both ranks: an error stops only one step."""
    for rank in refused:
        assert [rank[case] for case in ACCEPTED] == ["ok"] * len(ACCEPTED)
        assert rank["value"] == pytest.approx(0.85)
        assert rank["assigned"] == pytest.approx([0.85] * 3)


@pytest.mark.full
def test_one_process_refuses_nothing(launch, scripts):
    alone = launch(scripts / "errors_refused.py", np=0, env={"TF_MPI_ENABLE": "1"}).check()
    outcomes = alone.results[0]
    assert outcomes.pop("value") == pytest.approx(0.9)
    assert outcomes.pop("assigned") == pytest.approx([0.9] * 3)
    assert set(outcomes) >= {*REFUSED, *ACCEPTED}
    assert {case: text for case, text in outcomes.items() if text != "ok"} == {}


@needs_compiled_steps
@pytest.mark.full
def test_auto_clustering_compiles_the_optimizer_op(launch, scripts):
    """XLA compiles the optimizer op with its average; no kernel runs for it."""
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
    run = launch(scripts / "errors_ends.py", args=["clustered"], env={"TF_XLA_FLAGS": flags})
    for rank in run.check().results:
        assert (rank["applied"], rank["gradients"]) == (0, 1)
        np.testing.assert_allclose(decode(rank["value"]), [1.0, 2.0])
        # An average of rows is not compiled, because its number of rows is not static.
        np.testing.assert_allclose(decode(rank["table"])[:, 0], [2.0, 1.0, 1.0, 0.0])


# --- Ranks that end ------------------------------------------------------------------------------


DIED = f" on {os.uname().nodename}) "
WITHOUT_A_WORD = {
    "kill": "was killed by SIGKILL",
    "crash": "was killed by SIGSEGV",
    "leave": "exited by os._exit or similar, with code 3",
}


@pytest.mark.parametrize(
    "way, who",
    [
        full("raise", 0),
        ("raise", 1),
        full("before a save", 0),
        ("kill", 0),
        full("kill", 1),
        full("crash", 1),
        full("leave", 0),
    ],
)
def test_when_a_rank_ends_the_others_end(launch, scripts, way, who):
    run = launch(scripts / "errors_ends.py", args=[way, who], timeout=90)
    assert run.returncode != 0
    assert run.since(who) < SOON
    deaths = [line for text in run.stderr for line in text.splitlines() if DIED in line]
    if way in WITHOUT_A_WORD:  # the reason is known only while the kernel still has it
        (line,) = deaths
        how = rf"({WITHOUT_A_WORD[way]}|ended without a message \(killed\?\))"
        whose = rf"rank {who} \(process \d+ on {os.uname().nodename}\) "
        begins = rf"tensorflow.mpi rank {1 - who}/2: {whose}"
        assert re.match(begins + how, line), line
    else:
        assert deaths == []
        text = f"RuntimeError: the file of rank {who} is broken"
        assert text in run.stderr[who]
        assert f"ends, because rank {who}/2 has stopped: {text}" in run.stderr[1 - who]
        assert "Traceback" not in run.stderr[1 - who]  # one cause is printed once


ENDS = {
    "exit code": "its script exited with code 3",
    "exit words": "its script exited: no such file",
    "another hook": "RuntimeError: the file of rank 1 is broken (errors_ends.py:",
    "graph": "InvalidArgumentError: the loss is bad : Tensor had NaN values (CheckNumerics, ",
    "thread": "in trainer, which trains: RuntimeError: the file of rank 1 is broken",
}


@pytest.mark.parametrize(
    "way", ["exit code", full("exit words"), full("another hook"), "thread", full("graph")]
)
def test_any_end_but_success_fails_the_job(launch, scripts, way):
    run = launch(scripts / "errors_ends.py", args=[way, 1], timeout=90)
    assert run.returncode != 0
    assert run.since(1) < SOON
    assert f"rank 1/2 has stopped: {ENDS[way]}" in run.stderr[0]
    if way == "exit code":  # both have failed
        check_collected(run, of_imports=False)


@pytest.mark.full
def test_a_rank_whose_exit_function_fails_keeps_no_other_waiting(launch, scripts):
    run = launch(scripts / "errors_ends.py", args=["exit"], timeout=90)
    assert run.returncode != 0
    assert run.since(0) < SOON
    assert "ends, because rank 0/2 has stopped: ValueError: " in run.stderr[1]


@pytest.mark.full
def test_a_daemon_thread_that_trains_on_does_not_fail_the_job(launch, scripts):
    run = launch(scripts / "errors_ends.py", args=["daemon"], timeout=90).check()
    assert "could not end normally" not in "".join(run.stderr)


def test_an_error_of_a_graph_is_one_line_with_the_op_and_the_scripts_line():
    class InvalidArgumentError(Exception):
        pass

    text = (
        "Graph execution error:\n\nDetected at node CheckNumerics defined at (most recent call "
        'last):\n  File "/mine/train.py", line 7, in checked\n\nThe loss is bad : Tensor had NaN '
        "values\n\t [[{{node CheckNumerics}}]] [Op:__inference_checked_5]"
    )
    assert load("tensorflow.mpi._src.presence.reasons").reason(InvalidArgumentError(text)) == (
        "InvalidArgumentError: The loss is bad : Tensor had NaN values "
        "(CheckNumerics, train.py:7 in checked)"
    )


@pytest.mark.parametrize("way", ["generator", full("never")])
def test_a_python_that_does_not_exit_is_ended(launch, scripts, way):
    """In stock TensorFlow, too, a thread in a generator may keep Python from exiting."""
    run = launch(scripts / "errors_ends.py", args=[way, -1], timeout=90)
    well = way == "never"
    assert (run.returncode == 0) == well
    assert run.since(0) < SOON + 15 * well
    for text in run.stderr:
        assert ("Python's exit has used no processor time for 15 s" in text) == well


@pytest.mark.full
def test_output_that_is_read_slowly_is_written_whole(launch, scripts):
    run = launch(scripts / "errors_ends.py", args=["slow reader", -1], timeout=90).check()
    assert "THE LAST LINE" in run.stdout[1]
    assert "Python's exit has used" not in run.stderr[1]


@pytest.mark.full
@pytest.mark.parametrize("way", ["well", "well at once"])
def test_an_exit_with_code_0_is_a_success(launch, scripts, way):
    run = launch(scripts / "errors_ends.py", args=[way, 1], timeout=90).check()
    assert "has stopped" not in "".join(run.stderr)
    assert DIED not in "".join(run.stderr)
    check_collected(run, of_imports=True)


def check_collected(run, of_imports):
    """On the first rank to end, which ends the job; the others may not have got that far."""
    ends = [text.split("FROZEN ")[1].split() for text in run.stdout if "FROZEN" in text]
    assert ends, run.report()
    for frozen, *_ in ends:
        assert (int(frozen) == 0) == of_imports, run.report()
    assert any(rest == ["COLLECTED"] for _, *rest in ends), run.report()


# --- Ranks that are late --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stalled(launch, scripts):
    env = {"TF_MPI_STALL_WARNING": "1", "TF_MPI_STALL_TIMEOUT": "3"}
    return launch(scripts / "errors_ends.py", args=["stall"], env=env).check()


@pytest.mark.parametrize("late", [0, 1])
def test_a_stall_is_reported_and_then_an_error(stalled, late):
    waited = f"allreduce 'weights (GradientDescent)' on rank {1 - late} has waited"
    report = [line for line in stalled.stderr[0].splitlines() if waited in line]
    assert report and f"for rank {late} (rank {late} last asked for" in report[0]
    assert "(error after TF_MPI_STALL_TIMEOUT)" in report[0]
    error, seconds = stalled.results[1 - late][f"late {late}"]
    assert error.startswith("DeadlineExceededError: ") and waited in error
    assert f"for rank {late}" in error and "TF_MPI_STALL_TIMEOUT has expired" in error
    assert 2.5 < seconds < 7.5  # before the late rank arrives


def test_the_late_ranks_step_fails_too_and_all_continue(stalled):
    """So that both have taken the same number of steps: two successful ones."""
    for rank in (0, 1):
        error, seconds = stalled.results[rank][f"late {rank}"]
        assert error.startswith("DeadlineExceededError: ") and seconds < 2.5
        np.testing.assert_array_equal(decode(stalled.results[rank]["value"]), [-3.0, -3.0])


# --- Warnings ------------------------------------------------------------------------------------

SAME_DATA = "as if all ranks had the same samples"
NOTHING = "no optimizer op was run, so no gradient was averaged"


@pytest.mark.full
def test_equal_data_is_reported_once(launch, scripts):
    run = launch(scripts / "errors_ends.py", args=["same"]).check()
    assert [text.count(SAME_DATA) for text in run.stderr] == [1, 0]
    assert "tf.mpi.shard(dataset)" in run.stderr[0]


def test_different_data_is_not_reported(stalled):
    assert SAME_DATA not in "".join(stalled.stderr)


@pytest.mark.parametrize("mode, lines", [("nothing", 1), full("allreduce", 0)])
def test_a_script_that_averaged_nothing_is_reported(launch, scripts, mode, lines):
    run = launch(scripts / "errors_ends.py", args=[mode]).check()
    assert [text.count(NOTHING) for text in run.stderr] == [lines, 0]
