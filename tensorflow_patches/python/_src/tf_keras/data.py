"""tf_keras on ranks: each trains, evaluates and predicts on its part of the data (data/feeds.py).

DataHandler turns every kind of input into a tf.data.Dataset, which is divided there.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.data import batch_shard, dataset_shard, feeds, python_batches, seeds
from tensorflow.mpi._src.global_batch import plan, python_state
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.keras import data as keras_data
from tensorflow.mpi._src.runtime import group, log


def on_part(construct: Any) -> Any:
    """Wraps DataHandler.__init__."""
    arrays = (  # the adapters that use the script's batch size
        hooking.used("tf_keras.src.engine.data_adapter:TensorLikeDataAdapter"),
        hooking.used("tf_keras.src.engine.data_adapter:CompositeTensorDataAdapter"),
        hooking.used("tf_keras.src.engine.data_adapter:ListsOfScalarsDataAdapter"),
    )
    select = hooking.used("tf_keras.src.engine.data_adapter:select_data_adapter")

    def init(self: Any, x: Any, y: Any = None, **kwargs: Any) -> None:
        if kwargs.get("distribute", True) and issubclass(select(x, y), arrays):
            kwargs["batch_size"], kwargs["steps_per_epoch"] = feeds.global_sizes(
                kwargs.get("batch_size"), kwargs.get("steps_per_epoch")
            )
        with seeds.adapter(feeds.takes_parts()):
            construct(self, x, y, **kwargs)

    return init


def watching(construct: Any) -> Any:
    """Wraps KerasSequenceAdapter.__init__, which reads a batch to find its structure: watches what
    making that batch changes, and gives the adapter its python_batches.Batches."""

    def init(self: Any, x: Any, *args: Any, **kwargs: Any) -> None:
        if not feeds.takes_parts():
            construct(self, x, *args, **kwargs)
            return
        watched = python_batches.Watched(x)
        self._peek_and_restore = lambda x: (watched[0], x)
        try:
            construct(self, x, *args, **kwargs)
        finally:
            del self._peek_and_restore
        self._tf_mpi_python_batches = python_batches.Batches(
            x,
            watched,
            self._standardize_batch,
            lambda: len(x),
            order=functools.partial(_order, self._shuffle_sequence),
            workers=kwargs.get("workers", 1),
            processes=kwargs.get("use_multiprocessing", False),
            ahead=kwargs.get("max_queue_size", 10),
            pool=hooking.used("tf_keras.src.engine.data_adapter:data_utils.get_pool_class"),
        )

    return init


def _order(shuffles: bool, length: int) -> list[int]:
    order = list(range(length))
    if shuffles:
        random.shuffle(order)
    return order


def configured(configure: Any) -> Any:
    """Wraps DataHandler._configure_dataset_and_inferred_steps."""

    def configure_part(
        self: Any, strategy: Any, x: Any, steps_per_epoch: Any, class_weight: Any, distribute: Any
    ) -> None:
        configure(self, strategy, x, steps_per_epoch, class_weight, distribute)
        if distribute:  # otherwise a preprocessing layer reads all data
            _take_shard(self, steps_per_epoch)

    return configure_part


def inferred(infer: Any) -> Any:
    """Wraps DataHandler._infer_steps: a part may have a different number of batches."""

    def infer_part(self: Any, steps: Any, dataset: Any) -> Any:
        steps_of_part = vars(self).get("_tf_mpi_steps")
        return infer(self, steps, dataset) if steps_of_part is None else steps_of_part

    return infer_part


def _take_shard(handler: Any, steps_per_epoch: int | None) -> None:
    """Replaces the dataset of a new DataHandler by this rank's part of it."""
    generator = hooking.used("tf_keras.src.engine.data_adapter:GeneratorDataAdapter")
    dataset, adapter = handler._dataset, handler._adapter
    if not isinstance(dataset, tf.data.Dataset):
        return  # divided by a tf.distribute.Strategy already
    sizes = _array_sizes(adapter)
    feed = feeds.shard_of(
        feeds.Given(
            dataset,
            type(adapter).__name__.replace("Adapter", ""),
            _num_batches(adapter, dataset),
            sizes,
            once=type(adapter) is generator,  # not for a Sequence
            all_epochs=sizes is not None and not adapter.should_recreate_iterator(),
            step=_step(dataset.element_spec),
            python_batches=getattr(adapter, "_tf_mpi_python_batches", None),
        )
    )
    handler._dataset = dataset_shard.without_sharding(feed.dataset)
    if feed.in_turn and steps_per_epoch not in (None, -1):
        handler._tf_mpi_steps = math.ceil(steps_per_epoch / group.size)
    elif steps_per_epoch is None:
        handler._tf_mpi_steps = feed.num_batches
    handler._inferred_steps = handler._infer_steps(steps_per_epoch, feed.dataset)
    if handler._model is not None:
        feeds.wrap_steps(handler._model)
        _build_states(handler._model, feed.dataset.element_spec)
    calls.note_data(feed.dataset.element_spec)


def _step(spec: Any) -> plan.Step | None:
    """The step for batches of `spec`. First creates the model's variables, except for predict;
    those of metrics follow in _take_shard."""
    call = calls.innermost()
    if call is None or group.size == 1:
        return None
    model, kind = call.model, calls.used_by(call)
    if kind != "predict":
        _build_states(model, spec)
    return plan.Step(
        model,
        kind,
        getattr(model, plan.STEPS[kind]),
        fresh=keras_data.is_fresh(model, kind),
        eagerly=bool(model.run_eagerly),
        compiled=bool(model._jit_compile) and not model.run_eagerly,
        converted=True,
        own_loop=keras_data.has_own_loop(
            model, kind, hooking.used("tf_keras.src.engine.training:Model")
        ),
    )


def _num_batches(adapter: Any, dataset: Any) -> int | None:
    size = adapter.get_size()
    number = int(dataset.cardinality()) if size is None else int(size)
    return None if number < 0 else number


def _array_sizes(adapter: Any) -> set[int] | None:
    """The possible numbers of samples of a batch of arrays; None for other inputs."""
    full, partial, batches = adapter.batch_size(), adapter.partial_batch_size(), adapter.get_size()
    if full is None or batches is None:
        return None
    sizes = {int(full)} if batches > bool(partial) else set()
    return sizes | ({int(partial)} if partial else set())


def _build_states(model: Any, spec: Any) -> None:
    """Creates the variables that tf_keras would create while it traces the first step; those of
    metrics only if `spec`, of the batches or the shards, is of MaybeShards.

    Otherwise each rank would use its own values in a model that evaluate or predict builds, and a
    step that restores the metrics afterwards could not save their values before.
    """
    data = batch_shard.data_of(spec)
    call = calls.innermost()
    if not model.built and call is not None and call.kind != "fit":
        _try(model, lambda given: model(_inputs(given), training=False), data)
    metrics = getattr(model, "compiled_metrics", None)
    if not isinstance(spec, batch_shard.MaybeShard) or metrics is None or call is None:
        return
    loss, builds_loss = model.compiled_loss, _builds_loss(model, call)
    loss_built = loss.built
    if model.built and getattr(metrics, "built", True) and (loss_built or not builds_loss):
        return
    _try(model, model.test_step, data)
    if not builds_loss:
        loss._built = loss_built


def _builds_loss(model: Any, call: Any) -> bool:
    """Whether the step builds the metric "loss". A step of the script's own, in a model compiled
    without a loss, does not; if the metric existed, its 0 would replace the loss that the step
    returns."""
    name = plan.STEPS[calls.used_by(call)]
    stock = getattr(hooking.used("tf_keras.src.engine.training:Model"), name)
    return model.compiled_loss._user_losses is not None or getattr(type(model), name) is stock


def _inputs(given: Any) -> Any:
    return given[0] if isinstance(given, tuple) else given


def _try(model: Any, step: Any, data: Any) -> None:
    """Traces `step` on `data`, a spec, which creates variables."""
    try:
        with python_state.only_traced(model):
            tf.function(step).get_concrete_function(data)
    except Exception as error:  # only real tensors can build this model: the first step will
        log.debug(f"model '{model.name}' is built by its first step: {error}")
