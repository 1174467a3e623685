"""How long the engine takes to average tensors of so many bytes on so many ranks: a cost model.

Inside a node, n ranks on c cores.  Cores are shared: whatever every rank does takes n / c times as
long where n > c (`crowding`).  Then ranks also sleep while they wait, and each step that a rank has
done wakes those that are not on a core, n - c of them (`sleepers`).

    seconds = start + crowding (rank + wake sleepers)                agreeing, meeting
            + crowding bytes (touch volume(n) + wake_byte sleepers)  moving and adding the data

`volume` is how often each byte is read or written by a rank: it puts what others reduce into its
slot, reads n sources of its share, writes it twice, takes the other shares.  `wake_byte` is the
waking for every piece of the data.

Between nodes the ranks of one place on all nodes sum their share by sending parts to one another,
and rank 0 handles a message from and to each other rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

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
    """Seconds, but for `touch` and `wake_byte`, seconds per byte; see the module's formula."""

    start: float
    rank: float
    wake: float
    touch: float
    wake_byte: float


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


def _features(ranks: int, cores: int, size: float) -> list[float]:
    """What each parameter is multiplied with, in their order."""
    crowd = crowding(ranks, cores)
    sleepers = max(0, ranks - cores)
    meeting = [1.0, crowd, crowd * sleepers]
    return [*meeting, crowd * size * volume(ranks), crowd * size * sleepers]


def node_seconds(parameters: Parameters, ranks: int, cores: int, size: float) -> float:
    """The engine's time for `size` bytes on `ranks` ranks of one node with `cores` cores."""
    values = asdict(parameters).values()
    return sum(p * f for p, f in zip(values, _features(ranks, cores, size)))


def fit(samples: Sequence[Sample]) -> Parameters:
    """Least squares of the relative error, no parameter below 0."""
    names = [field.name for field in fields(Parameters)]
    if len(samples) < len(names):
        raise ValueError(f"{len(samples)} samples for {len(names)} parameters: measure more sizes")
    matrix = np.array([_features(s.ranks, s.cores, s.bytes) for s in samples])
    seconds = np.array([s.seconds for s in samples])
    found = non_negative(matrix / seconds[:, None], np.ones(len(samples)))
    return Parameters(**dict(zip(names, map(float, found))))


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
