"""Sizes in a graph: integers, and products of the number of samples and other sizes.

Shapes that a program computes (by tf.shape, for reshapes and fills, or for the dimensions along
which a gradient is summed) are tracked as such numbers, to follow the dimension of samples.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

MAX_ELEMENTS = 64  # the values of larger tensors are not tracked


@dataclasses.dataclass(frozen=True)
class Number:
    """A factor times powers of symbols; `of` has each symbol with its power, sorted.

    A symbol that begins with N is the number of samples or a function of it; with #, the number of
    rows that a mask selects; with ?, unknown. Other symbols are the same for a part and for the
    whole batch.
    """

    factor: Fraction
    of: tuple[tuple[str, int], ...] = ()

    def __mul__(self, other: Number) -> Number:
        powers = Counter(dict(self.of))
        for symbol, power in other.of:
            powers[symbol] += power
        factor = self.factor * other.factor
        of = sorted((s, p) for s, p in powers.items() if p and factor)
        return Number(factor, tuple(of))

    def __truediv__(self, other: Number) -> Number:
        if not other.factor:
            return symbol("?", "by 0")
        return self * Number(1 / other.factor, tuple((s, -p) for s, p in other.of))

    def __add__(self, other: Number) -> Number:
        if self.of == other.of or not (self.factor and other.factor):
            of = self.of or other.of
            factor = self.factor + other.factor
            return Number(factor, of if factor else ())
        return _combined("+", self, other)

    def __neg__(self) -> Number:
        return Number(-self.factor, self.of)

    def __sub__(self, other: Number) -> Number:
        return self + -other

    def __floordiv__(self, other: Number) -> Number:
        quotient = self / other
        if not quotient.of:
            return Number(Fraction(quotient.factor // 1))
        return quotient if quotient.is_whole else _combined("//", self, other)

    def __mod__(self, other: Number) -> Number:
        quotient = self / other
        if quotient.is_whole:
            return ZERO
        known = not self.of and not other.of
        return Number(self.factor % other.factor) if known else _combined("%", self, other)

    @property
    def is_whole(self) -> bool:
        """Whether it is certainly an integer, as all symbols are."""
        return self.factor.denominator == 1 and all(power > 0 for _, power in self.of)

    @property
    def value(self) -> int | None:
        return int(self.factor) if not self.of and self.factor.denominator == 1 else None

    @property
    def power(self) -> int | str | None:
        """The power of N; 0 for a constant. None: another function of N. "counted": only the
        number of rows that one mask selects varies. "unknown": something else varies."""
        varying = [(name, power) for name, power in self.of if name[0] in "N#?"]
        kinds = {name[0] for name, _ in varying}
        if "?" in kinds:
            return "unknown"
        if "#" in kinds:
            return "counted" if len(varying) == 1 and varying[0][1] == 1 else "unknown"
        if any(name != "N" for name, _ in varying):
            return None
        return sum(power for _, power in varying)


ZERO, ONE = Number(Fraction(0)), Number(Fraction(1))
N = Number(Fraction(1), (("N", 1),))


def number(value: Any) -> Number:
    return Number(Fraction(value))


def symbol(kind: str, name: str) -> Number:
    """A symbol. `kind`: "N", "#" or "?", see Number; "" for one that is the same for a part and the
    whole batch."""
    return Number(Fraction(1), ((f"{kind or '='}{name}", 1),))


def product(numbers: Iterable[Number]) -> Number:
    result = ONE
    for one in numbers:
        result = result * one
    return result


def _combined(how: str, *numbers: Number) -> Number:
    """A symbol for a function `how` of numbers that is no product: of kind "N" if one depends on N,
    "?" if one is unknown or counted."""
    powers = {one.power for one in numbers}
    unknown = powers & {"unknown", "counted"}
    kind = "?" if unknown else "" if powers == {0} else "N"
    ordered = numbers if how in ("//", "%") else sorted(numbers, key=repr)
    return symbol(kind, f"{how}({', '.join(f'{one.factor}{one.of}' for one in ordered)})")


def _larger(one: Number, other: Number, sign: int = 1) -> Number:
    """The larger of two numbers; the smaller if `sign` is -1."""
    if one.of == other.of:
        return max(one, other, key=lambda number: sign * number.factor)
    if "counted" in (one.power, other.power):  # a mask may select no rows: no lower bound
        raise ValueError
    for size, floor in ((one, other), (other, one)):
        is_size = size.of and size.is_whole and isinstance(size.power, int)
        if is_size and not floor.of and floor.factor <= size.factor:  # symbols are at least 1
            return size if sign > 0 else floor
    return _combined("max" if sign > 0 else "min", one, other)


def of_constant(value: Any) -> Any:
    """An array as an array of Numbers; None if it is large, or not numeric."""
    if value is None or value.size > MAX_ELEMENTS or value.dtype.kind not in "iuf":
        return None
    if not np.isfinite(value).all():
        return None
    return array([number(float(v) if value.dtype.kind == "f" else int(v)) for v in value.flat],
                 value.shape)  # fmt: skip


def array(numbers: Iterable[Number], shape: Any = -1) -> Any:
    numbers = list(numbers)
    result = np.empty(len(numbers), object)
    result[:] = numbers
    return result.reshape(shape)


def to_ints(numbers: Any) -> list[int] | None:
    """The values as a flat list, if all are known integers."""
    if numbers is None:
        return None
    values = [one.value for one in numbers.flat]
    return None if None in values else values


def folded(op: Any, inputs: list[Any], output: int) -> Any:
    """The output with index `output` of `op`, applied to these arrays; None if unknown."""
    fold = _FOLDS.get(op.type)
    if fold is None or any(one is None for one in inputs):
        return None
    if (op.outputs[output].shape.num_elements() or 0) > MAX_ELEMENTS:
        return None
    try:
        result = fold(op, output, *inputs)
    except (ValueError, LookupError, TypeError):  # unknown sizes
        return None
    result = np.asarray(result, object)
    return result if result.size <= MAX_ELEMENTS else None


def _ints(numbers: Any) -> list[int]:
    values = to_ints(numbers)
    if values is None:
        raise ValueError
    return values


def _int(numbers: Any) -> int:
    return _ints(numbers)[0]


def _reduced(function: Callable[[Number, Number], Number], start: Number | None) -> Any:
    def fold(op: Any, output: int, values: Any, axes: Any) -> Any:
        if set(axis % max(values.ndim, 1) for axis in _ints(axes)) != set(range(values.ndim)):
            raise ValueError
        found = list(values.flat)
        result = start if start is not None else found.pop()
        for one in found:
            result = function(result, one)
        return array([result], [1] * values.ndim if op.get_attr("keep_dims") else [])

    return fold


def _elementwise(function: Callable[..., Number]) -> Any:
    def fold(op: Any, output: int, *values: Any) -> Any:
        return np.frompyfunc(function, len(values), 1)(*values)

    return fold


def strided(op: Any, begin: Any, end: Any, strides: Any) -> list[Any]:
    """The Python index that corresponds to a StridedSlice; a bound is a Number or None."""
    masks = {
        name: int(op.get_attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for i, (first, last, step) in enumerate(zip(begin.flat, end.flat, strides.flat)):
        bit = 1 << i
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(None)
        elif masks["shrink_axis"] & bit:
            index.append(first)
        else:
            index.append(slice(None if masks["begin"] & bit else first,
                               None if masks["end"] & bit else last, step))  # fmt: skip
    return index


def _sliced(op: Any, output: int, values: Any, begin: Any, end: Any, strides: Any) -> Any:
    def known(one: Any) -> Any:
        return _int(array([one])) if isinstance(one, Number) else one

    index = [
        slice(*map(known, (one.start, one.stop, one.step))) if isinstance(one, slice)
        else known(one)
        for one in strided(op, begin, end, strides)
    ]  # fmt: skip
    return values[tuple(index)]


def _compared(function: Callable[[Any, Any], bool]) -> Any:
    def compare(one: Number, other: Number) -> Number:
        if one.of != other.of:
            raise ValueError
        return number(int(function(one.factor, other.factor)))

    return _elementwise(compare)


def _chosen(condition: Number, one: Number, other: Number) -> Number:
    if condition.value is None:
        raise ValueError
    return one if condition.value else other


def _split(op: Any, output: int, axis: Any, values: Any) -> Any:
    return np.split(values, op.get_attr("num_split"), _int(axis))[output]


def _split_by(op: Any, output: int, values: Any, lengths: Any, axis: Any) -> Any:
    place, known = _int(axis), _ints(lengths)
    rest = values.shape[place] - sum(length for length in known if length != -1)
    ends = np.cumsum([rest if length == -1 else length for length in known])
    return np.split(values, ends[:-1], place)[output]


def _taken(op: Any, output: int, values: Any, indices: Any, axis: Any) -> Any:
    if op.get_attr("batch_dims"):
        raise ValueError
    return np.take(values, np.reshape(_ints(indices), indices.shape), _int(axis))


def _stitched(op: Any, output: int, *inputs: Any) -> Any:
    half = len(inputs) // 2
    found: dict[int, Number] = {}
    for indices, values in zip(inputs[:half], inputs[half:]):
        if values.ndim > 1:
            raise ValueError
        found.update(zip(_ints(indices), values.flat))
    return array(found[output] for output in range(len(found)))


def _summed_along(op: Any, output: int, *shapes: Any) -> Any:
    """BroadcastGradientArgs: the dimensions along which one of two shapes was broadcast."""
    most = max(map(len, shapes))
    padded = [[ONE] * (most - len(shape)) + list(shape) for shape in shapes]
    return array(
        number(axis)
        for axis, (own, other) in enumerate(zip(padded[output], padded[1 - output]))
        if own == ONE
    )


def _broadcast(op: Any, output: int, *shapes: Any) -> Any:
    most = max(map(len, shapes))
    padded = [[ONE] * (most - len(shape)) + list(shape) for shape in shapes]
    return array(own if own != ONE else other for own, other in zip(*padded))


def _offset(op: Any, output: int, axis: Any, *shapes: Any) -> Any:
    found = array([ZERO] * shapes[0].size)
    for shape in shapes[:output]:
        found[_int(axis)] = found[_int(axis)] + shape[_int(axis)]
    return found


def _inverted(op: Any, output: int, order: Any) -> Any:
    return array(map(number, np.argsort(_ints(order))))


def _identity(op: Any, output: int, values: Any, *_: Any) -> Any:
    return values


def _cast(op: Any, output: int, values: Any) -> Any:
    def cast(one: Number) -> Number:
        rounds = op.outputs[output].dtype.is_integer and not one.is_whole
        return _combined("int", one) if rounds else one

    return _elementwise(cast)(op, output, values)


_COMPARISONS = {
    "Equal": "eq", "NotEqual": "ne", "Less": "lt", "LessEqual": "le", "Greater": "gt",
    "GreaterEqual": "ge",
}  # fmt: skip
# Each takes the op, the index of the output, and the values of the inputs.
_FOLDS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Identity", "StopGradient", "Snapshot", "EnsureShape"), _identity),
    **dict.fromkeys(("Add", "AddV2"), _elementwise(operator.add)),
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan"), _elementwise(operator.truediv)),
    **dict.fromkeys(("FloorDiv", "TruncateDiv"), _elementwise(operator.floordiv)),
    **dict.fromkeys(("FloorMod", "Mod"), _elementwise(operator.mod)),
    **{name: _compared(getattr(operator, how)) for name, how in _COMPARISONS.items()},
    "Cast": _cast,
    "SelectV2": _elementwise(_chosen),
    "Sub": _elementwise(operator.sub),
    "Mul": _elementwise(operator.mul),
    "Neg": _elementwise(operator.neg),
    "Reciprocal": _elementwise(lambda one: ONE / one),
    "Maximum": _elementwise(_larger),
    "Minimum": _elementwise(lambda one, other: _larger(one, other, -1)),
    "Prod": _reduced(operator.mul, ONE),
    "Sum": _reduced(operator.add, ZERO),
    "Max": _reduced(_larger, None),
    "Min": _reduced(lambda one, other: _larger(one, other, -1), None),
    "StridedSlice": _sliced,
    "Slice": lambda op, output, values, begin, size: values[
        tuple(slice(b, None if s < 0 else b + s) for b, s in zip(_ints(begin), _ints(size)))
    ],
    "Pack": lambda op, output, *values: np.stack(values, op.get_attr("axis")),
    "Unpack": lambda op, output, values: np.moveaxis(values, op.get_attr("axis"), 0)[output],
    "ConcatV2": lambda op, output, *values: np.concatenate(values[:-1], _int(values[-1])),
    "Split": _split,
    "SplitV": _split_by,
    "GatherV2": _taken,
    "Reshape": lambda op, output, values, shape: values.reshape(_ints(shape)),
    "ExpandDims": lambda op, output, values, axis: np.expand_dims(values, _int(axis)),
    "Squeeze": lambda op, output, values: np.squeeze(
        values, tuple(op.get_attr("squeeze_dims")) or None
    ),
    "Fill": lambda op, output, shape, value: np.full(_ints(shape), value, object),
    "Tile": lambda op, output, values, times: np.tile(values, _ints(times)),
    "Range": lambda op, output, *bounds: array(map(number, range(*map(_int, bounds)))),
    "DynamicStitch": _stitched,
    "BroadcastGradientArgs": _summed_along,
    "BroadcastArgs": _broadcast,
    "ConcatOffset": _offset,
    "InvertPermutation": _inverted,
}  # fmt: skip
