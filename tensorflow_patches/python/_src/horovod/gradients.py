"""The reduction of a step's gradients, for tapes and optimizers.

Averages and sums use the runtime's average of many gradients (average/averaging.py), which works in
compiled steps, too. Other reductions are one allreduce per gradient. Reduced gradients are marked,
so that an optimizer does not reduce a tape's gradients again.
"""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.horovod import process_sets, reductions
from tensorflow.mpi._src.horovod.collectives import Average, Sum
from tensorflow.mpi._src.horovod.process_sets import ProcessSet
from tensorflow.mpi._src.runtime import group
from tensorflow.mpi._src.variables import naming, unwrap

_MARK = "_tf_mpi_reduced"


@dataclasses.dataclass(eq=False, kw_only=True)
class Reducer:
    """Horovod's arguments for reducing the gradients of one tape or optimizer.

    `name`: the tape's or optimizer's, a part of the name by which ranks match a reduction.
    `persistent`: True for an optimizer, which reduces in every step; False for a tape, which
    reduces once. `num_groups` and `groups` say in Horovod which gradients travel together; here
    they are only checked, because fusion decides that.
    """

    name: str
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = reductions.Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    num_groups: dataclasses.InitVar[int] = 0
    groups: dataclasses.InitVar[Any] = None
    process_set: ProcessSet = process_sets.global_process_set
    scale_local_gradients: bool = True
    persistent: bool = True

    def __post_init__(self, num_groups: int, groups: Any) -> None:
        """Raises ValueError for the arguments for which Horovod does."""
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if num_groups != 0:
            warnings.warn(
                "Parameter `num_groups` has been replaced by `groups` and will be removed in "
                "v0.23.0.",
                DeprecationWarning,
                stacklevel=4,
            )
            groups = num_groups if groups is None else groups
        if groups is not None and not (isinstance(groups, list) or groups > 0):
            raise ValueError(
                "groups should be a non-negative integer or a list of list of tf.Variable."
            )
        self._local: set[Any] = set()

    def register_local(self, variable: Any) -> None:
        """Marks `variable` as local: its gradients are not reduced."""
        self._local.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        return key_of(variable) in self._local

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces, over process_set, the gradients that are neither local nor already reduced.

        None stays None. With scale_local_gradients, local ones are divided by the number of ranks.
        """
        size = len(process_sets.members(self.process_set))
        out: list[Any] = list(gradients)
        to_reduce = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None or is_reduced(gradient):
                continue
            if self.is_local(variable):
                if self.scale_local_gradients:
                    out[i] = averaging.map_values(lambda g: g / tf.cast(size, g.dtype), gradient)
            else:
                to_reduce.append(i)
        if self.sparse_as_dense:
            for i in to_reduce:
                if isinstance(out[i], tf.IndexedSlices):
                    out[i] = tf.convert_to_tensor(out[i])
        reduced = self._reduced([out[i] for i in to_reduce], [variables[i] for i in to_reduce])
        for i, gradient in zip(to_reduce, reduced, strict=True):
            out[i] = gradient
        for gradient in out:  # only now: TensorFlow may return one tensor for two variables
            mark(gradient)
        return out

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        size = len(process_sets.members(self.process_set))
        if size == 1 or not self.process_set.included():
            return gradients
        everyone = size == group.group_size
        if self.op in (Average, Sum) and everyone:
            return self._averaged(gradients, variables)
        return [self.one(gradient) for gradient in gradients]

    def _averaged(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        # Not the variables' names: these differ if a rank has created one layer more.
        names = [f"gradient {number}" for number in range(len(gradients))]
        label = self._label(gradients, variables)
        contexts: list[Any] = [None] * len(gradients)
        predivide = float(self.gradient_predivide_factor)
        for i, gradient in enumerate(gradients):
            if not isinstance(gradient, tf.IndexedSlices):
                gradient = gradient if predivide == 1 else gradient / predivide
                gradients[i], contexts[i] = self.compression.compress(gradient)
        with scope.for_the_script(), scope.weighted(None):
            averages = averaging.average_all(gradients, names, label, every_row=True)
        factor = float(group.group_size) if self.op == Sum else predivide

        def scaled(average: Any) -> Any:
            return average if factor == 1 else average * tf.cast(factor, average.dtype)

        for i, average in enumerate(averages):
            if not isinstance(average, tf.IndexedSlices):
                averages[i] = scaled(self.compression.decompress(average, contexts[i]))
            elif self.op == Sum:
                averages[i] = averaging.map_values(scaled, average)
        return averages

    def _label(self, gradients: Sequence[Any], variables: Sequence[Any]) -> str:
        """The name by which ranks match the reduction. If several optimizers have the same name
        and kinds of variables, the second and later ones get a number, in the order in which the
        program first uses them."""
        kinds = [f"{g.dtype.name} {v.shape}" for g, v in zip(gradients, variables, strict=True)]
        key = f"hvd {self.name} {zlib.crc32('; '.join(kinds).encode()):08x}"
        if not self.persistent:
            return key
        number = naming.number_of_user(key, self)
        return key if number == 1 else f"{key} {number}"

    def one(self, gradient: Any) -> Any:
        """Reduces one gradient by an allreduce of its own."""
        dense = not isinstance(gradient, tf.IndexedSlices)
        scale = self.gradient_predivide_factor if dense and self.op == Average else 1.0
        return reductions.allreduce(
            gradient,
            None,
            self.device_dense,
            self.device_sparse,
            self.compression,
            self.op,
            prescale_factor=1 / scale,
            postscale_factor=scale,
            process_set=self.process_set,
        )


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    process_set: ProcessSet = process_sets.global_process_set,
) -> Callable[..., list[Any]]:
    """A function of gradients, and optionally of their variables, that reduces the gradients."""
    given = {key: value for key, value in locals().items() if key != "groups"}
    reducer = Reducer(groups=groups or None, **given)
    return lambda grads, vars=None: reducer.reduce(grads, grads if vars is None else vars)


def key_of(variable: Any) -> Any:
    """Identifies a variable; a Keras 3 variable has the key of its inner tf.Variable."""
    inner = unwrap.tf_variable(variable)
    return inner.ref() if hasattr(inner, "ref") else id(variable)


def mark(gradient: Any) -> None:
    """Marks `gradient` as reduced."""
    if gradient is None:
        return
    setattr(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient, _MARK, True)


def is_reduced(gradient: Any) -> bool:
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    return bool(getattr(gradient, _MARK, False))
