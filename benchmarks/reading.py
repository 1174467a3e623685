"""`python -m benchmarks.reading`: speed-up on N ranks when decoding JPEGs is the bottleneck.

    .venv/bin/python -m benchmarks.reading                  one process and 2 ranks, one core each

First creates a folder of JPEGs, and TFRecords of the same images. Prints a row for each input
pipeline (benchmarks/workloads/reading.py): the median epoch time of one process and of the ranks,
run in turns, after an untimed epoch; the speed-up; the same for CPU time, which excludes waiting
for a core; and the difference of the last losses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import columns, table
from benchmarks.columns import Column
from benchmarks.processes import run
from benchmarks.runner import ROOT

MARK = "EPOCHS "
PIPELINES = ("paths", "augmented", "directory", "records", "python")


def make(folder: Path, images: int, side: int) -> None:
    """Writes JPEGs that are smooth with some noise, like photographs, and TFRecords of them."""
    import numpy as np
    import tensorflow as tf

    drawn = np.random.default_rng(0)
    writers = [tf.io.TFRecordWriter(str(folder / f"{shard}.tfrecord")) for shard in range(8)]
    for number in range(images):
        label = number % 10
        coarse = drawn.uniform(0, 255, (1, 8, 8, 3)) + 10 * label
        smooth = tf.image.resize(coarse, (side, side), method="bicubic")[0]
        pixels = tf.cast(
            tf.clip_by_value(smooth + drawn.normal(0, 8, smooth.shape), 0, 255), "uint8"
        )
        jpeg = tf.io.encode_jpeg(pixels, quality=90).numpy()
        place = folder / "images" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:05d}.jpg").write_bytes(jpeg)
        features = {
            "jpeg": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writers[number % 8].write(example.SerializeToString())
    for writer in writers:
        writer.close()


def one_run(column: Column, pipeline: str, folder: Path, epochs: int) -> dict[str, Any]:
    """The slowest rank's seconds per epoch, in wall-clock and CPU time, and the last loss."""
    script = [sys.executable, "-m", "benchmarks.workloads.reading", pipeline]
    script += [str(folder), str(epochs)]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        processes = columns.start(column, sys.executable, script, {"TF_CPP_MIN_LOG_LEVEL": "2"})
        run(processes, log, 600, ROOT)
        lines = log.read_text(errors="replace").splitlines()
    ranks = [json.loads(line[len(MARK) :]) for line in lines if line.startswith(MARK)]
    slowest = {
        clock: [max(each) for each in zip(*(rank[clock] for rank in ranks), strict=True)]
        for clock in ("seconds", "cpu_seconds")
    }
    return {**slowest, "loss": ranks[0]["loss"]}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    compared = [Column("independent", 1), Column("ours", options.ranks)]
    ranks = f"{options.ranks} ranks"
    clocks = f"one process, s | {ranks} | speed-up"
    print(f"| pipeline | {clocks} | CPU: {clocks} | loss difference |")
    print("| --- |" + " --- |" * 7)
    shares: list[table.Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.images, options.side)
        for pipeline in options.pipelines:
            runs = [
                [one_run(column, pipeline, folder, options.epochs) for column in compared]
                for _ in range(options.rounds)
            ]
            cells = [pipeline]
            for clock in ("seconds", "cpu_seconds"):
                alone, divided = (
                    statistics.median(second for pair in runs for second in pair[which][clock])
                    for which in (0, 1)
                )
                cells += [f"{alone:.2f}", f"{divided:.2f}", f"{alone / divided:.2f}"]
                if clock == "seconds":
                    share = alone / divided / options.ranks
                    row = {"workload": f"jpeg {pipeline}", "style": "function", "status": "ok"}
                    shares.append({**row, "column": compared[1].name, "share": share})
            losses = max(abs(one["loss"] - other["loss"]) for one, other in runs)
            print("| " + " | ".join([*cells, f"{losses:.1e}"]) + " |", flush=True)
    if options.table:
        with options.table.open("a") as file:
            file.write(table.to_csv(shares, header=False))
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pipelines", nargs="*", default=PIPELINES, help=" ".join(PIPELINES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--side", type=int, default=384, help="image size, in pixels")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs per run (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs per pipeline (default 3)")
    text = "a table.csv of the suite to which the speed per rank is added (benchmarks.chart)"
    parser.add_argument("--table", type=Path, help=text)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
