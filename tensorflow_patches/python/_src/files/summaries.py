"""Summary writers that accept everything and write nothing, for ranks other than 0."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_ops, summary_ops_v2
from tensorflow.python.trackable import base


class SilentWriter(summary_ops_v2.SummaryWriter, base.Trackable):
    """Returned by tf.summary.create_file_writer on ranks other than 0; records nothing.

    summary_ops_v2 recognizes it by `_tf_mpi_silent`: should_record_summaries() is then False, so
    that summaries cost nothing, and functions traced with it contain no summary ops.
    """

    _tf_mpi_silent = True

    def __init__(self) -> None:
        self._closed = False

    def as_default(self, step: Any = None) -> Any:
        self._check_open()
        return super().as_default(step)

    def set_as_default(self, step: Any = None) -> None:
        self._check_open()
        super().set_as_default(step)

    def init(self) -> Any:
        self._check_open()
        return control_flow_ops.no_op()

    def flush(self) -> Any:
        return control_flow_ops.no_op()

    def close(self) -> Any:
        if context.executing_eagerly():
            self._closed = True
        return control_flow_ops.no_op()

    def _check_open(self) -> None:
        if context.executing_eagerly() and self._closed:
            raise RuntimeError(f"SummaryWriter {self!r} is already closed")


class SilentEvents:
    """Replaces the EventsWriter of compat.v1's FileWriter."""

    def InitWithSuffix(self, suffix: bytes) -> None:  # noqa: N802 (EventsWriter's name)
        pass

    def WriteEvent(self, event: Any) -> None:  # noqa: N802
        pass

    def Flush(self) -> None:  # noqa: N802
        pass

    def Close(self) -> None:  # noqa: N802
        pass
