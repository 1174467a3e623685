"""The kinds of tensors, by how they depend on the samples of a batch."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from tensorflow.mpi._src.global_batch.sizes import ONE, Number


class Kind(enum.Enum):
    CONST = "does not depend on the batch"
    SIZE = "depends on the number of samples only"
    INVERSE = "a constant divided by the number of samples"
    ROWS = "has rows along its first dimension, each of one sample and independent of the others"
    CONST_ROWS = "the same constant row for every sample"
    ROWS_OVER_SIZE = "rows divided by the number of samples"
    ROWS_PLUS_MEAN = "rows plus a mean over samples"
    COLUMNS = "has samples along a dimension other than the first"
    ROW_INDICES = "the indices of the samples in the batch"
    SELECTED = "rows that were selected by their values"
    SUM = "a sum over samples"
    MEAN = "a mean over samples"
    LINEAR = "a sum over samples plus a constant or a mean"
    RATIO = "a quotient of two sums or means over samples"
    GRADIENT = "a function of variables' gradients, which are averaged before any update"
    MIXED = "depends on several samples at once"
    UNKNOWN = "unknown"


FIRST = "first"  # a value of Dependence.is_index
# Independent rows. A sample may have several, laid out as Dependence.outer and inner say.
ROWS = {Kind.ROWS, Kind.CONST_ROWS}


@dataclasses.dataclass(frozen=True)
class Dependence:
    """How a tensor depends on the samples: base * (number of samples) ** power / over.

    For a list of tensors it describes each element.

    Attributes:
      base: CONST, SIZE, ROWS, ROWS_PLUS_MEAN, SUM, LINEAR, GRADIENT, MIXED or UNKNOWN.
      axis: the dimension of samples; -1: the tensor is of a loop's current sample.
      outer, inner: for N samples that dimension has outer * N * inner elements; those of sample i
        are at (o * N + i) * inner + j, for o < outer and j < inner. Concatenation increases outer,
        flattening increases inner.
      power: the exponent of the number of samples; None: another function of that number.
      over: the key of the scalar, a sum or a mean over samples, by which it is divided.
      same: whether all rows are equal.
      mask: the key of the mask that selected its rows; None: it has all rows. Rows that different
        masks have selected do not correspond.
      is_index: whether the values are indices of samples; FIRST: only the first of each vector.
      any_layout: whether any outer and inner fit, as for random numbers.
      zero: whether it is 0, which is a constant as well as a sum over samples.
      numbers: its values, as an array of sizes.Number; None if they are not tracked.
    """

    base: Kind
    axis: int = 0
    outer: Number = ONE
    inner: Number = ONE
    power: int | None = 0
    over: Any = None
    same: bool = False
    mask: Any = None
    is_index: bool | str = False
    any_layout: bool = False
    zero: bool = False
    numbers: Any = dataclasses.field(default=None, compare=False)

    @property
    def kind(self) -> Kind:
        if self.base is Kind.ROWS_PLUS_MEAN:
            return self.base if self.axis == 0 else Kind.UNKNOWN
        if self.base is Kind.SUM:
            by_power: dict[int | None, Kind] = {0: Kind.SUM, -1: Kind.MEAN}
            found = by_power.get(self.power, Kind.MIXED)
            return Kind.RATIO if self.over and found is not Kind.MIXED else found
        if self.over:
            return Kind.MIXED
        if self.base is Kind.CONST:
            by_power = {0: Kind.CONST, -1: Kind.INVERSE}
            return by_power.get(self.power, Kind.SIZE)
        return self._kind_of_rows() if self.base is Kind.ROWS else self.base

    def _kind_of_rows(self) -> Kind:
        if self.power not in (0, -1):
            return Kind.UNKNOWN
        if self.power:
            return Kind.UNKNOWN if self.axis else Kind.ROWS_OVER_SIZE
        if self.axis:
            return Kind.COLUMNS
        return (
            Kind.ROW_INDICES if self.is_index
            else Kind.SELECTED if self.mask
            else Kind.CONST_ROWS if self.same
            else Kind.ROWS
        )  # fmt: skip

    @property
    def has_rows(self) -> bool:
        return self.base in (Kind.ROWS, Kind.ROWS_PLUS_MEAN)

    @property
    def is_plain(self) -> bool:
        """Whether it is rows (perhaps only some) or a constant: not divided by anything, and not
        indices of samples."""
        return (
            self.base in (Kind.ROWS, Kind.CONST)
            and self.power == 0
            and self.over is None
            and not self.is_index
        )

    @property
    def is_const(self) -> bool:
        return self.base is Kind.CONST and self.power == 0 and self.over is None

    @property
    def is_current_index(self) -> bool:
        """Whether it is the index of a loop's current sample."""
        return self.axis < 0 and not self.mask and bool(self.is_index)

    @property
    def is_count(self) -> bool:
        """Whether it is the number of samples, times a constant."""
        return self.base is Kind.CONST and self.power == 1 and self.over is None

    def but(self, **changes: Any) -> Dependence:
        """A copy with these changes; it forgets its values and whether it is 0."""
        return dataclasses.replace(self, **{"numbers": None, "zero": False, **changes})


CONST, SIZE, MIXED, UNKNOWN = map(Dependence, (Kind.CONST, Kind.SIZE, Kind.MIXED, Kind.UNKNOWN))
SUM, LINEAR = Dependence(Kind.SUM), Dependence(Kind.LINEAR)

OF_KIND = {  # the dependence of a tensor of which only the kind is known
    **{kind: Dependence(kind) for kind in Kind},
    Kind.INVERSE: Dependence(Kind.CONST, power=-1),
    Kind.CONST_ROWS: Dependence(Kind.ROWS, same=True),
    Kind.ROWS_OVER_SIZE: Dependence(Kind.ROWS, power=-1),
    Kind.COLUMNS: UNKNOWN,  # the kind does not say along which dimension
    Kind.ROW_INDICES: Dependence(Kind.ROWS, is_index=True),
    Kind.SELECTED: Dependence(Kind.ROWS, mask=True),
    Kind.MEAN: Dependence(Kind.SUM, power=-1),
    Kind.RATIO: MIXED,  # the kind does not say what the divisor is
}


def of_numbers(numbers: Any) -> Dependence:
    """The dependence of a tensor with these values."""
    powers = {number.power for number in numbers.flat}
    if "unknown" in powers:
        return Dependence(Kind.UNKNOWN, numbers=numbers)
    if "counted" in powers:  # the number of rows that a mask selects
        return Dependence(Kind.SUM if len(powers) == 1 else Kind.UNKNOWN, numbers=numbers)
    power = powers.pop() if len(powers) == 1 else 0 if not powers else None
    zero = bool(numbers.size) and all(not number.factor for number in numbers.flat)
    if power is None:
        return Dependence(Kind.SIZE, numbers=numbers)
    return Dependence(Kind.CONST, power=power, zero=zero, numbers=numbers)


def common_layout(layout: Dependence, *others: Dependence) -> Dependence | None:
    """The layout of samples that these tensors share; None if their layouts differ.

    The dimensions of samples are of equal size, so `outer` and `inner` can only differ together.
    """
    for other in others:
        if layout.any_layout:
            layout = other
        elif not other.any_layout and layout.outer != other.outer and layout.inner != other.inner:
            return None
    return layout


def joined(one: Dependence, other: Dependence) -> Dependence:
    """The dependence of a value that is one or the other: in branches, loops and lists."""
    if one == other:
        return one if one.numbers is other.numbers else one.but(zero=one.zero)
    if one.zero or other.zero:
        return (other if one.zero else one).but()
    bases = {one.base, other.base}
    for worst in (Kind.MIXED, Kind.UNKNOWN):
        if worst in bases:
            return Dependence(worst)
    if one.over != other.over:
        return UNKNOWN
    if bases == {Kind.ROWS}:
        forms = {(dep.axis, dep.power, dep.mask, dep.is_index) for dep in (one, other)}
        layout = common_layout(one, other) if len(forms) == 1 else None
        return UNKNOWN if layout is None else layout.but(same=one.same and other.same)
    if bases == {Kind.CONST, Kind.ROWS}:
        rows, const = (one, other) if one.base is Kind.ROWS else (other, one)
        return rows.but(same=False) if const.power == rows.power else UNKNOWN
    return added([one, other])


def added(terms: list[Dependence]) -> Dependence:
    """The dependence of a sum of terms without rows."""
    terms = [term for term in terms if not term.zero] or terms[:1]
    bases = {term.base for term in terms}
    if bases <= {Kind.CONST, Kind.SIZE}:
        same = len({(term.base, term.power, term.over) for term in terms}) == 1
        return terms[0].but() if same else SIZE if not any(t.over for t in terms) else MIXED
    if not bases <= {Kind.CONST, Kind.SUM, Kind.LINEAR} or None in (t.power for t in terms):
        return MIXED
    # A constant is its own mean, and a constant times the number of samples is a sum over samples.
    sums = {
        (term.power if term.base is Kind.SUM else (term.power or 0) - 1, term.over)
        for term in terms
        if term.base is not Kind.LINEAR
    }
    if len(sums) == 1 and Kind.LINEAR not in bases:
        ((power, over),) = sums
        return SUM.but(power=power, over=over)
    return LINEAR if all(power in (0, -1) for power, _ in sums) else MIXED
