"""`mpirun -np N python -m tensorflow.mpi bench`: allreduce and allgather by size, in three ways.

"plain" is MPI's own blocking MPI_Allreduce, and is left out for allgather; "transport" is this
project's implementation; "engine" is a gradient's whole path, from its submission through the
agreement of all ranks to its completion. core/bench/bench.h does the measuring. Rank 0 prints and
writes the results.

algbw is bytes / time, busbw the load on the slowest link, both as NCCL's tests define them: algbw
times 2 (n - 1) / n for allreduce of n ranks, times (n - 1) / n for allgather.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import dataclasses
import json
import os
import statistics
import sys
from typing import Any

from tensorflow.mpi import _build_info, config, errors
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import c_api, group, hooks

WAYS = ("plain", "transport", "engine")
DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
# Powers of 4 up to 64 MB, and 100 MB.
DEFAULT_SIZES = ",".join([str(4**i) for i in range(1, 14)] + ["100m"])
_SIZE = config.Parameter("--sizes", "bytes", "", "", low=1, high=2**34)


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement. `seconds`: by way, one number per sample for all tensors together."""

    tensor_bytes: int
    total_bytes: int
    seconds: dict[str, list[float]]
    bus_factor: float

    def median(self, way: str) -> float:
        """The median time in seconds."""
        return statistics.median(self.seconds[way])

    def algbw(self, way: str) -> float:
        """Bytes per second."""
        return self.total_bytes / self.median(way)

    def busbw(self, way: str) -> float:
        """Bytes per second."""
        return self.algbw(way) * self.bus_factor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `bench`, which must be the same on all ranks."""
    parser.add_argument("--collective", choices=("allreduce", "allgather"), default="allreduce")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        default=DEFAULT_SIZES,
        help="bytes of one tensor (for allgather, of its result), comma-separated, with an "
        "optional suffix k, m or g; default: powers of 4 from 4 to 64m, and 100m",
    )
    parser.add_argument(
        "--dtype",
        choices=sorted(DTYPES),
        default="float32",
        help="float16 and bfloat16 are reduced as float32, so only engine supports them",
    )
    parser.add_argument("--tensors", type=int, default=1, help="the number of tensors at once")
    parser.add_argument(
        "--iterations", type=int, default=100, help="the maximum number of samples (default 100)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1, help="time per size, at least 3 samples (default 1)"
    )
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds allowed for one sample (default 120)"
    )
    parser.add_argument("--json", metavar="FILE", help="writes medians, extremes and samples")
    parser.add_argument("--csv", metavar="FILE", help="writes one line per size and way")
    parser.add_argument("--plot", metavar="FILE.png", help="draws time and busbw (matplotlib)")


def main(options: argparse.Namespace) -> int:
    """Measures and reports; returns the exit code. Raises RuntimeError if a result is wrong."""
    if not hooks.active:
        reason = config.gate().reason
        print(
            f"averaging is off ({reason}); run: mpirun -np 2 python -m tensorflow.mpi bench",
            file=sys.stderr,
        )
        return 2
    collectives.combined_by_script = True  # no warning at exit that nothing was averaged
    report = group.rank == 0
    if report:
        print("\n".join(_heading(options)), flush=True)
    rows = []
    for size in options.sizes:
        rows.append(_measure(options, size))
        if report:
            print(_line(rows[-1]), flush=True)
    if report:
        _write(options, rows)
    return 0


def _sizes(text: str) -> list[int]:
    try:
        return [_SIZE.parse(word) for word in text.split(",")]
    except config.ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _measure(options: argparse.Namespace, size: int) -> Row:
    ranks = group.size
    gathers = options.collective == "allgather"
    count = max(1, size // DTYPES[options.dtype] // (ranks if gathers else 1))
    own = count * DTYPES[options.dtype]
    # If a call takes microseconds, a sample is the mean over many calls; the data stays in cache.
    rounds = min(256, max(1, 2**18 // (own * options.tensors)))
    case = c_api.BenchCase(
        kind=collectives.KINDS[options.collective],
        dtype=collectives.DTYPES[options.dtype],
        count=count,
        tensors=options.tensors,
        direct_rounds=rounds,
        engine_rounds=rounds,
        min_samples=min(3, options.iterations),
        max_samples=options.iterations,
        budget=options.seconds,
        timeout=options.timeout,
    )
    out = (ctypes.c_double * (len(WAYS) * options.iterations))()
    taken = (ctypes.c_int32 * len(WAYS))()
    error = c_api.error_buffer()
    code = c_api.load().tfmpi_bench(case, out, taken, error)
    if code == errors.DEADLINE_EXCEEDED:
        # The communication thread may be stuck in MPI, so a normal end is not possible.
        print(f"tensorflow.mpi bench: {c_api.error_text(error)}", file=sys.stderr, flush=True)
        os._exit(1)
    if code != errors.OK:
        raise RuntimeError(c_api.error_text(error))
    seconds = {
        way: list(out[i * options.iterations : i * options.iterations + taken[i]])
        for i, way in enumerate(WAYS)
        if taken[i]
    }
    tensor_bytes = own * ranks if gathers else own
    factor = (ranks - 1) / ranks * (1 if gathers else 2)
    return Row(tensor_bytes, tensor_bytes * options.tensors, seconds, factor)


def _place() -> dict[str, Any]:
    node_cores = c_api.node_cores()
    own_cores = len(os.sched_getaffinity(0))
    _, _, _, local_size, nodes = c_api.topology()
    return {
        "ranks": group.size,
        "local_ranks": local_size,
        "nodes": nodes,
        "node_cores": node_cores,
        "affinity_cores": own_cores,
        "cores_per_rank": min(own_cores, node_cores / local_size),
        "transport": c_api.load().tfmpi_transport().decode(),
        "version": _build_info.VERSION,
    }


def _heading(options: argparse.Namespace) -> list[str]:
    place = _place()
    many = f" of {options.tensors} tensors at once" if options.tensors > 1 else ""
    what = "sum, in place" if options.collective == "allreduce" else "rows of all ranks"
    title = "".join(f" {way + ' us':>12} {'busbw':>7}" for way in WAYS)
    return [
        f"{place['ranks']} rank{'s' * (place['ranks'] > 1)}, {place['local_ranks']} on this node, "
        f"{place['cores_per_rank']:.3g} cores each, {place['transport']}",
        f"{options.collective}{many}, {options.dtype}, {what}; medians of alternating samples on "
        "the slowest rank; busbw in GB/s",
        f"{'bytes':>12} {'samples':>7}{title} {'engine/plain':>12}",
    ]


def _line(row: Row) -> str:
    text = f"{row.total_bytes:>12} {len(row.seconds['engine']):>7}"
    for way in WAYS:
        if way in row.seconds:
            text += f" {row.median(way) * 1e6:>12.2f} {row.busbw(way) / 1e9:>7.3f}"
        else:
            text += f" {'-':>12} {'-':>7}"
    if "plain" in row.seconds:
        text += f" {row.median('engine') / row.median('plain'):>12.2f}"
    return text


def _record(row: Row) -> dict[str, Any]:
    """Seconds and bytes per second, by way."""
    return {
        "bytes": row.total_bytes,
        "tensor_bytes": row.tensor_bytes,
        **{
            way: {
                "median": row.median(way),
                "min": min(samples),
                "max": max(samples),
                "algbw": row.algbw(way),
                "busbw": row.busbw(way),
                "samples": samples,
            }
            for way, samples in row.seconds.items()
        },
    }


def _write(options: argparse.Namespace, rows: list[Row]) -> None:
    if options.json:
        what = {key: getattr(options, key) for key in ("collective", "dtype", "tensors")}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**_place(), **what, "results": [_record(row) for row in rows]}, file)
    if options.csv:
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            columns = ("median", "min", "max", "algbw", "busbw")
            lines.writerow(("collective", "dtype", "tensors", "ranks", "bytes", "way", *columns))
            head = (options.collective, options.dtype, options.tensors, group.size)
            for row in rows:
                for way in row.seconds:
                    record = _record(row)[way]
                    values = (record[column] for column in columns)
                    lines.writerow((*head, row.total_bytes, way, *values))
    if options.plot:
        _plot(options, rows)


def _plot(options: argparse.Namespace, rows: list[Row]) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed (pip install matplotlib)", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (times, speeds) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    sizes = [row.total_bytes for row in rows]
    for way in rows[0].seconds:
        times.plot(sizes, [row.median(way) * 1e6 for row in rows], marker="o", label=way)
        times.fill_between(
            sizes,
            [min(row.seconds[way]) * 1e6 for row in rows],
            [max(row.seconds[way]) * 1e6 for row in rows],
            alpha=0.15,
        )
        speeds.plot(sizes, [row.busbw(way) / 1e9 for row in rows], marker="o", label=way)
    for axes, label in ((times, "time (us), median and range"), (speeds, "busbw (GB/s)")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("bytes")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    times.set_yscale("log")
    times.legend()
    figure.suptitle(f"{options.collective}, {options.dtype}, {group.size} ranks")
    figure.tight_layout()
    figure.savefig(options.plot, dpi=120)
