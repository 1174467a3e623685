"""What importing TensorFlow, Keras and tf_keras replaces, and what remains after uninstall().

Records every attribute of every module and class right after the module's own code has run, before
our hooks run, or before TensorFlow is imported; again when everything is replaced, and after
uninstall().
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import importlib
import importlib.machinery
import io
import json
import logging.handlers
import os
import pathlib
import random
import shutil
import sqlite3
import sqlite3.dbapi2
import sys
import tempfile
import threading
import types
from typing import Any

import numpy as np

OURS = "/tensorflow/mpi/"
stock: dict[tuple[str, str], dict[str, Any]] = {}  # (module, class or "") -> attributes


def note(module: Any, as_found: dict[tuple[str, str], dict[str, Any]]) -> None:
    own = module.__name__
    as_found[own, ""] = dict(vars(module))
    for name, kind in list(vars(module).items()):
        if isinstance(kind, type) and kind.__module__ == own:
            as_found[own, name] = dict(vars(kind))


load = importlib.machinery.SourceFileLoader.exec_module


def exec_module(self: Any, module: Any) -> None:
    load(self, module)
    package = module.__name__.partition(".")[0]
    if package in ("tensorflow", "keras", "tf_keras", "h5py", "sqlite3") and OURS not in str(
        module.__file__
    ):
        note(module, stock)


importlib.machinery.SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]
for library in (
    builtins,
    fcntl,
    io,
    logging.handlers,
    os,
    pathlib,
    random,
    sqlite3,
    sqlite3.dbapi2,
    sys,
    shutil,
    tempfile,
    threading,
    np.random,
):
    note(library, stock)
note(sys.modules["numpy.random.bit_generator"], stock)
finders = list(sys.meta_path)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402, F401
import tf_keras  # noqa: E402
from tensorflow.mpi._src.interpose import hooking, replacement_table  # noqa: E402
from tensorflow.mpi._src.interpose.replacement_table import How  # noqa: E402
from tensorflow.mpi._src.replaced import patches, table  # noqa: E402
from tensorflow.mpi._src.runtime import hooks  # noqa: E402


class Own(keras.optimizers.SGD):
    """A script's class, which is wrapped when it is created."""

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply(*args, **kwargs)


def is_ours(value: Any) -> bool:
    """Whether it is a function or object of this runtime, possibly inside a descriptor."""
    if isinstance(value, (classmethod, staticmethod, types.MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if isinstance(value, types.FunctionType):
        return OURS in value.__code__.co_filename
    spared = type(value) is types.SimpleNamespace and "__file__" in vars(value)
    return spared or str(type(value).__module__).startswith("tensorflow.mpi.")


def now() -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in {module for module, _ in stock}:
        note(sys.modules[name], found)
    return found


def ours(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    return {
        f"{module}:{kind}{'.' if kind else ''}{name}": value
        for (module, kind), attributes in found.items()
        for name, value in attributes.items()
        if is_ours(value)
    }


def is_row(target: str, value: Any) -> bool:
    """Whether the table lists it as replaced, under its own name or that of its origin."""
    if target in targets or any(value is one for one in of_modules):
        return True  # imported by name from a module where it was replaced
    if any(value is made for _, made in replacement_table._decorated):
        return True
    module, _, attribute = target.partition(":")
    kind, _, name = attribute.rpartition(".")
    bases = vars(sys.modules[module])[kind].__mro__ if kind else ()
    owners = {f"{base.__module__}:{base.__qualname__}" for base in bases}
    if name == "__init_subclass__":
        return f"{module}:{kind}" in {one.rpartition(".")[0] for one in in_subclasses}
    return any(f"{owner}.{name}" in in_subclasses for owner in owners)


def stocks(target: str) -> Any:
    """Stock's object; a subclass or another name was recorded after the replacement."""
    module, _, attribute = target.partition(":")
    kind, _, name = attribute.rpartition(".")
    value = stock[module, kind].get(name)
    while is_ours(value):
        value = value.__wrapped__  # type: ignore[union-attr]
    return value


def as_named_here(module: str, attribute: str) -> str:
    """For a target that lists the names in several versions: the name in this one."""
    if "|" not in attribute:
        return f"{module}:{attribute}"
    owner, name = hooking.find(importlib.import_module(module), attribute)
    return f"{module}:{owner.__qualname__}.{name}"


def named(kinds: tuple[How, ...]) -> list[str]:
    return [
        as_named_here(module, attribute)
        for row in table.TABLE
        if row.how in kinds and replacement_table._has(row.versions)
        for module, attribute in row.targets()
    ]


in_subclasses = named((How.SUBCLASSES, How.CLASSES, How.USE))
targets = named((How.WRAP, How.BEFORE, How.AFTER, How.SUBCLASSES, How.CLASSES))
for target in targets:  # including modules that are imported on first use
    importlib.import_module(target.partition(":")[0])
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile(Own(), "mse")
model.fit(np.ones((4, 2), "f"), np.ones((4, 1), "f"), verbose=0)  # wraps the model's class


def orbax_saves() -> list[int]:
    """The steps that this rank wrote with a callback whose package is not installed here."""
    from keras.src.callbacks import orbax_checkpoint

    saves: list[int] = []
    orbax: Any = orbax_checkpoint
    orbax.ocp = types.SimpleNamespace(Context=contextlib.nullcontext)
    callback = object.__new__(orbax.OrbaxCheckpoint)
    callback.directory, callback.save_weights_only, callback.save_on_background = "orbax", 1, 0
    callback._model = model
    writes = types.SimpleNamespace(save_checkpointables=lambda step, payload: saves.append(step))
    callback.checkpointer = writes
    callback._save_checkpoint(3)
    return saves


def summary() -> str:
    """tf_keras's output, whether or not it prints messages."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))]).summary()
    return printed.getvalue()


replaced = ours(now())
of_modules = [value for target, value in replaced.items() if target in targets]
own_apply = vars(Own)["apply"]
result: dict[str, Any] = {
    "replaced": sorted(replaced.keys() & set(targets)),
    "not replaced": sorted(set(targets) - replaced.keys()),
    "no row": sorted(target for target, value in replaced.items() if not is_row(target, value)),
    "own class": [is_ours(own_apply)],
    "summary": "Total params: 3" in summary(),
    "orbax": orbax_saves() if replacement_table._has("keras>=3.13") else None,
}

replacement_table.uninstall()
back = now()
result["left"] = sorted(ours(back))
result["other objects"] = sorted(
    target
    for target in replaced
    for module, _, attribute in [target.partition(":")]
    for kind, _, name in [attribute.rpartition(".")]
    if back[module, kind].get(name) is not stocks(target)
)
result["own class"].append(is_ours(vars(Own)["apply"]))
result["finders"] = [repr(f) for f in sys.meta_path if f not in finders and is_ours(f)]
result["hooks"] = [hooks.active, len(hooks.unfilled()), len(patches.PATCHES)]
print("RESULT", json.dumps(result))
