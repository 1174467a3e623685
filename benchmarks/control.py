"""`python -m benchmarks.control FILE.md`: rank 0's control messages, direct and over a node tree.

    .venv/bin/python -m benchmarks.control docs/measurements/2026-11-23-cost-by-ranks.md

`benchmarks.scaling` printed `FILE.md`, which contains the model's parameters. For the messages that
real engines send and their cost on rank 0: `bazel --batch run //benchmarks:control_messages`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.scaling import GRADIENTS, TABLE_RANKS
from benchmarks.scaling_model import (
    Network,
    Parameters,
    control_messages,
    control_seconds,
    job_seconds,
)


def read_parameters(text: str) -> Parameters:
    """Reads the table that begins with `| start |`."""
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
    """Rows with and without the tree, for the numbers of ranks in the model's own table."""
    sizes = list(GRADIENTS.items())[:2]
    heads = [f"{name}, {way}" for name, _ in sizes for way in ("straight", "tree")]
    lines = [
        "| ranks | nodes | messages, straight | tree | µs of messages, straight | tree | ms to "
        "average " + " | ".join(heads) + " |",
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
    parser.add_argument("--node-ranks", type=int, default=64, help="ranks (and cores) per node")
    parser.add_argument("--rank-cache", type=float, default=4 << 20, help="bytes per rank")
    parser.add_argument(
        "--latency", type=float, default=2e-6, help="latency between nodes, seconds"
    )
    parser.add_argument(
        "--bandwidth", type=float, default=12.5e9, help="bandwidth per node, bytes/s"
    )
    parser.add_argument(
        "--message", type=float, default=1e-6, help="time to receive and send a message, seconds"
    )
    parser.add_argument("--look", type=float, default=20e-6, help="polling interval, seconds")
    options = parser.parse_args(arguments)
    network = Network(options.latency, options.bandwidth, options.message, options.look)
    parameters = read_parameters(options.file.read_text())
    print("\n".join(table(parameters, network, options.node_ranks, options.rank_cache)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
