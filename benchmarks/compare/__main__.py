"""`python -m benchmarks.compare`: trains one language model in several ways and compares them.

    .venv/bin/python -m benchmarks.compare                     Adam, on the Python documentation
    .venv/bin/python -m benchmarks.compare --optimizer sgd --systems one,control,ours:2

Writes report.md, variables.csv, throughput.csv and, with matplotlib, plots. Systems: `one` is one
process on the whole batch. `control` is one process on the same batches with their rows in another
order, which shows the effect of rounding alone. KIND:RANKS is as in `python -m benchmarks --help`;
each rank trains on its part of the batch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks import columns
from benchmarks.compare import environment, report, systems, text
from benchmarks.compare.systems import Outcome, System
from benchmarks.runner import ROOT


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--corpus", choices=text.CORPORA, default="python-docs")
    parser.add_argument("--systems", default="one,control,ours:2,face:2,mwms:2,horovod:2")
    parser.add_argument("--optimizer", choices=["adam", "adagrad", "sgd"], default="adam")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument(
        "--skip", type=int, default=100, help="iterations at the start that are not timed"
    )
    parser.add_argument("--batch", type=int, default=128, help="rows per batch, over all ranks")
    parser.add_argument("--length", type=int, default=20, help="words per row")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument(
        "--width", type=int, default=128, help="width of the embedding and the LSTM"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--goal", type=float, default=1e-4, help="largest acceptable difference")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per system")
    parser.add_argument("--horovod-python", default=columns.horovod_python(), metavar="PATH")
    parser.add_argument("--quick", action="store_true", help="a tiny model, without downloads")
    parser.add_argument("--out", type=Path, help="folder (default benchmarks/results/compare-TIME)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.corpus, options.vocabulary, options.width = "installed", 200, 8
        options.iterations, options.skip, options.batch, options.length = 20, 10, 8, 5
    if options.skip >= options.iterations:
        parser.error(f"--skip {options.skip} skips all {options.iterations} iterations")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 even if a system failed; the report says which."""
    options = parse(arguments)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = options.out or ROOT / "benchmarks" / "results" / f"compare-{stamp}"
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    words = text.tokens(text.read(options.corpus), options.vocabulary)
    np.save(folder / "tokens.npy", words)
    print(f"{folder}: {options.corpus}, {len(words)} words", flush=True)
    where = environment.lines()
    outcomes: list[Outcome] = []
    for name in options.systems.split(","):
        outcome = systems.train(System.parse(name), options, folder)
        outcomes.append(outcome)
        print(f"{name}: {outcome.note or 'trained'}", flush=True)
        written = report.write(outcomes, options, len(words), folder, where)
    print(written)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
