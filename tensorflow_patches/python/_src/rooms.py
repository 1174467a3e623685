"""The one module that knows all rooms: has their modules hook in, in order.

Loaded after TensorFlow's libraries and before its Python modules.
"""

from __future__ import annotations

from tensorflow.mpi._src.average import apply_ops, taken
from tensorflow.mpi._src.compat_v1 import gradients, sessions, subclasses
from tensorflow.mpi._src.data import dataset_shard, seeds
from tensorflow.mpi._src.distribute import average_loss, strategies
from tensorflow.mpi._src.files import (
    dataset_files,
    downloads,
    explanations,
    keras_files,
    saves,
    tensorflow_files,
    writes,
)
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import (
    batch_norm,
    fit,
    learning_rate,
    on_sigterm,
    optimizers,
    parts,
    summaries,
)
from tensorflow.mpi._src.keras import data as keras_data
from tensorflow.mpi._src.lifecycle import ends, engine
from tensorflow.mpi._src.observability import report
from tensorflow.mpi._src.random import host, keras_ops
from tensorflow.mpi._src.random import ops as random_ops
from tensorflow.mpi._src.runtime import group, hooks
from tensorflow.mpi._src.tf_keras import data as tf_keras_data
from tensorflow.mpi._src.tf_keras import optimizers as tf_keras_optimizers
from tensorflow.mpi._src.tf_keras import training
from tensorflow.mpi._src.variables import initial_broadcast


def install() -> None:
    """Called once. Raises ImportError if TensorFlow's libraries were loaded before ours."""
    engine.check_kernels_were_seen()
    engine.when_it_ends(
        always=saves.at_end,
        in_order=initial_broadcast.warn_if_nothing_was_averaged,
        report=report.show,
    )
    for module in (
        initial_broadcast,
        apply_ops,
        taken,
        gradients,
        sessions,
        subclasses,
        host,
        random_ops,
        seeds,
        dataset_shard,
        saves,
        tensorflow_files,
        dataset_files,
        explanations,
        writes,
    ):
        module.install()
    assert not hooks.unfilled(), hooks.unfilled()
    if group.size == 1:
        return
    hooking.check_versions()
    for module in (
        gpus,
        strategies,
        average_loss,
        downloads,
        summaries,
        keras_ops,
        keras_files,  # before what exchanges after fit's callbacks
        keras_data,
        tf_keras_data,
        optimizers,
        tf_keras_optimizers,
        fit,
        parts,
        learning_rate,
        batch_norm,
        training,
        on_sigterm,  # after fit's own meetings, of either Keras
        ends,
    ):
        module.install()
