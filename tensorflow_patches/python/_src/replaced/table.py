"""The table of all replaced attributes, in the order in which they are installed."""

from __future__ import annotations

import functools
import textwrap
from typing import Any

from tensorflow.mpi._src.interpose.replacement_table import How, Row
from tensorflow.mpi._src.replaced.keras import KERAS
from tensorflow.mpi._src.replaced.patches import PATCHES
from tensorflow.mpi._src.replaced.process import PROCESS
from tensorflow.mpi._src.replaced.python import PYTHON
from tensorflow.mpi._src.replaced.tensorflow import TENSORFLOW
from tensorflow.mpi._src.replaced.tf_keras import TF_KERAS
from tensorflow.mpi._src.runtime import hooks

_PARTS = {
    "Python and NumPy": (*PROCESS, *PYTHON),
    "TensorFlow": TENSORFLOW,
    "Keras 3, and tf_keras likewise": KERAS,
    "tf_keras alone, and tensorflow.python.keras": TF_KERAS,
    "TensorFlow's patched files": PATCHES,
}
TABLE = tuple(row for rows in _PARTS.values() for row in rows)
_WIDTH = 98


def count() -> int:
    """The number of replaced attributes, without the hooks of TensorFlow's patched files."""
    return len({target for row in TABLE if row not in PATCHES for target in row.targets()})


def describe() -> str:
    """The table as Markdown: each row's target, method, wrapper, test, reason and condition."""
    lines = []
    for title, rows in _PARTS.items():
        lines += [f"## {title}", "", *(line for row in rows for line in _listed(row)), ""]
    return "\n".join(lines)


def _listed(row: Row) -> list[str]:
    target, reason = row.target, row.reason
    if row.how in (How.PATCH, How.DECORATOR):
        target, reason = hooks.described(row.target)
    else:
        target = target.replace(",", ", ")
    condition = "; ".join(filter(None, (row.when.text, row.versions)))
    return [
        *textwrap.wrap(target, _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8),
        f"      {row.how.value:<14} {_name(row.wrapper):<42} {row.test}",
        f"      {reason:<57} {condition}",
    ]


def _name(wrapper: Any) -> str:
    """The name of our function, such as "keras.fit:fit_begins"."""
    while isinstance(wrapper, functools.partial):
        wrapper = wrapper.func
    module = wrapper.__module__.removeprefix("tensorflow.mpi._src.")
    return f"{module}:{wrapper.__qualname__.partition('.<locals>')[0]}"
