"""Python's `random` and NumPy: one state, and one source of seeds, on all ranks.

From `import tensorflow` on, with TF_MPI_SHARD not off. What a script has seeded is left alone:
where a state is the same on all ranks it stays as it is; where it differs, rank 0's is every
rank's. A seed that is the clock's counts as none. `secrets`, `os.urandom`, `uuid` and the names
that `tempfile` draws stay each rank's own.
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
_MANY = 10_000  # generators whose entropy is remembered; a later one counts as seeded
_seeds = random.Random.seed
_by_script: set[str] = set()  # states that it has seeded
_given: set[int] = set()  # entropy for NumPy's generators without a seed


def install() -> None:
    """Called once, when the engine has started; a meeting of all ranks."""
    if not entropy.wanted():
        return
    mine = [os.urandom(32).hex(), hash("tensorflow.mpi"), _digest(_python()), _digest(_numpy())]
    everyone = control_plane.headers("one random state", mine)
    entropy.share(bytes.fromhex(everyone[0][0]))
    if any(theirs[2:] != everyone[0][2:] for theirs in everyone):
        states = control_plane.headers("states of random and numpy", [_python(), _numpy()])
        if group.rank != 0:
            engine.when_left_to_script(functools.partial(_take_back, states[group.rank]))
        _take(*states[0])
    if group.rank == 0 and len({theirs[1] for theirs in everyone}) > 1:
        log.say(
            "string hashes differ between the ranks, so a set of strings has a different order on "
            "each. Sort sets before iterating over them, or start all ranks with PYTHONHASHSEED=0 "
            "(Open MPI passes it to other nodes with -x PYTHONHASHSEED=0)"
        )


def _python() -> Any:
    return random.getstate()


def _numpy() -> Any:
    """The state of np.random's functions, as JSON holds it."""
    state = np.random.get_state(legacy=False)
    return json.loads(json.dumps(state, default=lambda value: np.asarray(value).tolist()))


def _digest(state: Any) -> int:
    return control_plane.digest(np.frombuffer(json.dumps(state).encode(), np.uint8))


def _take(python: Any, numpy: Any) -> None:
    version, words, gauss = python
    random.setstate((version, tuple(words), gauss))
    if numpy["bit_generator"] == np.random.get_state(legacy=False)["bit_generator"]:
        np.random.set_state(numpy)


def _take_back(own: Any) -> None:
    """This rank's states, but for what the script has seeded since rank 0's were taken."""
    python = random.getstate() if "python" in _by_script else own[0]
    _take(python, _numpy() if "numpy" in _by_script else own[1])


def seeding(_seed: Any) -> Any:
    """random.Random.seed's place is taken by this module's."""
    return _seeded


def of_instance(_seed: Any) -> Any:
    """random.seed, a method that was bound before."""
    return random._inst.seed


def _seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
    """random.Random.seed, in its place."""
    if a is not None and self is random._inst:
        _by_script.add("python")
    if a is None and entropy.is_shared():
        frame = entropy.caller(("random",))
        if frame is None or frame.f_globals.get("__name__") not in _OWN_NAMES:
            a = entropy.bits(256, "random", entropy.place_of(frame))
    _seeds(self, entropy.instead_of_clock(a, ("random", "tensorflow")), version)


def by_clock(function: Any) -> Any:
    """Of NumPy's: takes a seed that is the clock's for none."""

    def seeded(seed: Any = None) -> Any:
        return function(entropy.instead_of_clock(seed, ("numpy", "tensorflow")))

    return seeded


def noted(function: Any) -> Any:
    """np.random.seed, which notes that it was called."""

    def seeded(*args: Any, **kwargs: Any) -> Any:
        _by_script.add("numpy")
        return function(*args, **kwargs)

    return seeded


def drawing_bits(_randbits: Any) -> Any:
    """numpy.random.bit_generator.randbits's place is taken by this module's."""
    return _bits


def _bits(number: int) -> int:
    """numpy.random.bit_generator.randbits, in its place: entropy for a SeedSequence."""
    bits = entropy.bits(number, "numpy", entropy.place_of(entropy.caller(("numpy",))))
    if len(_given) < _MANY:
        _given.add(bits)
    return bits


def has_seeded(which: str) -> bool:
    """Whether the script has seeded "python"'s random or "numpy"'s own state."""
    return which in _by_script


def is_entropy(seed: Any) -> bool:
    """Whether a generator that has this seed was given none by the script."""
    return isinstance(seed, int) and seed in _given
