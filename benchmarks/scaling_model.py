"""A cost model: the time in which the engine averages tensors of given sizes on N ranks.

Inside a node, n ranks run on c cores. If each rank has its own core, ranks poll for one another:

    seconds = start + bytes touch volume(n)

`volume` is how often a rank reads or writes each byte: it writes the parts that others reduce to
its slot, reads n sources of its own share, writes the result twice, and reads the other shares.
`touch` has one value if the last-level cache holds the tensors and slots of all ranks, and another
if it does not. Ranks that share cores (n > c) do not poll: they sleep and are woken once for the
agreement. Each rank beyond the number of cores then adds a `turn` and, if the tensor passes through
the slots, a `round` each time that a rank fills about half of its slots before it waits again. n /
c ranks take turns at touching the data:

    seconds = wake + (n - c) slow (turn + rounds round) + n / c bytes touch' volume(n)

`slow` is 1 if two processes share a core, and grows with their number: half of a turn is attributed
to the switch between processes, whose time is measured (benchmarks/switches.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

# Sizes in bytes, as in core/base/sizes.h.
WHOLE = 8 << 10  # up to this size every rank reduces everything, without rounds
CHUNK = 128 << 10  # per slot
MPI_CHUNK = 2 << 20  # per message between nodes
# The least part of a share that a node reduces; below it, one MPI_Iallreduce with about
# log2(nodes) rounds.
LEAST_SHARE = 16 << 10
STAGE = 4 << 20  # passes three stages at a time: within the node, between nodes, back
SLOTS = 4  # of a rank (core/transport/shm/node_memory.h)
FAN_OUT = 8  # children of a node in the tree for messages (core/transport/control_links.h)


@dataclass(frozen=True)
class Node:
    """A machine, or the part of it that the ranks may use."""

    cores: int
    cache: float  # bytes of last-level cache, for all cores together
    # Time of a switch between ranks on a core, relative to that with 2 ranks on it.
    switch: float = 1.0


@dataclass(frozen=True)
class Sample:
    """One measurement on one node."""

    ranks: int
    node: Node
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Parameters:
    """The parameters of the formulas above; those from `wake` on are for ranks that share cores.

    In seconds; touches in seconds per byte, in the cache and beyond it.
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
    """Assumptions, because a single machine with few cores cannot measure them."""

    latency: float  # seconds from one rank to a rank on another node
    bandwidth: float  # bytes per second and direction of one node
    message: float  # seconds in which a rank receives and sends a control message
    look: float = 20e-6  # seconds between two polls for messages from other nodes


def rounds(size: float) -> float:
    """The number of rounds in which a tensor passes through the slots; 0 if every rank reduces all
    of it."""
    return 1 + max(0.0, size / CHUNK - 1) / (SLOTS / 2) if size > WHOLE else 0.0


def volume(ranks: int) -> float:
    """Reads and writes by one rank, per byte of the tensor."""
    if ranks == 1:
        return 0.0
    # To the slot, or from the peers' slots: a read and a write each.
    moved = 2 * (ranks - 1) / ranks
    return 2 * moved + 1 + 2 / ranks


def node_seconds(parameters: Parameters, ranks: int, node: Node, size: float) -> float:
    """The engine's time for `size` bytes on `ranks` ranks of one node."""
    if ranks == 1:
        return 0.0  # nothing to average
    own = astuple(parameters)
    return float(_terms(ranks, node, size) @ (own[3:] if ranks > node.cores else own[:3]))


def _terms(ranks: int, node: Node, size: float) -> np.ndarray:
    """The factors of start and the touches; if ranks share cores, of wake and those after it."""
    crowding = max(1.0, ranks / node.cores)
    touched = crowding * size * volume(ranks)
    cached = ranks * (size + SLOTS * CHUNK) <= node.cache
    touches = [touched, 0.0] if cached else [0.0, touched]
    if ranks <= node.cores:
        return np.array([1.0, *touches])
    turns = (ranks - node.cores) * (1 + node.switch) / 2
    return np.array([1.0, turns, *touches, turns * rounds(size)])


def fit(samples: Sequence[Sample]) -> Parameters:
    """A least-squares fit of the relative errors, with no negative parameter.

    Needs measurements with one rank per core, and with at least 2 different larger numbers of
    ranks; both with sizes that fit into the cache and sizes that do not.
    """
    alone = [s for s in samples if s.ranks <= s.node.cores]
    crowded = [s for s in samples if s.ranks > s.node.cores]
    if len({s.ranks / s.node.cores for s in crowded}) < 2:
        raise ValueError("the model needs 2 numbers of ranks larger than the number of cores")
    return Parameters(*_fitted(alone), *_fitted(crowded))


def _fitted(samples: Sequence[Sample]) -> list[float]:
    rows = np.array([_terms(s.ranks, s.node, s.bytes) / s.seconds for s in samples])
    if len(samples) < 3 or not rows.any(axis=0).all():
        raise ValueError(
            "the model needs at least 3 sizes, some in the cache and some beyond it, both with a "
            "core per rank and with ranks that share cores: one of these kinds has "
            f"{len(samples)} measurements, and the cache (--cache) has "
            f"{samples[0].node.cache if samples else 0:g} bytes"
        )
    return [float(value) for value in non_negative(rows, np.ones(len(rows)))]


def non_negative(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """argmin |matrix x - target| over x >= 0, by trying all subsets of the few columns."""
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
    """The time to sum one rank's share over the nodes; a node's ranks share its bandwidth."""
    if nodes == 1:
        return 0.0
    per_rank = network.bandwidth / ranks_per_node
    if share / nodes < LEAST_SHARE:
        rounds = 2 * math.ceil(math.log2(nodes))
        return rounds * network.latency + 2 * share / per_rank
    chunks = math.ceil(share / MPI_CHUNK)
    # A rank starts a message to every other node in both halves of the exchange.
    starts = 2 * chunks * (network.latency + (nodes - 2) * network.message)
    return starts + 2 * share * (nodes - 1) / nodes / per_rank


def is_tree(nodes: int, ranks_per_node: int) -> bool:
    """Whether messages go through the nodes' leaders rather than directly to rank 0."""
    return nodes > 1 and (ranks_per_node > 1 or nodes > FAN_OUT + 1)


def control_messages(nodes: int, ranks_per_node: int, tree: bool) -> int:
    """The messages that rank 0 receives and sends in a repeated step between nodes."""
    if tree and is_tree(nodes, ranks_per_node):
        return 2 * (ranks_per_node - 1 + min(FAN_OUT, nodes - 1))
    return 2 * (nodes * ranks_per_node - 1)


def levels(nodes: int) -> int:
    """The number of links between nodes on the longest path to rank 0."""
    count, node = 0, nodes - 1
    while node > 0:
        node = (node - 1) // FAN_OUT
        count += 1
    return count


def control_seconds(network: Network, nodes: int, ranks_per_node: int, tree: bool) -> float:
    """The time of a step's messages, beyond that of 2 ranks on one node."""
    if tree and is_tree(nodes, ranks_per_node):
        # All nodes gather at the same time; then each level handles a node's children one by one.
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
    """The engine's time on several nodes, with one core and `cache` bytes of cache per rank."""
    node = Node(ranks_per_node, ranks_per_node * cache)
    inside = node_seconds(parameters, ranks_per_node, node, size)
    # The measurement on 2 ranks includes the messages of one other rank.
    messages = control_seconds(network, nodes, ranks_per_node, tree)
    stages = max(1, math.ceil(size / STAGE))
    share = size / stages / ranks_per_node
    return inside + messages + stages * between_seconds(network, nodes, ranks_per_node, share)
