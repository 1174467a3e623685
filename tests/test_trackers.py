"""The examples of docs/trackers.md on 2 ranks: everything is tracked exactly once."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "trackers.md").read_text()
_EXAMPLE = r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$"
EXAMPLES = dict(re.findall(_EXAMPLE, PAGE, re.M | re.S))


def first_number(database: Path, query: str) -> int:
    (number,) = sqlite3.connect(database).execute(query).fetchone()
    return int(number)


# How often a run of each example has tracked its items; must be 1.
TRACKED = {
    "TensorBoard": lambda folder: len(list(folder.glob("board/train/events*"))),
    "MLflow": lambda folder: first_number(folder / "mlflow.db", "select count(*) from runs"),
    "Weights & Biases": lambda folder: len(list(folder.glob("wandb/offline-run-*"))),
    "Optuna in a database": lambda f: (
        first_number(f / "study.db", "select count(*) from trials") / 4
    ),
    "SQLite": lambda folder: first_number(folder / "results.db", "select count(*) from losses") / 3,
}


def test_every_example_of_the_page_is_tested() -> None:
    assert set(EXAMPLES) == {*TRACKED, "Optuna in memory"}


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_tracks_each_item_once(launch, tmp_path, name) -> None:
    for package in re.findall(r"^import (\w+)", EXAMPLES[name], re.M):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = tmp_path / "train.py"
    script.write_text(EXAMPLES[name])
    run = launch(script, cwd=tmp_path, env={"WANDB_SILENT": "true"}, timeout=180).check()
    if name in TRACKED:
        assert TRACKED[name](tmp_path) == 1, run.report()
        assert "ranks has written to the database" not in "".join(run.stderr)
    else:
        best = {line for text in run.stdout for line in text.splitlines() if "best {" in line}
        assert len(best) == 1, run.report()
