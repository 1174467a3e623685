"""`python -m benchmarks.scaling`: the cost of averaging by the number of ranks, up to 4,096.

    .venv/bin/python -m benchmarks.scaling                     measures, fits, checks, prints
    .venv/bin/python -m benchmarks.scaling --write FILE.md
    .venv/bin/python -m benchmarks.scaling --data DIR          uses existing measurements

Times the engine without TensorFlow's steps (`python -m tensorflow.mpi bench`) on a few numbers of
ranks, each several times; fits the model of benchmarks/scaling_model.py to the times; and checks
its predictions with more ranks than there are cores.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks import columns, scaling_model
from benchmarks.processes import Process, RunFailed, run
from benchmarks.runner import ROOT
from benchmarks.scaling_model import Network, Node, Parameters, Sample
from benchmarks.switches import switch_seconds

SIZES = "4,64k,1m,16m,64m"
# Gradient sizes of the suite's workloads, bytes: see benchmarks/workloads/models.py.
GRADIENTS = {"0.8 MB": 0.845e6, "6.7 MB": 6.65e6, "23 MB": 23.3e6, "100 MB": 100.7e6}
TABLE_RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Checked:
    """A measurement and its prediction, in seconds; `error` is relative to the measured time."""

    sample: Sample
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.sample.seconds - 1


def checked(parameters: Parameters, samples: Sequence[Sample]) -> list[Checked]:
    """Each sample with the model's prediction."""
    return [
        Checked(s, scaling_model.node_seconds(parameters, s.ranks, s.node, s.bytes))
        for s in samples
    ]


def measure(ranks: int, turn: int, folder: Path, options: argparse.Namespace) -> list[Sample]:
    """Times the engine on that many ranks of this machine, or reads the file of an earlier run."""
    path = folder / f"bench.{ranks}.{turn}.json"
    if path.exists():
        found = json.loads(path.read_text())
    else:
        command = [*_mpirun(ranks), sys.executable, "-m", "tensorflow.mpi", "bench"]
        command += ["--sizes", options.sizes, "--seconds", str(options.seconds)]
        process = Process([*command, "--json", str(path)], {"TF_MPI_ENABLE": "1"})
        run([process], path.with_suffix(".log"), options.timeout, ROOT)
        found = json.loads(path.read_text())
        found["switch"] = slower_switch(columns.cores()[0], math.ceil(ranks / found["node_cores"]))
        path.write_text(json.dumps(found))
    node = Node(found["node_cores"], options.cache, found["switch"])
    return [Sample(ranks, node, row["bytes"], row["engine"]["median"]) for row in found["results"]]


def slower_switch(core: int, processes: int) -> float:
    """The time of a switch between `processes` processes on a core, relative to that between
    two."""
    if processes <= 2:
        return 1.0
    return switch_seconds(core, processes) / switch_seconds(core, 2)


def cache_bytes(cores: Sequence[int], root: Path = Path("/sys/devices/system/cpu")) -> int:
    """The size of the last-level caches of these cores; 0 if the machine does not report it.

    `root` holds cpuN/cache/indexI/{size,shared_cpu_list}, as Linux writes them.
    """
    found = {}
    for core in cores:
        levels = sorted((root / f"cpu{core}" / "cache").glob("index*"))
        if levels:
            size = (levels[-1] / "size").read_text().strip().removesuffix("K")
            found[(levels[-1] / "shared_cpu_list").read_text()] = int(size) << 10
    return sum(found.values())


def typical(turns: Sequence[list[Sample]]) -> list[Sample]:
    """The median over the turns for each size, of the time and of the switch time."""
    found = []
    for same in zip(*turns, strict=True):
        node = replace(same[0].node, switch=statistics.median(s.node.switch for s in same))
        seconds = statistics.median(s.seconds for s in same)
        found.append(replace(same[0], node=node, seconds=seconds))
    return found


def _mpirun(ranks: int) -> list[str]:
    """One rank per core if there are enough cores; otherwise the kernel distributes the ranks."""
    if ranks <= len(columns.cores()):
        return columns.mpirun(sys.executable, ranks)
    return [*columns.mpirun(sys.executable, ranks)[:3], "--oversubscribe", "--bind-to", "none"]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fit", default="2,3,4,6,12", help="numbers of ranks to fit the model to")
    parser.add_argument("--check", default="8,16", help="numbers of ranks to predict")
    parser.add_argument("--sizes", default=SIZES, help=f"tensor sizes, bytes (default {SIZES})")
    parser.add_argument("--seconds", type=float, default=2.0, help="per size")
    parser.add_argument("--turns", type=int, default=5, help="measurements per number of ranks")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per measurement")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of the measurements; those in it are not repeated (default "
        "benchmarks/results/scaling-TIME)",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="Markdown file, for docs/measurements"
    )
    parser.add_argument(
        "--cache",
        type=int,
        default=cache_bytes(columns.cores()),
        help="last-level cache, bytes; needed if /sys does not report it",
    )
    add_cluster_options(parser)
    return parser.parse_args(arguments)


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that describe the assumed nodes and the network between them."""
    parser.add_argument("--node-ranks", type=int, default=64, help="ranks (and cores) per node")
    parser.add_argument(
        "--rank-cache", type=float, default=4 << 20, help="cache per rank of such a node, bytes"
    )
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


def network_of(options: argparse.Namespace) -> Network:
    """The network that add_cluster_options' options describe."""
    return Network(options.latency, options.bandwidth, options.message, options.look)


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if a measurement failed; the reader judges the predictions."""
    options = parse(arguments)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = (options.data or ROOT / "benchmarks" / "results" / f"scaling-{stamp}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rank_counts = [int(word) for word in f"{options.fit},{options.check}".split(",")]
    turns: dict[int, list[list[Sample]]] = {ranks: [] for ranks in rank_counts}
    # Rotates through the numbers of ranks, because the machine's speed varies.
    for turn in range(options.turns):
        for ranks in rank_counts:
            try:
                turns[ranks].append(measure(ranks, turn, folder, options))
            except RunFailed as error:
                print(f"{ranks} ranks: {error}", file=sys.stderr)
                return 1
        print(f"turn {turn + 1} of {options.turns} measured", flush=True)
    samples = {ranks: typical(found) for ranks, found in turns.items()}
    fitted = [s for word in options.fit.split(",") for s in samples[int(word)]]
    unseen = [s for word in options.check.split(",") for s in samples[int(word)]]
    parameters = scaling_model.fit(fitted)
    network = network_of(options)
    lines = [
        *_head(parameters, options),
        *_check_table(checked(parameters, fitted), checked(parameters, unseen), options),
        *_scaling_table(parameters, network, options),
        *_assumptions(network, options),
    ]
    text = "\n".join(map(_wrapped, lines))
    print(text)
    if options.write:
        options.write.write_text(text + "\n")
    return 0


def _wrapped(line: str) -> str:
    """A line of prose, wrapped for a page; lines of tables stay as they are."""
    if line.startswith("|"):
        return line
    return textwrap.fill(
        line,
        98,
        subsequent_indent="  " if line.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _head(parameters: Parameters, options: argparse.Namespace) -> list[str]:
    values = asdict(parameters)
    cells = [f"{value * (1e12 if 'touch' in name else 1e6):.3g}" for name, value in values.items()]
    return [
        "# Cost by the number of ranks",
        "",
        f"Printed by `python -m benchmarks.scaling --seconds {options.seconds:g} --write FILE`; "
        "the model and its reasons are in `benchmarks/scaling_model.py`.",
        "",
        f"Parameters, fitted to {options.fit} ranks on {len(columns.cores())} cores with "
        f"{options.cache / 2**20:g} MiB of cache (µs, touches in ps per byte):",
        "",
        "| " + " | ".join(values) + " |",
        "| " + " | ".join("---" for _ in values) + " |",
        "| " + " | ".join(cells) + " |",
        "",
    ]


def _check_table(
    fitted: Sequence[Checked], unseen: Sequence[Checked], options: argparse.Namespace
) -> list[str]:
    lines = [
        "## Predictions and measurements",
        "",
        "The engine's time for one allreduce, without TensorFlow's steps: the median of "
        f"{options.turns} medians, taken at different times. `switch`: the time a core takes to "
        "switch between its ranks, relative to that with two ranks per core.",
        "",
        "| ranks | cores | switch | bytes | measured, ms | predicted, ms | error | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for use, found in (("fitted", fitted), ("predicted", unseen)):
        for line in found:
            s = line.sample
            lines.append(
                f"| {s.ranks} | {s.node.cores} | {s.node.switch:.2f} | {s.bytes} | "
                f"{s.seconds * 1e3:.3f} | "
                f"{line.predicted * 1e3:.3f} | {line.error:+.0%} | {use} |"
            )
    return [*lines, ""]


def _scaling_table(
    parameters: Parameters, network: Network, options: argparse.Namespace
) -> list[str]:
    node_ranks = options.node_ranks
    lines = [
        "## To 4,096 ranks",
        "",
        f"Milliseconds to average all gradients once, {node_ranks} ranks and cores per node, "
        "with nothing hidden behind computation.",
        "",
        "| ranks | nodes | " + " | ".join(GRADIENTS) + " |",
        "| --- | --- |" + " --- |" * len(GRADIENTS),
    ]
    for ranks in TABLE_RANKS:
        nodes = max(1, ranks // node_ranks)
        times = [
            scaling_model.job_seconds(
                parameters, network, nodes, min(ranks, node_ranks), options.rank_cache, size
            )
            for size in GRADIENTS.values()
        ]
        cells = " | ".join(f"{seconds * 1e3:.2f}" for seconds in times)
        lines.append(f"| {ranks} | {nodes} | {cells} |")
    return [*lines, ""]


def _assumptions(network: Network, options: argparse.Namespace) -> list[str]:
    return [
        "## Assumptions",
        "",
        "- One core per rank; a node's memory bandwidth grows with its cores. A node of "
        f"{options.node_ranks} cores usually has less bandwidth per core: large tensors cost more.",
        f"- {options.rank_cache / 2**20:g} MiB of last-level cache per core.",
        f"- Between nodes {network.latency * 1e6:g} µs and {network.bandwidth / 1e9:g} GB/s per "
        "node and direction, without congestion: assumed from a 100 Gbit/s network, not measured.",
        f"- A rank spends {network.message * 1e6:g} µs to receive and send a control message, and "
        f"looks for those of other nodes every {network.look * 1e6:g} µs: not measured on more "
        "ranks than there are cores here. Inside a node a repeated step needs "
        "none; between nodes messages go through the nodes' leaders.",
        "- One round of agreement per step: all gradients are ready together, and no rank is late.",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
