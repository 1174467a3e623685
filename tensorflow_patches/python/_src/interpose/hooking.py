"""Callbacks on imports, errors for missing attributes, and how AutoGraph treats our wrappers.

`when_imported` runs a callback when a module is imported, which may be long after TensorFlow, or
never. A finder on sys.meta_path lets Python's PathFinder find the module, and runs the callbacks
right after the module's own code. If `find` does not find an attribute, the import fails with an
error that names it, so that an unknown version of Keras cannot silently train N models.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.runtime import group, hooks, log

# The newest versions with which the tests have run, by distribution.
# tests/tf/internals/test_keras_assumptions.py fails if a newer one is installed.
LAST_TESTED = {
    "keras": "3.15.1",
    "keras-nightly": "3.16.0.dev2026102704",
    "tf_keras": "2.21.0",
}
# Where each package defines its __version__.
_VERSIONS = {"keras": "keras.src.version", "tf_keras": "tf_keras.src"}
# The last module that `import keras` imports. keras itself is only partly imported when it imports
# TensorFlow.
LAST_OF_KERAS = "keras.wrappers"

_callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}
_loaded: set[str] = set()  # modules with callbacks whose own code has run


class HookError(ImportError):
    """A module or attribute that we hook into does not exist."""


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls `callback(module)` once the module `name` has been imported; immediately if it already
    has, or if its import began before the first callback for it was registered.

    Callbacks for a module run in the order of their registration, on the thread that imports it; an
    exception fails the import.
    """
    module = sys.modules.get(name)
    if module is not None and (name in _loaded or name not in _callbacks):
        callback(module)
        return
    if not _callbacks:
        sys.meta_path.insert(0, _Finder())
    _callbacks.setdefault(name, []).append(callback)


def find(module: ModuleType, path: str) -> tuple[Any, str]:
    """(owner, name) of the attribute `path` of `module`; HookError if it does not exist.

    A part of the path whose name depends on the version lists all names, as in
    "Trainer|BaseTrainer"; the first that exists counts.
    """
    *outer, last = (part.split("|") for part in path.split("."))
    owner: Any = module
    for names in outer:
        owner = next((getattr(owner, name) for name in names if hasattr(owner, name)), None)
    for name in last:
        if owner is not None and hasattr(owner, name):  # even None has an __init__
            return owner, name
    raise _lost(f"{module.__name__} of", module.__name__.partition(".")[0], path)


def used(target: str) -> Any:
    """The attribute "module:attribute" of Keras or tf_keras, for code that uses it without
    replacing it; HookError if the module or the attribute does not exist.

    Pass a literal: `build/wheel.py compat` searches the source for all of them.
    """
    name, _, path = target.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(str(error.name)):
            raise  # Keras itself lacks a package
        raise _lost("", name.partition(".")[0], f"module {name}") from error
    owner, attribute = find(module, path)
    return getattr(owner, attribute)


def _lost(where: str, package: str, what: str) -> HookError:
    """The error for a missing module or attribute; also logs it."""
    install = f"install {last_tested(package)}, the newest tested version, or "
    message = (
        f"{where} {package} {version_of(package)} has no {what}, which tensorflow.mpi needs: "
        "without it the ranks would not train one model; "
        f"{install if package in LAST_TESTED else ''}set TF_MPI_ENABLE=0"
    ).lstrip()
    if hooks.active:
        log.once(message, every_rank=True)  # tf.keras only reports that Keras cannot be imported
    return HookError(message)


def version_of(package: str) -> str:
    """The version from the package itself, otherwise from its metadata."""
    module = sys.modules.get(_VERSIONS.get(package, package))
    known = getattr(module, "__version__", None)
    if known is None:
        import importlib.metadata  # here, because importing it is slow

        for name in (package, f"{package}-nightly"):
            for found in importlib.metadata.distributions(name=name):
                return found.version
        known = "of an unknown version"
    return str(known)


def check_versions() -> None:
    """Called once, at the start. When Keras is imported, rank 0 warns if it is newer than the
    tested version, and the import raises HookError if an expected module does not exist."""
    for package, module in _VERSIONS.items():
        when_imported(package, _check_modules)
        if group.rank == 0:
            when_imported(module, functools.partial(_warn_if_newer, package))


def _check_modules(package: ModuleType) -> None:
    for name in list(_callbacks):
        expected = name.startswith(f"{package.__name__}.") and name != LAST_OF_KERAS
        if not expected or name in sys.modules:
            continue
        try:
            exists = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # its parent package does not exist, either
            exists = False
        if not exists:
            raise _lost("", package.__name__, f"module {name}")


def _warn_if_newer(package: str, _module: ModuleType) -> None:
    # Not _module.__version__: tf_keras, if it is imported before TensorFlow, has not set it yet.
    found, requirement = version_of(package), last_tested(package)
    tested = requirement.partition("==")[2]
    if numbers(found) > numbers(tested):
        log.say(
            f"{package} {found} is newer than {tested}, the newest version tested with "
            f"tensorflow.mpi: compare a short run with one process, or install {requirement}"
        )


def last_tested(package: str) -> str:
    """The requirement for the newest tested version: a nightly build's, if one is installed."""
    nightly = f"{package}-nightly"
    name = nightly if ".dev" in version_of(package) and nightly in LAST_TESTED else package
    return f"{name}=={LAST_TESTED.get(name)}"


def numbers(version: str) -> tuple[int, ...]:
    """(3, 15, 1) for "3.15.1", for comparisons; a nightly build's date comes last."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def without_autograph(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Marks `wrapper` as not to be converted by AutoGraph.

    Otherwise AutoGraph would convert the wrapped function, and call that instead of the wrapper.
    The wrapper calls the wrapped function through `with_callers_autograph`.
    """
    wrapper.autograph_info__ = {}  # type: ignore[attr-defined]
    return wrapper


def with_callers_autograph(original: Callable[..., Any]) -> Callable[..., Any]:
    """The function for a `without_autograph` wrapper to call: converted by AutoGraph if the
    wrapper's caller is."""
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.autograph.impl import api

    if not converts():
        return original
    converted: Callable[..., Any] = api.tf_convert(original, ag_ctx.control_status_ctx())
    return converted


def converts() -> bool:
    """Whether AutoGraph converts functions that this thread calls."""
    from tensorflow.python.autograph.core import ag_ctx

    return bool(ag_ctx.control_status_ctx().status == ag_ctx.Status.ENABLED)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _callbacks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _loaded.add(fullname)
                for callback in _callbacks.get(fullname, ()):
                    callback(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
