"""What was decided of each call of a loss or a metric, and of each gradient, in a step.

A step is looked at once, in a graph that never runs (plan.py): there the calls are noted in their
order. When the step is traced or run on this rank's samples, each call takes the decision of its
place.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tensorflow.mpi._src.global_batch.kind import Kind

LOSS = "the loss of which it takes a gradient"


class How(enum.Enum):
    PART = "computed of this rank's part of the batch"
    SCALED = "... and scaled, as a sum or a quotient of sums is"
    WHOLE = "computed of the whole batch, on every rank"


class Leaf(enum.Enum):
    """How an argument becomes that of the whole batch."""

    KEEP = "it is the same on every rank"
    GATHER = "it has samples along its first dimension"
    MEAN = "it is a mean over samples, or a sum that `terms` takes apart"
    SUM = "it is a sum over samples"


class Site:
    """One call. `kind`: "loss", "metric" or "gradient"."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.how = How.PART
        self.leaves: list[Leaf] = []  # of the arguments, where how is WHOLE
        # By variable of a metric: a batch adds to it once, not a sample; None: nothing is added.
        self.once: list[bool | None] = []
        self.given: list[str] = []  # which arguments a metric was given
        # Of a gradient's targets; of a loss its kind: ROWS, where Keras reduces a value a sample.
        self.terms: list[Kind] = []


class Draw(NamedTuple):
    """What a step draws, as it was decided when the step was looked at.

    op: its name. rank: of what is drawn; None if unknown. axis: the dimension of the samples;
    None: it has none. factor: how many numbers each sample has there; `outer` of them lie a whole
    batch apart, as in noise for two views that are put one behind the other.
    """

    op: str
    rank: int | None
    axis: int | None
    factor: int = 1
    outer: int = 1


class Why(NamedTuple):
    """What is a function of several samples at once, or cannot be told.

    op: the operation that decides it, as `place` says it. way_out: how the work can be shared.
    """

    what: str
    op: str = ""
    way_out: str = "compute that of tf.mpi.gather_batch(x)"


def place(op: Any) -> str:
    """An operation's type, and the line of the script that made it: a plan keeps no graph."""
    if op is None:
        return ""
    for frame in reversed(op.traceback or ()):
        name = frame.filename.replace("\\", "/")
        if "/site-packages/" not in name and not name.startswith("<"):
            return f"{op.type} in {name.rpartition('/')[2]}:{frame.lineno}"
    return str(op.type)


class Look:
    """What is found while a step is looked at.

    eagerly: the step itself will run without a graph, in which no loss can be taken apart.
    """

    def __init__(self, eagerly: bool) -> None:
        self.eagerly = eagerly
        self.sites: list[Site] = []
        self.draws: list[Draw] = []  # in their order, but for those in a function of its own
        self.several: list[tuple[int, Any]] = []  # (place in draws, tensor) of those with a factor
        self.foreign_draw = ""  # an op for samples in a function that was made elsewhere
        self.nested_draws = False  # whether such a function draws for samples
        self.gathered: list[Why] = []  # what is computed of the whole batch
        self.whys: list[Why] = []
        self.judged: set[str] = set()  # names of operations whose assignments a metric answers for
        self.whole_states: list[Any] = []  # variables of metrics that are given the whole batch
        self.values: dict[tuple[str, ...], Kind] = {}  # what the step returns of its own, by path

    @property
    def draws_by_kernels(self) -> bool:
        """See Plan."""
        return any(not draw.op.startswith("stateless_") for draw in self.draws)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drawn, and nothing keeps ranks from sharing the batch.

        A trace that creates variables holds the ops of their initial values, which may draw.
        """
        return not (self.draws or self.foreign_draw or self.nested_draws or self.whys)

    def enter(self, kind: str) -> tuple[Site, Mark]:
        """A call begins; what is found until `restart` is of the calls inside it."""
        self.sites.append(Site(kind))
        return self.sites[-1], self.mark()

    def mark(self) -> Mark:
        """Up to where `restart` keeps what was found."""
        return Mark(*(len(getattr(self, name)) for name in Mark._fields))

    def restart(self, mark: Mark) -> None:
        """What was found since does not count: no step does it, or it is given the whole batch."""
        for name, length in mark._asdict().items():
            del getattr(self, name)[length:]


class Mark(NamedTuple):
    """Lengths of a Look's lists."""

    sites: int
    draws: int
    several: int
    gathered: int
    whys: int
    whole_states: int


class Verdict(enum.Enum):
    SPLIT = "split"
    GATHER = "gathered"
    WHOLE = "whole"


class Plan:
    """What was decided of one call of a model: see plan.py, which makes it.

    Attributes:
      verdict: whether ranks take parts of a batch.
      why: of WHOLE, what decides it.
      gathered: what is computed of the whole batch, gathered.
      sites: the decisions of the calls in a step.
      draws: the decisions of what a step draws.
      draws_rows: something is drawn for samples.
      draws_by_kernels: something, for samples or not, is drawn by stateful ops, whose kernels, one
        for each trace, have a state: all calls must share the trace, as they do in one process.
      whole_states: variables of metrics that are given the whole batch.
      values: what a step returns of its own, by path.
      plain: the script's own loop is fed the script's batches as they are.
    """

    def __init__(self, verdict: Verdict, look: Look, plain: bool) -> None:
        self.verdict = verdict
        self.plain = plain
        # What a loss is says more than what is told of it.
        self.why = min(look.whys, key=lambda why: why.what != LOSS, default=None)
        self.gathered = look.gathered
        self.sites = look.sites
        self.draws = look.draws
        self.draws_by_kernels = look.draws_by_kernels
        self.draws_rows = look.nested_draws or any(draw.axis is not None for draw in look.draws)
        self.whole_states = look.whole_states
        self.values = look.values

    @property
    def is_whole(self) -> bool:
        return self.verdict is Verdict.WHOLE


class Planned:
    """The decisions of a plan, as the calls of one traced or running step take them."""

    def __init__(self, sites: Sequence[Site], draws: Sequence[Draw]) -> None:
        self._next: Iterator[Site] = iter(sites)
        self._next_draw: Iterator[Draw] = iter(draws)

    def next(self, kind: str) -> Site | None:
        """None if the step takes another way than when it was looked at, from there on."""
        site = next(self._next, None)
        if site is None or site.kind != kind:
            self._next = iter(())
            return None
        return site

    def next_draw(self, op: str, rank: int | None) -> Draw | None:
        """Of a call of `op`; None as of `next`."""
        draw = next(self._next_draw, None)
        if draw is None or draw.op != op or None not in (draw.rank, rank) and draw.rank != rank:
            self._next_draw = iter(())
            return None
        return draw
