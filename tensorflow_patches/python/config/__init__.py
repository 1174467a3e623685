"""`TF_MPI_*` and the launchers' variables: the only code that reads the environment, apart from
at_start.py (runs in every process of a launcher) and compat/finder.py (in every Python program).

parameters.py has each parameter's name, type, default, range and help. `docs/parameters.md` and
`python -m tensorflow.mpi config` are printed from it, and an invalid value raises an error that
lists the accepted ones. This package is loaded while TensorFlow is being imported, so it imports
only the standard library.
"""

# ruff: noqa: F401  (the package's interface)

from __future__ import annotations

from tensorflow.mpi.config.launchers import (
    Launcher,
    job,
    launcher,
    library_folders,
    limit_threads,
    mark_started,
    mpi_folders,
    node_name,
    rank_of,
    scheduled_nodes,
    started_by_ancestor,
    without_launcher,
)
from tensorflow.mpi.config.parameter import (
    DEVICE_TRANSPORTS,
    EXTRAS,
    SPARSE_MODES,
    ConfigError,
    Parameter,
)
from tensorflow.mpi.config.parameters import OLD_NAMES, PARAMETERS
from tensorflow.mpi.config.switch import Gate, gate, is_off_elsewhere
from tensorflow.mpi.config.values import (
    batch_is_per_rank,
    check,
    cray_takes_gpus,
    ddl_options,
    deadlock_timeout,
    describe,
    get,
    given,
    gpu_transport,
    grow_gpu_memory,
    horovod_dynamic_process_sets,
    keras_file,
    leave_data_to_script,
    names_to_pass,
    nccl_library,
    nccl_shares_gpus,
    rate_scale,
    renamed,
    shared_settings,
    transfer_timeout,
)
