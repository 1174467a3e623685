"""The whole batch, in a step on this rank's part of it.

A loss that is not a mean over samples, or a metric whose state is not a sum, is computed from the
gathered batch on every rank; its gradient flows back to the rank's own samples. See
docs/decisions/039-whole-batch.md.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi._src.average import averaging, carrier, compiled, scope
from tensorflow.mpi._src.global_batch import kinds, samples
from tensorflow.mpi._src.global_batch.sites import ARGUMENT, Findings, Leaf, Plan, Planned, location
from tensorflow.mpi._src.global_batch.sizes import ONE
from tensorflow.mpi._src.messaging import graph_collectives
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import group, threads

_calls = itertools.count()  # of allgather in eager code, in program order
_local = threading.local()  # .part
distinct_gradient_sent = False  # whether send_distinct_gradient has averaged a gradient


class AnalyzedBatch(NamedTuple):
    """A shard for `step_on` in a step that is only analyzed: a whole batch, without a weight."""

    data: Any


class Part:
    """This rank's part of the batch that a step is traced or run on.

    Args:
      shard: has `data`, and if the ranks' parts differ in size, `weight`, `first`, `whole` and
        `counts` (data/batch_shard.py).
      plan: the decisions for the step's losses, metrics and gradients; None if there are none.
      findings: if the step is only analyzed, receives what the analysis finds; then `shard` is the
        whole batch. Otherwise None.
    """

    def __init__(
        self, shard: Any, plan: Plan | None = None, findings: Findings | None = None
    ) -> None:
        self.data = shard.data
        self.weight = getattr(shard, "weight", None)  # None: 1
        self._first, self._whole = getattr(shard, "first", None), getattr(shard, "whole", None)
        # Whether its samples count, unlike those of a stand-in; None: True.
        self.counts = getattr(shard, "counts", None)
        leaves = [leaf for leaf in tf.nest.flatten(shard.data) if isinstance(leaf, tf.Tensor)]
        # A tensor of this part whose first dimension is that of its samples; None without one.
        self.samples = next((leaf for leaf in leaves if leaf.shape.rank), None)
        self.findings = findings
        self.planned = Planned(
            plan.sites if plan is not None else (), plan.draws if plan is not None else ()
        )
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self.values = plan.values if plan is not None else {}
        # Variables of metrics that are the same on every rank.
        self.whole_states = plan.whole_states if plan is not None else []
        self._updating: set[int] = set()  # ids of metrics
        self.is_suspended = False  # inside outside_part()
        # Results of metrics, by id: (tensor, metric, key if the result is a dict).
        self.results: dict[int, tuple[Any, Any, str | None]] = {}
        # Gathered tensors, by the id of this rank's: (this rank's, graph or None, gathered).
        self._wholes: dict[int, tuple[Any, Any, Any]] = {}
        known_kinds = {
            kinds.key(leaf): kinds.Kind.ROWS if leaf.shape.rank else kinds.Kind.CONST
            for leaf in leaves
            if hasattr(leaf, "graph") and leaf.shape.rank is not None
        }
        sizes = (one for one in (self._first, self._whole) if is_symbolic(one))
        known_kinds.update(dict.fromkeys(map(kinds.key, sizes), kinds.Kind.CONST))
        self.analysis = kinds.Analysis(known_kinds, self.static_rows)
        # As the plan's: no constant is mistaken for the number of samples.
        self._of_any_size = kinds.Analysis(known_kinds)

    def note(self, tensor: Any, kind: kinds.Kind) -> None:
        """Declares that `tensor`, of the step's graph, is of `kind`."""
        if is_symbolic(tensor):
            self.analysis.note(tensor, kind)
            self._of_any_size.note(tensor, kind)

    def kind(self, tensor: Any) -> kinds.Kind:
        """How `tensor` depends on the samples; UNKNOWN in eager code."""
        return self.analysis.kind(tensor) if is_symbolic(tensor) else kinds.Kind.UNKNOWN

    def is_outside_graph(self) -> bool:
        """Whether eager code runs while the step is traced, as in an init_scope."""
        return self._graph is not None and tf.executing_eagerly()

    def is_of_step(self, graph: Any) -> bool:
        """Whether `graph` is the step's or a branch or loop in it, rather than a function's."""
        while graph is not self._graph and kinds.is_body(graph):
            graph = graph.outer_graph
        return graph is self._graph

    def is_by_sample(self, value: Any) -> bool:
        """Whether `value`, a structure of tensors, consists of rows of samples and constants."""
        tensors = filter(is_symbolic, tf.nest.flatten(value, expand_composites=True))
        return all(self.kind(one) in {*kinds.ROWS, kinds.Kind.CONST} for one in tensors)

    def why(self, tensor: Any) -> str:
        """The operation that decides the kind of `tensor`, described for users."""
        op = self.analysis.why(tensor) if is_symbolic(tensor) else None
        # A function is traced before its caller has the op whose inputs are its arguments.
        is_argument = op is not None and op.type == "Placeholder" and op.graph is not self._graph
        return ARGUMENT if is_argument else location(op)

    def is_count(self, tensor: Any) -> bool:
        return is_symbolic(tensor) and self.analysis.dependence(tensor).is_count

    @property
    def static_rows(self) -> int | None:
        """The number of samples of this part, if it is static."""
        return None if self.samples is None else self.samples.shape[0]

    def first_row(self) -> Any:
        """The index of this rank's first sample in the batch: an int64 scalar.

        On a rank without samples, which computes on a stand-in, it is the index of another rank's
        sample; this is harmless because the stand-in's weight is 0.
        """
        return self._rows(self._first, 0 if self.findings is not None else group.rank)

    def whole_rows(self) -> Any:
        """The number of samples of the batch on all ranks: an int64 scalar."""
        return self._rows(self._whole, 1 if self.findings is not None else group.size)

    def _rows(self, of_length: Any, parts: int) -> Any:
        """The length of `of_length`; if None, `parts` times the number of this part's samples."""
        if of_length is not None:
            return samples.length(of_length)
        leaves = [leaf for leaf in tf.nest.flatten(self.data) if tf.is_tensor(leaf)]
        batched = (leaf for leaf in leaves if samples.is_batched(tf.type_spec_from_value(leaf)))
        rows = samples.length(next(batched))  # only data with a batched tensor is divided
        static = tf.get_static_value(rows)
        return rows * parts if static is None else tf.constant(static * parts)

    def leaf(self, value: Any) -> Leaf | None:
        """How a computation on the whole batch gets its argument from the ranks' `value`; None if
        it cannot. Only in a step that is analyzed.
        """
        if not isinstance(value, tf.Tensor):
            return None if isinstance(value, tf.__internal__.CompositeTensor) else Leaf.KEEP
        kind = self.kind(value)
        if not is_symbolic(value) or kind in (kinds.Kind.CONST, kinds.Kind.GRADIENT):
            return Leaf.KEEP
        if kind in kinds.ROWS:
            # The gathered rows are those of rank 0, then those of rank 1, and so on.
            in_order = self.analysis.dependence(value).outer == ONE
            return Leaf.GATHER if in_order and can_be_gathered(value) else None
        if kind is kinds.Kind.MEAN:
            return Leaf.MEAN
        if kind is kinds.Kind.SUM or self.is_count(value):
            return Leaf.SUM
        return Leaf.MEAN if self.terms(value) is not None and not self.eagerly else None

    @property
    def eagerly(self) -> bool:
        """Whether the analyzed step will run without a graph."""
        return self.findings is not None and self.findings.eagerly

    def whole(self, value: Any, leaf: Leaf | None, what: str) -> Any:
        """`value` for the samples of all ranks; a tensor is gathered once in each graph.

        Args:
          leaf: the decision; None: there is none, so a first dimension is taken as that of samples.
          what: a name for the average.
        """
        if leaf is None and tf.is_tensor(value):
            leaf = Leaf.GATHER if can_be_gathered(value) else Leaf.MEAN
        if leaf is Leaf.KEEP or not tf.is_tensor(value):
            return value
        if leaf is not Leaf.GATHER:
            return self.mean(value, what, is_sum=leaf is Leaf.SUM)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        known = self._wholes.get(id(value))
        if known is None or known[1] is not graph:
            known = self._wholes[id(value)] = (value, graph, gather(value, self, replicated=True))
            self.note(known[2], kinds.Kind.CONST)  # the same on every rank
        return known[2]

    def gathered(self, data: Any) -> Any:
        """`data`, a structure of tensors, for the samples of all ranks."""

        def whole(leaf: Any) -> Any:
            return self.whole(leaf, Leaf.GATHER if can_be_gathered(leaf) else Leaf.KEEP, "batch")

        return tf.nest.map_structure(whole, data)

    def mean(self, value: Any, what: str, is_sum: bool = False) -> Any:
        """The whole batch's value of `value`, a mean or a sum over this part's samples."""
        if self.kind(value) is kinds.Kind.CONST:
            return value
        wide = value if value.dtype.is_floating else tf.cast(value, tf.float64)
        scaled = wide * self.to_sum(wide.dtype) if is_sum else self.scaled(wide)
        mean = averaging.average([scaled], [what], "whole batch's mean", self.weight)[0]
        mean = mean if value.dtype.is_floating else tf.cast(tf.round(mean), value.dtype)
        self.note(mean, kinds.Kind.CONST)
        return mean

    def is_updating(self, metric: Any) -> bool:
        return id(metric) in self._updating

    @contextlib.contextmanager
    def updating(self, metric: Any) -> Iterator[None]:
        """Around an update of `metric`, so that nested calls of its methods are part of it."""
        self._updating.add(id(metric))
        try:
            yield
        finally:
            self._updating.discard(id(metric))

    def to_sum(self, dtype: Any) -> Any:
        return to_sum(self.weight, dtype)

    def terms(self, value: Any) -> list[kinds.Term] | None:
        """The terms that add up to `value`, a scalar; None if some are of a kind without a rule."""
        return kinds.terms(self.analysis, value) if is_symbolic(value) else None

    def planned_terms(self, value: Any, planned: list[kinds.Kind]) -> list[kinds.Term] | None:
        """`terms`, of the kinds `planned`, which were found with an unknown number of samples.

        A constant that equals the static number, as in sum / 16, hides that a term is a sum.
        """
        first = self.terms(value)
        if first is None or len(first) == len(planned):
            return first
        second = kinds.terms(self._of_any_size, value)
        return second if second is not None and len(second) == len(planned) else first

    def factor(self, term: kinds.Term) -> Any:
        """The factor for `term`, so that the weighted average is the whole batch's; None: 1."""
        if term.kind is kinds.Kind.SUM:
            return self.to_sum(term.tensor.dtype)
        ratio = term.ratio
        if ratio is None:
            return None
        own = tf.stop_gradient(ratio.divisor)
        if self.kind(ratio.divisor) is kinds.Kind.MEAN:
            whole = averaging.average([own], ["divisor"], "whole batch's divisor", self.weight)[0]
        else:
            whole = sum_over_ranks(own, self, "divisor")
        # In float64, as they may be integers.
        own, whole = (tf.cast(ratio.of_whole(one), tf.float64) for one in (own, whole))
        factor = tf.math.divide_no_nan(own, whole) if term.divided else 1 / whole
        factor = tf.cast(factor, term.tensor.dtype)
        is_sum = ratio.numerator is kinds.Kind.SUM
        return factor * self.to_sum(factor.dtype) if is_sum else factor

    def scaled(self, value: Any, planned: list[kinds.Kind] | None = None) -> Any:
        """`value`, scaled so that its weighted average is the whole batch's; unchanged if it has no
        `terms`. `planned`: their kinds in the plan, if known."""
        terms = self.terms(value) if planned is None else self.planned_terms(value, planned)
        if terms is None:
            return value
        terms = with_kinds(terms, planned)
        factors = [self.factor(term) for term in terms]
        if not any(factor is not None for factor in factors):
            return value
        scaled = tf.add_n(
            [
                tf.cast(term.value() if factor is None else term.value() * factor, value.dtype)
                for term, factor in zip(terms, factors, strict=True)
            ]
        )
        self.note(scaled, kinds.Kind.MEAN)
        return scaled


def with_kinds(terms: list[kinds.Term], planned: list[kinds.Kind] | None) -> list[kinds.Term]:
    """The terms with the plan's kinds, except quotients, if there are as many."""
    if planned is None or len(planned) != len(terms):
        return terms
    return [
        term if term.ratio is not None else term._replace(kind=kind)
        for term, kind in zip(terms, planned)
    ]


def is_symbolic(tensor: Any) -> bool:
    """Whether `tensor` belongs to a graph."""
    return hasattr(tensor, "op") and not hasattr(tensor, "_numpy_internal")


def current() -> Part | None:
    """The part of the step that this thread traces or runs; None outside of steps."""
    part: Part | None = getattr(_local, "part", None)
    return part


@contextlib.contextmanager
def step_on(
    shard: Any, plan: Plan | None = None, findings: Findings | None = None
) -> Iterator[Part]:
    """Around a step on `shard.data`: its gradients are averaged with the shard's weight.

    Arguments as for Part.
    """
    part = Part(shard, plan, findings)
    with threads.inside(_local, part=part), scope.weighted(part.weight):
        yield part


@contextlib.contextmanager
def replicated_step() -> Iterator[None]:
    """Around a step that every rank runs on the whole batch."""
    with threads.inside(_local, part=None), scope.replicated_step(), scope.weighted(None):
        yield


@contextlib.contextmanager
def outside_part(part: Part) -> Iterator[None]:
    """Inside, the code does not compute on `part`'s samples, but on the whole batch or on none."""
    before, part.is_suspended = part.is_suspended, True
    try:
        yield
    finally:
        part.is_suspended = before


def can_be_gathered(value: Any) -> bool:
    """Whether `value` is a dense tensor whose rows can be gathered from all ranks."""
    if not isinstance(value, tf.Tensor) or value.dtype in (tf.string, tf.variant, tf.resource):
        return False
    return value.shape.rank is not None and value.shape.rank > 0


def to_sum(weight: Any, dtype: Any) -> Any:
    """The number of ranks divided by this rank's weight; 0 for weight 0. Ranks that multiply their
    values by it get the sum as their weighted average."""
    ranks = tf.constant(group.size, dtype)
    return ranks if weight is None else tf.math.divide_no_nan(ranks, tf.cast(weight, dtype))


def gather_batch(x: Any) -> Any:
    """See tensorflow.mpi.gather_batch."""
    x = tf.convert_to_tensor(x)
    if x.shape.rank == 0:
        raise ValueError("tf.mpi.gather_batch takes samples along a first dimension, not a scalar")
    presence.needs_all("a function with tf.mpi.gather_batch")
    part = current()
    whole = gather(x, part, replicated=False)
    if part is not None:
        part.note(whole, kinds.Kind.CONST)  # the same on every rank
    return whole


def gather(x: Any, part: Part | None, replicated: bool) -> Any:
    """The rows of `x` of all ranks, in the batch's order.

    Differentiable for floating and complex types. A step averages its gradients over ranks,
    weighted by samples. The gradient that flows back through here is scaled so that this average is
    the gradient of the mean of the ranks' losses.

    Args:
      x: a tensor; its first dimension may differ by rank, and must be static in compiled code.
      part: the part whose samples its rows are; None outside of Keras's steps.
      replicated: every rank computes the same from the result, so its gradient is not averaged.
    """
    if x.dtype.is_complex:
        of_both = gather(tf.stack([tf.math.real(x), tf.math.imag(x)], -1), part, replicated)
        return tf.complex(of_both[..., 0], of_both[..., 1])
    gathered, take_own = _compiled(x, part) if compiled.is_compiled() else _gathered(x, part)
    if not x.dtype.is_floating:
        return gathered
    weight = None if part is None else part.weight

    @tf.custom_gradient
    def whole(own: Any) -> tuple[Any, Any]:
        del own  # the result contains it already

        def gradient(upstream: Any) -> Any:
            if not replicated:
                (upstream,) = averaging.average_of_upstream(
                    [upstream], ["whole batch"], "gradient of the whole batch", weight
                )
            scale = to_sum(weight, upstream.dtype)
            return take_own(upstream) * scale

        return tf.stop_gradient(gathered), gradient

    return whole(x)


def _gathered(x: Any, part: Part | None) -> tuple[Any, Any]:
    """The gathered tensor, and a function that takes this rank's rows from the gradient of it; None
    in place of the function if `x` may have no gradient.

    A mask may have selected the rows of `x`, so their number may differ by rank.
    """
    static = x.shape[0]
    if part is not None and part.weight is None and static and static == part.static_rows:
        whole = allgather(x)
        whole.set_shape([group.size * static, *x.shape[1:]])
        return whole, lambda like_whole: like_whole[group.rank * static :][:static]
    rows = tf.shape(x, tf.int64)[0]
    own = rows
    if part is not None and part.counts is not None:
        own = tf.where(part.counts, rows, tf.zeros([], tf.int64))
    whole = allgather(x[:own])
    if not x.dtype.is_floating:
        return whole, None
    first = tf.reduce_sum(allgather(own[None])[: group.rank])

    def take(like_whole: Any) -> Any:
        taken = like_whole[first : first + own]
        nothing = tf.concat([[rows - own], tf.shape(taken, tf.int64)[1:]], 0)
        taken = tf.concat([taken, tf.zeros(nothing, taken.dtype)], 0)  # a stand-in's rows
        taken.set_shape(x.shape)
        return taken

    return whole, take


def _compiled(x: Any, part: Part | None) -> tuple[Any, Any]:
    """As _gathered, in a compiled function, which can only average: each rank fills the rows of
    other ranks with zeros."""
    if not x.shape.is_fully_defined() or (part is not None and part.weight is not None):
        raise NotImplementedError(
            "a loss or a metric that is not a mean over samples, or tf.mpi.gather_batch, needs the "
            "whole batch. In a compiled step every rank must then have the same, static number of "
            f"samples, but a tensor has the shape {x.shape}. Set jit_compile=False, or use a batch "
            f"size that is a multiple of {group.size} and drop_remainder=True"
        )
    if x.dtype.size == 8:  # not exact in float64 after an average, but its halves are
        whole, take = _compiled(tf.bitcast(x, tf.int32), part)
        return tf.bitcast(whole, x.dtype), take
    rows = x.shape[0]
    before, after = group.rank, group.size - 1 - group.rank
    padded = tf.pad(tf.cast(x, tf.float64)[None], [[before, after], *[[0, 0]] * x.shape.rank])
    total = averaging.average([padded], ["samples"], "whole batch")[0] * group.size
    if not x.dtype.is_floating:
        total = tf.round(total)
    whole = tf.reshape(tf.cast(total, x.dtype), [group.size * rows, *x.shape[1:]])
    return whole, lambda like_whole: like_whole[before * rows :][:rows]


def allgather(x: Any) -> Any:
    """All ranks' rows, in the order of ranks; not in compiled functions."""
    if tf.executing_eagerly():
        return graph_collectives.run_op("allgather", x, f"whole batch {next(_calls)}")
    label = "whole batch"
    number = carrier.count_in_graph(tf.compat.v1.get_default_graph(), label)
    result = graph_collectives.run_op("allgather", x, carrier.numbered(label, number))
    result.set_shape([None, *x.shape[1:]])
    return result


def send_distinct_gradient() -> None:
    """Called on all ranks before steps whose data every rank has: whole batches, or parts of them.

    The coordinator warns if the first gradients are equal on all ranks, as if nothing divided the
    data. Here they may be: with whole batches, or if all samples are equal. This average of values
    that differ prevents the warning. Only the first call makes it.
    """
    global distinct_gradient_sent
    if distinct_gradient_sent or group.size == 1:
        return
    distinct_gradient_sent = True
    with tf.init_scope():
        averaging.average([tf.constant([group.rank + 1.0])], ["rank"], "whole batches")


def sum_over_ranks(value: Any, part: Part, what: str) -> Any:
    """The sum of a scalar over the ranks whose samples count; not differentiable."""
    wide = tf.cast(tf.stop_gradient(value), tf.float64)
    if part.counts is not None:
        wide = tf.where(part.counts, wide, tf.zeros_like(wide))
    total = averaging.average([wide], [what], "whole batch's sum")[0] * group.size
    return tf.cast(total if value.dtype.is_floating else tf.round(total), value.dtype)
