"""The reduction of a step's gradients: what tapes and optimizers share.

An average, or a sum, is the runtime's own average of many gradients (average/averaging.py): few
operations, in compiled steps, too. All else is an allreduce per gradient. What was reduced once is
marked, so that an optimizer which is handed a tape's gradients does not reduce them again.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.horovod import process_sets, reductions
from tensorflow.mpi._src.horovod.collectives import Average, Sum
from tensorflow.mpi._src.horovod.process_sets import ProcessSet
from tensorflow.mpi._src.runtime import group
from tensorflow.mpi._src.variables import unwrap

_MARK = "_tf_mpi_reduced"
_labels: dict[str, list[weakref.ref[Any]]] = {}


@dataclasses.dataclass(eq=False, kw_only=True)
class Reducer:
    """How the gradients of one tape or optimizer are reduced: Horovod's arguments.

    `name` is of what has them, in messages. `lives_on`: it reduces every step of an optimizer; a
    tape's reduces once. Horovod's groups, of gradients that are to travel together, have no effect:
    fusion decides that.
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
    lives_on: bool = True

    def __post_init__(self, num_groups: int, groups: Any) -> None:
        """Raises ValueError where Horovod does."""
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
                if self.scale_local_gradients:
                    out[i] = averaging.on_values(lambda g: g / tf.cast(size, g.dtype), gradient)
                mark(out[i])
            else:
                new.append(i)
        if self.sparse_as_dense:
            for i in new:
                if isinstance(out[i], tf.IndexedSlices):
                    out[i] = tf.convert_to_tensor(out[i])
        reduced = self._reduced([out[i] for i in new], [variables[i] for i in new])
        for i, gradient in zip(new, reduced, strict=True):
            out[i] = gradient
            mark(out[i])
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
        import tensorflow as tf

        # Not by the variables' names, in which one rank may have counted a layer more.
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
                averages[i] = averaging.on_values(scaled, average)
        return averages

    def _label(self, gradients: Sequence[Any], variables: Sequence[Any]) -> str:
        """Under which the ranks meet; the second and further optimizer with one name and such
        variables gets its number, in the order in which the program first reduces."""
        kinds = [f"{g.dtype.name} {v.shape}" for g, v in zip(gradients, variables, strict=True)]
        key = f"hvd {self.name} {zlib.crc32('; '.join(kinds).encode()):08x}"
        if not self.lives_on:
            return key
        users = _labels.setdefault(key, [])
        number = next((n for n, user in enumerate(users) if user() is self), len(users))
        if number == len(users):
            users.append(weakref.ref(self))
        return key if number == 0 else f"{key} {number + 1}"

    def one(self, gradient: Any) -> Any:
        """By an allreduce of its own."""
        import tensorflow as tf

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
    """A function of gradients and, if they are known, their variables, that reduces them."""
    given = {key: value for key, value in locals().items() if key != "groups"}
    reducer = Reducer(groups=groups or None, **given)
    return lambda grads, vars=None: reducer.reduce(grads, grads if vars is None else vars)


def key_of(variable: Any) -> Any:
    """What tells variables apart; Keras 3's are known by the tf.Variable in them."""
    inner = unwrap.tf_variable(variable)
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
