"""Describes a program's use of Keras (model, optimizer, loss, call) as lines that ranks compare.

A line is [key, name for users, value], all strings. Keys contain no names that Keras has numbered,
which differ if a rank has created other models before. Values contain no addresses. Initial weights
and seeds are left out, because weights become rank 0's. Values that cannot be described are left
out, too.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from tensorflow.mpi._src.data import contents
from tensorflow.mpi._src.keras import adapters

Line = tuple[str, str, str]

_LONG = 100  # the longest value that is shown whole
_DEEPEST = 12
_IGNORED = ("ignore", None, Warning, None, 0)  # an entry of warnings.filters: all warnings
_ATTRIBUTE = "attribute"  # in keys: an attribute of a class of the script, which may differ by rank
# Descriptions made when a function is first seen: later its closure may hold a rank's own records.
_functions: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
# Left out of configurations: names, and values that do not matter once weights are rank 0's.
_EXCLUDED = {"name", "seed", "build_config", "registered_name", "shared_object_id", "iterations"}


def plain(value: Any, depth: int = 0) -> str:
    """`value` as text: equal for equal values, independent of order and addresses."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        items = {str(key): plain(item, depth + 1) for key, item in value.items()
                 if not _is_excluded(str(key), item)}  # fmt: skip
        return "{" + ", ".join(f"{key}: {items[key]}" for key in sorted(items)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(plain(item, depth + 1) for item in value) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(plain(item, depth + 1) for item in value)) + "}"
    array = _array(value)
    if array is not None:
        if array.ndim == 0 and array.dtype != object:
            return repr(array.item())
        return f"an array of shape {list(array.shape)} ({_checksum(contents.of_array(array))})"
    if callable(value) and not isinstance(value, type) and not hasattr(value, "get_config"):
        return _of_callable(value, depth)
    return _of_object(value, depth)


def _is_excluded(key: str, value: Any) -> bool:
    if isinstance(value, Mapping) and "initializers" in str(value.get("module", "")):
        return True
    return key in _EXCLUDED or key.endswith("initializer")


def _array(value: Any) -> Any:
    """The value of a NumPy array or an eager tensor; None for others."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    if hasattr(value, "_numpy_internal") and value.dtype.is_numpy_compatible:
        return np.asarray(value._numpy())
    return None


def _checksum(value: Any) -> str:
    return f"{zlib.crc32(repr(value).encode()):08x}"


def _of_callable(function: Any, depth: int) -> str:
    if isinstance(function, functools.partial):
        parts = [function.func, function.args, function.keywords]
        return f"partial {plain(parts, depth + 1)}"
    if isinstance(function, types.MethodType):
        return _of_callable(function.__func__, depth)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    inner = inspect.unwrap(function)
    inner = getattr(inner, "python_function", inner)  # of a tf.function
    code = getattr(inner, "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '')}.{name}"
    if inner not in _functions:
        _functions[inner] = f"function {name} ({_checksum(_of_function(inner, code, depth))})"
    return _functions[inner]


def _of_function(inner: Any, code: types.CodeType, depth: int) -> list[Any]:
    """A function's code, defaults and closure."""
    held = [
        adapters.describe_code(code, plain),
        plain(getattr(inner, "__defaults__", None), depth + 1),
        plain(getattr(inner, "__kwdefaults__", None), depth + 1),
    ]
    for cell in getattr(inner, "__closure__", None) or ():
        try:
            value = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        # + 4: what a closure holds is described to a smaller depth.
        held.append("" if _is_path(value) else plain(value, depth + 4))
    return held


def _of_object(value: Any, depth: int) -> str:
    kind = type(value).__qualname__ if not isinstance(value, type) else value.__qualname__
    config = None if hasattr(value, "_flatten_layers") else _config(value)
    return kind if config is None else f"{kind} {plain(config, depth + 1)}"


def _config(value: Any) -> Any:
    if isinstance(value, type) or not hasattr(value, "get_config"):
        return None
    # Not warnings.simplefilter, after which Python would repeat warnings that it shows once.
    filters: Any = warnings.filters
    filters.insert(0, _IGNORED)
    try:
        return value.get_config()
    except Exception:  # it cannot be serialized, and is described by its class
        return None
    finally:
        with contextlib.suppress(ValueError):  # get_config() has reset the filters
            filters.remove(_IGNORED)


def _lines(key: str, called: str, value: Any) -> Iterator[Line]:
    """One line for each entry of a configuration."""
    if not isinstance(value, Mapping):
        yield key, called, plain(value)
        return
    for name in sorted(value, key=str):
        if not _is_excluded(str(name), value[name]):
            yield f"{key} {name}", f"{name} of {called}", plain(value[name])


def of_model(model: Any) -> list[Line]:
    """The layers in order, their connections, and the state that adapt() gave them."""
    found = [("model", "the model's class", type(model).__qualname__)]
    layers = _layers(model)
    found.append(("layers", "the number of layers", str(len(layers))))
    for number, layer in enumerate(layers):
        key = f"layer {number}"
        called = f"layer '{getattr(layer, 'name', number)}'"
        found.append((key, f"class of {called}", type(layer).__qualname__))
        found += _lines(key, called, _layer_config(layer))
        found += _edges(key, called, layer)
        found += _held(key, called, layer)
    found += _edges("model", "the model", model)
    if not adapters.is_keras_layer(model):
        config = _config(model) or {}
        kept = {name: one for name, one in config.items() if not _is_path(one)}
        found += _lines("model", "the model", kept)
        found += _held("model", "the model", model)
    return found


def of_names(model: Any) -> list[Line]:
    """The names of trained variables, by which ranks average, if the model is built."""
    if not model.built:
        return []
    try:
        names = [getattr(weight, "path", weight.name) for weight in model.trainable_weights]
    except ValueError:  # a Sequential of tf_keras that its first step will build
        return []
    called = "the list of weight names (Keras numbers them by the layers made before)"
    return [("names", called, plain(names))]


def _layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if layer is not model]


def _is_path(value: Any) -> bool:
    """Whether a value is a path: arguments of a script's class may name this rank's folder."""
    return isinstance(value, str) and "/" in value


def _layer_config(layer: Any) -> Any:
    if hasattr(layer, "layers"):  # a nested model: its layers have their own lines
        return {"trainable": layer.trainable}
    config = _config(layer)
    if config is None:
        return {"trainable": getattr(layer, "trainable", None)}
    shown = {**config, "trainable": layer.trainable}
    if not adapters.is_keras_layer(layer):
        shown = {name: one for name, one in shown.items() if not _is_path(one)}
    function = getattr(layer, "function", None)
    if callable(function):  # a Lambda: its configuration contains marshalled code
        shown["function"] = _of_callable(function, 0)
    return shown


def _edges(key: str, called: str, model: Any) -> Iterator[Line]:
    """How the layers of a functional model are connected."""
    by_depth = vars(model).get("_nodes_by_depth") if hasattr(model, "__dict__") else None
    if not by_depth:
        return
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    places: dict[int, int] = {}
    text = []
    for node in nodes:
        operation = getattr(node, "operation", None) or getattr(node, "layer", None)
        place = places.setdefault(id(operation), len(places))
        parents = [
            places.get(id(getattr(parent, "operation", None) or getattr(parent, "layer", None)), -1)
            for parent in node.parent_nodes
        ]
        arguments = getattr(getattr(node, "arguments", None), "args", ())
        constants = [plain(one) for one in arguments if isinstance(one, (bool, int, float, str))]
        text.append(f"{type(operation).__name__} {place} of {parents} {constants}")
    yield f"{key} edges", f"the connections of {called}", plain(text)


def _held(key: str, called: str, layer: Any) -> Iterator[Line]:
    """A layer's arrays and tables, as from adapt(); for classes of the script also numbers."""
    of_script = not adapters.is_keras_layer(layer)
    kind = _ATTRIBUTE if of_script else "state"
    for name, value in sorted(vars(layer).items()):
        if name == "lookup_table" and hasattr(value, "resource_handle"):
            yield f"{key} state {name}", f"vocabulary of {called}", _table(value)
        elif _array(value) is not None or of_script and type(value) in (bool, float, int):
            if not name.startswith(("_tf_mpi", "_self_", "_obj_")) and name != "trainable":
                yield f"{key} {kind} {name}", f"{name} of {called}", plain(value)


def identity(layer: Any) -> list[Any]:
    """A cheap value that changes if a layer may need a new description.

    It holds the tables and tensors themselves, because the address of a freed one may be reused.
    """
    found: list[Any] = [id(layer), bool(getattr(layer, "trainable", True))]
    for name, value in vars(layer).items():
        if name == "lookup_table" and hasattr(value, "resource_handle"):
            found += [value, int(value.size())]
        elif not name.startswith("_"):
            if hasattr(value, "_numpy_internal"):
                found.append(value.ref())
            elif type(value) in (bool, float, int):
                found.append(repr(value))
    return found


def _table(table: Any) -> str:
    size = int(table.size())
    return f"{size} words ({_checksum(contents.of_resource(table.resource_handle))})"


def is_attribute(key: str) -> bool:
    """Whether a line is an attribute of a script's class, which may legitimately differ."""
    return f" {_ATTRIBUTE} " in key


def of_training(model: Any) -> list[Line]:
    """The arguments of compile()."""
    found: list[Line] = []
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found.append(("optimizer", "the optimizer", type(optimizer).__qualname__))
        found += _lines("optimizer", "the optimizer", _config(optimizer) or {})
    compiled = getattr(getattr(model, "_compile_config", None), "config", None)
    if isinstance(compiled, Mapping):
        for name in sorted(compiled):
            if name != "optimizer":
                found.append((f"compile {name}", f"{name} of compile()", plain(compiled[name])))
    return found


OF_CALLS = {
    "fit": ("batch_size", "epochs", "initial_epoch", "shuffle", "class_weight", "validation_split",
            "steps_per_epoch", "validation_steps", "validation_batch_size", "validation_freq"),
    "evaluate": ("batch_size", "steps"),
}  # fmt: skip
_GIVEN = ("y", "sample_weight", "validation_data")  # compared only by whether they are given


def of_call(
    kind: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Line]:
    """The arguments of fit or evaluate that must be the same on all ranks."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the function itself will raise
        return []
    bound.apply_defaults()
    given = bound.arguments
    names = OF_CALLS.get(kind, ())
    found = [(name, f"{name} of {kind}()", plain(given[name])) for name in names if name in given]
    for name in _GIVEN if names else ():
        said = "given" if given.get(name) is not None else "not given"
        found.append((name, f"{name} of {kind}()", said))
    return found


def shown(value: str) -> str:
    """`value` for users."""
    return value if len(value) <= _LONG else f"{value[:_LONG]}… ({_checksum(value)})"
