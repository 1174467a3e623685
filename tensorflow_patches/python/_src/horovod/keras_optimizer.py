"""hvd.DistributedOptimizer for the optimizers of Keras 3 and tf_keras, current and legacy.

The new optimizer's class has the name of the original's, so that a model saved with it loads
without Horovod. The outermost update reduces every gradient that is not yet reduced: that of a
LossScaleOptimizer, if there is one around it, so that all ranks skip the same steps.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.horovod import gradients, tape
from tensorflow.mpi._src.horovod.aggregation import Aggregation
from tensorflow.mpi._src.horovod.collectives import Average, Sum
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set
from tensorflow.mpi._src.horovod.reductions import Compression
from tensorflow.mpi._src.runtime import threads
from tensorflow.mpi._src.variables import initial_broadcast

_inside = threading.local()  # .on: whether this thread is in an update, with reduced gradients


class CallableList(list[Any]):
    """Supports both opt.variables and opt.variables()."""

    def __call__(self) -> CallableList:
        return self


class Reducing:
    """Mixed in before the class of the original optimizer. Each such class has its own
    `_hvd_settings`."""

    _hvd_settings: dict[str, Any]

    @property
    def _hvd(self) -> gradients.Reducer:
        """Created at its first use: Keras's from_config creates the optimizer without it."""
        found = self.__dict__.get("_hvd_reducer")
        if found is None:
            settings = dict(self._hvd_settings)
            passes = settings.pop("backward_passes_per_step")
            average = settings.pop("average_aggregated_gradients")
            found = gradients.Reducer(**settings)
            helper = Aggregation(passes, found, average, of_graph=False) if passes > 1 else None
            self.__dict__["_hvd_reducer"] = found
            self.__dict__["_hvd_aggregation"] = helper
        return found

    @property
    def _agg_helper(self) -> Aggregation | None:
        _ = self._hvd  # creates the helper, too
        helper: Aggregation | None = self.__dict__["_hvd_aggregation"]
        return helper

    def register_local_var(self, var: Any) -> None:
        self._hvd.register_local(var)

    def _allreduce(self, grads: Any, variables: Any) -> list[Any]:
        grads, variables = list(grads), list(variables)
        if self._agg_helper is not None:
            if all(g is None or gradients.is_reduced(g) for g in grads):
                return grads
            return self._agg_helper.compute_gradients(grads, variables)
        return self._hvd.reduce(grads, variables)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """The reduced gradients, with their variables, of a loss or of a function returning one."""
        if callable(loss):
            with tf.GradientTape() as tape:
                flat = tf.nest.flatten(var_list() if callable(var_list) else var_list)
                tape.watch(flat)
                value = loss()
        else:
            flat = tf.nest.flatten(var_list)
            value = loss
        own = tape.gradient(value, flat, grad_loss)
        return list(zip(self._computed(own, flat), flat, strict=True))

    def _computed(self, grads: Any, variables: Any) -> list[Any]:
        """The reduced gradients, which tf_keras's LossScaleOptimizer unscales before its update."""
        self.__dict__["_hvd_has_computed"] = True
        return self._allreduce(grads, variables)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        return self._compute_gradients(loss, var_list, None, tape)

    def _count_step(self) -> Any:
        iterations = getattr(self, "iterations", None)
        return None if iterations is None else iterations.assign_add(1)

    def _hvd_apply(self, grads: Any, variables: Any, update: Any) -> Any:
        """Calls update(reduced gradients); with several passes per step, after the last of them."""
        helper = self._agg_helper
        reduced = self._allreduce(grads, variables)
        if helper is None:
            return update(reduced)
        return helper.apply_gradients(lambda: update(reduced), self._count_step, reduced)


class _OfKeras3(Reducing):
    @property
    def variables(self) -> CallableList:
        return CallableList(super().variables)  # type: ignore[misc]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        base: Any = super()
        return self._tf_mpi_update(self, base.apply, grads, trainable_variables)

    def _tf_mpi_update(
        self, outer: Any, apply: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        """Calls `apply`, the update of `outer`, with the reduced gradients. `outer`: this optimizer
        or the one around it (keras/optimizers.py)."""
        if getattr(_inside, "on", False):
            return apply(grads, trainable_variables)
        variables = trainable_variables
        if variables is None:
            variables = outer._trainable_variables
        elif not outer.built:
            with tf.init_scope():
                outer.build(list(variables))

        def update(reduced: Any) -> Any:
            with threads.inside(_inside, on=True):
                return apply(reduced, trainable_variables)

        return self._hvd_apply(grads, variables, update)

    def apply_gradients(self, grads_and_vars: Any, **_: Any) -> Any:
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, variables)
        return self.iterations  # type: ignore[attr-defined]


class _OfTfKeras(Reducing):
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        base: Any = super()
        return self._tf_mpi_update(self, base.apply_gradients, grads_and_vars, *args, **kwargs)

    def _tf_mpi_update(
        self, outer: Any, apply: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """As in _OfKeras3."""
        pairs = list(grads_and_vars)
        if getattr(_inside, "on", False):
            return apply(pairs, *args, **kwargs)
        grads, variables = zip(*pairs, strict=True)
        if self.__dict__.pop("_hvd_has_computed", False) and outer is not self:
            for gradient in grads:  # unscaling has lost the mark
                gradients.mark(gradient)
        if self._agg_helper is not None and hasattr(outer, "build"):
            with tf.init_scope():
                outer.build(list(variables))

        def update(reduced: Any) -> Any:
            with threads.inside(_inside, on=True):
                new = list(zip(reduced, variables, strict=True))
                return apply(new, *args, **kwargs)

        return self._hvd_apply(grads, variables, update)


class _OfLegacy(_OfTfKeras):
    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        own = super().get_gradients(loss, params)  # type: ignore[misc]
        return self._computed(own, params)


def _mixin_for(optimizer: Any) -> type[Reducing]:
    if hasattr(optimizer, "get_gradients"):
        return _OfLegacy
    return _OfKeras3 if hasattr(optimizer, "apply") else _OfTfKeras


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A new optimizer with the settings of `optimizer`, which reduces the gradients first.

    Raises ValueError, as Horovod does, for an op other than Average and Sum.
    """
    given = dict(locals())
    if op not in (Average, Sum):
        raise ValueError("op currently only supports Average and Sum")
    if backward_passes_per_step < 1:
        raise ValueError("backward_passes_per_step must be > 0")
    original = type(given.pop("optimizer"))
    given["name"] = name or f"Distributed{original.__name__}"
    attributes = {"_hvd_settings": given, "__module__": original.__module__}
    kind = type(original.__name__, (_mixin_for(optimizer), original), attributes)
    made = kind.from_config(optimizer.get_config())  # type: ignore[attr-defined]
    _ = made._hvd  # raises now if Horovod refuses the settings
    return made


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like DistributedOptimizer, but does not reduce the gradients of `local_layers`."""
    given = dict(locals())
    layers = given.pop("local_layers")
    made = DistributedOptimizer(**given)
    for variable in tape.variables_of(layers):
        made.register_local_var(variable)
    return made


def load_model(
    keras: Any,
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a saved model, and makes its optimizer, with its state, a DistributedOptimizer."""
    objects = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects or None)
    original = getattr(model, "optimizer", None)
    if original is None or isinstance(original, Reducing):
        return model
    made = DistributedOptimizer(original, compression=compression)
    if hasattr(made, "build"):
        made.build(model.trainable_variables)
        variables = map(initial_broadcast.optimizer_variables, (made, original))
        for new, old in zip(*variables, strict=True):
            new.assign(old)
    else:  # legacy: its weights include its slots
        made._create_all_weights(model.trainable_variables)
        made.set_weights(original.get_weights())
    model.optimizer = made
    return model
