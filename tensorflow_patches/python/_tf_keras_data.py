"""tf_keras on ranks: each trains, evaluates and predicts on its part of the data (_feeds.py).

Every kind of input that tf_keras takes becomes a tf.data.Dataset in DataHandler; there it is split.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tensorflow.mpi import _bootstrap, _feeds, _hooks, _imports, _seeds, _share


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if _hooks.size > 1:
        _imports.when_imported("tf_keras.src.engine.data_adapter", _hook_data_adapter)
        _imports.when_imported("tf_keras.src.utils.data_utils", _hook_python_datasets)


def _hook_python_datasets(module: ModuleType) -> None:
    if _feeds.sharded():
        module.random = _seeds.Random()  # type: ignore[attr-defined]


def _hook_data_adapter(module: ModuleType) -> None:
    _hook_python_datasets(module)
    handler = module.DataHandler
    construct, configure = handler.__init__, handler._configure_dataset_and_inferred_steps

    @functools.wraps(construct)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _feeds.sharded():
            construct(self, *args, **kwargs)
            return
        with _seeds.adapter():
            construct(self, *args, **kwargs)

    @functools.wraps(configure)
    def configured(
        self: Any, strategy: Any, x: Any, steps_per_epoch: Any, class_weight: Any, distribute: Any
    ) -> None:
        configure(self, strategy, x, steps_per_epoch, class_weight, distribute)
        if distribute and _feeds.sharded():  # else a preprocessing layer looks at all data
            _share_out(self)

    handler.__init__ = init
    handler._configure_dataset_and_inferred_steps = configured


def _share_out(handler: Any) -> None:
    """Replaces the dataset of a new DataHandler by this rank's part of it."""
    import tensorflow as tf

    if not isinstance(handler._dataset, tf.data.Dataset):
        return  # split by a tf.distribute.Strategy already
    what = type(handler._adapter).__name__.replace("Adapter", "")
    handler._dataset = _feeds.share_out(
        handler._dataset, what, handler.inferred_steps, _array_sizes(handler._adapter)
    )
    if handler._model is not None:
        _feeds.wrap_steps(handler._model)
        _build_states(handler._model, handler._dataset.element_spec)


def _array_sizes(adapter: Any) -> set[int] | None:
    """The numbers of samples that batches of arrays have; None for other inputs."""
    full, partial, batches = adapter.batch_size(), adapter.partial_batch_size(), adapter.get_size()
    if full is None or batches is None:
        return None
    sizes = {int(full)} if batches > bool(partial) else set()
    return sizes | ({int(partial)} if partial else set())


def _build_states(model: Any, share: Any) -> None:
    """Makes the metrics' variables before the first step, if it may have to leave them as they are.

    Else tf_keras would make them while it traces that step, which could not know their values.
    """
    import tensorflow as tf

    metrics = getattr(model, "compiled_metrics", None)
    if not isinstance(share, _share.MaybeShare) or metrics is None:
        return
    if model.built and getattr(metrics, "built", True) and model.compiled_loss.built:
        return
    try:
        tf.function(model.test_step).get_concrete_function(share.data)
    except Exception as error:  # a model that only real tensors can build: its first step does
        _bootstrap.debug(f"model '{model.name}' is built by its first step: {error}")
