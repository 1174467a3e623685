"""Two ranks leave the files of one process: rank 0 writes them before a save returns."""

from __future__ import annotations

import http.server
import io
import re
import tarfile
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from compare import assert_same

from tiers import full

ONE_MEMBER = 300_000  # bytes: smaller than the smallest model that the scripts save
LATE = 0.2  # seconds: rank 0 is later than this for each save


def names(directory: Path) -> list[str]:
    """Every file's path, without time and host in the names of event files and profiles."""
    found = [str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file()]
    found = [re.sub(r"tfevents\..*", "tfevents", name) for name in found]
    return sorted(re.sub(r"profile/\d[\d_]+", "profile/time", name) for name in found)


class Files(NamedTuple):
    """The output and files of two ranks and of one process; what stock TensorFlow reads."""

    ranks: list[dict[str, Any]]
    output: list[str]
    one: dict[str, Any]
    names: tuple[list[str], list[str]]  # of the ranks, of one process
    read: tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(
    scope="module",
    params=["tensorflow", "keras", full("tf_keras")],
)
def files(request, launch, scripts, stock_python, tmp_path_factory) -> Files:
    kind = request.param
    root = tmp_path_factory.mktemp("files")
    args = [] if kind == "tensorflow" else [kind]
    script = scripts / ("files_tf.py" if kind == "tensorflow" else "files_keras.py")
    both = [root / "ranks", root / "one"]
    for directory in both:
        directory.mkdir()
    ranks = launch(script, np=2, args=[*args, both[0]]).check()
    one = launch(script, np=0, args=[*args, both[1]], pooled=True).check()
    opening = [stock_python, scripts / "files_open.py", kind, *both]
    read = launch(opening, np=0).check().results[0]
    assert read["stock"] is True
    return Files(
        ranks.results,
        ranks.stdout,
        one.results[0],
        (names(both[0]), names(both[1])),
        (read["found"][str(both[0])], read["found"][str(both[1])]),
    )


def test_ranks_leave_the_files_of_one_process(files):
    assert files.names[0] == files.names[1]


def test_rank_1_writes_no_files(files):
    assert files.ranks[0]["written"] > 2 * ONE_MEMBER
    assert files.ranks[1]["written"] < ONE_MEMBER


def test_a_save_returns_once_the_file_exists(files):
    for rank in files.ranks:
        assert all(rank["there"].values()), rank["there"]
    if "longest" in files.ranks[1]:
        assert files.ranks[1]["longest"] > LATE, "rank 1 did not wait for rank 0"


def test_saves_return_the_same_on_all_ranks(files):
    assert_same(files.ranks, *{"returned", "best", "loaded"} & files.ranks[0].keys())
    if "returned" in files.one:
        for name, path in files.one["returned"].items():
            ours = files.ranks[1]["returned"][name]
            assert ours == (path and path.replace("/one/", "/ranks/"))


def test_stock_tensorflow_reads_rank_0s_values(files):
    """In the scripts for TensorFlow's writers each rank's value is its number + 1."""
    ours, theirs = files.read
    if "values" in ours:
        assert len(ours["values"]) == 9 and set(ours["values"].values()) == {1.0}
        assert ours == theirs
        return
    models = ours["models"]
    assert models.keys() == theirs["models"].keys()
    assert ours["exported"] < 1e-5
    for name in ("model.keras", "model.h5", "w.weights.h5", "best/model.keras"):
        assert models[name] == files.ranks[0]["weights"] == files.ranks[1]["loaded"], name
    assert models["01.keras"] != models["02.keras"]


def test_logs_contain_what_one_process_logs(files):
    ours, theirs = files.read
    assert ours["events"] == theirs["events"]
    assert ours.get("rows") == theirs.get("rows")


def test_only_rank_0_shows_progress(files):
    shown = [re.findall(r"Epoch [13]", text) for text in files.output]
    assert not shown[1]
    assert shown[0] or "best" not in files.ranks[0]


def test_only_rank_0_posts_to_a_server(files):
    if "posts" in files.one:
        assert [rank["posts"] for rank in files.ranks] == [files.one["posts"], 0] == [3, 0]


@pytest.mark.full
def test_each_rank_writes_its_own_files_with_TF_MPI_IO_all(launch, scripts, tmp_path):
    run = launch(
        scripts / "files_tf.py", np=2, args=[tmp_path / "{rank}"], env={"TF_MPI_IO": "all"}
    ).check()
    assert names(tmp_path / "0") == names(tmp_path / "1")
    assert all(rank["written"] > 2 * ONE_MEMBER for rank in run.results)


TIMEOUT = 6  # seconds
AT_ONCE = 5  # seconds, with margin for a busy machine, and less than the timeout


@pytest.fixture(scope="module")
def ends_run(launch, scripts, tmp_path_factory) -> Any:
    env = {"TF_MPI_STALL_TIMEOUT": str(TIMEOUT), "TF_MPI_STALL_WARNING": "1"}
    env |= {"TF_MPI_TOPOLOGY": "2x1", "TF_MPI_COLLECTIVE_TIMEOUT": "300"}
    args = [tmp_path_factory.mktemp("ends")]
    return launch(scripts / "files_ends.py", np=2, args=args, env=env).check()


@pytest.fixture(scope="module")
def ends(ends_run) -> list[dict[str, Any]]:
    return ends_run.results


def test_the_new_name_of_a_parameter_is_reported(ends_run):
    line = "TF_MPI_COLLECTIVE_TIMEOUT has been renamed to TF_MPI_STALL_TIMEOUT"
    assert [text.count(line) for text in ends_run.stderr] == [1, 0]


def test_a_wait_for_rank_0_is_reported(ends_run):
    assert "has waited 1 s for rank 0 to save" in ends_run.stderr[1]


def test_a_folder_that_nodes_do_not_share_is_reported_once(ends_run):
    """One path, another folder on each rank; no line for files that nodes do share."""
    assert [rank["a folder of each"]["there"] for rank in ends_run.results] == [True, False]
    told = [text.count("the nodes do not share its folder") for text in ends_run.stderr]
    assert told == [0, 1]
    assert "has saved '/proc/self/cwd/own', but" in ends_run.stderr[1]


def test_saves_of_rank_0_alone_block_no_rank(ends):
    assert ends[0]["rank 0 only"]["there"] and not ends[0]["rank 0 only"]["raised"]
    for case in ("all, later", "after a failure", "after an error"):
        for rank in ends:
            assert rank[case]["there"] and not rank[case]["raised"]
            assert rank[case]["seconds"] < AT_ONCE


def test_a_rank_that_saves_alone_stops_with_the_reason(ends):
    case = ends[1]["not rank 0"]
    assert TIMEOUT <= case["seconds"] < TIMEOUT + 10
    waited = f"DeadlineExceededError: rank 1 has waited {TIMEOUT} s for rank 0"
    assert case["raised"].startswith(waited)
    assert "/e'" in case["raised"] and "TF_MPI_IO=all" in case["raised"]


def test_rank_0s_failed_save_fails_on_all_ranks_at_once(ends):
    """With rank 0's error, so that a script may catch it and continue in another way."""
    kinds = {
        "the folder cannot be created": "FailedPreconditionError: ",
        "a folder": "IsADirectoryError: ",
        "no such format": "ValueError: Unrecognized format",
    }
    for name, kind in kinds.items():
        first, other = (rank[name] for rank in ends)
        assert first["raised"].startswith(kind)
        assert other["raised"].splitlines()[0] in first["raised"]
        if name != "a folder":  # Keras drops the cause
            assert other["cause"].startswith("rank 0 could not save")
        assert other["seconds"] < AT_ONCE


def test_no_save_waits_after_rank_0s_end(ends):
    case = ends[1]["rank 0 has ended"]
    assert "rank 0's script has ended" in case["raised"] and case["seconds"] < AT_ONCE


@pytest.fixture(scope="module", params=["keras", full("tf_keras")])
def restored(request, launch, scripts, tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("restored")
    args = [request.param, folder]
    results = launch(scripts / "files_restore.py", np=2, args=args, pooled=True).check().results
    # Rank 1's own name for rank 0's folder may refer to it until the process exits.
    assert not (folder / "no backup").exists()
    return results


def test_after_a_restore_rank_0s_values_are_used(restored):
    for number, rank in enumerate(restored):
        assert rank["loaded"] == rank[f"saved {number}"]
        assert rank["after fit"] == rank["saved 0"] != rank["saved 1"]
        assert rank["read"] == [2.0 + number, 3.0 + number]
        assert rank["in the tape"] == [2.0, 3.0]


def test_training_resumes_from_rank_0s_backup(restored):
    for rank in restored:
        assert rank["backups"] > 0
        assert rank["epochs"] == [2, 3]
        assert not rank["left"]
    assert_same(restored, "interrupted", "after")


class Archive(http.server.BaseHTTPRequestHandler):
    """Serves one archive slowly and counts requests."""

    sent: ClassVar[list[str]] = []
    content: ClassVar[bytes]

    def do_GET(self) -> None:  # noqa: N802 (as there)
        self.sent.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        for half in (self.content[:9000], self.content[9000:]):
            self.wfile.write(half)
            self.wfile.flush()
            time.sleep(1)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.full
def test_only_one_rank_downloads(launch, scripts, tmp_path):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 1000
            tar.addfile(member, io.BytesIO(bytes(1000)))
    Archive.content = archive.getvalue()
    Archive.sent.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Archive) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        args = [f"http://127.0.0.1:{server.server_port}", tmp_path]
        run = launch(scripts / "files_download.py", np=2, args=args).check()
        server.shutdown()
    assert run.results == [{"keras": [20_000, 20_000], "tf_keras": [20_000, 20_000]}] * 2
    assert sorted(Archive.sent) == ["/keras.tar", "/tf_keras.tar"]
