"""ddlrun: `python -m tensorflow.mpi ddlrun -H host1,host2 python train.py`."""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
from collections.abc import Sequence

from tensorflow.mpi import config
from tensorflow.mpi._src.ddl import modes
from tensorflow.mpi._src.launch import mpirun

_CHECK_SECONDS = 120
_WITH_VALUE = "-m --mode -H --hosts --host -hostfile --hostfile -rf --rankfile -np".split()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ddlrun", description="Checks the nodes, then starts ranks with mpirun."
    )
    add = parser.add_argument
    add("-m", "--mode", help="the shape of the job, such as b:4x2: 4 ranks on each of 2 nodes")
    add("-H", "--hosts", "--host", dest="hosts", help="hosts, separated by commas")
    add("-hostfile", "--hostfile", help="a file of hosts, one per line")
    add("-rf", "--rankfile", help="a rankfile for mpirun, which places each rank")
    add("-np", type=int, help="the number of ranks; default: the mode's, or one per host")
    add("-mpiarg", "--mpiarg", default="", help="further options for mpirun")
    add("-no_ddloptions", "--no_ddloptions", action="store_true", help="does not pass DDL_OPTIONS")
    add("-skipchecks", "--skipchecks", action="store_true", help="does not check the nodes first")
    add("-verbose", "--verbose", action="store_true", help="prints the command lines")
    add("program", nargs=argparse.REMAINDER, help="the command that each rank runs")
    return parser


def _join_mpiarg(arguments: Sequence[str]) -> list[str]:
    """Joins -mpiarg and its value into one word, because the value looks like an option."""
    words = list(arguments)
    for at, word in enumerate(words[:-1]):
        if word in ("-mpiarg", "--mpiarg"):
            words[at : at + 2] = [f"--mpiarg={words[at + 1]}"]
            return words
        if not word.startswith("-") and words[at - 1] not in _WITH_VALUE:
            break  # the program and its arguments begin here
    return words


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by mpirun; returns an exit status if that is not possible."""
    parser = _parser()
    options = parser.parse_args(_join_mpiarg(arguments))
    if not options.program:
        parser.error("a program is required")
    if sum(map(bool, (options.hosts, options.hostfile, options.rankfile))) > 1:
        parser.error("pass only one of -H, -hostfile and -rf")
    try:
        mode = modes.parse_mode(options.mode) if options.mode else None
        hosts = _hosts(options, mode)
        ranks = _ranks(options, mode, hosts)
        if mode is not None:
            mode.check(ranks)
        more = mpirun.split(options.mpiarg, "-mpiarg")
        if options.rankfile:
            more += ["--map-by", f"rankfile:file={options.rankfile}"]
        if not options.skipchecks:
            _check_nodes(ranks, hosts, more, options.verbose)
        variables = _variables(mode, options.no_ddloptions)
        words = mpirun.command(ranks, options.program, hosts, more, variables)
        mpirun.run(words, options.verbose)
    except (modes.ModeError, mpirun.LaunchError) as error:
        print(f"ddlrun: {error}", file=sys.stderr)
    return 2


def _hosts(options: argparse.Namespace, mode: modes.Mode | None) -> list[tuple[str, int]]:
    """The hosts and their ranks; with a mode, every host has the mode's ranks per node."""
    if options.rankfile:
        return _read_rankfile(options.rankfile)
    found = mpirun.given_hosts(options)
    if mode is None or not found:
        return found
    nodes, each = (int(number) for number in mode.topology.split("x"))
    if len(found) != nodes:
        raise mpirun.LaunchError(f"mode {mode.text} needs {nodes} hosts, not {len(found)}")
    return [(host, each) for host, _ in found]


def _read_rankfile(path: str) -> list[tuple[str, int]]:
    """The hosts of lines such as "rank 0=host1 slot=0", and the number of ranks on each."""
    counts: collections.Counter[str] = collections.Counter()
    for where, words in mpirun.lines(path):
        if words[0] != "rank" or len(words) < 2 or "=" not in words[1]:
            raise mpirun.LaunchError(f"{where} is not accepted; accepted: 'rank N=HOST slot=S'")
        counts[words[1].partition("=")[2]] += 1
    return list(counts.items())


def _ranks(
    options: argparse.Namespace, mode: modes.Mode | None, hosts: list[tuple[str, int]]
) -> int:
    if options.np is not None:
        return int(options.np)
    if hosts:
        return sum(number for _, number in hosts)
    return mode.ranks if mode is not None else 1


def _variables(mode: modes.Mode | None, no_ddloptions: bool) -> dict[str, str]:
    variables = {"DDL_OPTIONS": "" if no_ddloptions else config.ddl_options()}
    if mode is not None:
        variables["TF_MPI_TOPOLOGY"] = mode.topology
        if not no_ddloptions:
            variables["DDL_OPTIONS"] = f"-mode {mode.text}"
    return variables


def _check_nodes(ranks: int, hosts: list[tuple[str, int]], more: list[str], verbose: bool) -> None:
    """Runs doctor --nodes with one rank on each host. Raises LaunchError if a check fails."""
    one_each = [(host, 1) for host, _ in hosts]
    doctor = [sys.executable, "-m", "tensorflow.mpi", "doctor", "--nodes"]
    words = mpirun.command(len(one_each) or 1, doctor, one_each, mpirun.without_placing(more))
    if verbose:
        print(" ".join(words), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            env=config.without_launcher(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise mpirun.LaunchError(
            f"the nodes did not answer within {_CHECK_SECONDS} s; check ssh to each, or pass "
            "-skipchecks"
        ) from None
    if done.returncode != 0:
        raise mpirun.LaunchError(
            f"the nodes are not ready for {ranks} ranks:\n{done.stdout}{done.stderr}"
        )
    if verbose:
        print(done.stdout, file=sys.stderr, flush=True)
