"""A model's random generators (dropout, augmentation) if each rank makes its own draws.

With TF_MPI_SHARD=off, one seed on all ranks would draw the same mask for different samples.
Otherwise random/own_rows.py decides for each draw, and the generators stay in the same state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.mpi._src.random import entropy
from tensorflow.mpi._src.runtime import group
from tensorflow.mpi._src.variables import states

_JUMP_ATTRIBUTE = "_tf_mpi_drawing"  # set on the variable of a generator that has jumped


def jump_by_rank(model: Any) -> None:
    """Called at the start of fit: each rank draws from another part of the sequence."""
    if entropy.is_shared():
        return
    try:
        variables = getattr(model, "non_trainable_variables", ())
    except ValueError:  # a Sequential of tf_keras that its first step will build
        return
    for variable in variables:
        if not states.is_random_state(getattr(variable, "path", "")) or hasattr(
            variable, _JUMP_ATTRIBUTE
        ):
            continue
        setattr(variable, _JUMP_ATTRIBUTE, True)
        state = np.array(variable.value.numpy())
        if state.shape == (2,):
            state[1] += group.rank << 20  # the position: a million draws apart
            variable.assign(state)
