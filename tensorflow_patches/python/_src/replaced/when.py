"""The conditions for installing rows of the table."""

from __future__ import annotations

from tensorflow.mpi._src.data import dataset_shard
from tensorflow.mpi._src.files import saves
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.interpose.replacement_table import When
from tensorflow.mpi._src.keras import learning_rate, on_sigterm
from tensorflow.mpi._src.random import entropy
from tensorflow.mpi._src.runtime import c_api, group

RANK_0 = When("rank 0 of several", lambda: group.rank == 0 and group.size > 1)
DRAWS = When("TF_MPI_SHARD not off", entropy.is_shared)
FILES = When("TF_MPI_IO=rank0", saves.shared)
OTHER_FILES = When("TF_MPI_IO=rank0, not on rank 0", saves.left_to_rank_0)
LOOPS = When("TF_MPI_SHARD=dataset", dataset_shard.splits_loops)
RATE = When("TF_MPI_BATCH scales the rate", learning_rate.is_scaled)
SIGTERM = When("TF_MPI_SAVE_ON_SIGTERM", on_sigterm.is_wanted)
GPUS = When("a rank sees several GPUs", gpus.is_chosen)
NO_COMPILED = When("TensorFlow before 2.20", lambda: not c_api.load().tfmpi_compiles())
