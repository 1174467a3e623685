"""Starts all rooms and installs what they replace; the only module that imports all of them.

Imported after TensorFlow's libraries have loaded and before its Python modules.
"""

from __future__ import annotations

from tensorflow.mpi._src.average import own_updates
from tensorflow.mpi._src.data import input_stats
from tensorflow.mpi._src.files import explanations, saves, writes
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.interpose import hooking, replacement_table
from tensorflow.mpi._src.keras import on_sigterm
from tensorflow.mpi._src.lifecycle import ends, engine
from tensorflow.mpi._src.observability import report
from tensorflow.mpi._src.random import host
from tensorflow.mpi._src.replaced import process, table
from tensorflow.mpi._src.runtime import group, hooks


def install() -> None:
    """Called once. Raises ImportError if TensorFlow's libraries were loaded before ours."""
    engine.check_kernels_were_seen()
    engine.when_it_ends(
        always=_files_at_end,
        in_order=_ends,
        report=report.show,
    )
    for module in (host, saves, explanations, writes):
        module.install()
    if group.size > 1:
        hooking.check_versions()
        gpus.install()
    replacement_table.install(row for row in table.TABLE if row not in process.PROCESS)
    assert not hooks.unfilled(), hooks.unfilled()
    if group.size > 1:
        on_sigterm.install()
        ends.install()


def _ends() -> None:
    """Called at the end of the script, before this rank joins."""
    own_updates.warn_if_nothing_was_averaged()
    report.note_input(input_stats.gather())


def _files_at_end(why: str | None) -> None:
    writes.at_end()
    saves.at_end(why)
