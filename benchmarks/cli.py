"""`python -m benchmarks`: runs the suite, or part of it, and writes a table.

Run it from the root of the repository, with the Python of an environment that contains the wheel:

    .venv/bin/python -m benchmarks                                    everything
    .venv/bin/python -m benchmarks --workloads a,d --styles v1 --columns independent:2,ours:2
    .venv/bin/python -m benchmarks --turns 20 --seconds 0.5 --repeats 1 \\
        --columns independent:2,ours:2                                a machine of varying speed
    .venv/bin/python -m benchmarks --variant small:TF_MPI_FUSION_THRESHOLD=1m \\
        --columns independent:2,ours:2,ours:2+small                   two settings side by side
    .venv/bin/python -m benchmarks --variant old:PYTHON=/other/venv/bin/python ...   two builds
    .venv/bin/python -m benchmarks --workloads e --variant large:ROWS=4000000 \\
        --columns independent:2,ours:2,ours:2+large                   two embedding tables
    .venv/bin/python -m benchmarks --extras                           each extra, with and without
    .venv/bin/python -m benchmarks --resume DIR ...        continues a run; repeat its other options

DIR/runs.jsonl records every run; table.csv, table.md and the plots are rewritten after each row.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from benchmarks import columns, extras, plots, table
from benchmarks.columns import KINDS, STYLE_HELP, STYLES, Column, Launch
from benchmarks.runner import ROOT, Cell, Records, cells, run_all
from benchmarks.workloads.models import WORKLOADS

COLUMNS = "independent:1,independent:2,independent:4,ours:1,ours:2,ours:4,sharded:2,off:2"
PEERS = "mwms:2,horovod:2"
QUICK = {
    "workloads": "tiny",
    "styles": "v1",
    "columns": "independent:2,ours:2",
    "repeats": 1,
    "seconds": 0.2,
    "turns": 0,
}
EXTRAS = {"repeats": 2, "seconds": 0.5, "turns": 12}
FULL = {
    "workloads": ",".join(name for name in WORKLOADS if name != "tiny"),
    "styles": ",".join(STYLES),
    "columns": f"{COLUMNS},{PEERS}",
    "repeats": 3,
    "seconds": 4.0,
    "turns": 0,
}


def _listing() -> str:
    lines = ["workloads:"]
    lines += [f"  {w.letter}  {name}, batch {w.batch} per rank" for name, w in WORKLOADS.items()]
    lines += ["styles:", *(f"  {name}: {text}" for name, text in STYLE_HELP.items())]
    lines += ["columns, as KIND:RANKS[+VARIANT]:", *(f"  {k}: {text}" for k, text in KINDS.items())]
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line; defaults are those of the full suite, --quick or --extras."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=_listing(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workloads", help=f"names or letters (default {FULL['workloads']})")
    parser.add_argument("--styles", help=f"(default {FULL['styles']})")
    parser.add_argument("--columns", help=f"(default {FULL['columns']})")
    parser.add_argument("--repeats", type=int, help=f"(default {FULL['repeats']})")
    parser.add_argument(
        "--seconds", type=float, help="length of the timed part, or of a turn (default 4)"
    )
    parser.add_argument(
        "--turns",
        type=int,
        help="the columns of a row run at the same time and take this many turns of --seconds, so "
        "a slowdown of the machine affects all of them (all must fit in memory)",
    )
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the embedding table")
    parser.add_argument("--timeout", type=float, default=180, help="seconds per run (default 180)")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME:VARIABLE=VALUE[,...]",
        help="environment variables for columns KIND:RANKS+NAME; PYTHON=PATH sets the interpreter, "
        "ROWS=N the number of rows of the embedding table",
    )
    parser.add_argument("--horovod-python", default=columns.horovod_python(), metavar="PATH")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model, one run each: takes seconds"
    )
    parser.add_argument(
        "--extras",
        action="store_true",
        help="measure steps with and without each extra of docs/extras.md, where it should matter",
    )
    parser.add_argument("--out", type=Path, help="folder (default benchmarks/results/TIME)")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="continue the run in that folder; repeat its other options",
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="only rewrite the table in that folder"
    )
    parser.add_argument("--list", action="store_true", help="print the plan and run nothing")
    options = parser.parse_args(arguments)
    preset = EXTRAS if options.extras else QUICK if options.quick else FULL
    for name, value in preset.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    try:
        options.variants = dict(_variant(text) for text in options.variant)
        options.cells = list(extras.cells(options.repeats)) if options.extras else _plan(options)
        options.variants.update(extras.variants() if options.extras else {})
    except ValueError as error:
        parser.error(str(error))
    unknown = {cell.column.variant for cell in options.cells} - {"", *options.variants}
    if unknown:
        parser.error(f"unknown variant {', '.join(sorted(unknown))}: define it with --variant")
    return options


def _variant(text: str) -> tuple[str, dict[str, str]]:
    name, colon, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in rest.split(",")]
    if not name or not colon or any(not equals for _, equals, _ in pairs):
        raise ValueError(f"variant {text!r}: expected NAME:VARIABLE=VALUE[,VARIABLE=VALUE]")
    return name, {variable: value for variable, _, value in pairs}


def _plan(options: argparse.Namespace) -> list[Cell]:
    letters = {workload.letter: name for name, workload in WORKLOADS.items()}
    workloads = [letters.get(word, word) for word in options.workloads.split(",")]
    styles = options.styles.split(",")
    for words, known in ((workloads, list(WORKLOADS)), (styles, list(STYLES))):
        for word in words:
            if word not in known:
                raise ValueError(f"{word!r} is not one of {', '.join(known)}")
    chosen = [Column.parse(text) for text in options.columns.split(",")]
    return list(cells(workloads, styles, chosen, options.repeats))


def write_report(records: Records, folder: Path) -> str:
    """Writes table.csv, table.md and the plots; returns the Markdown."""
    found = table.rows(records.all)
    (folder / "table.csv").write_text(table.to_csv(found))
    text = table.to_markdown(found)
    if any(record["column"].startswith(f"{extras.BASE}+without_") for record in records.all):
        text += "\n" + extras.to_markdown(records.all)
    (folder / "table.md").write_text(text)
    plots.draw(found, folder)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Returns 2 if the folder already has results, else 0: the table shows which cells failed."""
    options = parse(arguments)
    if options.report:
        print(write_report(Records(options.report / "runs.jsonl"), options.report))
        return 0
    if options.list:
        print("\n".join(" ".join(map(str, cell.key)) for cell in options.cells))
        return 0
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = options.resume or options.out or ROOT / "benchmarks" / "results" / stamp
    folder = folder.resolve()
    records_path = folder / "runs.jsonl"
    if records_path.exists() and not options.resume:
        print(f"{records_path} exists: to continue it, add --resume {folder}", file=sys.stderr)
        return 2
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    print(f"{folder}: {len(options.cells)} runs on cores {columns.cores()}", flush=True)
    records = Records(records_path)
    launch = Launch(
        options.seconds, options.rows, options.variants, options.horovod_python, options.turns
    )
    # Handle SIGTERM like Ctrl-C; otherwise ranks waiting for their turn would stay stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_all(
        options.cells,
        records,
        launch,
        options.timeout,
        folder / "logs",
        say=lambda line: print(line, flush=True),
        after=lambda: write_report(records, folder),
    )
    print(write_report(records, folder))
    return 0
