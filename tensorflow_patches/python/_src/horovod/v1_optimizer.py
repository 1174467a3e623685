"""hvd.DistributedOptimizer for compat.v1's optimizers, and the hook for the initial broadcast."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.horovod import gradients, keras_optimizer, objects, reductions
from tensorflow.mpi._src.horovod.aggregation import Aggregation
from tensorflow.mpi._src.horovod.collectives import Adasum, Average
from tensorflow.mpi._src.horovod.process_sets import ProcessSet, global_process_set

v1 = tf.compat.v1


class BroadcastGlobalVariablesHook(v1.train.SessionRunHook):  # type: ignore[name-defined]
    """Broadcasts rank `root_rank`'s global variables after a Session is created."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not v1.get_default_graph():
            with reductions.on_device(self.device):
                self.bcast_op = objects.broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)


class _Wrapping(v1.train.Optimizer):  # type: ignore[name-defined]
    """Delegates everything except the gradients to `_optimizer`."""

    def __init__(self, optimizer: Any, use_locking: bool, reducer: gradients.Reducer) -> None:
        super().__init__(name=reducer.name, use_locking=use_locking)
        self._optimizer = optimizer
        self._hvd = reducer

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


class Distributed(_Wrapping):
    """Reduces the gradients that compute_gradients returns."""

    def __init__(
        self,
        optimizer: Any,
        use_locking: bool,
        reducer: gradients.Reducer,
        passes: int,
        average_aggregated: bool,
    ) -> None:
        super().__init__(optimizer, use_locking, reducer)
        self._agg_helper: Aggregation | None = None
        if passes > 1:
            if tf.executing_eagerly():
                raise ValueError(
                    "backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with "
                    "eager execution."
                )
            self._agg_helper = Aggregation(passes, reducer, average_aggregated, of_graph=True)

    def register_local_var(self, var: Any) -> None:
        self._hvd.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        own, variables = zip(*self._optimizer.compute_gradients(*args, **kwargs), strict=True)
        helper = self._agg_helper
        reduced = (self._hvd.reduce if helper is None else helper.compute_gradients)(own, variables)
        return list(zip(reduced, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        pairs = list(grads_and_vars)
        apply = super().apply_gradients
        if self._agg_helper is None:
            return apply(pairs, global_step=global_step, name=name)

        def count_step() -> Any:
            return None if global_step is None else global_step.assign_add(1).op

        return self._agg_helper.apply_gradients(
            lambda: apply(pairs, global_step=global_step, name=name),
            count_step,
            [gradient for gradient, _ in pairs],
        )


class DistributedAdasum(_Wrapping):
    """Every rank applies its own gradients; Adasum then combines the changes of the variables."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        pairs = list(grads_and_vars)
        trained = [variable for gradient, variable in pairs if gradient is not None]
        eager = tf.executing_eagerly()
        # A copy, because reading a reference variable returns the memory that the update changes.
        before = [tf.raw_ops.DeepCopy(x=variable) for variable in trained]
        with tf.control_dependencies([] if eager else before):
            updated = super().apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([] if eager else [updated]):
            deltas = [v.read_value() - start for v, start in zip(trained, before, strict=True)]
        done = []
        for variable, start, delta in zip(trained, before, deltas, strict=True):
            done.append(variable.assign(start + self._hvd.one(delta)))
        return None if eager else tf.group(*done)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = reductions.Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Like `optimizer`, of compat.v1 or Keras, but reduces the gradients first."""
    given = dict(locals())
    del given["use_locking"]
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if op == Adasum and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support process sets yet")
    if not isinstance(optimizer, v1.train.Optimizer):
        if op == Adasum:
            raise ValueError("op == Adasum is not supported yet with Keras")
        return keras_optimizer.DistributedOptimizer(**given)
    kind = type(given.pop("optimizer")).__name__
    passes = given.pop("backward_passes_per_step")
    average = given.pop("average_aggregated_gradients")
    if passes < 1:
        raise ValueError("backward_passes_per_step must be > 0")
    given["name"] = name or f"Distributed{'Delta' if op == Adasum else ''}{kind}"
    reducer = gradients.Reducer(**given)
    if op != Adasum:
        return Distributed(optimizer, use_locking, reducer, passes, average)
    if passes > 1:
        raise NotImplementedError(
            "tensorflow.mpi's hvd.DistributedOptimizer does not support op=Adasum with "
            "backward_passes_per_step > 1"
        )
    return DistributedAdasum(optimizer, use_locking, reducer)
