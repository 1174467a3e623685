"""The comparison's report: variables, throughput, and what explains the differences."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.compare.systems import Outcome

# A difference this many times the control's is still put down to rounding: N ranks sum in another
# order than the control does, and one order may be unluckier than another.
ROUNDING_FACTOR = 10.0


def differences(values: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """The largest absolute difference, and the same as a share of the largest reference value."""
    if values.shape != reference.shape:
        raise ValueError(f"shapes {values.shape} and {reference.shape} differ")
    largest = float(np.max(np.abs(values.astype(np.float64) - reference)))
    return largest, largest / max(
        float(np.max(np.abs(reference))), float(np.finfo(np.float32).tiny)
    )


def worst(outcome: Outcome, one: Outcome) -> float:
    """The largest absolute difference of any variable."""
    if outcome.values.keys() != one.values.keys():
        raise ValueError(f"variables {sorted(outcome.values)} and {sorted(one.values)} differ")
    return max(differences(value, one.values[name])[0] for name, value in outcome.values.items())


def explanation(largest: float, control: float | None, goal: float) -> str:
    """What a difference from one process means."""
    if largest == 0:
        return "bit for bit one process's"
    within = "within the goal" if largest <= goal else "OVER THE GOAL"
    if control is None:
        return f"{within}; no control to compare with"
    if largest <= ROUNDING_FACTOR * control:
        return (
            f"{within}; of the control's size ({control:.1e}, one process with each batch's rows "
            "in another order): rounding of sums"
        )
    return f"{within}; {largest / max(control, 1e-45):.0f} times the control's: not rounding alone"


def write(
    outcomes: Sequence[Outcome], options: argparse.Namespace, words: int, folder: Path
) -> str:
    """Writes report.md, the CSV files and the plots of what is there so far; returns report.md."""
    trained = [outcome for outcome in outcomes if outcome.values]
    by_name = {outcome.system.name: outcome for outcome in trained}
    lines = _heading(options, words)
    lines += _throughput(trained, options, folder)
    one = by_name.get("one")
    if one is not None:
        lines += _variables([o for o in trained if o is not one], one, options, folder)
    notes = [f"- {o.system.name}: {o.note}" for o in outcomes if o.note]
    lines += ["## Notes", "", *notes, ""] if notes else []
    text = "\n".join(lines)
    (folder / "report.md").write_text(text)
    _plots(trained, options, folder)
    return text


def _heading(options: argparse.Namespace, words: int) -> list[str]:
    return [
        "# A language model, trained in several ways",
        "",
        f"Text: `{options.corpus}`, {words} words, vocabulary {options.vocabulary}. Model: "
        f"embedding and LSTM of {options.width}, full softmax, float32; {options.optimizer}; "
        f"{options.iterations} iterations of {options.batch} x {options.length} words over all "
        f"ranks, seed {options.seed}; one core per rank.",
        "",
    ]


def _throughput(trained: Sequence[Outcome], options: argparse.Namespace, folder: Path) -> list[str]:
    """A table of words per second and of losses; throughput.csv."""
    lines = [
        f"## Throughput, without the first {options.skip} iterations",
        "",
        "| system | words/s, median (10..90 %) | times one process | last loss |",
        "| --- | --- | --- | --- |",
    ]
    rows = []
    batch_words = options.batch * options.length
    one = next((o for o in trained if o.system.name == "one"), None)
    base = one.words_per_second(options.skip, batch_words)[0] if one else None
    for outcome in trained:
        median, low, high = outcome.words_per_second(options.skip, batch_words)
        times = f"{median / base:.2f}" if base else ""
        loss = outcome.losses[-1]
        name = outcome.system.name
        lines.append(f"| {name} | {median:.0f} ({low:.0f}..{high:.0f}) | {times} | {loss:.6f} |")
        rows.append([name, outcome.system.column.ranks, median, low, high, times, loss])
    head = ["system", "ranks", "words_per_s", "p10", "p90", "times_one", "last_loss"]
    _write_csv(folder / "throughput.csv", head, rows)
    return [*lines, ""]


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


def _plots(trained: Sequence[Outcome], options: argparse.Namespace, folder: Path) -> None:
    """losses.png: each system's losses, and their distance from one process's."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    one = next((o for o in trained if o.system.name == "one"), None)
    for outcome in trained:
        left.plot(outcome.losses, label=outcome.system.name, linewidth=1)
        if one is not None and outcome is not one:
            gap = np.abs(np.subtract(outcome.losses, one.losses))
            right.semilogy(np.maximum(gap, 1e-9), label=outcome.system.name, linewidth=1)
    left.set(xlabel="iteration", ylabel="loss of the whole batch", title=options.optimizer)
    right.set(xlabel="iteration", ylabel="distance from one process's loss")
    left.legend()
    if right.get_lines():
        right.legend()
    figure.savefig(folder / "losses.png", dpi=120)
    plt.close(figure)
