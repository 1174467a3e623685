"""Horovod's API for TensorFlow and Keras, provided by tensorflow.mpi. See docs/horovod.md."""

from typing import Any

from tensorflow.mpi._src.horovod.basics import is_initialized, shutdown  # noqa: F401

__version__ = "0.28.1"  # the Horovod version whose API this is


def run(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "tensorflow.mpi does not provide horovod.run(); start the ranks with `mpirun -np N python "
        "script.py` or `horovodrun -np N python script.py`"
    )
