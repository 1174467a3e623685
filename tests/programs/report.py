"""A program ends with `done(model, history, name=value, ...)`, whose values inside.py collects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

ENDED: dict[str, Any] = {}


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (str, bool, int, type(None))):
        return value
    array = np.asarray(value)
    return array.astype(float).tolist() if array.dtype.kind in "fiub" else str(value)


def done(model: Any = None, history: Any = None, **values: Any) -> None:
    ENDED.clear()
    ENDED["weights"] = plain(model.get_weights()) if model is not None else []
    ENDED["history"] = plain(history.history) if history is not None else {}
    ENDED["values"] = plain(values)


def files(folder: Path) -> list[str]:
    """The folder's files, without times, process IDs and random numbers in their names."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    plain_names = (re.sub(r"(tfevents\.).*", r"\1", name) for name in found)
    return sorted(re.sub(r"[0-9a-f]{8,}|\d{4,}", "#", name) for name in plain_names)
