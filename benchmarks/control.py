"""`python -m benchmarks.control FILE.md`: rank 0's control messages, direct and over a node tree.

    .venv/bin/python -m benchmarks.control docs/measurements/2026-11-23-cost-by-ranks.md

Reads the model's parameters from `FILE.md`, which `benchmarks.scaling --write FILE.md` has written.
`bazel --batch run //benchmarks:control_messages` measures the messages that real engines send, and
their cost on rank 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.scaling import GRADIENTS, TABLE_RANKS, add_cluster_options, network_of
from benchmarks.scaling_model import (
    Network,
    Parameters,
    control_messages,
    control_seconds,
    job_seconds,
)


def read_parameters(text: str) -> Parameters:
    """Reads the table that begins with `| start |`, in µs, and in ps per byte for touches."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("| start |"))
    names = [word.strip() for word in lines[head].strip("|").split("|")]
    values = [float(word) for word in lines[head + 2].strip("|").split("|")]
    scaled = {
        name: value * (1e-12 if "touch" in name else 1e-6)
        for name, value in zip(names, values, strict=True)
    }
    return Parameters(**scaled)


def table(parameters: Parameters, network: Network, node_ranks: int, cache: float) -> list[str]:
    """The lines of the table: a row per number of ranks, columns with and without the tree."""
    sizes = list(GRADIENTS.items())[:2]
    heads = [f"{name}, {way}" for name, _ in sizes for way in ("direct", "tree")]
    lines = [
        "| ranks | nodes | messages, direct | tree | µs of messages, direct | tree | ms to average "
        + " | ".join(heads)
        + " |",
        "| --- | --- |" + " --- |" * (4 + len(heads)),
    ]
    for ranks in TABLE_RANKS:
        nodes = ranks // node_ranks
        if nodes < 2:
            continue  # a repeated step takes the response bypass and sends no messages
        shape = (nodes, min(ranks, node_ranks))
        cells = [str(control_messages(*shape, tree=tree)) for tree in (False, True)]
        cells += [
            f"{control_seconds(network, *shape, tree=tree) * 1e6:.0f}" for tree in (False, True)
        ]
        for _, size in sizes:
            for tree in (False, True):
                seconds = job_seconds(parameters, network, *shape, cache, size, tree=tree)
                cells.append(f"{seconds * 1e3:.2f}")
        lines.append(f"| {ranks} | {nodes} | " + " | ".join(cells) + " |")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    parser.add_argument("file", type=Path)
    add_cluster_options(parser)
    options = parser.parse_args(arguments)
    parameters = read_parameters(options.file.read_text())
    network = network_of(options)
    print("\n".join(table(parameters, network, options.node_ranks, options.rank_cache)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
