"""The API of IBM's DDL, provided by tensorflow.mpi. See docs/ddl.md."""

from typing import Any

from tensorflow.mpi._src.ddl.api import (  # noqa: F401
    init,
    local_gpuid,
    local_rank,
    local_size,
    rank,
    size,
)
from tensorflow.mpi._src.ddl.modes import ModeError  # noqa: F401
from tensorflow.mpi._src.ddl.ops import (  # noqa: F401
    AllReduceN,
    Bcast,
    Init,
    all_reduce_n,
    bcast,
    grads_reduce,
)

init()  # with DDL_OPTIONS; a script may call it again


def __getattr__(name: str) -> Any:
    if name in ("DDLCallback", "DDLGlobalVariablesCallback"):  # loads Keras
        from tensorflow import keras
        from tensorflow.mpi._src.ddl import callbacks

        globals().update(vars(callbacks.of(keras)))
        return globals()[name]
    raise AttributeError(f"tensorflow.mpi's ddl has no {name}; docs/ddl.md lists its functions")
