"""backward_passes_per_step: sums the gradients of several steps on each rank, then reduces them.

In the steps in between, the optimizer only counts the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.horovod import gradients
from tensorflow.mpi._src.horovod.process_sets import ProcessSet


class Aggregation:
    """One optimizer's sums. `counter`: the number of steps in them; 0 after a reduction."""

    def __init__(
        self, passes: int, reducer: gradients.Reducer, average: bool, of_graph: bool
    ) -> None:
        self.passes = passes
        self._reducer = reducer
        self._average = average
        self._of_graph = of_graph  # whether this is a v1 graph, whose Session initializes variables
        self._sums: dict[int, Any] = {}
        self.counter = self._variable("aggregation_counter", (), "int32")

    def _variable(self, name: str, shape: Any, dtype: Any) -> Any:
        if self._of_graph:
            return tf.compat.v1.get_variable(
                f"aggregation_variables_{self._reducer.name}/{name}",
                shape=shape,
                dtype=dtype,
                trainable=False,
                initializer=tf.compat.v1.zeros_initializer(),
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES, "aggregating_collection"],
            )
        with tf.init_scope():
            return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=name)

    def register_local_var(self, variable: Any) -> None:
        self._reducer.register_local(variable)

    def compute_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Adds `grads` to the sums. After the last of the passes, returns the reduced sums
        for the optimizer to apply; before that, values that it must not use. None stays None."""
        dense = [self._dense(gradient) for gradient in grads]
        present = [i for i, gradient in enumerate(dense) if gradient is not None]
        for i in present:
            if i not in self._sums:
                shape = variables[i].shape
                self._sums[i] = self._variable(str(i), shape, dense[i].dtype)
        added = [self._sums[i].assign_add(dense[i]) for i in present]
        with tf.control_dependencies(_ops(added)):
            counted = self.counter.assign_add(1)
        with tf.control_dependencies(_ops([counted])):
            is_last = tf.equal(self.counter.read_value(), self.passes)
            results = tf.cond(
                is_last,
                lambda: self._reduced([variables[i] for i in present], present),
                lambda: [self._sums[i].read_value() for i in present],
            )
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        out: list[Any] = [None] * len(dense)
        for i, result in zip(present, results, strict=True):
            gradients.mark(result)
            out[i] = result
        return out

    def _reduced(self, variables: list[Any], places: list[int]) -> list[Any]:
        sums = [tf.identity(self._sums[i].read_value()) for i in places]
        reduced = self._reducer.reduce(sums, variables)
        if self._average:
            reduced = [one / tf.cast(self.passes, one.dtype) for one in reduced]
        with tf.control_dependencies(_ops(reduced)):
            cleared = [self._sums[i].assign(tf.zeros_like(self._sums[i])) for i in places]
            cleared.append(self.counter.assign(0))
        with tf.control_dependencies(_ops(cleared)):
            return [tf.identity(one) for one in reduced]

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self._reducer.sparse_as_dense:
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and "
                "`sparse_as_dense` is False."
            )
        return tf.convert_to_tensor(gradient)

    def apply_gradients(
        self, apply: Callable[[], Any], count_step: Callable[[], Any], after: Sequence[Any]
    ) -> Any:
        """Calls `apply` after the last of the passes, otherwise `count_step`. `after`: the
        gradients that compute_gradients returned."""

        # The branches of tf.cond must return the same kind of value.
        def with_token(function: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                done = function()
                with tf.control_dependencies(_ops([done])):
                    return tf.constant(0)

            return run

        with tf.control_dependencies(_ops([one for one in after if one is not None])):
            return tf.cond(
                tf.equal(self.counter.read_value(), 0), with_token(apply), with_token(count_step)
            )


@dataclasses.dataclass(eq=False, kw_only=True)
class _ByFunction(gradients.Reducer):
    """Reduces by the script's own function of gradients and variables, even with one rank."""

    function: Callable[[list[Any], list[Any]], Sequence[Any]]

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        return list(self.function(gradients, variables))


class Helper:
    """The base of Horovod's two LocalGradientAggregationHelper classes, which scripts use in
    optimizers of their own. `allreduce` is called with the sums and their variables."""

    def __init__(
        self,
        passes: int,
        allreduce: Callable[[list[Any], list[Any]], Sequence[Any]],
        sparse_as_dense: bool,
        average: bool,
        process_set: ProcessSet,
        scale_local_gradients: bool,
        name: str,
        of_graph: bool,
    ) -> None:
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        reducer = _ByFunction(
            name=name,
            function=allreduce,
            sparse_as_dense=sparse_as_dense,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
        self._aggregation = Aggregation(passes, reducer, average, of_graph)
        self.backward_passes_per_step = passes
        self.counter = self._aggregation.counter
        self.register_local_var = self._aggregation.register_local_var

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Adds `grads`; after the last of the passes, returns the reduced sums."""
        return self._aggregation.compute_gradients(grads, vars)

    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], Any],
        optimizer: Any,
        grads_and_vars: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls the closure after the last of the passes; before that, only counts the step in
        `optimizer.iterations` and `global_step`, if they exist."""
        counted = (getattr(optimizer, "iterations", None), kwargs.get("global_step"))

        def count_step() -> list[Any]:
            return [step.assign_add(1) for step in counted if step is not None]

        after = [gradient for gradient, _ in grads_and_vars]
        return self._aggregation.apply_gradients(apply_grads_closure, count_step, after)


def _ops(values: Sequence[Any]) -> list[Any]:
    """The values as control dependencies; in eager code, none."""
    if tf.executing_eagerly():
        return []
    return [value for value in tf.nest.flatten(values) if value is not None]
