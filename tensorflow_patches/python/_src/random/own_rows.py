"""Random draws for samples: this rank's rows of what one process draws for the whole batch.

Seeds and generators are in the same state on all ranks, so an op with the shape of the whole batch
draws what one process draws, and a rank keeps the rows of its samples. If the op is counter-based
(philox.py), it starts at these rows, and the others are not drawn.

- The analysis of the step (global_batch/plan.py) derives the dimension of samples of a draw from
  the ops that compute its shape. If the shape does not depend on the number of samples, the draw
  has no such dimension and is the same on all ranks.
- In a nested function (a `tf.function` in a step) the dimension is derived from the arguments.
- In a loop of the script over divided data, inside a tape or a `tf.function`, a draw is for samples
  if its first dimension is unknown, or a multiple of the number of samples of a rank. If the ranks'
  parts differ in size, each rank draws its own numbers there, and the generators' states stay equal
  on all ranks. A function of tf.data counts only if its dataset is a part (dataset_shard.tracing).

If the shape cannot be analyzed, or depends on the number of samples in another way, the op draws
as the script asked. How its result depends on the samples is then unknown, so every rank computes
whole batches.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi._src.average import compiled, scope
from tensorflow.mpi._src.global_batch import batch, kinds, sizes
from tensorflow.mpi._src.global_batch.sites import Draw
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.random import by_sample, entropy, philox
from tensorflow.mpi._src.runtime import group, threads
from tensorflow.mpi._src.variables import initial_broadcast

_STREAM_STRIDE = 2**40  # in numbers drawn; no op draws so many
_SEED_MODULUS, _SEED_STRIDE = 2**31 - 1, 0x9E3779B1

# .draws: the number of calls of random ops.
# .decided: the Draw decided for the op that a generator is about to call, in a tuple; or empty.
# .inside: a draw is being made; the random ops that it calls are left as they are.
# .by_size: static shapes of draws, in a loop of the script, that were taken to be for samples.
_local = threading.local()


class _Parameters(NamedTuple):
    """The arguments of an op that may have one row per sample, by how they relate to the result.

    Attributes:
      like_result: their last dimensions are the last dimensions of the result.
      first: their first dimensions are the first of the result.
      trailing: the result has its dimensions after those of `shape`.
      logits: the result has its rows, and no argument gives the result's shape.
    """

    like_result: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    trailing: str = ""
    logits: str = ""


_NONE = _Parameters()
_OPS = {
    "parameterized_truncated_normal": _Parameters(first=("means", "stdevs", "minvals", "maxvals")),
    "random_gamma": _Parameters(trailing="alpha"),
    "random_poisson_v2": _Parameters(trailing="rate"),
    "multinomial": _Parameters(logits="logits"),
    "stateful_random_binomial": _Parameters(like_result=("counts", "probs")),
    "stateless_random_gamma_v3": _Parameters(like_result=("alpha",)),
    "stateless_random_binomial": _Parameters(like_result=("counts", "probs")),
    "stateless_random_poisson": _Parameters(like_result=("lam",)),
    "stateless_multinomial": _Parameters(logits="logits"),
    "stateless_parameterized_truncated_normal": _Parameters(
        like_result=("means", "stddevs", "minvals", "maxvals")
    ),
}


def draws_made() -> int:
    """The number of calls of TensorFlow's random ops by this thread."""
    return int(getattr(_local, "draws", 0))


def drawing(op: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a random op of gen_random_ops or a similar module."""
    signature = inspect.signature(op)
    parameters = _OPS.get(op.__name__, _NONE)

    @hooking.without_autograph
    def drawn(*args: Any, **kwargs: Any) -> Any:
        _local.draws = getattr(_local, "draws", 0) + 1
        if by_sample.current() is not None:
            arguments = signature.bind(*args, **kwargs).arguments
            defaults = {"seed": 0, "seed2": 0}  # which bind() omits
            numbers = by_sample.draw(op.__name__, {**defaults, **arguments})
            return op(*args, **kwargs) if numbers is None else numbers
        if not _is_divided() or getattr(_local, "inside", False):
            return op(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        with threads.inside(_local, inside=True):
            call = _Call(op, op.__name__, parameters, given.arguments)
            draw = _take_decision() or _decide(call)
            if draw is None or draw.axis is None:
                return op(*args, **kwargs)
            numbers = kinds.draw_marked(lambda: call.draw_rows(draw), draw, _is_nested())
            part = batch.current()
            findings = None if part is None else part.findings
            # plan.py finds out later how these numbers are laid out (Draw.outer).
            if draw.factor > 1 and findings is not None and not _is_nested():
                findings.draws_with_factor.append((len(findings.draws) - 1, numbers))
            return numbers

    return drawn


def key_of_whole(prepare: Any) -> Any:
    """Wraps Generator._prepare_key_counter(shape): the state advances as in one process."""

    def key_and_counter(self: Any, shape: Any) -> Any:
        trace = by_sample.current()
        if trace is not None and self.algorithm == philox.PHILOX:
            return trace.key_and_counter("generator") or prepare(self, shape)
        if not _is_divided() or getattr(_local, "inside", False):
            return prepare(self, shape)
        with threads.inside(_local, inside=True):
            call = _Call(prepare, "stateless_by_generator", _NONE, {"shape": shape})
            draw = _decide(call)
            if draw is not None and draw.axis is not None:
                shape = call.whole_shape(draw)
            found = prepare(self, shape)
        _local.decided = (draw or Draw("", None, None),)  # for the op that follows
        return found

    return key_and_counter


def traced_per_step(make: Any) -> Any:
    """Wraps make_function_context, which makes the key by which a tf.function stores a trace.

    A function draws for samples when called in a step, and not elsewhere, for instance when a model
    is built, so both need separate traces.
    """

    def context(*args: Any, **kwargs: Any) -> Any:
        found = make(*args, **kwargs)
        if not _is_divided(in_step=False):
            return found
        return found._replace(scope_type=("own rows", batch.current() is None, found.scope_type))

    return context


def _take_decision() -> Draw | None:
    """The decision for the numbers that a generator draws now."""
    decided = getattr(_local, "decided", ())
    _local.decided = ()
    return decided[0] if decided else None


def _is_divided(in_step: bool = True) -> bool:
    """Whether a draw here may be for this rank's samples.

    Args:
      in_step: in a loop of the script, count only draws in a step of the loop.
    """
    if group.size == 1 or not entropy.is_shared():
        return False
    part = batch.current()
    if part is not None:
        return not part.is_suspended and not part.is_outside_graph()
    if not scope.is_divided() or scope.is_replicated_step():
        return False
    return not in_step or _in_own_step()


def variable_created(variable: Any) -> None:
    """See hooks.variable_created.

    In an eager step a draw that seemed to be for samples may have been a variable's initial value.
    Rank 0's draw, for the first samples, is the one that one process makes.
    """
    initial_broadcast.variable_created(variable)
    shapes: set[Any] = getattr(_local, "by_size", set())
    if not shapes or not tf.executing_eagerly() or variable.shape.rank is None:
        return
    if (shape := tuple(variable.shape)) in shapes and _is_divided(in_step=False):
        shapes.discard(shape)
        initial_broadcast.sync_new_variable(variable)


def _in_own_step() -> bool:
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.framework import ops

    return ops.inside_function() or not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


class _Call:
    """A call of a random op, with its arguments by the op's names."""

    def __init__(self, op: Any, name: str, parameters: _Parameters, given: dict[str, Any]) -> None:
        self.op, self.name, self.parameters, self.given = op, name, parameters, given
        for argument in (*parameters.like_result, *parameters.first, parameters.logits,
                         parameters.trailing):  # fmt: skip
            if argument:
                given[argument] = tf.convert_to_tensor(given[argument])
        if not parameters.logits:
            self.shape = _shape_tensor(given["shape"])
        else:
            self.shape = tf.shape(given[parameters.logits])[:1]

    @functools.cached_property
    def static(self) -> list[int | None] | None:
        """The static shape of the result; None if its rank is unknown."""
        from tensorflow.python.framework import tensor_util

        if self.parameters.logits:
            numbers = tf.get_static_value(tf.convert_to_tensor(self.given["num_samples"]))
            each = None if numbers is None else int(numbers)
            return [self.given[self.parameters.logits].shape[0], each]
        shape = tensor_util.constant_value_as_shape(self.shape)
        if self.parameters.trailing and shape.rank is not None:
            shape = shape.concatenate(self.given[self.parameters.trailing].shape)
        return None if shape.rank is None else list(shape)

    def numbers(self, analysis: kinds.Analysis) -> list[Any] | None:
        """The shape of the result as Numbers; None if unknown."""
        given, parameters = self.given, self.parameters
        if parameters.logits:
            dims = analysis.dims(given[parameters.logits])
            return None if dims is None else [dims[0], sizes.ONE]
        found = analysis.numbers(self.shape)
        if found is None or not parameters.trailing:
            return found
        trailing = analysis.dims(given[parameters.trailing])
        return None if trailing is None else [*found, *trailing]

    def takes_rows(self, analysis: kinds.Analysis, axis: int, rank: int) -> bool:
        """Whether each parameter is constant, or has one value per sample along `axis`."""
        for name, place in self._places(axis, rank).items():
            dep = analysis.dependence(self.given[name])
            if not (dep.is_const or (dep.is_plain and dep.has_rows and dep.axis == place)):
                return False
        return True

    def _places(self, axis: int, rank: int) -> dict[str, int]:
        """For each parameter, which of its dimensions is `axis` of the result; negative: none."""
        parameters = self.parameters
        places = dict.fromkeys(parameters.first, axis)
        if parameters.logits:
            places[parameters.logits] = axis
        for name in (*parameters.like_result, parameters.trailing):
            if name:
                places[name] = axis - rank + int(self.given[name].shape.rank)
        return places

    def own(self, axis: int) -> Any:
        """The size of this rank's draw along `axis`; an int if static."""
        if self.static is not None and self.static[axis] is not None:
            return self.static[axis]
        count = self.shape.shape[0]
        if axis < count:
            return self.shape[axis]
        return tf.shape(self.given[self.parameters.trailing], self.shape.dtype)[axis - count]

    def whole_shape(self, draw: Draw) -> Any:
        """`shape` for the whole batch; if each rank draws its own numbers, a stride that keeps them
        disjoint."""
        axis = draw.axis
        assert axis is not None
        if _are_rows_unknown():
            return tf.constant([_STREAM_STRIDE], tf.int64)
        _, whole = _extent(self.own(axis), draw.factor, self.shape.dtype)
        return _with_length(self.shape, axis, whole)

    def draw_rows(self, draw: Draw) -> Any:
        """This rank's rows of the op's draw for the whole batch; if it is unknown which these are,
        different numbers on each rank."""
        axis = draw.axis
        assert axis is not None
        if _are_rows_unknown() and not compiled.is_compiled():
            return self.op(**_on_own_stream(dict(self.given)))
        own = self.own(axis)
        start, whole = _extent(own, draw.factor, self.shape.dtype)
        if axis == 0 and draw.outer == 1 and not compiled.is_compiled():
            stateful = _in_graph_of_step()
            drawn = philox.draw_rows(self.op, self.given, self.shape, start, whole, stateful)
            if drawn is not None:
                return self._shaped(drawn)
        given = dict(self.given)
        if "shape" in given and axis < (self.shape.shape[0] or 0):
            given["shape"] = _with_length(self.shape, axis, whole)
        num_dims = len(self.static or ()) or int(self.shape.shape[0])
        for name, place in self._places(axis, num_dims).items():
            # A length of 1 is broadcast, unless this rank has a single sample.
            length = given[name].shape[place] if place >= 0 else None
            if place >= 0 and (length != 1 or (isinstance(own, int) and own == 1)):
                given[name] = _pad_to_whole(given[name], place, start, whole)
        drawn = self.op(**given)
        if draw.outer > 1:
            # The rows of each of `outer` whole batches, one after another.
            offsets = start // draw.outer + tf.range(own // draw.outer)
            blocks = tf.range(draw.outer)[:, None] * (whole // draw.outer)
            return self._shaped(tf.gather(drawn, tf.reshape(blocks + offsets, [-1]), axis=axis))
        begin = tf.one_hot(axis, num_dims, start, 0, dtype=self.shape.dtype)
        size = tf.one_hot(axis, num_dims, own, -1, dtype=self.shape.dtype)
        return self._shaped(tf.slice(drawn, begin, size))

    def _shaped(self, drawn: Any) -> Any:
        if self.static is not None:
            drawn.set_shape(self.static)
        return drawn


def _shape_tensor(shape: Any) -> Any:
    """A shape as a tensor, from a tensor or from dimensions, some of them tensors."""
    if isinstance(shape, (list, tuple)) and not shape:
        return tf.zeros([0], tf.int32)
    return tf.convert_to_tensor(shape)


def _with_length(shape: Any, axis: int, length: Any) -> Any:
    length = tf.reshape(tf.cast(length, shape.dtype), [1])
    return tf.concat([shape[:axis], length, shape[axis + 1 :]], 0)


def _pad_to_whole(parameter: Any, axis: int, start: Any, whole: Any) -> Any:
    """An argument padded to all samples: this rank's rows in their places, the others unused."""
    mine = tf.shape(parameter, tf.int64)[axis]
    places = tf.range(tf.cast(whole, tf.int64)) - tf.cast(start, tf.int64)
    return tf.gather(parameter, tf.clip_by_value(places, 0, mine - 1), axis=axis)


def _extent(own: Any, factor: int, dtype: Any) -> tuple[Any, Any]:
    """(index of this rank's first value, number of values for the whole batch) in a dimension.

    A nested function may be called in other steps, and assumes that all parts have the same size:
    see plan._make.

    Args:
      own: how many values this rank has there.
      factor: how many values a sample has there.
    """
    part = batch.current()
    if part is None or part.weight is None or _is_nested():
        return group.rank * own, group.size * own
    return tf.cast(part.first_row() * factor, dtype), tf.cast(part.whole_rows() * factor, dtype)


def _are_rows_unknown() -> bool:
    """Whether it is unknown which rows of a batch this rank has."""
    return batch.current() is None and scope.own_rows() is None


def _on_own_stream(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make an op draw different numbers on each rank."""
    if "counter" in given:
        given["counter"] = philox.advance(
            tf.convert_to_tensor(given["counter"]), group.rank * _STREAM_STRIDE
        )
    elif "seed2" in given:
        given["seed2"] = (int(given["seed2"] or 0) + group.rank * _SEED_STRIDE) % _SEED_MODULUS
    elif "seed" in given:
        seed = tf.convert_to_tensor(given["seed"])
        given["seed"] = tf.bitwise.bitwise_xor(seed, tf.constant([0, group.rank << 20], seed.dtype))
    return given


def _in_graph_of_step() -> bool:
    part = batch.current()
    if part is None or tf.executing_eagerly():
        return False
    return part.is_of_step(tf.compat.v1.get_default_graph())


def _is_nested() -> bool:
    """Whether a nested function of the step is being traced."""
    in_graph = batch.current() is not None and not tf.executing_eagerly()
    return in_graph and not _in_graph_of_step()


# Which dimension is that of the samples


def _decide(call: _Call) -> Draw | None:
    """Which dimension of the draw is that of samples. Notes it in the analysis, if there is one."""
    part = batch.current()
    if part is None:
        rows = scope.own_rows()
        found = _by_size(call, rows) if tf.executing_eagerly() else _by_arguments(call, rows)
        if found is not None and found.axis is not None and call.static is not None:
            _local.by_size = getattr(_local, "by_size", set())
            _local.by_size.add(tuple(call.static))
        return found
    if _is_nested():
        return _by_arguments(call, {part.static_rows})
    if part.findings is not None:
        draw = _by_numbers(call, part.analysis)
        part.findings.draws.append(draw)
        return draw
    planned = part.planned.next_draw(call.name, None if call.static is None else len(call.static))
    return planned or _by_size(call, {part.static_rows})


def _by_numbers(call: _Call, analysis: kinds.Analysis) -> Draw:
    """The dimension of samples, from the ops that compute the shape."""
    numbers = call.numbers(analysis)
    rank = None if numbers is None else len(numbers)
    nothing = Draw(call.name, rank, None)
    if numbers is None:
        return nothing
    found = [(axis, number) for axis, number in enumerate(numbers) if number.power]
    if len(found) != 1:
        return nothing
    ((axis, number),) = found
    factor = (number / sizes.N).value
    if not factor or not call.takes_rows(analysis, axis, len(numbers)):
        return nothing
    return Draw(call.name, rank, axis, factor)


def _by_arguments(call: _Call, rows: set[int | None] | None) -> Draw | None:
    """The dimension of samples of a draw in a nested function.

    Arguments whose first dimension is unknown have their samples there.
    """
    graph = tf.compat.v1.get_default_graph()
    while kinds.is_body(graph):
        graph = graph.outer_graph
    captured = {kinds.key(inside) for _, inside in getattr(graph, "captures", ())}
    inputs = [tensor for tensor in getattr(graph, "inputs", ()) if tensor.shape.rank]
    given = [tensor for tensor in inputs if kinds.key(tensor) not in captured]
    known = {kinds.key(one): kinds.Kind.ROWS for one in given if one.shape[0] is None}
    found = _by_numbers(call, kinds.Analysis(known))
    if found.axis is not None:
        return found
    here = (rows or set()) & {one.shape[0] for one in given}
    return _by_size(call, here or rows)


def _by_size(call: _Call, rows: set[int | None] | None) -> Draw | None:
    """The dimension of samples, judged by the size of the first dimension of the draw.

    A first dimension of 1 is for all samples, unless a rank never has more than one.

    Args:
      rows: the possible numbers of samples of a rank; None if unknown.
    """
    if not call.static:
        return None
    first = call.static[0]
    if first is None or rows is None:
        return Draw(call.name, len(call.static), 0)
    for number in rows:
        if number is None or (number == 1 and len(rows) > 1):
            continue
        if first == number or (number > 1 and first % number == 0):
            return Draw(call.name, len(call.static), 0, first // number)
    return None
