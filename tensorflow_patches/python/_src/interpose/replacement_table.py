"""Installs the rows of the table of replaced attributes.

The rows are in `replaced/`. Each is installed right after its module's own code has run, in the
order of the table, so of two rows for one attribute the later one is the outer wrapper. Only
attributes are set: a reference that a script took from a module earlier stays as it was.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import gc
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import group, hooks


class How(enum.Enum):
    """How an attribute is replaced. The values appear in docs/replaced.md."""

    WRAP = "wrapped"  # replaced by wrapper(original)
    BEFORE = "before"  # wrapper(self) is called before a method
    AFTER = "after"  # wrapper(self) is called after a method
    # WRAP, in a class and in each subclass that overrides the method. SUBCLASSES covers subclasses
    # created after the class's module was imported, CLASSES also those in that module.
    SUBCLASSES = "subclasses"
    CLASSES = "all subclasses"
    PATCH = "patch"  # the wrapper becomes the hook named by the target, which a patched file calls
    DECORATOR = "decorator"  # like PATCH; a patched file decorates a function with the hook
    USE = "at use"  # not installed here: code of ours calls the wrapper, which calls `put`


@dataclasses.dataclass(frozen=True)
class When:
    """The condition for installing a row, checked when its module is imported. All but ALWAYS also
    require several ranks."""

    text: str
    holds: Callable[[], bool]


ALWAYS = When("averaging is on", lambda: True)
RANKS = When("several ranks", lambda: group.size > 1)


@dataclasses.dataclass(frozen=True)
class Row:
    """One attribute, or several with one wrapper: "{a,b}" in a target stands for a and for b."""

    # "module:attribute" or "module:Class.attribute", of which a part may be "Name|OtherName" (see
    # hooking.find); for a PATCH, the hook's name.
    target: str
    how: How
    wrapper: Callable[..., Any]
    reason: str  # at most ten words
    test: str  # a file below tests/ with a test that fails without this row
    when: When = RANKS
    versions: str = ""  # "keras>=3.13": other versions do not have the attribute

    def targets(self) -> list[tuple[str, str]]:
        """(module, attribute) of everything that it replaces."""
        found = []
        for target in _expanded(self.target):
            module, _, attribute = target.partition(":")
            found.append((module, attribute))
        return found


def _expanded(text: str) -> Iterator[str]:
    before, brace, after = text.partition("{")
    if not brace:
        yield text
        return
    choices, _, after = after.partition("}")
    for choice, end in itertools.product(choices.split(","), _expanded(after)):
        yield before + choice + end


def install(rows: Iterable[Row]) -> None:
    """Installs each row now, or once its module is imported (hooking.when_imported).

    Then this call or that import raises HookError if the row's attribute does not exist.
    """
    for row in rows:
        if row.how in (How.PATCH, How.DECORATOR):
            hooks.fill(**{row.target: row.wrapper})
        elif row.how is not How.USE and (row.when is ALWAYS or group.size > 1):
            for module, attribute in row.targets():
                if _version_matches(row.versions):
                    put_row = functools.partial(_install, row, attribute)
                    hooking.when_imported(module, put_row)


def _version_matches(versions: str) -> bool:
    """Whether a condition such as "keras>=3.13" holds."""
    if not versions:
        return True
    package, comparison, version = re.fullmatch(r"(\w+)(<|>=)([\d.]+)", versions).groups()  # type: ignore[union-attr]
    here = sys.version.split()[0] if package == "python" else hooking.version_of(package)
    return (hooking.numbers(here) < hooking.numbers(version)) is (comparison == "<")


def _install(row: Row, attribute: str, module: ModuleType) -> None:
    if not row.when.holds():
        return
    owner, name = hooking.find(module, attribute)
    make = row.wrapper
    if row.how is How.BEFORE:
        make = functools.partial(_before, row.wrapper)
    elif row.how is How.AFTER:
        make = functools.partial(_after, row.wrapper)
    elif row.how is How.CLASSES:
        # By id, because a class may have several names in its module.
        for kind in {id(kind): kind for kind in vars(module).values()}.values():
            if isinstance(kind, type) and kind is not owner and issubclass(kind, owner):
                _wrap_override(kind, name, make)
    put(owner, name, make(getattr(owner, name)))
    if row.how in (How.SUBCLASSES, How.CLASSES):
        _wrap_in_new_subclasses(owner, name, make)


def _before(function: Callable[[Any], None], original: Any) -> Any:
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        function(self)
        return original(self, *args, **kwargs)

    return both


def _after(function: Callable[[Any], None], original: Any) -> Any:
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        function(self)
        return result

    return both


def _wrap_override(kind: type, name: str, make: Callable[[Any], Any]) -> None:
    if name in vars(kind):
        put(kind, name, make(getattr(kind, name)))


def _wrap_in_new_subclasses(base: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = vars(base).get("__init_subclass__")

    def init_subclass(cls: Any, **kwargs: Any) -> None:
        if original is not None:
            original.__get__(None, cls)(**kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        _wrap_override(cls, name, make)

    put(base, "__init_subclass__", classmethod(init_subclass))


def put(owner: Any, name: str, made: Any) -> None:
    """Sets an attribute of a module or class. A function gets the original's name and docstring."""
    original: Any = getattr(owner, name)
    if made is original:
        return
    if isinstance(made, types.FunctionType):
        functools.update_wrapper(made, original)
        if isinstance(owner, ModuleType) and isinstance(original, types.BuiltinFunctionType):
            made.__module__ = owner.__name__  # pickle looks there, not in os.remove's "posix"
    try:
        setattr(owner, name, made)
    except TypeError:  # the type is written in C (docs/decisions/003-ends.md)
        gc.get_referents(vars(owner))[0][name] = made
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
