"""Evaluates what the ranks have found on their nodes, by pure functions of what they wrote.

A node fails if none of its ranks answers, or if one of them has a different wheel, Python or MPI
from most, cannot share memory, fails in the allreduce, has a clock more than a second from rank
0's, or runs at less than half of the median speed although its cores are otherwise idle. The name
of a failing node goes into failing_nodes.txt.
"""

from __future__ import annotations

import collections
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorflow.mpi._src.presence import peers

_MIN_SHARE = 0.5  # of the median speed
_MAX_CLOCK_SECONDS = 1.0
_SAME_ON_NODES = ("wheel", "python", "mpi")  # must be the same on all nodes


@dataclass
class Findings:
    """`faults` by node, "" if it is not known; `lines`: the rest of the report."""

    faults: dict[str, list[str]] = field(default_factory=lambda: collections.defaultdict(list))
    lines: list[str] = field(default_factory=list)

    @property
    def failing(self) -> list[str]:
        return sorted(node for node in self.faults if node)

    def text(self) -> list[str]:
        """The printed report: the table, then the faults."""
        lines = list(self.lines)
        for node in sorted(self.faults):
            where = f" node {node}" if node else ""
            lines += [f"FAULT{where}: {fault}" for fault in self.faults[node]]
        return lines


def judge(found: Mapping[int, Mapping[str, Any]], size: int, expected: Sequence[str]) -> Findings:
    """What the ranks' answers show.

    Args:
      found: machine.facts() and "figures" of each rank that has answered.
      size: the number of ranks.
      expected: the nodes that the scheduler assigned; [] if unknown.
    """
    findings = Findings()
    _find_silent(findings, found, size, expected)
    _compare_facts(findings, found)
    for facts in found.values():
        if facts["shm_fault"] and facts["shm_fault"] not in findings.faults[facts["node"]]:
            findings.faults[facts["node"]].append(facts["shm_fault"])
    slowest = _find_slow(findings, found)
    findings.lines = [*_table(found), *slowest]
    findings.faults = {node: faults for node, faults in findings.faults.items() if faults}
    return findings


def expand(listed: str) -> list[str]:
    """The names in a list of Slurm's form, such as "login,node[01-03,7]"."""
    names = []
    for word in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", listed):
        head, _, rest = word.partition("[")
        numbers, _, tail = rest.partition("]")
        if not rest:
            names.append(head.strip())
            continue
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names += expand(f"{head}{number:0{len(first)}d}{tail}")
    return names


def exclusion(nodes: Sequence[str]) -> str:
    """The nodes in the form for srun --exclude=, which accepts it as text or as a file."""
    return ",".join(nodes) + "\n" if nodes else ""


def _by_node(found: Mapping[int, Mapping[str, Any]]) -> dict[str, list[int]]:
    nodes = collections.defaultdict(list)
    for rank, facts in sorted(found.items()):
        nodes[str(facts["node"])].append(rank)
    return dict(nodes)


def _find_silent(
    findings: Findings, found: Mapping[int, Any], size: int, expected: Sequence[str]
) -> None:
    silent = [rank for rank in range(size) if rank not in found]
    if not silent:
        return
    answering = _by_node(found)
    nodes = [node for node in expected if node not in answering]
    for node in nodes:
        findings.faults[node].append("none of its ranks has answered")
    where = "" if nodes else "; to see which node that is, pass all nodes with --hosts"
    findings.faults[""].append(
        f"{peers.ranks(silent)} did not answer: the node is dead or hangs, or cannot access the "
        f"folder that --folder names{where}"
    )


def _compare_facts(findings: Findings, found: Mapping[int, Mapping[str, Any]]) -> None:
    for what in _SAME_ON_NODES:
        values = collections.Counter(str(facts[what]) for facts in found.values())
        if len(values) < 2:
            continue
        ((most, _),) = values.most_common(1)
        for rank, facts in sorted(found.items()):
            if facts[what] != most:
                findings.faults[facts["node"]].append(
                    f"rank {rank} has {what} '{facts[what]}', but most ranks have '{most}'"
                )


def _find_slow(findings: Findings, found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Adds faults of slow ranks; returns lines about the slowest rank, and about busy nodes."""
    slowest: tuple[float, str] | None = None
    busy: list[str] = []
    names = {name for facts in found.values() for name in facts["figures"]}
    for name in sorted(names):
        values = {
            rank: facts["figures"][name]
            for rank, facts in found.items()
            if name in facts["figures"]
        }
        median = statistics.median(values.values())
        for rank, value in sorted(values.items()):
            share = value / median if median else 1.0
            node = found[rank]["node"]
            line = f"{value:.3g} {name}, {share:.0%} of the median"
            if slowest is None or share < slowest[0]:
                slowest = share, f"slowest: rank {rank} on node {node}: {line}"
            if share >= _MIN_SHARE:
                continue
            load, cores = found[rank]["load"], found[rank]["node_cores"]
            if load > cores:
                busy.append(
                    f"rank {rank} on node {node} is slow: {line}; but the load of its {cores} "
                    f"cores was already {load}: measure again when they are idle"
                )
            else:
                findings.faults[node].append(f"rank {rank} is slow: {line}")
    return [slowest[1], *busy] if slowest is not None and len(found) > 1 else []


def _table(found: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """One line per node, with the lowest figures of its ranks."""
    names = sorted({name for facts in found.values() for name in facts["figures"]})
    heads = ["node", "ranks", "cores", "load", "memory GB", "free GB", "shm free MB", *names]
    rows = [heads]
    for node, numbers in _by_node(found).items():
        facts = found[numbers[0]]
        least = [min(found[rank]["figures"].get(name, 0.0) for rank in numbers) for name in names]
        rows.append(
            [
                node,
                str(len(numbers)),
                str(max(found[rank]["cores"] for rank in numbers)),
                str(facts["load"]),
                f"{facts['memory'] / 2**30:.1f}",
                f"{facts['memory_free'] / 2**30:.1f}",
                str(facts["shm_free"] >> 20),
                *(f"{value:.3g}" for value in least),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def judge_together(
    findings: Findings,
    found: Mapping[int, Mapping[str, Any]],
    together: Mapping[int, Mapping[str, Any]],
    size: int,
) -> None:
    """Adds the results of the allreduce over all ranks. `together`: those of the ranks that have
    finished it."""
    nodes = {rank: str(facts["node"]) for rank, facts in found.items()}
    silent = [rank for rank in range(size) if rank not in together]
    if silent:
        findings.faults.setdefault("", []).append(
            f"{peers.ranks(silent)} did not finish the allreduce, on "
            + ", ".join(sorted({nodes[rank] for rank in silent}))
        )
    done = {rank: result for rank, result in together.items() if not result["fault"]}
    for rank, result in sorted(together.items()):
        if result["fault"]:
            findings.faults.setdefault(nodes[rank], []).append(f"rank {rank}: {result['fault']}")
        elif abs(result["clock"]) > _MAX_CLOCK_SECONDS:
            findings.faults.setdefault(nodes[rank], []).append(
                f"rank {rank}'s clock differs from rank 0's by {result['clock']:+.2f} s"
            )
    if done:
        apart = max(done.values(), key=lambda result: abs(result["clock"]))["clock"]
        one = next(iter(done.values()))
        findings.lines.append(
            f"allreduce of 4 MB per rank over {size} ranks, {one['transport']}: "
            f"{min(result['GB/s'] for result in done.values()):.3g} GB/s, result correct; "
            f"clocks within {abs(apart) * 1000:.0f} ms"
        )
