"""Horovod's elastic state, which a script commits and restores, with a fixed number of ranks.

Losing a rank ends the job (docs/reliability.md), so hvd.elastic.run() runs its function once, after
it has broadcast rank 0's state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.horovod import basics, objects
from tensorflow.mpi._src.variables import initial_broadcast


class State:
    """State that a script saves in memory and synchronizes between ranks."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Horovod calls these when ranks join or leave, which does not happen here."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: the hosts do not change."""

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Horovod calls this before sync() when ranks have joined or left."""


class ObjectState(State):
    """Python objects, each as an attribute."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self._saved_state = kwargs
        self._set_attrs()

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = objects.broadcast_object(self._saved_state)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class _VariablesState(ObjectState):
    """Variables and Python objects."""

    def __init__(self, **kwargs: Any) -> None:
        self._eager = tf.executing_eagerly()
        super().__init__(**kwargs)
        self._copy_values()

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def _session(self) -> Any:
        """In graph mode, the session that holds the values: compat.v1 Keras's."""
        return tf.compat.v1.keras.backend.get_session()

    def _broadcast(self) -> Any:
        return objects.broadcast_variables(self._variables(), 0)

    def _copy_values(self) -> None:
        variables = self._variables()
        if self._eager:
            self._values = [tf.identity(variable) for variable in variables]
        else:
            self._values = self._session().run(variables)

    def save(self) -> None:
        self._copy_values()
        super().save()

    def restore(self) -> None:
        # strict=False: an optimizer may have created variables since.
        for variable, value in zip(self._variables(), self._values, strict=False):
            if self._eager:
                variable.assign(value)
            else:
                variable.load(value, self._session())
        super().restore()

    def sync(self) -> None:
        done = self._broadcast()
        if not self._eager:
            self._session().run(done)
        self._copy_values()
        super().sync()


class TensorFlowState(_VariablesState):
    """tf.Variables and Python objects."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = list(variables or tf.compat.v1.global_variables())
        self.session = session
        if not tf.executing_eagerly():
            self.session = session or tf.compat.v1.get_default_session()
            self._synced = objects.broadcast_variables(self.variables, 0)  # in the graph, once
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return list(self.variables)

    def _session(self) -> Any:
        return self.session

    def _broadcast(self) -> Any:
        return super()._broadcast() if self._eager else self._synced


class TensorFlowKerasState(_VariablesState):
    """A model, its optimizer, and Python objects."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        self.model = model
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        self.optimizer = optimizer or model.optimizer
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        own = initial_broadcast.optimizer_variables(self.optimizer)
        return list(self.model.variables) + own


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `func` to call state.sync() first."""

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        basics.state()
        state.sync()
        return func(state, *args, **kwargs)

    return wrapper
