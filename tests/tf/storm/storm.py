"""A storm of faults: jobs in which one rank fails, in a phase and a way drawn from a seed.

    python tests/tf/storm/storm.py --seed 7                  # one case and its output
    python tests/tf/storm/storm.py --kills 100 --ways SIGKILL  # seeds 0 to 99, one line each
    python tests/tf/storm/storm.py --phase save --ways SIGKILL --rank 0 -n 2

Each job must end within 5 s of the fault, with an exit code other than 0, and leave no process and
no file in /dev/shm. A rank that is stopped (SIGSTOP), or whose main thread is inside TensorFlow and
does not notice an interrupt (SIGINT), is detected after TF_MPI_STALL_TIMEOUT, which is then 5 s;
rank 0, for which ranks wait longer, after as long again. Prints the share of the time from fault to
end in which some process had to wait for a core, because other load delays an end, too.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import launch  # noqa: E402

SOON = 5.0
# Stall timeout in seconds if the fault is a rank that hangs; and otherwise, so that ranks whose
# imports take unequally long on a busy machine do not end before the fault.
TIMEOUT, LONG_TIMEOUT = 5, 60
IMPORT = 10  # seconds, with margin for a busy machine
DEADLINE = 240.0  # for a job on a busy machine
PHASES = (
    "import",
    "start",
    "map function",
    "generator",
    "callback",
    "train_step",
    "evaluate",
    "predict",
    "save",
    "last step",
    "exit",
)
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGINT", "SIGSTOP", "SIGABRT")
# `leave` is os._exit(3), `vanish` the C library's _exit(0).
WAYS = (*SIGNALS, "raise", "exit", "leave", "vanish")
# Phases in which the script's own thread is not inside a library.
PLAIN = ("start", "callback", "evaluate", "predict", "save", "last step")


@dataclass(frozen=True)
class Case:
    ranks: int
    phase: str
    rank: int
    count: int
    way: str

    def __str__(self) -> str:
        times = "" if self.count == 1 else f" (time {self.count})"
        return f"{self.way} of rank {self.rank}/{self.ranks} in {self.phase}{times}"


@dataclass
class Ending:
    code: int
    # From the fault to the end of the launcher; None: the fault did not happen.
    seconds: float | None
    wrong: list[str]
    output: str
    busy: float = 0.0  # the share of these seconds in which some process waited for a core


def draw(seed: int, ranks: int, ways: Sequence[str] = WAYS) -> Case:
    """The same on every machine."""
    drawn = random.Random(seed)
    while True:
        phase, way = drawn.choice(PHASES), drawn.choice(ways)
        count = drawn.choice((1, 1, 2, 4)) if phase in REPEATED else 1
        if possible(phase, way):
            return Case(ranks, phase, drawn.randrange(ranks), count, way)


REPEATED = ("import", "map function", "generator", "callback", "train_step")


def possible(phase: str, way: str) -> bool:
    """Some combinations end no rank: a thread that raises during the import, a sys.exit inside
    TensorFlow, and an interrupt in an atexit function, where Python prints and ignores
    exceptions."""
    if (phase, way) == ("exit", "SIGINT"):
        return False
    if way in ("raise", "exit"):
        return phase in PLAIN or (way == "raise" and phase not in ("import", "exit"))
    return True


def is_silent(case: Case) -> bool:
    """Whether the others can notice the fault only by a timeout."""
    return case.way == "SIGSTOP" or (case.way == "SIGINT" and case.phase not in PLAIN)


def limit(case: Case, soon: float) -> float:
    """The limit in seconds from the fault to the end."""
    noticed = TIMEOUT * (2 if case.rank == 0 and case.way == "SIGSTOP" else 1)
    if not is_silent(case):
        noticed = 0
    # If no launcher reacts, the others notice once they have got that far themselves.
    if case.phase == "import" and (is_silent(case) or case.way == "vanish"):
        noticed += IMPORT
    return soon + noticed


def run(case: Case, soon: float = SOON) -> Ending:
    directory = Path(tempfile.mkdtemp(prefix="storm-"))
    marker = uuid.uuid4().hex
    timeout = str(TIMEOUT if is_silent(case) else LONG_TIMEOUT)
    environment = launch._environment(
        {
            "STORM_DIRECTORY": str(directory),
            "TF_MPI_STALL_TIMEOUT": timeout,
        },
        marker,
        case.ranks,
        directory,
    )
    script = [str(HERE / "storm_script.py"), case.phase, str(case.rank), str(case.count), case.way]
    command = [*launch._mpirun(), "-np", str(case.ranks), *launch._oversubscribe()]
    command += [sys.executable, "-u", *script]
    before = _shared_files()
    output = directory / "output"
    try:
        with output.open("w") as stream:
            process = subprocess.Popen(
                ["sh", "-c", 'ulimit -c 0; exec "$@"', "storm", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wrong = []
        waited_before = _await_fault(process, output)
        try:
            code = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            code = -1
            wrong.append(f"still running after {DEADLINE:g} s")
        ended = time.time()
        busy = _waited_for_cores() - waited_before
        text = output.read_text(errors="replace")
        seconds = _since(text, ended)
        wrong += _judge(case, code, seconds, soon)
        if not wrong:
            wrong += _left_over(marker, before)
        return Ending(code, seconds, wrong, text, min(1.0, busy / seconds) if seconds else 0.0)
    finally:
        launch.kill(process, marker)
        shutil.rmtree(directory, ignore_errors=True)


def _await_fault(process: subprocess.Popen[bytes], output: Path) -> float:
    """Waits for the fault or the end; returns _waited_for_cores() at that time."""
    deadline = time.monotonic() + DEADLINE
    while process.poll() is None and time.monotonic() < deadline:
        if "AT " in output.read_text(errors="replace"):
            break
        time.sleep(0.05)
    return _waited_for_cores()


def _waited_for_cores() -> float:
    """Seconds in which some process of the machine could have run but had no core."""
    try:
        some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:  # the kernel does not provide it
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6


def _since(text: str, ended: float) -> float | None:
    for line in text.splitlines():
        if "AT " in line:
            return ended - float(line.split("AT ")[1].split()[0])
    return None


def _judge(case: Case, code: int, seconds: float | None, soon: float) -> list[str]:
    if seconds is None:
        return ["the fault did not happen"]
    wrong = []
    if seconds > limit(case, soon):
        wrong.append(f"the end came {seconds:.1f} s after the fault")
    if code == 0:
        wrong.append("the exit code is 0")
    return wrong


def _shared_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


def _left_over(marker: str, before: set[str]) -> list[str]:
    """Processes, and unused files, that remain some time after the end."""
    deadline = time.monotonic() + 2
    while True:
        processes = launch._marked(marker)
        files = sorted(name for name in _shared_files() - before if not _in_use(name))
        if not processes and not files:
            return []
        if time.monotonic() > deadline:
            return [f"left over: processes {processes}, in /dev/shm {files}"]
        time.sleep(0.1)


def _in_use(name: str) -> bool:
    """Whether any process uses it; other jobs run on this machine."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text():
                return True
        except OSError:
            continue
    return False


def show(case: Case, ending: Ending) -> str:
    seconds = ""
    if ending.seconds is not None:
        seconds = f"{ending.seconds:.1f} s after (busy {100 * ending.busy:.0f} %), "
    verdict = "; ".join(ending.wrong) or "as it must be"
    return f"{case}: {seconds}exit code {ending.code}: {verdict}"


def summary(cases: Sequence[tuple[Case, Ending]]) -> str:
    """A line for each way, and one for all of them."""
    lines = []
    for way in WAYS:
        own = [ending for case, ending in cases if case.way == way]
        seconds = [ending.seconds for ending in own if ending.seconds is not None]
        if seconds:
            wrong = sum(bool(ending.wrong) for ending in own)
            times = f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
            lines.append(f"{way}: {len(own)} jobs, {wrong} wrong; {times}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first job")
    parser.add_argument("--kills", type=int, default=1, help="jobs, one after another")
    parser.add_argument("-n", "--ranks", type=int, default=4)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--phase", choices=PHASES, help="with --rank and --times: this one case")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    cases = []
    for seed in range(options.seed, options.seed + options.kills):
        case = draw(seed, options.ranks, options.ways)
        if options.phase is not None:
            case = Case(options.ranks, options.phase, options.rank, options.times, options.ways[0])
        ending = run(case)
        cases.append((case, ending))
        if ending.wrong or options.kills == 1:
            print(ending.output)
        print(f"seed {seed}: {show(case, ending)}", flush=True)
    print(summary(cases))
    return int(any(ending.wrong for _, ending in cases))


if __name__ == "__main__":
    sys.exit(main())
