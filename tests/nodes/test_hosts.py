"""Several nodes: network namespaces as hosts, each with its own /tmp, /dev/shm, name and sshd."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
HERE = Path(__file__).parent
FIT = HERE.parent / "packaging" / "mpi_fit.py"
AVERAGES = HERE.parent / "tf" / "runtime" / "topology.py"
APPENDS = HERE.parent / "tf" / "files" / "files_appends.py"
PREFIX = Path(sys.prefix)
# mpirun notices a cut link only after 8 minutes unless it checks more often.
KEEPALIVE = [
    *("--prtemca", "oob_tcp_keepalive_time", "5"),
    *("--prtemca", "oob_tcp_keepalive_intvl", "2"),
    *("--prtemca", "oob_tcp_keepalive_probes", "3"),
]


@dataclass
class Hosts:
    """The hosts h1 to h3. mpirun runs on h1, in the shell of a user there."""

    state: Path

    def script(self, *words: str) -> list[str]:
        return ["env", f"HOSTS_STATE={self.state}", "bash", str(HERE / "hosts.sh"), *words]

    def mpirun(
        self,
        hosts: str,
        script: Path,
        *arguments: str,
        options: list[str] | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 200,
        when: Callable[[str], object] | None = None,
    ) -> tuple[int, str, float]:
        """(exit status, output, seconds). Calls `when` with each line."""
        ranks = sum(int(host.partition(":")[2]) for host in hosts.split(","))
        known = {
            "PATH": f"{PREFIX / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE.parent / "tf"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            **(env or {}),
        }
        words = [
            *self.script("run", "h1", "env", *(f"{key}={value}" for key, value in known.items())),
            # Kill it there, because nothing from here reaches processes of another namespace.
            *("timeout", "--kill-after=10", str(timeout)),
            *("mpirun", "--host", hosts, "-np", str(ranks), "--prefix", str(PREFIX)),
            *("--prtemca", "plm_ssh_args", f"-F{self.state}/ssh_config"),
            *("-x", "PATH", "-x", "PYTHONPATH", *(options or [])),
            *(str(PREFIX / "bin" / "python"), str(script), *arguments),
        ]
        start, lines = time.monotonic(), []
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/root"
        )
        timer = threading.Timer(timeout + 30, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if when is not None:
                when(line)
        code = process.wait()
        timer.cancel()
        return code, "".join(lines), time.monotonic() - start


@pytest.fixture(name="hosts", scope="module")
def hosts_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    missing = [name for name in ("sshd", "ip", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {missing}: apt-get install openssh-server iproute2")
    hosts = Hosts(Path("/run") / tmp_path_factory.mktemp("hosts").name)
    with open(os.devnull, "w") as null:  # otherwise the hosts would keep a pipe open
        subprocess.run(hosts.script("up", "3"), check=True, timeout=60, stdout=null, stderr=null)
    yield hosts
    subprocess.run(hosts.script("down"), timeout=60, check=False)


_weights: dict[int, set[str]] = {}  # by the number of ranks


@pytest.mark.parametrize(
    ("where", "nodes"),
    [("h1:1,h2:1", 2), ("h1:2,h2:1", 2), ("h1:1,h2:1,h3:1", 3), ("h1:1,h2:2,h3:1", 3)],
)
def test_nodes_of_equal_and_unequal_size_train_the_same_weights(
    hosts: Hosts, where: str, nodes: int
) -> None:
    code, text, _ = hosts.mpirun(where, FIT)
    assert code == 0, text
    ranks = sum(int(host.partition(":")[2]) for host in where.split(","))
    assert f"averaging gradients over {ranks} ranks on {nodes} nodes" in text
    found = {line.partition('"weights": "')[2][:64] for line in text.splitlines() if "RES" in line}
    assert text.count("RESULT") == ranks and len(found) == 1, text


@pytest.mark.parametrize(
    ("where", "average", "told"), [("h1:1,h2:1", 1.001, 0), ("h1:2,h2:1", 1.002, 1)]
)
def test_compression_without_effect_is_reported(
    hosts: Hosts, where: str, average: float, told: int
) -> None:
    options = ["-x", "TF_MPI_COMPRESSION=bf16"]
    code, text, _ = hosts.mpirun(where, AVERAGES, options=options)
    assert code == 0, text
    line = "rank 0/3: TF_MPI_COMPRESSION has no effect, because the nodes have different numbers"
    assert text.count("TF_MPI_COMPRESSION") == text.count(line) == told, text
    found = [float(word) for word in re.findall(r'"average": \[([\d.]+)\]', text)]
    assert len(found) == (3 if told else 2), text
    assert all((abs(value - average) < 1e-6) == bool(told) for value in found), text


def test_hosts_with_the_same_name_are_told_apart(hosts: Hosts) -> None:
    """Containers may share a name; whether ranks share memory is tested, not derived from names."""
    subprocess.run(hosts.script("run", "h2", "hostname", "h1"), check=True)
    try:
        code, text, _ = hosts.mpirun("10.77.0.11:2,10.77.0.12:2", FIT)
    finally:
        subprocess.run(hosts.script("run", "h2", "hostname", "h2"), check=True)
    assert code == 0 and "averaging gradients over 4 ranks on 2 nodes" in text, text
    found = {line.partition('"weights": "')[2][:64] for line in text.splitlines() if "RES" in line}
    assert text.count("RESULT") == 4 and len(found) == 1, text


def test_the_gate_is_closed_on_all_nodes_with_x(hosts: Hosts) -> None:
    """mpirun passes TF_MPI_ENABLE only to its own node: tests the command of README.md."""
    code, text, _ = hosts.mpirun("h1:1,h2:1", FIT, env={"TF_MPI_ENABLE": "0"})
    assert code == 0 and text.count('"size": 1') == 2, text
    assert "averaging" not in text and "has waited" not in text


def test_a_gate_that_is_closed_on_one_node_is_explained(hosts: Hosts) -> None:
    """Without a shared home; the rank that waits names the option -x."""
    code, text, _ = hosts.mpirun(
        "h1:1,h2:1",
        FIT,
        env={"TF_MPI_ENABLE": "0", "XDG_CACHE_HOME": "/tmp/one"},
        options=["-x", "XDG_CACHE_HOME=/tmp/one", "-x", "TF_MPI_STALL_TIMEOUT=15"],
    )
    assert code != 0 and "only with -x TF_MPI_ENABLE" in text, text


def test_a_setting_of_one_node_is_named_with_its_option(hosts: Hosts) -> None:
    code, text, seconds = hosts.mpirun("h1:1,h2:1", FIT, env={"TF_MPI_SYNC_BATCHNORM": "1"})
    assert code != 0 and "rank 0 has '1', rank 1 has 'auto'" in text, text
    assert "-x TF_MPI_SYNC_BATCHNORM" in text and seconds < 100


def test_a_cut_link_during_training_ends_the_job(hosts: Hosts) -> None:
    """Within the limit of the ranks for a transfer, and of mpirun for the other node."""
    trains: list[float] = []

    def cut(line: str) -> None:
        if "TRAINS" in line:
            trains.append(time.monotonic())
            if len(trains) == 2:
                subprocess.run(hosts.script("cut", "h2"), check=True)

    options = [*KEEPALIVE, "-x", "TF_MPI_STALL_TIMEOUT=20"]
    try:
        _, text, _ = hosts.mpirun("h1:1,h2:1", HERE / "loop.py", options=options, when=cut)
    finally:
        subprocess.run(hosts.script("mend", "h2"), check=True)
    assert len(trains) == 2, text
    # mpirun's exit code is still 0 (Open MPI 5.0.11).
    assert "lost communication with a remote daemon" in text
    assert time.monotonic() - trains[-1] < 60, text


def killed(hosts: Hosts, host: str, *which: str) -> tuple[str, float]:
    """(output, seconds) of a job on two hosts in which a process of `host` is killed in
    training."""
    trains: list[float] = []

    def kill(line: str) -> None:
        if "TRAINS" in line:
            trains.append(time.monotonic())
            if len(trains) == 4:
                subprocess.run(hosts.script("run", host, "pkill", "-KILL", *which), check=True)

    options = ["--map-by", "node:OVERSUBSCRIBE"]
    code, text, _ = hosts.mpirun("h1:2,h2:2", HERE / "loop.py", options=options, when=kill)
    assert code != 0 and len(trains) == 4, text
    return text, time.monotonic() - trains[-1]


def test_a_killed_rank_of_another_host_is_named(hosts: Hosts) -> None:
    text, seconds = killed(hosts, "h2", "-n", "-f", "loop.py")
    dead = r"rank (\d)/4: rank (\d) \(process \d+ on h2\) (?:was killed by|has ended)"
    said = re.findall(dead, text)
    assert len(said) == 1 and said[0] in (("1", "3"), ("3", "1")), text
    assert seconds < 20


def test_ranks_of_all_hosts_end_with_mpirun(hosts: Hosts) -> None:
    _, seconds = killed(hosts, "h1", "-x", "prterun")
    for host in ("h1", "h2"):
        look = hosts.script("run", host, "pgrep", "-f", "loop.py")
        while subprocess.run(look, stdout=subprocess.DEVNULL, check=False).returncode == 0:
            time.sleep(0.2)
            seconds += 0.2
            assert seconds < 20


def test_a_folder_that_nodes_do_not_share_is_an_error(hosts: Hosts) -> None:
    """Rank 1 does not find rank 0's file and says so instead of continuing."""
    code, text, _ = hosts.mpirun("h1:1,h2:1", HERE / "save_and_load.py", "/tmp/not-shared")
    assert code != 0 and text.count("LOADED") <= 1, text
    assert "has saved '/tmp/not-shared/model.keras', but" in text, text
    assert "the nodes do not share its folder" in text, text


def test_text_that_nodes_append_more_than_once_is_reported(hosts: Hosts) -> None:
    """A rank knows what the ranks of its own node have appended before it."""
    folder = PREFIX / "test-appends"
    folder.mkdir()
    try:
        (folder / "old.csv").write_text("epoch,loss\n")
        code, text, _ = hosts.mpirun("h1:1,h2:1", APPENDS, str(folder))
        lines = (folder / "emptied.csv").read_text().splitlines()
    finally:
        shutil.rmtree(folder)
    assert code == 0 and set(lines) >= {"0,1.0", "5,0.16666666666666666"}, text
    assert "bytes more than any one rank has appended: text that differs" in text, text
