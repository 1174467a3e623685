"""Knowledge of Keras's own classes, some by name: Keras 3.10 to 3.16, tf_keras 2.16 to 2.21.

No other module decides by a name. A class that is not listed here is treated like one of the
script, for which the worst is assumed; that only costs time. But callbacks of Keras that are not in
_READ_LOGS are taken not to read the logs of batches.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.global_batch import losses
from tensorflow.mpi._src.interpose import hooking

# Callbacks that never stop training between two batches.
_NEVER_STOP_A_BATCH = {
    "BackupAndRestore", "CSVLogger", "EarlyStopping", "History", "LearningRateScheduler",
    "ModelCheckpoint", "ProgbarLogger", "ReduceLROnPlateau", "RemoteMonitor", "SwapEMAWeights",
    "TensorBoard",
}  # fmt: skip
# Callbacks that read the logs of batches: always, or unless this attribute is "epoch".
_READ_LOGS = {
    "TerminateOnNaN": None,
    "TensorBoard": "update_freq",
    "ModelCheckpoint": "save_freq",
    "OrbaxCheckpoint": "save_freq",
}
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def has_batch_hook(callback: Any) -> bool:
    """Whether a callback may have a method for batches, which could set model.stop_training."""
    if _is_of_keras(callback):
        return type(callback).__name__ not in _NEVER_STOP_A_BATCH
    return has_own(callback, _BATCH_HOOKS)


def may_read_logs(callback: Any, hooks: tuple[str, ...]) -> bool:
    """Whether a callback may read the logs of batches in methods of these names. A progress bar
    does not count: it shows rank 0's."""
    if not _is_of_keras(callback):
        return has_own(callback, hooks)
    kind = type(callback).__name__
    if kind not in _READ_LOGS:
        return False
    attribute = _READ_LOGS[kind]
    return attribute is None or getattr(callback, attribute, "epoch") != "epoch"


def _is_of_keras(callback: Any) -> bool:
    """Whether all its methods are Keras's: none was assigned to it, as LambdaCallback does."""
    of_class = type(callback).__module__.startswith(
        ("keras.src.callbacks", "tf_keras.src.callbacks")
    )
    return of_class and not any(name.startswith("on_") for name in vars(callback))


def has_own(callback: Any, names: tuple[str, ...]) -> bool:
    """Whether a callback, or its class, overrides one of Callback's empty methods `names`."""
    kind = type(callback)
    return any(hook in vars(callback) for hook in names) or any(
        getattr(kind, hook, None) is not getattr(base, hook, None)
        for base in kind.__mro__
        if base.__name__ == "Callback" and base.__module__.startswith(("keras.", "tf_keras."))
        for hook in names
    )


# Attributes of an optimizer. If one is set, summing duplicate rows first may change the update.
_LOOKS_AT_ROWS = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_transformers")


def sums_rows(optimizer: Any, modules: tuple[str, ...]) -> bool:
    """Whether an optimizer of Keras, from one of `modules`, makes the same update if duplicate rows
    are summed first. See optimizers._averages."""
    if any(getattr(optimizer, name, None) for name in _LOOKS_AT_ROWS):
        return False
    own = type(optimizer).__module__
    aggregates = getattr(getattr(optimizer, "gradient_aggregator", None), "__module__", own)
    return own.startswith(modules) and own.partition(".")[0] == aggregates.partition(".")[0]


def is_keras_layer(layer: Any) -> bool:
    """Whether the class of a layer is Keras's or TensorFlow's."""
    return type(layer).__module__.partition(".")[0] in ("keras", "tf_keras", "tensorflow")


def is_tf_keras(model: Any) -> bool:
    """Whether it belongs to tf_keras rather than Keras 3."""
    return any(kind.__module__.startswith("tf_keras.") for kind in type(model).__mro__)


def has_summed_states(metric: Any) -> bool:
    """Whether a metric's class is Keras's; tf.distribute, too, sums the states of these metrics."""
    return type(metric).__module__.startswith(("keras.src.metrics.", "tf_keras.src.metrics."))


def describe_code(code: types.CodeType, plain: Callable[[Any], str]) -> list[Any]:
    """The parts of a function's code that ranks compare."""
    constants = [
        describe_code(one, plain) if isinstance(one, types.CodeType) else plain(one)
        for one in code.co_consts
    ]
    return [code.co_code.hex(), constants, code.co_names]


def _mask_of(tensor: Any) -> Any:
    return hooking.used("keras.src.backend.common.masking:get_keras_mask")(tensor)


def _put_mask(tensor: Any, mask: Any) -> None:
    hooking.used("keras.src.backend.common.masking:set_keras_mask")(tensor, mask)


def _loss() -> Any:
    return hooking.used("keras.src.losses.loss:Loss")


KERAS = losses.Keras(_mask_of, _put_mask, _loss)
