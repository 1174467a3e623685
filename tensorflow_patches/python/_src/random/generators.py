"""Random generators of Python and NumPy that an object's methods may draw from.

Their states can be compared, they can be reseeded, and it is known whether the script has seeded
them.
"""

from __future__ import annotations

import inspect
import pickle
import random
import types
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from tensorflow.mpi._src.random import host

_DEEP, _MANY = 4, 64  # levels of attributes, and elements of a list, that are looked at


def reached_from(owner: Any) -> list[Any]:
    """The global generators, and those in `owner`'s classes, their modules, and its attributes."""
    found = [random._inst, np.random.get_state.__self__]  # type: ignore[attr-defined]
    for kind in type(owner).__mro__:
        for held in (kind, inspect.getmodule(kind)):
            found += filter(_is_generator, list(vars(held).values()) if held else [])
    found += filter(_is_generator, values_in(owner))
    return list({id(one): one for one in found}.values())


def values_in(owner: Any) -> Iterator[Any]:
    """The values of `owner`'s attributes, also inside lists and objects, to a limited depth."""
    seen: set[int] = set()
    level = [owner]
    for _ in range(_DEEP):
        inner: list[Any] = []
        for one in level:
            for value in _parts(one):
                if isinstance(value, (int, float)) or id(value) not in seen:
                    seen.add(id(value))
                    inner.append(value)
                    yield value
        level = inner


def _parts(one: Any) -> list[Any]:
    if isinstance(one, dict):
        return list(one.values())[:_MANY]
    if isinstance(one, (list, tuple)):
        return list(one[:_MANY])
    if isinstance(one, (types.MethodType, types.BuiltinMethodType)):
        return [one.__self__]
    if isinstance(one, types.FunctionType):
        return [cell.cell_contents for cell in one.__closure__ or () if cell != types.CellType()]
    if _is_generator(one) or isinstance(one, (type, types.ModuleType)):
        return []
    return list(getattr(one, "__dict__", {}).values())


def _is_generator(value: Any) -> bool:
    return isinstance(value, (random.Random, np.random.RandomState, np.random.Generator))


def state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def put(generator: Any, value: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(value)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(value)
    else:
        generator.bit_generator.state = value


def digest(values: list[Any]) -> int:
    return zlib.crc32(pickle.dumps(values))


def reseed(generator: Any, seed: int) -> None:
    """Makes a generator continue as one of its kind with `seed`."""
    if isinstance(generator, random.Random):
        generator.setstate(random.Random(seed).getstate())
    elif isinstance(generator, np.random.RandomState):
        bits = type(generator._bit_generator)(seed)
        put(generator, np.random.RandomState(bits).get_state(legacy=False))
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def is_unseeded(generator: Any) -> bool:
    """Whether it is unseeded, so that one process draws different numbers in each run."""
    if generator is random._inst:
        return not host.has_seeded("python")
    if generator is np.random.get_state.__self__:  # type: ignore[attr-defined]
        return not host.has_seeded("numpy")
    bits = getattr(generator, "bit_generator", getattr(generator, "_bit_generator", None))
    seeds = getattr(bits, "seed_seq", getattr(bits, "_seed_seq", None))
    return host.is_entropy(getattr(seeds, "entropy", None))
