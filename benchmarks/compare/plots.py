"""The comparison's plots; needs matplotlib."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.compare.systems import Outcome


def draw(trained: Sequence[Outcome], options: argparse.Namespace, folder: Path) -> bool:
    """Writes losses.png and throughput.png; False without matplotlib or without results."""
    try:
        import matplotlib
    except ImportError:
        return False
    if not trained:
        return False
    matplotlib.use("Agg")
    _losses(trained, options, folder)
    _throughput(trained, options, folder)
    return True


def _losses(trained: Sequence[Outcome], options: argparse.Namespace, folder: Path) -> None:
    """Plots each system's losses, and their distance from one process's."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    one = next((o for o in trained if o.system.name == "one"), None)
    for outcome in trained:
        left.plot(outcome.losses, label=outcome.system.name, linewidth=1)
        if one is not None and outcome is not one:
            gap = np.abs(np.subtract(outcome.losses, one.losses))
            some = np.flatnonzero(gap)  # a logarithmic axis cannot show zeros
            right.semilogy(some, gap[some], ".", label=outcome.system.name, markersize=4, alpha=0.6)
    left.set(xlabel="iteration", ylabel="loss of the whole batch", title=options.optimizer)
    right.set(xlabel="iteration", ylabel="distance from one process's loss, if any")
    left.legend()
    if right.get_lines():
        right.legend()
    figure.savefig(folder / "losses.png", dpi=120)
    plt.close(figure)


def _throughput(trained: Sequence[Outcome], options: argparse.Namespace, folder: Path) -> None:
    import matplotlib.pyplot as plt

    names = [outcome.system.name for outcome in trained]
    found = [
        outcome.words_per_second(options.skip, options.batch * options.length)
        for outcome in trained
    ]
    medians = [median for median, _, _ in found]
    below = [median - low for median, low, _ in found]
    above = [high - median for median, _, high in found]
    figure, axes = plt.subplots(figsize=(2 + len(names), 4), layout="constrained")
    axes.bar(names, medians, 0.6, yerr=[below, above], capsize=4)
    axes.set(ylabel="words per second, all ranks", ylim=(0, None))
    figure.savefig(folder / "throughput.png", dpi=120)
    plt.close(figure)
