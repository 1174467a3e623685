"""Keras 3 on ranks: each trains, evaluates and predicts on its part of the data (data/feeds.py).

TFEpochIterator turns every kind of input into a tf.data.Dataset, which is divided there.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.data import batch_shard, dataset_shard, feeds, python_batches, seeds
from tensorflow.mpi._src.global_batch import plan, python_state
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import group, log


def on_part(original: Any) -> Any:
    """Wraps TFEpochIterator.__init__: it iterates over this rank's part of the data."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if _is_arrays(**kwargs):
            kwargs["batch_size"], kwargs["steps_per_epoch"] = feeds.global_sizes(
                kwargs.get("batch_size"), kwargs.get("steps_per_epoch")
            )
        with seeds.adapter(feeds.takes_parts()):
            original(self, *args, **kwargs)
        _take_shard(self)

    return init


def _is_arrays(x: Any = None, y: Any = None, sample_weight: Any = None, **_: Any) -> bool:
    can_convert = hooking.used(
        "keras.src.trainers.data_adapters.array_data_adapter:can_convert_arrays"
    )
    return bool(can_convert((x, y, sample_weight)))


def _step(spec: Any) -> plan.Step | None:
    """The step for batches of `spec`; first creates the model's variables."""
    call = calls.innermost()
    if call is None or group.size == 1:
        return None
    model, kind = call.model, calls.used_by(call)
    _build_states(model, spec)
    return plan.Step(
        model,
        kind,
        getattr(model, plan.STEPS[kind]),
        fresh=is_fresh(model, kind),
        eagerly=bool(model.run_eagerly),
        compiled=bool(model.jit_compile) and not model.run_eagerly,
        converted=False,
        own_loop=has_own_loop(
            model,
            kind,
            hooking.used("keras.src.backend.tensorflow.trainer:TensorFlowTrainer|Trainer"),
        ),
    )


def is_fresh(model: Any, kind: str) -> bool:
    """Whether Keras has no function yet that runs the steps of a `kind` of call, such as "fit"."""
    return getattr(model, plan.STEPS[kind].replace("_step", "_function")) is None


def has_own_loop(model: Any, kind: str, base: Any) -> bool:
    """Whether the script, and not the class `base`, makes the function that iterates batches."""
    makers = ("make_train_function", "make_test_function") if kind != "predict" else ()
    return any(getattr(type(model), name) is not getattr(base, name) for name in makers)


class _Adapter:
    """A data adapter with another number of batches."""

    def __init__(self, adapter: Any, num_batches: int | None) -> None:
        self._adapter = adapter
        self.num_batches = num_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def _take_shard(iterator: Any) -> None:
    """Replaces the dataset of a new TFEpochIterator with this rank's part of it."""
    generator = hooking.used(
        "keras.src.trainers.data_adapters.generator_data_adapter:GeneratorDataAdapter"
    )
    dataset, adapter = iterator._distributed_dataset, iterator.data_adapter
    if not isinstance(dataset, tf.data.Dataset):
        return  # distributed by a strategy whose __init__ strategies.py has not replaced
    num_batches, batches = adapter.num_batches, _python_batches(adapter)
    feed = feeds.shard_of(
        feeds.Given(
            dataset,
            type(adapter).__name__.replace("Adapter", ""),
            num_batches,
            _array_sizes(adapter),
            once=isinstance(adapter, generator),
            step=_step(dataset.element_spec),
            python_batches=batches,
        )
    )
    if batches is not None and batches.shared:
        adapter.enqueuer = None  # its workers would make all batches
    iterator._distributed_dataset = dataset_shard.without_sharding(feed.dataset)
    if feed.num_batches != num_batches:
        iterator.data_adapter = _Adapter(adapter, feed.num_batches)
        iterator._num_batches = feed.num_batches
    calls.note_data(feed.dataset.element_spec)
    if feed.in_turn and iterator.steps_per_epoch:
        iterator.steps_per_epoch = math.ceil(iterator.steps_per_epoch / group.size)


def watching(get: Any) -> Any:
    """Wraps PyDatasetAdapter.get_tf_dataset, which reads batches to find their structure."""

    def get_tf_dataset(self: Any) -> Any:
        if not feeds.takes_parts():
            return get(self)
        dataset = self.py_dataset
        self.py_dataset = self._tf_mpi_watched = python_batches.Watched(dataset)
        try:
            return get(self)
        finally:
            self.py_dataset = dataset

    return get_tf_dataset


def _python_batches(adapter: Any) -> python_batches.Batches | None:
    """Makes a PyDataset's batches in place of Keras's workers; None for other data."""
    watched = getattr(adapter, "_tf_mpi_watched", None)
    if watched is None:
        return None
    dataset = adapter.py_dataset
    return python_batches.Batches(
        dataset,
        watched,
        adapter._standardize_batch,
        lambda: dataset.num_batches,
        order=functools.partial(_order, adapter),
        workers=dataset.workers,
        processes=dataset.use_multiprocessing,
        ahead=dataset.max_queue_size,
        pool=hooking.used("keras.src.trainers.data_adapters.py_dataset_adapter:get_pool_class"),
    )


class _Numbers:
    """A PyDataset in which batch i is the number i."""

    def __init__(self, length: int) -> None:
        self.num_batches = length

    def __getitem__(self, number: int) -> int:
        return number


def _order(adapter: Any, length: int) -> list[int]:
    """The order of the next epoch, from the generator that Keras would read.

    It shuffles by Python's random, and since Keras 3.16 by the number of the epoch.
    """
    numbers = copy.copy(adapter)
    numbers.py_dataset = _Numbers(length)
    numbers._standardize_batch = lambda batch: batch
    return list(numbers._finite_generator())


def _array_sizes(adapter: Any) -> set[int] | None:
    """The possible numbers of samples of a batch of arrays; None for other inputs."""
    arrays = hooking.used("keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter")
    if not isinstance(adapter, arrays):
        return None
    partial = adapter.partial_batch_size
    full = {adapter.batch_size} if adapter.num_batches > bool(partial) else set()
    return full | ({partial} if partial else set())


def made_on_part(make: Any) -> Any:
    """Wraps the trainer's _make_function, which makes train and test functions."""

    def make_function(self: Any, step_function: Any, *args: Any, **kwargs: Any) -> Any:
        kind = "test_step" if step_function == self.test_step else "train_step"
        # feeds.wrap_steps has wrapped the method, too; inside this wrapper, its own does nothing.
        return make(self, feeds.step_on_shard(self, kind, step_function), *args, **kwargs)

    return make_function


def built_on_part(build: Any) -> Any:
    """Wraps the trainer's _maybe_symbolic_build: builds for this rank's part of a batch."""

    def maybe_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is not None:
            feeds.wrap_steps(self)  # fit or evaluate has just created the iterator
            _build_states(self, getattr(iterator._distributed_dataset, "element_spec", None))
        if iterator is None or self._distribute_strategy is None:
            return build(self, iterator=iterator, data_batch=data_batch)
        # Keras would build the model from the first batch, which is a shard here. The batch is read
        # anyway, because in one process that advances a shuffle to its next order.
        for _, _, batches in iterator:
            next(batches, None)
            break
        return None

    return maybe_build


def built_before_predict(make: Any) -> Any:
    """Wraps make_predict_function: first creates the model's variables."""

    def make_predict_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.innermost()
        if call is not None and call.kind == "predict" and call.model is self:
            _build_states(self, call.spec)
            feeds.wrap_steps(self)
        return make(self, *args, **kwargs)

    return make_predict_function


def _build_states(model: Any, spec: Any) -> None:
    """Creates the variables that Keras would create in the first step, for batches of `spec`.

    Otherwise ranks would evaluate and predict with their own values, a traced step that must leave
    metrics unchanged would not know their values, and an eager step would compute its first
    gradient from weights that are not synchronized yet.
    """
    from tensorflow.python.data.util import structure

    if spec is None:
        return
    needed = model.run_eagerly or isinstance(spec, batch_shard.MaybeShard)
    if model.built and not needed and model._distribute_strategy is None:
        return
    data = batch_shard.data_of(spec)
    absent = (tf.OptionalSpec, structure.NoneTensorSpec)
    present = tf.nest.map_structure(lambda leaf: None if isinstance(leaf, absent) else leaf, data)
    try:
        strategy = model._distribute_strategy
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            with python_state.only_traced(model), _without_optimizer(model):
                model._symbolic_build(data_batch=present)
    except Exception as error:  # only real tensors can build this model, so its first step does
        log.debug(f"model '{model.name}' is built by its first step: {error}")


@contextlib.contextmanager
def _without_optimizer(model: Any) -> Iterator[None]:
    """Inside, _symbolic_build does not build the optimizer. The first step does, which may have
    created variables that call() does not reach."""
    attributes = vars(model)
    optimizer = attributes.get("optimizer")
    attributes["optimizer"] = None
    try:
        yield
    finally:
        attributes["optimizer"] = optimizer
