"""How a tensor of a graph depends on the samples of a batch, derived from its ops.

A loss that is a mean over independent samples is the mean of the losses of the batch's parts. Other
losses must be scaled, or need the whole batch. The analysis goes from a tensor back to the samples,
and into functions, branches and loops. An op without a rule makes the kind unknown (rules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi._src.global_batch import rules, rules_functions
from tensorflow.mpi._src.global_batch.kind import (
    CONST,
    OF_KIND,
    ROWS,  # noqa: F401  (kinds.ROWS)
    UNKNOWN,
    Dependence,
    Kind,
)
from tensorflow.mpi._src.global_batch.node import DRAWN, Node
from tensorflow.mpi._src.global_batch.sites import Draw
from tensorflow.mpi._src.global_batch.sizes import Number
from tensorflow.mpi._src.variables import naming

_RULES_FOR_ALL_OUTPUTS = {
    **dict.fromkeys(rules_functions.CALLS, rules_functions.called),
    **dict.fromkeys(rules_functions.BRANCHES, rules_functions.branched),
    **dict.fromkeys(rules_functions.LOOPS, rules_functions.looped),
}
_NOT_PER_SAMPLE = {Kind.MIXED, Kind.LINEAR, Kind.RATIO, Kind.UNKNOWN}
_PASS_THROUGH = ("Cast", "Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient")


def key(tensor: Any) -> tuple[int, str, int]:
    """Identifies a tensor of a graph, which may have several Python objects."""
    return id(tensor.graph), tensor.op.name, tensor.value_index


class Ratio(NamedTuple):
    """The divisor of a tensor of kind RATIO.

    A part's value, times the part's divisor, divided by the whole batch's divisor, is its share of
    the whole batch's value (if the numerator is a sum), or averages to it (if it is a mean).

    Attributes:
      numerator: SUM or MEAN.
      divisor: a scalar tensor, a sum or a mean over samples.
      of_whole: computes the actual divisor from `divisor`, as in max(divisor, 1).
    """

    numerator: Kind
    divisor: Any
    of_whole: Callable[[Any], Any]


class Analysis:
    """The kinds of tensors of graphs; each tensor is analyzed once.

    Args:
      known: the kinds of some tensors, by key.
      rows: the number of samples, if it is static.
      is_trained: whether inputs of the graph may depend on trained variables.
    """

    key = staticmethod(key)

    def __init__(
        self, known: dict[Any, Kind], rows: int | None = None, is_trained: bool = False
    ) -> None:
        self._is_input_trained = is_trained
        self._dependences = {which: OF_KIND[kind] for which, kind in known.items()}
        self._inputs = set(known)
        self._noted: set[Any] = set()  # keys
        self._rows = rows
        self._captures: dict[int, int] = {}  # the number of captures noted, by the graph's id
        self._inside: dict[Any, list[Inside]] = {}  # by the key of the call's first output
        self._divisors: dict[Any, Ratio] = {}  # by the key of the tensor that divides
        # Ops, also in called functions, that draw for samples and have no mark (see `draw_marked`).
        self.foreign_draws: list[Any] = []
        self.call = ""  # the names of the ops that call the analyzed function

    def note(self, tensor: Any, kind: Kind) -> None:
        self._dependences[key(tensor)] = OF_KIND[kind]
        self._noted.add(key(tensor))

    def is_noted(self, tensor: Any) -> bool:
        """Whether the kind of `tensor` was declared, so that its ops do not tell."""
        return key(tensor) in self._noted

    def kind(self, tensor: Any) -> Kind:
        return self.dependence(tensor).kind

    def numbers(self, tensor: Any) -> list[Number] | None:
        """The values of a vector of sizes; None if unknown."""
        numbers = self.dependence(tensor).numbers
        return None if numbers is None else list(numbers.flat)

    def dims(self, tensor: Any) -> list[Number] | None:
        """The shape of a tensor; None if its rank is unknown."""
        return Node(self, tensor, [], self._rows).dims_of(tensor, self.dependence(tensor))

    def dependence(self, tensor: Any) -> Dependence:
        """How `tensor` depends on the samples; analyzes all tensors from which it is computed."""
        self._note_captures(tensor.graph)
        todo = [tensor]
        while todo:
            last = todo[-1]
            if key(last) in self._dependences:
                todo.pop()
                continue
            sources = [] if rules.is_end(last.op) or rules.is_drawn(last.op) else last.op.inputs
            missing = [source for source in sources if key(source) not in self._dependences]
            if missing:
                todo += missing
                continue
            todo.pop()
            if rules.is_end(last.op):
                self._dependences[key(last)] = UNKNOWN
                continue
            node = Node(
                self, last, [self._dependences[key(source)] for source in sources], self._rows
            )
            rule_for_all = _RULES_FOR_ALL_OUTPUTS.get(last.op.type)
            if rule_for_all is None:
                self._dependences[key(last)] = rules.of_node(node)
            else:
                for output, dep in zip(last.op.outputs, rule_for_all(node)):
                    self._dependences.setdefault(key(output), dep)
        return self._dependences[key(tensor)]

    def _note_captures(self, graph: Any) -> None:
        """Captured tensors have the kind that they have outside; captured values are constants."""
        captures = list(getattr(graph, "captures", ()))
        for outside, inside in captures[self._captures.get(id(graph), 0) :]:
            if key(inside) in self._dependences:
                continue
            is_value = hasattr(outside, "_numpy_internal") or not hasattr(outside, "op")
            self._dependences[key(inside)] = CONST if is_value else self.dependence(outside)
        self._captures[id(graph)] = len(captures)

    def inside(self, op: Any, name: str, deps: Sequence[Dependence]) -> Inside | None:
        """The analysis of a function that `op` calls, for inputs with `deps`; None if unknown."""
        graph = _graph_of(op.graph, name)
        if graph is None or len(graph.inputs) != len(deps):
            return None
        found = Inside(self, op, graph, deps)
        self._inside[key(op.outputs[0])] = [
            *(one for one in self._inside.get(key(op.outputs[0]), []) if one.graph is not graph),
            found,
        ]
        return found

    def insides(self, op: Any) -> list[Inside]:
        """The analyses of the functions that `op`, whose outputs are analyzed, calls."""
        return self._inside.get(key(op.outputs[0]), [])

    def why(self, tensor: Any) -> Any:
        """The first op on the way to `tensor` that combines several samples or cannot be analyzed.

        If that op calls a function, a branch or a loop, the result is an op in that function. None
        if `tensor` does not depend on such an op.
        """
        if self.kind(tensor) not in _NOT_PER_SAMPLE:
            return None
        while True:
            sources = [] if rules.is_end(tensor.op) else tensor.op.inputs
            worse = [
                source for source in sources if self.dependence(source).base in _NOT_PER_SAMPLE
            ]
            if not worse:
                break
            tensor = worse[0]
        for inner in self.insides(tensor.op):
            for output in inner.graph.outputs:
                found = inner.why(output)
                if found is not None and found.type != "Placeholder":
                    return found
        return tensor.op

    def divisor(self, tensor: Any) -> Ratio | None:
        """The Ratio of a division by `tensor`. Its numerator is not known yet: `ratio` sets it.

        None unless `tensor` is a scalar sum or mean, or is computed from one and a constant, as in
        max(sum, 1); None, too, if gradients may flow through it to variables.
        """
        if tensor.shape.num_elements() != 1:
            return None
        dep, divisor = self.dependence(tensor), tensor
        of_whole: Callable[[Any], Any] = _itself
        if dep.base is not Kind.SUM:
            while divisor.op.type in _PASS_THROUGH:
                divisor = divisor.op.inputs[0]
            if divisor.op.type not in ("Maximum", "AddV2", "Add"):
                return None
            pairs = [(source, self.dependence(source)) for source in divisor.op.inputs]
            sums = [source for source, found in pairs if found.base is Kind.SUM]
            if len(sums) != 1 or not any(found.is_const for _, found in pairs):
                return None
            (floor,) = [source for source, found in pairs if found.is_const]
            of_whole = _with_floor(divisor.op.type, floor)
            (divisor,) = sums
            dep = self.dependence(divisor)
        if dep.kind not in (Kind.SUM, Kind.MEAN) or self.is_trained(divisor):
            return None
        self._divisors[key(tensor)] = Ratio(dep.kind, divisor, of_whole)
        return self._divisors[key(tensor)]

    def ratio(self, tensor: Any) -> Ratio | None:
        """The ratio of a tensor of kind RATIO; None if the divisor is in another graph."""
        dep = self.dependence(tensor)
        found = self._divisors.get(dep.over)
        if dep.kind is not Kind.RATIO or found is None or found.divisor.graph is not tensor.graph:
            return None
        return found._replace(numerator=Kind.SUM if dep.power == 0 else Kind.MEAN)

    def is_trained(self, tensor: Any) -> bool:
        """Whether a gradient may flow from `tensor` to variables."""
        analysis, seen = self, set()
        todo = [(analysis, tensor)] if tensor.dtype.is_floating else []
        while todo:
            analysis, tensor = todo.pop()
            if (id(analysis), key(tensor)) in seen:
                continue
            seen.add((id(analysis), key(tensor)))
            if key(tensor) in analysis._inputs:  # in tf_keras, outputs of an iterator's op
                if analysis._is_input_trained:
                    return True
                continue
            op = tensor.op
            if op.type in ("ReadVariableOp", "ResourceGather", "VariableV2") or rules.is_end(op):
                return True
            if op.type == "Placeholder":
                outer = analysis.outside(tensor)
                todo += [] if outer is None else [outer]
            elif op.type not in ("StopGradient", "ZerosLike", "OnesLike", "Sign", "Shape"):
                todo += [(analysis, source) for source in op.inputs if source.dtype.is_floating]
                if any(source.dtype in ("resource", "variant") for source in op.inputs):
                    return True
        return False

    def outside(self, placeholder: Any) -> Any:
        """(analysis, tensor) for which a placeholder stands; None for an outermost input."""
        pairs = getattr(placeholder.graph, "captures", ())
        found = next((outside for outside, inside in pairs if inside is placeholder), None)
        return (self, found) if hasattr(found, "op") else None


class Inside(Analysis):
    """The analysis of a function that an op calls, branches to or runs in a loop."""

    def __init__(self, parent: Analysis, op: Any, graph: Any, deps: Sequence[Dependence]) -> None:
        super().__init__({}, parent._rows, parent._is_input_trained)
        self.graph = graph
        self._parent, self._op = parent, op
        self.call = f"{parent.call}{op.name}/"
        self._dependences = {key(tensor): one for tensor, one in zip(graph.inputs, deps)}
        self._captures[id(graph)] = len(list(getattr(graph, "captures", ())))
        self._divisors = parent._divisors
        self.foreign_draws = parent.foreign_draws

    def results(self) -> list[Dependence]:
        return [self.dependence(output) for output in self.graph.outputs]

    def outside(self, placeholder: Any) -> Any:
        names = [tensor.op.name for tensor in self.graph.inputs]
        skipped = len(self._op.inputs) - len(names)  # 1 for a branch: its condition
        if placeholder.op.name not in names:
            return None
        return self._parent, self._op.inputs[names.index(placeholder.op.name) + skipped]


def _itself(divisor: Any) -> Any:
    return divisor


def _with_floor(how: str, floor: Any) -> Callable[[Any], Any]:
    def of_whole(divisor: Any) -> Any:
        return tf.maximum(divisor, floor) if how == "Maximum" else divisor + floor

    return of_whole


def _graph_of(graph: Any, name: str) -> Any:
    """The graph of a function that `graph` can call; None if there is none."""
    from tensorflow.python.framework import function_def_to_graph

    function = graph._get_function(name)
    found = getattr(function, "graph", None)
    if found is None and function is not None:
        try:
            with graph.as_default():  # it may call other functions
                found = function_def_to_graph.function_def_to_graph(function.cached_definition)
        except Exception:  # it uses unregistered ops
            return None
    return found


class Term(NamedTuple):
    """One of the terms of a scalar.

    Attributes:
      tensor: a scalar, or a target of a gradient, which stands for the sum of its elements.
      kind: CONST, MEAN, SUM or RATIO.
      ratio: the divisor of a term of kind RATIO.
      divided: whether `tensor` is the quotient. Otherwise it is the numerator, as the quotient is
        NaN on a part whose divisor is 0.
      times, by: constants of the graph by which `tensor` is multiplied and divided.
      negative: whether the term is subtracted.
    """

    tensor: Any
    kind: Kind
    ratio: Ratio | None = None
    divided: bool = True
    times: tuple[Any, ...] = ()
    by: tuple[Any, ...] = ()
    negative: bool = False

    def factor(self) -> Any:
        """The factor of `tensor` in the sum: a tensor of float64, 1 or -1."""
        factor: Any = -1 if self.negative else 1
        for one in self.times:
            factor = factor * tf.cast(one, tf.float64)
        for one in self.by:
            factor = factor / tf.cast(one, tf.float64)
        return factor

    def value(self) -> Any:
        return self.tensor * tf.cast(self.factor(), self.tensor.dtype)

    def slopes(self) -> list[tuple[Any, Any]]:
        """The derivative of `value` by each of `times` and `by`, with that constant."""
        others = [self.times[:i] + self.times[i + 1 :] for i in range(len(self.times))]
        found = [self._replace(times=times).value() for times in others]
        found += [-self.value() / tf.cast(one, self.tensor.dtype) for one in self.by]
        return list(zip((*self.times, *self.by), found))


_LINEAR = ("Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "Cast", "Mul", "RealDiv", "Div")


def terms(analysis: Analysis, tensor: Any) -> list[Term] | None:
    """The terms of `tensor`, a scalar of a graph; None if a term has a kind that Term excludes."""
    kind = analysis.kind(tensor)
    if kind in (Kind.CONST, Kind.MEAN, Kind.SUM, Kind.GRADIENT):
        # Gradients count as their averages, which are the same on all ranks; gradients.py refuses
        # them in a loss.
        return [Term(tensor, Kind.CONST if kind is Kind.GRADIENT else kind)]
    if analysis.is_noted(tensor):
        return None
    op = tensor.op
    inputs = list(op.inputs)
    ratio = analysis.ratio(tensor) if kind is Kind.RATIO else None
    if ratio is not None:
        if op.type in ("RealDiv", "Div") and key(inputs[1]) == analysis.dependence(tensor).over:
            return [Term(inputs[0], kind, ratio, divided=False)]
        if op.type not in _LINEAR:
            return [Term(tensor, kind, ratio)]
    if op.type == "Sum" and inputs[0].op.type == "Pack":
        inputs = list(inputs[0].op.inputs)
    elif op.type in ("Mul", "RealDiv", "Div", "DivNoNan"):
        constant = [analysis.kind(one) is Kind.CONST and one.shape.rank == 0 for one in inputs]
        if op.type == "Mul" and constant[0]:
            inputs.reverse()
        elif not constant[1]:
            return None if ratio is None else [Term(tensor, kind, ratio)]
        inner = terms(analysis, inputs[0])
        if inner is None:
            return None
        if op.type == "Mul":
            return [one._replace(times=(*one.times, inputs[1])) for one in inner]
        return [one._replace(by=(*one.by, inputs[1])) for one in inner]
    elif op.type not in _LINEAR:
        return None
    if any(one.shape.rank != 0 or not one.dtype.is_floating for one in inputs):
        return None
    found: list[Term] = []
    for i, one in enumerate(inputs):
        inner = terms(analysis, one)
        if inner is None:
            return None
        minus = op.type == "Neg" or (op.type == "Sub" and i == 1)
        found += [term._replace(negative=term.negative != minus) for term in inner]
    return found


def is_body(graph: Any) -> bool:
    """Whether `graph` is the body of a branch or a loop, which is traced anew for each use."""
    from tensorflow.python.ops import control_flow_v2_func_graphs as bodies

    return isinstance(
        graph, (bodies.CondBranchFuncGraph, bodies.WhileCondFuncGraph, bodies.WhileBodyFuncGraph)
    )


def draw_marked(make: Callable[[], Any], draw: Draw, nested: bool = False) -> Any:
    """Calls `make`, which draws random numbers as `draw` says, and marks its ops for analyses.

    Args:
      nested: whether it draws in a function that is traced once for all its callers.
    """
    if tf.executing_eagerly():
        return make()
    numbers = [draw.axis or 0, draw.factor, draw.outer, int(nested)]
    mark = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=numbers))
    with tf.compat.v1.get_default_graph()._attr_scope({DRAWN: mark}):
        return tf.identity(make())


def draws_in_functions(graph: Any) -> bool:
    """Whether `graph` calls a function that draws for samples and is traced once for all calls."""
    for function in graph._functions.values():
        for node in function.cached_definition.node_def:
            if DRAWN in node.attr and node.attr[DRAWN].list.i[3]:
                return True
    return False


def find_drawing_loop(analysis: Analysis, graph: Any) -> Any:
    """A loop over the samples that draws from a sequence, in `graph` or what it calls; or None.

    In one process the sequence advances with each sample, and a rank does not have all samples.
    """
    for op in graph.get_operations():
        if op.type not in _RULES_FOR_ALL_OUTPUTS or not op.outputs:
            continue
        if not naming.calls(op, lambda node: node.op in rules.SEQUENCES):
            continue
        if op.type in rules_functions.LOOPS and _may_end_by_samples(analysis, op):
            return op
        analysis.dependence(op.outputs[0])
        for inner in analysis.insides(op):
            found = find_drawing_loop(inner, inner.graph)
            if found is not None:
                return found
    return None


def _may_end_by_samples(analysis: Analysis, loop: Any) -> bool:
    """Whether the number of iterations of `loop` may depend on the samples."""
    counts = [one for one in loop.inputs if one.shape.rank == 0 and one.dtype.is_integer]
    if any(analysis.kind(one) is not Kind.CONST for one in counts):
        return True
    graph = _graph_of(loop.graph, loop.get_attr("cond").name)
    deps = [analysis.dependence(one) for one in loop.inputs]
    if graph is None or len(graph.inputs) != len(deps):
        return True
    return not Inside(analysis, loop, graph, deps).results()[0].is_const


def outer_of_draw(analysis: Analysis, drawn: Any) -> int:
    """How many whole batches lie one after another along the dimension of samples of `drawn`.

    These random numbers fit any layout; the first op that combines them with samples decides.
    """
    seen, todo = {key(drawn)}, [drawn]
    while todo:
        for op in todo.pop(0).consumers():
            for output in op.outputs:
                dep = analysis.dependence(output)
                if key(output) in seen or not dep.has_rows:
                    continue
                if not dep.any_layout:
                    return dep.outer.value or 1
                seen.add(key(output))
                todo.append(output)
    return 1


def origin(tensor: Any) -> Any:
    """The tensor that a placeholder captures, followed outward through all functions."""
    while hasattr(tensor, "op") and not hasattr(tensor, "_numpy_internal"):
        pairs = getattr(tensor.graph, "captures", ())
        outer = next((outside for outside, inside in pairs if inside is tensor), None)
        if outer is None:
            return tensor
        tensor = outer
    return tensor
