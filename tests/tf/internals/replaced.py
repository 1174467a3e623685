"""What importing TensorFlow, Keras and tf_keras replaces in all imported modules and classes."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf  # noqa: F401
import tf_keras
from tensorflow.mpi._src.interpose import hooking, replacement_table
from tensorflow.mpi._src.interpose.replacement_table import How
from tensorflow.mpi._src.replaced import table
from tensorflow.mpi._src.runtime import hooks

OURS = "/tensorflow/mpi/"


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


def ours() -> dict[str, Any]:
    """Attributes of modules and classes, except our own, that are ours."""
    found = {}
    for own, module in list(sys.modules.items()):
        if own == "__main__" or OURS in str(vars(module).get("__file__")):
            continue
        owners = [("", module)] + [
            (f"{name}.", kind)
            for name, kind in vars(module).items()
            if isinstance(kind, type) and kind.__module__ == own
        ]
        for kind, owner in owners:
            for name, value in list(vars(owner).items()):
                if is_ours(value):
                    found[f"{own}:{kind}{name}"] = value
    return found


def is_at(function: Any, where: str) -> bool:
    """Whether a hook's description "file.py, Class.method and method" means this function."""
    files, _, names = where.partition(", ")
    file = f"{getattr(function, '__module__', '').rpartition('.')[2]}.py"
    return file in files.split(" and ") and function.__qualname__.endswith(
        tuple(names.split(" and "))
    )


def is_row(target: str, value: Any) -> bool:
    """Whether the table lists it as replaced, under its own name or that of its origin."""
    if target in targets or any(value is one for one in of_modules):
        return True  # imported by name from a module where it was replaced
    if any(is_at(value, hooks.described(hook)[0]) for hook in decorators):
        return True
    module, _, attribute = target.partition(":")
    kind, _, name = attribute.rpartition(".")
    bases = vars(sys.modules[module])[kind].__mro__ if kind else ()
    owners = {f"{base.__module__}:{base.__qualname__}" for base in bases}
    if name == "__init_subclass__":
        return f"{module}:{kind}" in {one.rpartition(".")[0] for one in in_subclasses}
    return any(f"{owner}.{name}" in in_subclasses for owner in owners)


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
        if row.how in kinds and replacement_table._version_matches(row.versions)
        for module, attribute in row.targets()
    ]


in_subclasses = named((How.SUBCLASSES, How.CLASSES, How.USE))
targets = named((How.WRAP, How.BEFORE, How.AFTER, How.SUBCLASSES, How.CLASSES))
decorators = [row.target for row in table.TABLE if row.how is How.DECORATOR]
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


replaced = ours()
of_modules = [value for target, value in replaced.items() if target in targets]
result: dict[str, Any] = {
    "replaced": sorted(replaced.keys() & set(targets)),
    "not replaced": sorted(set(targets) - replaced.keys()),
    "no row": sorted(target for target, value in replaced.items() if not is_row(target, value)),
    "own class": is_ours(vars(Own)["apply"]),
    "summary": "Total params: 3" in summary(),
    "orbax": orbax_saves() if replacement_table._version_matches("keras>=3.13") else None,
}
print("RESULT", json.dumps(result))
