"""Python's `random` and NumPy: one state, and one source of seeds, on all ranks.

This holds from `import tensorflow` on, unless TF_MPI_SHARD is off. States that are the same on all
ranks at that time, as after a script's seed, are kept; if they differ, all ranks take rank 0's. A
seed that is the current time becomes the same value on all ranks. `secrets`, `os.urandom`, `uuid`
and names drawn by `tempfile` stay different on each rank.
"""

from __future__ import annotations

import functools
import json
import os
import random
from typing import Any

import numpy as np
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.random import entropy
from tensorflow.mpi._src.runtime import group, log

_OWN_NAMES = {"tempfile"}  # modules whose draws must differ between processes
_MANY = 10_000  # how many generators' entropies are remembered; a later generator counts as seeded
_stock_seed = random.Random.seed
_by_script: set[str] = set()  # states whose last seed is the script's, and not the time
_given: set[int] = set()  # entropy that unseeded generators of NumPy have received


def install() -> None:
    """Called once, when the engine has started. Collective."""
    if not entropy.wanted():
        return
    mine = [
        os.urandom(32).hex(),
        hash("tensorflow.mpi"),
        _digest(random.getstate()),
        _digest(_numpy()),
    ]
    everyone = control_plane.headers("one random state", mine)
    entropy.share(bytes.fromhex(everyone[0][0]))
    if any(theirs[2:] != everyone[0][2:] for theirs in everyone):
        states = control_plane.headers("states of random and numpy", [random.getstate(), _numpy()])
        if group.rank != 0:
            engine.when_left_to_script(functools.partial(_take_back, states[group.rank]))
        _take(*states[0])
    if group.rank == 0 and len({theirs[1] for theirs in everyone}) > 1:
        log.say(
            "string hashes differ between the ranks, so a set of strings has a different order on "
            "each. Sort sets before iterating over them, or start all ranks with PYTHONHASHSEED=0 "
            "(Open MPI passes it to other nodes with -x PYTHONHASHSEED=0)"
        )


def _numpy() -> Any:
    """The state of np.random's functions, as values for JSON."""
    state = np.random.get_state(legacy=False)
    return json.loads(json.dumps(state, default=lambda value: np.asarray(value).tolist()))


def _digest(state: Any) -> int:
    return control_plane.digest(np.frombuffer(json.dumps(state).encode(), np.uint8))


def _take(python: Any, numpy: Any) -> None:
    """Sets both states; NumPy's only if its generator is of the same kind."""
    version, words, gauss = python
    random.setstate((version, tuple(words), gauss))
    if numpy["bit_generator"] == np.random.get_state(legacy=False)["bit_generator"]:
        np.random.set_state(numpy)


def _take_back(own: Any) -> None:
    """Restores this rank's states, except those that the script has seeded since."""
    python = random.getstate() if "python" in _by_script else own[0]
    _take(python, _numpy() if "numpy" in _by_script else own[1])


def seeding(_seed: Any) -> Any:
    """Replaces random.Random.seed."""
    return _seeded


def seed_of_instance(_seed: Any) -> Any:
    """Replaces random.seed, which was bound before."""
    return random._inst.seed


def _seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
    if self is random._inst:
        _note_seed("python", a)
    if a is None and entropy.is_shared():
        frame = entropy.caller(("random",))
        if frame is None or frame.f_globals.get("__name__") not in _OWN_NAMES:
            a = entropy.bits(256, "random", entropy.place_of(frame))
    _stock_seed(self, entropy.instead_of_clock(a, ("random", "tensorflow")), version)


def without_clock(function: Any) -> Any:
    """Wraps a seeding function of NumPy: ranks get the same value for the current time."""

    def seeded(seed: Any = None) -> Any:
        return function(entropy.instead_of_clock(seed, ("numpy", "tensorflow")))

    return seeded


def noted(function: Any) -> Any:
    """Wraps np.random.seed: records whether the script has given it a seed."""

    def seeded(seed: Any = None) -> Any:
        _note_seed("numpy", seed)
        return function(seed)

    return seeded


def _note_seed(which: str, seed: Any) -> None:
    if seed is None or entropy.is_clock(seed):
        _by_script.discard(which)
    else:
        _by_script.add(which)


def drawing_bits(_randbits: Any) -> Any:
    """Replaces numpy.random.bit_generator.randbits."""
    return _bits


def _bits(number: int) -> int:
    """Entropy for NumPy's SeedSequence."""
    bits = entropy.bits(number, "numpy", entropy.place_of(entropy.caller(("numpy",))))
    if len(_given) < _MANY:
        _given.add(bits)
    return bits


def has_seeded(which: str) -> bool:
    """Whether the script has seeded the state of "python" or "numpy"."""
    return which in _by_script


def is_entropy(seed: Any) -> bool:
    """Whether this seed of a generator is entropy, so that the script has not seeded it."""
    return isinstance(seed, int) and seed in _given
