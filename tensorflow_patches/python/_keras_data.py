"""Keras 3 on ranks: each trains, evaluates and predicts on its part of the data (_feeds.py).

Every kind of input that Keras 3 takes becomes a tf.data.Dataset in TFEpochIterator; there it is
split. The steps that Keras makes from train_step and test_step are wrapped where it makes them.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from tensorflow.mpi import _bootstrap, _feeds, _hooks, _imports, _seeds, _share

_PYTHON_DATASETS = "keras.src.trainers.data_adapters.py_dataset_adapter"


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if _hooks.size > 1:
        _imports.when_imported("keras.src.backend.tensorflow.trainer", _hook_trainer)
        _imports.when_imported(_PYTHON_DATASETS, _hook_python_datasets)


def _hook_python_datasets(module: ModuleType) -> None:
    if _feeds.sharded():
        module.random = _seeds.Random()  # type: ignore[attr-defined]


def _hook_trainer(module: ModuleType) -> None:
    _hook_epoch_iterator(module.TFEpochIterator)
    _hook_steps(module.TensorFlowTrainer)


def _hook_epoch_iterator(iterator: Any) -> None:
    original = iterator.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _feeds.sharded():
            original(self, *args, **kwargs)
            return
        with _seeds.adapter():
            original(self, *args, **kwargs)
        _share_out(self)

    iterator.__init__ = init


def _share_out(iterator: Any) -> None:
    """Replaces the dataset of a new TFEpochIterator by this rank's part of it."""
    import tensorflow as tf

    dataset, adapter = iterator._distributed_dataset, iterator.data_adapter
    if not isinstance(dataset, tf.data.Dataset):
        return  # split by a tf.distribute.Strategy already
    what = type(adapter).__name__.replace("Adapter", "")
    iterator._distributed_dataset = _feeds.share_out(
        dataset, what, iterator.num_batches, _array_sizes(adapter)
    )


def _array_sizes(adapter: Any) -> set[int] | None:
    """The numbers of samples that batches of arrays have; None for other inputs."""
    if type(adapter).__name__ != "ArrayDataAdapter":
        return None
    partial = adapter.partial_batch_size
    full = {adapter.batch_size} if adapter.num_batches > bool(partial) else set()
    return full | ({partial} if partial else set())


def _hook_steps(trainer: Any) -> None:
    make, build = trainer._make_function, trainer._maybe_symbolic_build

    @functools.wraps(make)
    def make_function(self: Any, step_function: Any, *args: Any, **kwargs: Any) -> Any:
        return make(self, _feeds.step_on_share(self, step_function), *args, **kwargs)

    @functools.wraps(build)
    def maybe_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is not None:  # fit or evaluate has just made it
            _feeds.wrap_steps(self)
            _build_states(self, iterator)
        return build(self, iterator=iterator, data_batch=data_batch)

    trainer._make_function = make_function
    trainer._maybe_symbolic_build = maybe_build


def _build_states(model: Any, iterator: Any) -> None:
    """Makes variables before the first step, where Keras would make them inside it.

    A traced step that may have to leave the metrics as they are must know their values before; an
    eager one would compute its first gradient from weights that are not in step yet.
    """
    import tensorflow as tf

    share = getattr(iterator._distributed_dataset, "element_spec", None)
    if share is None or not (model.run_eagerly or isinstance(share, _share.MaybeShare)):
        return
    data = share.data if _share.is_share(share) else share
    present = tf.nest.map_structure(
        lambda spec: None if isinstance(spec, tf.OptionalSpec) else spec, data
    )
    try:
        model._symbolic_build(data_batch=present)
    except Exception as error:  # a model that only real tensors can build: its first step does
        _bootstrap.debug(f"model '{model.name}' is built by its first step: {error}")
