"""The decision for each call of a loss or a metric, and for each gradient, in a step.

A step is analyzed once, in a graph that never runs (plan.py), which records the calls in their
order. When the step is traced or run on this rank's samples, the n-th call takes the n-th decision.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensorflow.mpi._src.global_batch.kind import Kind

LOSS = "the loss whose gradient it takes"  # Why.what, for the loss of a step
ARGUMENT = "an argument of a tf.function"  # Why.op, for a step or a part of it in a tf.function


class How(enum.Enum):
    PART = "computed from this rank's part of the batch"
    SCALED = "computed from this rank's part and scaled, because it is a sum or a quotient of sums"
    WHOLE = "computed from the whole batch, on every rank"


class Leaf(enum.Enum):
    """How an argument for the whole batch is made from the ranks' arguments."""

    KEEP = "is the same on every rank"
    GATHER = "has samples along its first dimension"
    MEAN = "is a mean over samples, or consists of terms that have rules (kinds.terms)"
    SUM = "is a sum over samples"


class Site:
    """One call. `kind`: "loss", "metric" or "gradient"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.how = How.PART
        self.leaves: list[Leaf] = []  # one per argument, if how is WHOLE
        # One per variable of a metric: whether it grows once per batch, rather than once per
        # sample; None: nothing is added to it.
        self.once: list[bool | None] = []
        self.given: list[str] = []  # the arguments that the metric was called with
        # For a gradient, the kinds of the terms of its targets. For a loss, its own kind: ROWS if
        # Keras reduces one value per sample.
        self.terms: list[Kind] = []


class Draw(NamedTuple):
    """One random draw of a step, as the analysis of the step decided it.

    Attributes:
      op: the name of the op.
      rank: the rank of the drawn tensor; None if unknown.
      axis: its dimension of samples; None if it has none.
      factor: how many numbers each sample has along that dimension.
      outer: how many of these lie a whole batch apart, as in noise for two concatenated views.
    """

    op: str
    rank: int | None
    axis: int | None
    factor: int = 1
    outer: int = 1


class Why(NamedTuple):
    """Why a batch cannot be split: something depends on several samples, or cannot be analyzed.

    Attributes:
      what: that thing, in words for a message.
      op: the operation that causes it, as `location` describes it.
      way_out: what the user can do so that the ranks share the work.
    """

    what: str
    op: str = ""
    way_out: str = "compute it from tf.mpi.gather_batch(x)"


def location(op: Any) -> str:
    """An operation's type and the line of the script that created it.

    As text: a plan must not keep the analyzed graph.
    """
    if op is None:
        return ""
    for frame in reversed(op.traceback or ()):
        name = frame.filename.replace("\\", "/")
        if "/site-packages/" not in name and not name.startswith("<"):
            return f"{op.type} in {name.rpartition('/')[2]}:{frame.lineno}"
    return str(op.type)


class Findings:
    """The findings of the analysis of a step.

    Args:
      eagerly: the step will run without a graph, so no loss can be split into its terms.
    """

    def __init__(self, eagerly: bool) -> None:
        self.eagerly = eagerly
        self.sites: list[Site] = []
        self.draws: list[Draw] = []  # in program order; without those in nested functions
        # Those of `draws` with a factor > 1: (index in draws, drawn tensor).
        self.draws_with_factor: list[tuple[int, Any]] = []
        self.foreign_draw = ""  # an op that draws for samples in a restored function
        self.nested_draws = False  # whether a nested function draws for samples
        self.gathered: list[Why] = []  # what is computed from the whole batch
        self.whys: list[Why] = []  # reasons not to split the batch
        self.judged: set[str] = set()  # names of the assignment ops that belong to a metric
        self.updates: list[Any] = []  # the graphs in which optimizers are called
        self.whole_states: list[Any] = []  # variables of metrics that receive the whole batch
        self.values: dict[tuple[str, ...], Kind] = {}  # other values that the step returns, by path

    @property
    def draws_by_kernels(self) -> bool:
        """See Plan."""
        return any(not draw.op.startswith("stateless_") for draw in self.draws)

    @property
    def suffices(self) -> bool:
        """Whether nothing is drawn and nothing prevents splitting, so no second trace is needed.

        A trace that creates variables contains the ops of their initial values, which may draw.
        """
        return not (self.draws or self.foreign_draw or self.nested_draws or self.whys)

    def enter(self, kind: str) -> tuple[Site, Mark]:
        """Begins the analysis of a call; findings after the mark belong to calls inside it."""
        self.sites.append(Site(kind))
        return self.sites[-1], self.mark()

    def mark(self) -> Mark:
        """The state that `restart` returns to."""
        return Mark(*(len(getattr(self, name)) for name in Mark._fields))

    def restart(self, mark: Mark) -> None:
        """Discards what the lists got since `mark`: those calls will not run when the step does, or
        will run on the whole batch."""
        for name, length in mark._asdict().items():
            del getattr(self, name)[length:]


class Mark(NamedTuple):
    """Lengths of the lists of Findings."""

    sites: int
    draws: int
    draws_with_factor: int
    gathered: int
    whys: int
    whole_states: int


class Verdict(enum.Enum):
    SPLIT = "split"
    GATHER = "gathered"
    WHOLE = "whole"


class Plan:
    """The decisions for one call of a model; made by plan.py.

    Attributes:
      verdict: whether each rank takes a part of every batch.
      why: the reason for WHOLE.
      gathered: what is computed from the gathered batch.
      sites: the decisions for the calls in a step.
      draws: the decisions for the random draws of a step.
      draws_rows: whether something is drawn for samples.
      draws_by_kernels: whether stateful ops draw, for samples or not. Each trace has its own
        kernels, which hold the state, so all calls must share one trace, as in one process.
      whole_states: variables of metrics that receive the whole batch.
      values: values that a step returns besides metrics, by path.
      plain: whether the script's own loop iterates, and so gets the script's batches unchanged.
    """

    def __init__(self, verdict: Verdict, findings: Findings, plain: bool) -> None:
        self.verdict = verdict
        self.plain = plain
        # The loss is the most useful reason for a user.
        self.why = min(findings.whys, key=lambda why: why.what != LOSS, default=None)
        self.gathered = findings.gathered
        self.sites = findings.sites
        self.draws = findings.draws
        self.draws_by_kernels = findings.draws_by_kernels
        self.draws_rows = findings.nested_draws or any(
            draw.axis is not None for draw in findings.draws
        )
        self.whole_states = findings.whole_states
        self.values = findings.values

    @property
    def is_whole(self) -> bool:
        return self.verdict is Verdict.WHOLE


class Planned:
    """Hands out the decisions of a plan to the calls of one step that is traced or run."""

    def __init__(self, sites: Sequence[Site], draws: Sequence[Draw]) -> None:
        self._next: Iterator[Site] = iter(sites)
        self._next_draw: Iterator[Draw] = iter(draws)

    def next(self, kind: str) -> Site | None:
        """The decision for the next call, which is of `kind`; None once the plan's kind differs."""
        site = next(self._next, None)
        if site is None or site.kind != kind:
            self._next = iter(())
            return None
        return site

    def next_draw(self, op: str, rank: int | None) -> Draw | None:
        """The decision for a draw by `op`; None from the first draw on that was not analyzed."""
        draw = next(self._next_draw, None)
        if draw is None or draw.op != op or None not in (draw.rank, rank) and draw.rank != rank:
            self._next_draw = iter(())
            return None
        return draw
