"""How long the engine takes to average tensors of so many bytes on so many ranks: a cost model.

Inside a node, n ranks on c cores.  Ranks that have a core each poll for one another:

    seconds = start + bytes touch volume(n)

`volume` is how often each byte is read or written by a rank: it puts what others reduce into its
slot, reads n sources of its share, writes it twice, takes the other shares.  Ranks that share cores
(n > c) do not poll: they sleep and are woken, and take turns, so they have parameters of their own:

    seconds = (n / c) ** turns (crowded_start + bytes crowded_touch volume(n))

`turns` would be 1 if sharing a core only halved what each rank gets of it; it is measured, because
ranks also lose turns in which what they wait for has not been made yet.

Between nodes the ranks of one place on all nodes sum their share by sending parts to one another,
and rank 0 handles a message from and to each other rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EXCHANGE_PIECE = 2 << 20  # bytes that travel between nodes at a time
LEAST_SHARE = 16 << 10  # bytes per node: below, one MPI_Iallreduce of about log2(nodes) rounds
STAGE = 4 << 20  # bytes that are reduced inside the node, between nodes and shared out at a time


@dataclass(frozen=True)
class Sample:
    """One measurement on one node."""

    ranks: int
    cores: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Parameters:
    """Starts in seconds, touches in seconds per byte; see the module's formulas."""

    start: float
    touch: float
    crowded_start: float
    crowded_touch: float
    turns: float


@dataclass(frozen=True)
class Network:
    """Assumptions: nothing here can be measured on one machine of few cores."""

    latency: float  # seconds from one rank to a rank on another node
    bandwidth: float  # bytes per second and direction of one node
    message: float  # seconds of rank 0 for one control message in and one out


def crowding(ranks: int, cores: int) -> float:
    """How many ranks share a core, at least 1."""
    return max(1.0, ranks / cores)


def volume(ranks: int) -> float:
    """Reads and writes per byte of the tensor by one rank."""
    if ranks == 1:
        return 0.0
    moved = 2 * (ranks - 1) / ranks  # into the slot, or out of the peers': a read and a write each
    return 2 * moved + 1 + 2 / ranks


def node_seconds(parameters: Parameters, ranks: int, cores: int, size: float) -> float:
    """The engine's time for `size` bytes on `ranks` ranks of one node with `cores` cores."""
    p = parameters
    if ranks == 1:
        return 0.0  # nothing is averaged
    if ranks <= cores:
        return p.start + size * p.touch * volume(ranks)
    own = p.crowded_start + size * p.crowded_touch * volume(ranks)
    return crowding(ranks, cores) ** p.turns * own


def fit(samples: Sequence[Sample]) -> Parameters:
    """Least squares of the relative errors; nothing below 0.

    Needs measurements with a core per rank, and some with 2 different numbers of ranks per core.
    """
    alone = [s for s in samples if s.ranks <= s.cores]
    crowded = [s for s in samples if s.ranks > s.cores]
    levels = {crowding(s.ranks, s.cores) for s in crowded}
    if len({s.bytes for s in alone}) < 2 or len(levels) < 2:
        raise ValueError(
            "the model needs 2 sizes with a core per rank, and 2 numbers of ranks above that of "
            f"cores: got {len(alone)} samples of the first kind, and crowdings {sorted(levels)}"
        )
    start, touch, _ = _line(alone, 0.0)
    turns = min(np.arange(1.0, 2.001, 0.01), key=lambda exponent: _line(crowded, exponent)[2])
    crowded_start, crowded_touch, _ = _line(crowded, turns)
    return Parameters(start, touch, crowded_start, crowded_touch, float(turns))


def _line(samples: Sequence[Sample], turns: float) -> tuple[float, float, float]:
    """Start and touch for an exponent, and the norm of their relative errors."""
    rows = [
        crowding(s.ranks, s.cores) ** turns * np.array([1.0, s.bytes * volume(s.ranks)]) / s.seconds
        for s in samples
    ]
    matrix = np.array(rows)
    found = non_negative(matrix, np.ones(len(samples)))
    error = float(np.linalg.norm(matrix @ found - 1))
    return float(found[0]), float(found[1]), error


def non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """argmin |matrix x - target| over x >= 0, by the few subsets of columns there are."""
    scale = np.linalg.norm(matrix, axis=0)
    columns = matrix.shape[1]
    best, least = np.zeros(columns), math.inf
    for subset in range(1, 2**columns):
        chosen = [c for c in range(columns) if subset >> c & 1]
        part, *_ = np.linalg.lstsq(matrix[:, chosen] / scale[chosen], target, rcond=None)
        error = float(np.linalg.norm(matrix[:, chosen] / scale[chosen] @ part - target))
        if (part >= 0).all() and error < least - 1e-12:
            best, least = np.zeros(columns), error
            best[chosen] = part / scale[chosen]
    return best


def between_seconds(network: Network, nodes: int, ranks_per_node: int, share: float) -> float:
    """The sum of one rank's share over the nodes; the node's ranks share its bandwidth."""
    if nodes == 1:
        return 0.0
    per_rank = network.bandwidth / ranks_per_node
    if share / nodes < LEAST_SHARE:
        rounds = 2 * math.ceil(math.log2(nodes))
        return rounds * network.latency + 2 * share / per_rank
    pieces = math.ceil(share / EXCHANGE_PIECE)
    # A rank starts a message to each other node, in both halves of the exchange.
    starts = 2 * pieces * (network.latency + (nodes - 2) * network.message)
    return starts + 2 * share * (nodes - 1) / nodes / per_rank


def job_seconds(
    parameters: Parameters, network: Network, nodes: int, ranks_per_node: int, size: float
) -> float:
    """The engine's time on several nodes, one core per rank."""
    inside = node_seconds(parameters, ranks_per_node, ranks_per_node, size)
    # What was measured on 2 ranks holds the messages of one other rank.
    messages = max(0, nodes * ranks_per_node - 2) * network.message
    if nodes > 1:
        messages += 2 * network.latency
    stages = max(1, math.ceil(size / STAGE))
    share = size / stages / ranks_per_node
    return inside + messages + stages * between_seconds(network, nodes, ranks_per_node, share)
