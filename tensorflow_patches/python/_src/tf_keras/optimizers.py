"""tf_keras's optimizers, current and legacy, and those of tensorflow.python.keras.

keras/optimizers.py says what is done to an update.
"""

from __future__ import annotations

from types import ModuleType

from tensorflow.mpi._src.average import distinct
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import learning_rate, optimizers

# These sum duplicates themselves, after they have clipped.
_SUM_ROWS = ("tf_keras.src.optimizers.", "tensorflow.python.keras.optimizer_v2.")


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooking.when_imported("tf_keras.src.optimizers.optimizer", _hook)
    hooking.when_imported("tf_keras.src.engine.training", _hook_step)
    hooking.when_imported("tf_keras.src.optimizers.legacy.optimizer_v2", _hook_legacy)
    hooking.when_imported("tensorflow.python.keras.optimizer_v2.optimizer_v2", _hook_legacy)


def _hook_step(module: ModuleType) -> None:
    hooking.wrap(module, "Model.train_step", optimizers.hands_gradients_on)


def _hook(module: ModuleType) -> None:
    optimizers.average_in(module, "_BaseOptimizer", ["apply_gradients"], _SUM_ROWS)
    deduplicate = "_BaseOptimizer._deduplicate_sparse_grad"
    hooking.wrap(module, deduplicate, distinct.but_for_distinct)
    if learning_rate.is_scaled():
        scaled = learning_rate.scaled
        hooking.wrap(
            module,
            "_BaseOptimizer.learning_rate",
            lambda rate: property(lambda self: scaled(self, rate.fget(self)), rate.fset),
        )


def _hook_legacy(module: ModuleType) -> None:
    optimizers.average_in(module, "OptimizerV2", ["apply_gradients"], _SUM_ROWS)
    hooking.wrap(module, "_deduplicate_indexed_slices", distinct.unless_distinct)
    if learning_rate.is_scaled():
        scaled = learning_rate.scaled
        hooking.wrap(
            module,
            "OptimizerV2._decayed_lr",
            lambda rate: lambda self, var_dtype: scaled(self, rate(self, var_dtype)),
        )
