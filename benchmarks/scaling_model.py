"""How long the engine takes to average tensors of so many bytes on so many ranks: a cost model.

Inside a node, n ranks on c cores.  Ranks that have a core each poll for one another:

    seconds = start + bytes touch volume(n)

`volume` is how often each byte is read or written by a rank: it puts what others reduce into its
slot, reads n sources of its share, writes it twice, takes the other shares.  `touch` is one number
where the last cache holds the tensors and slots of all ranks, and another where it does not.  Ranks
that share cores (n > c) do not poll: they sleep and are woken, once for the agreement.  Each rank
beyond the cores then adds a `turn`, and, where the tensor passes through the slots, a `round` for
each time that a rank goes through about half of its slots before it waits again.  n / c ranks take
turns in touching the data:

    seconds = wake + (n - c) slow (turn + rounds round) + n / c bytes touch' volume(n)

`slow` is 1 where two processes share a core, and grows with their number: half of a turn is put
down to the switch from one process to the next, whose time is measured (benchmarks/switches.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

WHOLE = 8 << 10  # bytes up to which every rank reduces all: no rounds
CHUNK = 128 << 10  # bytes of a slot, of which a rank has SLOTS (core/transport/shm/node_memory.h)
SLOTS = 4
MPI_CHUNK = 2 << 20  # bytes that travel between nodes at a time
LEAST_SHARE = 16 << 10  # bytes per node: below, one MPI_Iallreduce of about log2(nodes) rounds
FAN_OUT = 8  # nodes below a node, on the way of messages (core/transport/control_links.h)
STAGE = 4 << 20  # bytes that are reduced inside the node, between nodes and shared out at a time


@dataclass(frozen=True)
class Node:
    """A machine, or what the ranks may use of it."""

    cores: int
    cache: float  # bytes of the last level, of all cores together
    switch: float = 1.0  # how long from one rank on a core to the next, by what it is with 2 there


@dataclass(frozen=True)
class Sample:
    """One measurement on one node."""

    ranks: int
    node: Node
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Parameters:
    """See the module's formulas; from `wake` on they are of ranks that share cores.

    Seconds; touches in seconds per byte in the cache and beyond it.
    """

    start: float
    touch: float
    far_touch: float
    wake: float
    turn: float
    crowded_touch: float
    crowded_far_touch: float
    round: float


@dataclass(frozen=True)
class Network:
    """Assumptions: nothing here can be measured on one machine of few cores."""

    latency: float  # seconds from one rank to a rank on another node
    bandwidth: float  # bytes per second and direction of one node
    message: float  # seconds of a rank for one control message in and one out
    look: float = 20e-6  # seconds until a rank looks for messages of other nodes again


def rounds(size: float) -> float:
    """In which a tensor passes through the slots; none if every rank reduces it whole."""
    return 1 + max(0.0, size / CHUNK - 1) / (SLOTS / 2) if size > WHOLE else 0.0


def volume(ranks: int) -> float:
    """Reads and writes per byte of the tensor by one rank."""
    if ranks == 1:
        return 0.0
    moved = 2 * (ranks - 1) / ranks  # into the slot, or out of the peers': a read and a write each
    return 2 * moved + 1 + 2 / ranks


def node_seconds(parameters: Parameters, ranks: int, node: Node, size: float) -> float:
    """The engine's time for `size` bytes on `ranks` ranks of one node."""
    if ranks == 1:
        return 0.0  # nothing is averaged
    own = astuple(parameters)
    return float(_terms(ranks, node, size) @ (own[3:] if ranks > node.cores else own[:3]))


def _terms(ranks: int, node: Node, size: float) -> np.ndarray:
    """By what each parameter of that case is multiplied."""
    crowding = max(1.0, ranks / node.cores)
    touched = crowding * size * volume(ranks)
    cached = ranks * (size + SLOTS * CHUNK) <= node.cache
    touches = [touched, 0.0] if cached else [0.0, touched]
    if ranks <= node.cores:
        return np.array([1.0, *touches])
    turns = (ranks - node.cores) * (1 + node.switch) / 2
    return np.array([1.0, turns, *touches, turns * rounds(size)])


def fit(samples: Sequence[Sample]) -> Parameters:
    """Least squares of the relative errors; nothing below 0.

    Needs measurements with a core per rank, some with 2 different numbers of ranks above that, and
    of both kinds sizes that the cache holds and sizes that it does not.
    """
    alone = [s for s in samples if s.ranks <= s.node.cores]
    crowded = [s for s in samples if s.ranks > s.node.cores]
    if len({s.ranks / s.node.cores for s in crowded}) < 2:
        raise ValueError("the model needs 2 numbers of ranks above that of cores")
    return Parameters(*_fitted(alone), *_fitted(crowded))


def _fitted(samples: Sequence[Sample]) -> list[float]:
    rows = np.array([_terms(s.ranks, s.node, s.bytes) / s.seconds for s in samples])
    if len(samples) < 3 or not rows.any(axis=0).all():
        raise ValueError(
            "the model needs 3 sizes or more, some in the cache and some beyond it, with a core "
            f"per rank and without: got {len(samples)} samples of one of these, and a cache of "
            f"{samples[0].node.cache if samples else 0:g} bytes"
        )
    return [float(value) for value in non_negative(rows, np.ones(len(rows)))]


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
    chunks = math.ceil(share / MPI_CHUNK)
    # A rank starts a message to each other node, in both halves of the exchange.
    starts = 2 * chunks * (network.latency + (nodes - 2) * network.message)
    return starts + 2 * share * (nodes - 1) / nodes / per_rank


def is_tree(nodes: int, ranks_per_node: int) -> bool:
    """Whether messages go by way of the nodes' first ranks, or straight to rank 0."""
    return nodes > 1 and (ranks_per_node > 1 or nodes > FAN_OUT + 1)


def control_messages(nodes: int, ranks_per_node: int, tree: bool) -> int:
    """Of rank 0 in a step that repeats itself between nodes: those that come and those that go."""
    if tree and is_tree(nodes, ranks_per_node):
        return 2 * (ranks_per_node - 1 + min(FAN_OUT, nodes - 1))
    return 2 * (nodes * ranks_per_node - 1)


def levels(nodes: int) -> int:
    """Links between nodes on the longest way to rank 0."""
    count, node = 0, nodes - 1
    while node > 0:
        node = (node - 1) // FAN_OUT
        count += 1
    return count


def control_seconds(network: Network, nodes: int, ranks_per_node: int, tree: bool) -> float:
    """What the messages of a step take, beyond those of 2 ranks of one node."""
    if tree and is_tree(nodes, ranks_per_node):
        # All nodes gather at once; then each level takes a node's children one by one.
        handled = ranks_per_node - 1 + levels(nodes) * min(FAN_OUT, nodes - 1)
        hops = levels(nodes)
    else:
        handled = nodes * ranks_per_node - 1
        hops = 1 if nodes > 1 else 0
    return max(0, handled - 1) * network.message + 2 * hops * (network.latency + network.look)


def job_seconds(
    parameters: Parameters,
    network: Network,
    nodes: int,
    ranks_per_node: int,
    cache: float,
    size: float,
    tree: bool = True,
) -> float:
    """The engine's time on several nodes, one core and so many bytes of cache per rank."""
    node = Node(ranks_per_node, ranks_per_node * cache)
    inside = node_seconds(parameters, ranks_per_node, node, size)
    # What was measured on 2 ranks holds the messages of one other rank.
    messages = control_seconds(network, nodes, ranks_per_node, tree)
    stages = max(1, math.ceil(size / STAGE))
    share = size / stages / ranks_per_node
    return inside + messages + stages * between_seconds(network, nodes, ranks_per_node, share)
