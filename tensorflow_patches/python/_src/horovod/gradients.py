"""The reduction of a step's gradients: what tapes and optimizers share.

An average, or a sum, is the runtime's own average of many gradients (average/averaging.py): few
operations, in compiled steps, too. All else is an allreduce per gradient. What was reduced once is
marked, so that an optimizer which is handed a tape's gradients does not reduce them again.
"""

from __future__ import annotations

import warnings
import weakref
import zlib
from collections.abc import Sequence
from typing import Any

from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.horovod import process_sets, reductions
from tensorflow.mpi._src.horovod.collectives import Adasum, Average, Sum
from tensorflow.mpi._src.horovod.process_sets import ProcessSet
from tensorflow.mpi._src.runtime import group

_MARK = "_tf_mpi_reduced"
_labels: dict[str, list[weakref.ref[Any]]] = {}


class Reducer:
    """How the gradients of one tape or optimizer are reduced.

    Args:
      name: of what has them, in messages.
      lives_on: it reduces every step of an optimizer; a tape's reduces once.

    Horovod's groups, of gradients that are to travel together, have no effect: fusion decides that.
    """

    def __init__(
        self,
        name: str,
        *,
        device_dense: str,
        device_sparse: str,
        compression: Any,
        sparse_as_dense: bool,
        op: int,
        gradient_predivide_factor: float,
        process_set: ProcessSet,
        scale_local_gradients: bool = True,
        lives_on: bool = True,
    ) -> None:
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        self.name = name
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.op = op
        self.process_set = process_set
        self._devices = {"device_dense": device_dense, "device_sparse": device_sparse}
        self._predivide = float(gradient_predivide_factor)
        self._scale_local = scale_local_gradients
        self._local: set[Any] = set()
        self._lives_on = lives_on

    def register_local(self, variable: Any) -> None:
        """The gradients of `variable` are this rank's own."""
        self._local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return key_of(variable) in self._local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """By rank of process_set, of what is not local; what was reduced before stays as it is.

        None stays None. Local gradients are divided by the number of ranks, as Horovod has it.
        """
        import tensorflow as tf

        size = len(process_sets.members(self.process_set))
        out: list[Any] = list(gradients)
        new = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None or is_reduced(gradient):
                continue
            if self.is_local(variable):
                if self._scale_local:
                    out[i] = _divided(gradient, size)
                mark(out[i])
            else:
                new.append(i)
        if self.sparse_as_dense:
            for i in new:
                if isinstance(out[i], tf.IndexedSlices):
                    out[i] = tf.convert_to_tensor(out[i])
        if size > 1 and self.process_set.included():
            reduced = self._reduced([out[i] for i in new], [variables[i] for i in new])
            for i, gradient in zip(new, reduced, strict=True):
                out[i] = gradient
        for i in new:
            mark(out[i])
        return out

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        everyone = len(process_sets.members(self.process_set)) == group.group_size
        if self.op in (Average, Sum) and everyone:
            return self._averaged(gradients, variables)
        return [self._one(gradient) for gradient in gradients]

    def _averaged(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        import tensorflow as tf

        # Not by the variables' names, in which one rank may have counted a layer more.
        names = [f"gradient {number}" for number in range(len(gradients))]
        label = self._label(gradients, variables)
        contexts: list[Any] = [None] * len(gradients)
        for i, gradient in enumerate(gradients):
            if not isinstance(gradient, tf.IndexedSlices):
                gradient = gradient if self._predivide == 1 else gradient / self._predivide
                gradients[i], contexts[i] = self.compression.compress(gradient)
        with scope.for_the_script(), scope.weighted(None):
            averages = averaging.average_all(gradients, names, label, every_row=True)
        for i, average in enumerate(averages):
            factor = float(group.group_size) if self.op == Sum else self._predivide
            if isinstance(average, tf.IndexedSlices):
                if self.op == Sum:
                    average = _divided(average, 1 / factor)
            else:
                average = self.compression.decompress(average, contexts[i])
                if factor != 1:
                    average = average * tf.cast(factor, average.dtype)
            averages[i] = average
        return averages

    def _label(self, gradients: Sequence[Any], variables: Sequence[Any]) -> str:
        """Under which the ranks meet; the second and further optimizer with one name and such
        variables gets its number, in the order in which the program first reduces."""
        kinds = [f"{g.dtype.name} {v.shape}" for g, v in zip(gradients, variables, strict=True)]
        key = f"hvd {self.name} {zlib.crc32('; '.join(kinds).encode()):08x}"
        if not self._lives_on:
            return key
        users = _labels.setdefault(key, [])
        number = next((n for n, user in enumerate(users) if user() is self), len(users))
        if number == len(users):
            users.append(weakref.ref(self))
        return key if number == 0 else f"{key} {number + 1}"

    def _one(self, gradient: Any) -> Any:
        import tensorflow as tf

        dense = not isinstance(gradient, tf.IndexedSlices)
        scaled = dense and self.op == Average and self._predivide != 1
        return reductions.allreduce(
            gradient,
            compression=self.compression,
            op=self.op,
            prescale_factor=1 / self._predivide if scaled else 1.0,
            postscale_factor=self._predivide if scaled else 1.0,
            process_set=self.process_set,
            **self._devices,
        )


def check_groups(num_groups: int, groups: Any) -> None:
    """Raises ValueError where Horovod does."""
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    if groups is not None and not (isinstance(groups, list) or groups > 0):
        raise ValueError(
            "groups should be a non-negative integer or a list of list of tf.Variable."
        )


def check_adasum(op: int, process_set: ProcessSet, average_aggregated_gradients: bool) -> None:
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("Adasum does not support average_aggregated_gradients == True")
    if op == Adasum and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support process sets yet")


def key_of(variable: Any) -> Any:
    """What tells variables apart; Keras 3's are known by the tf.Variable in them."""
    inner = getattr(variable, "_value", variable)
    return inner.ref() if hasattr(inner, "ref") else id(variable)


def mark(gradient: Any) -> None:
    """It has been reduced."""
    import tensorflow as tf

    if gradient is None:
        return
    setattr(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient, _MARK, True)


def is_reduced(gradient: Any) -> bool:
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    return bool(getattr(gradient, _MARK, False))


def _divided(gradient: Any, by: float) -> Any:
    import tensorflow as tf

    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(by, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(by, gradient.dtype)
