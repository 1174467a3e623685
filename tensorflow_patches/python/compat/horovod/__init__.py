"""Horovod's API, done by tensorflow.mpi: for TensorFlow and Keras. See docs/horovod.md."""

from typing import Any

from tensorflow.mpi._src.horovod.basics import is_initialized, shutdown  # noqa: F401

__version__ = "0.28.1"  # whose API this is


def run(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "horovod.run() of tensorflow.mpi: start the ranks with `mpirun -np N python script.py` or "
        "`horovodrun -np N python script.py`"
    )
