"""The comparison's report: variables, throughput, and the reasons for differences."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import columns
from benchmarks.compare import plots
from benchmarks.compare.systems import Outcome

# The speed of a system is doubtful if the load average before it ran was above this. The previous
# system accounts for up to one per rank.
MOST_LOAD = len(columns.cores()) + 0.5
# Descriptions of the systems, by kind.
KINDS = {
    "one": "one process on the whole batch: the reference",
    "control": "the same, with each batch's rows in another order",
    "ours": "the plain script; gradients are averaged inside the optimizer ops, those of the "
    "embedding as the rows that the batch used",
    "face": "the script with Horovod's API as implemented by this project: the tape averages with "
    "the engine of `ours`",
    "mwms": "gradients are summed by TensorFlow's own collectives, over gRPC",
    "horovod": "Horovod itself: the tape averages, over MPI",
}
# A difference up to this many times the control's is attributed to rounding: N ranks sum in another
# order than the control does, and orders differ in their rounding errors.
ROUNDING_FACTOR = 10.0


def differences(values: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """The largest absolute difference, and its ratio to the largest reference value."""
    if values.shape != reference.shape:
        raise ValueError(f"shapes {values.shape} and {reference.shape} differ")
    largest = float(np.max(np.abs(values.astype(np.float64) - reference)))
    return largest, largest / max(
        float(np.max(np.abs(reference))), float(np.finfo(np.float32).tiny)
    )


def worst(outcome: Outcome, one: Outcome) -> float:
    """The largest absolute difference over all variables."""
    if outcome.values.keys() != one.values.keys():
        raise ValueError(f"variables {sorted(outcome.values)} and {sorted(one.values)} differ")
    return max(differences(value, one.values[name])[0] for name, value in outcome.values.items())


def explanation(largest: float, control: float | None, goal: float) -> str:
    """The explanation of a difference from one process."""
    if largest == 0:
        return "bitwise equal to one process"
    within = "within the goal" if largest <= goal else "OVER THE GOAL"
    if control is None:
        return f"{within}; no control to compare with"
    if largest <= ROUNDING_FACTOR * control:
        return (
            f"{within}; about the size of the control's ({control:.1e}, one process with each "
            "batch's rows in another order): due to rounding"
        )
    return f"{within}; {largest / max(control, 1e-45):.0f} times the control's: more than rounding"


def write(
    outcomes: Sequence[Outcome],
    options: argparse.Namespace,
    words: int,
    folder: Path,
    where: Sequence[str],
) -> str:
    """Writes report.md, the CSV files and the plots for the results so far; returns the report.

    where: the lines of environment.py from before the first system ran.
    """
    trained = [outcome for outcome in outcomes if outcome.values]
    by_name = {outcome.system.name: outcome for outcome in trained}
    lines = _heading(options, words)
    lines += ["## Environment", "", *where, ""]
    lines += _throughput(trained, options, folder)
    one = by_name.get("one")
    if one is not None:
        lines += _variables([o for o in trained if o is not one], one, options, folder)
    if plots.draw(trained, options, folder):
        lines += ["## Plots", "", "![Losses by iteration](losses.png)", ""]
        lines += ["![Words per second, median and 10..90 %](throughput.png)", ""]
    notes = [f"- {o.system.name}: {o.note}" for o in outcomes if o.note]
    lines += ["## Notes", "", *notes, ""] if notes else []
    text = "\n".join(lines)
    (folder / "report.md").write_text(text)
    return text


def _doubts(trained: Sequence[Outcome]) -> list[str]:
    """A line that names the systems before which the machine was busy."""
    found = [f"{o.system.name} ({o.load:.1f})" for o in trained if o.load > MOST_LOAD]
    if not found:
        return []
    return [
        f"**The machine was busy** before {', '.join(found)} (the load, on {len(columns.cores())} "
        "cores). Their speeds are doubtful; their weights are not.",
        "",
    ]


def _heading(options: argparse.Namespace, words: int) -> list[str]:
    return [
        "# A language model, trained in several ways",
        "",
        f"Text: `{options.corpus}`, {words} words, vocabulary {options.vocabulary}. Model: "
        f"embedding and LSTM of {options.width}, full softmax, float32; {options.optimizer}; "
        f"{options.iterations} iterations of {options.batch} x {options.length} words over all "
        f"ranks, seed {options.seed}; one core per rank. All systems begin with the same weights "
        "and see the same batches; a rank of N trains on an N-th of each batch's rows.",
        "",
    ]


def _throughput(trained: Sequence[Outcome], options: argparse.Namespace, folder: Path) -> list[str]:
    """A table of words per second and of losses; throughput.csv."""
    lines = [
        f"## Throughput, without the first {options.skip} iterations",
        "",
        "Words per second of all ranks together. The ideal on N cores is N times one process.",
        "",
        "| system | cores | words/s, median (10..90 %) | times one process | per core "
        "| load before | last loss |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = []
    batch_words = options.batch * options.length
    one = next((o for o in trained if o.system.name == "one"), None)
    base = one.words_per_second(options.skip, batch_words)[0] if one else None
    for outcome in trained:
        median, low, high = outcome.words_per_second(options.skip, batch_words)
        ranks = outcome.system.column.ranks
        times = f"{median / base:.2f}" if base else ""
        each = f"{100 * median / base / ranks:.0f} %" if base else ""
        loss = outcome.losses[-1]
        name = outcome.system.name
        lines.append(
            f"| {name} | {ranks} | {median:.0f} ({low:.0f}..{high:.0f}) | {times} | {each} "
            f"| {outcome.load:.1f} | {loss:.6f} |"
        )
        rows.append([name, ranks, median, low, high, times, outcome.load, loss])
    head = ["system", "ranks", "words_per_s", "p10", "p90", "times_one", "load_before", "last_loss"]
    _write_csv(folder / "throughput.csv", head, rows)
    kinds = dict.fromkeys(o.system.name.partition(":")[0] for o in trained)
    explained = [f"- `{kind}`: {KINDS[kind]}" for kind in kinds if kind in KINDS]
    return [*lines, "", *_doubts(trained), *explained, ""]


def _variables(
    others: Sequence[Outcome], one: Outcome, options: argparse.Namespace, folder: Path
) -> list[str]:
    """A table of differences from one process, variable by variable; variables.csv."""
    rows = []
    for outcome in others:
        for name, value in outcome.values.items():
            rows.append([outcome.system.name, name, *differences(value, one.values[name])])
    head = ["system", "variable", "largest_difference", "relative_to_largest_value"]
    _write_csv(folder / "variables.csv", head, rows)
    lines = [
        "## Final checkpoints against one process's",
        "",
        "Largest absolute difference, and in brackets its share of the variable's largest value.",
        "",
        "| variable | shape | " + " | ".join(o.system.name for o in others) + " |",
        "| --- | --- |" + " --- |" * len(others),
    ]
    for name, value in one.values.items():
        found = [differences(outcome.values[name], value) for outcome in others]
        cells = " | ".join(f"{largest:.1e} ({share:.1e})" for largest, share in found)
        lines.append(f"| {name} | {'x'.join(map(str, value.shape))} | {cells} |")
    controls = [worst(o, one) for o in others if o.system.permute]
    control = controls[0] if controls else None
    lines += ["", f"Goal: {options.goal:g}.", ""]
    for outcome in others:
        if not outcome.system.permute:
            meaning = explanation(worst(outcome, one), control, options.goal)
            lines.append(f"- {outcome.system.name}: {meaning}")
    return [*lines, ""]


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
