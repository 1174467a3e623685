"""horovod.common.process_sets."""

from tensorflow.mpi._src.horovod.process_sets import (  # noqa: F401
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
