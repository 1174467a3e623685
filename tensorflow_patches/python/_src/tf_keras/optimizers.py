"""tf_keras's optimizers, current and legacy; keras/optimizers.py says what is done to an update."""

from __future__ import annotations

from types import ModuleType

from tensorflow.mpi._src.average import distinct
from tensorflow.mpi._src.keras import learning_rate, optimizers
from tensorflow.mpi._src.runtime import hooking


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooking.when_imported("tf_keras.src.optimizers.optimizer", _hook)
    hooking.when_imported("tf_keras.src.optimizers.legacy.optimizer_v2", _hook_legacy)


def _hook(module: ModuleType) -> None:
    optimizers.average_in(module, "_BaseOptimizer", ["apply_gradients"])
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
    optimizers.average_in(module, "OptimizerV2", ["apply_gradients"])
    hooking.wrap(module, "_deduplicate_indexed_slices", distinct.unless_distinct)
    if learning_rate.is_scaled():
        scaled = learning_rate.scaled
        hooking.wrap(
            module,
            "OptimizerV2._decayed_lr",
            lambda rate: lambda self, var_dtype: scaled(self, rate(self, var_dtype)),
        )
