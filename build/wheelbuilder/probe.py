"""Finds which names that our package uses are missing from another TensorFlow and its Keras.

`compat` runs it with the Python of their environment, so it imports nothing of the builder.

    python -P build/wheelbuilder/probe.py tensorflow_patches/python

Prints one JSON object: for each kind of name, how many were looked for and which are missing.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# TensorFlow's private modules.
_PRIVATE = ("tensorflow.python", "tensorflow.core", "tensorflow.compiler", "tensorflow.dtensor")


def used_names(source: str) -> Iterator[str]:
    """The "module:attribute" of each name that a source file takes from TensorFlow's private
    modules, or from Keras through hooking.used."""
    yield from _names_in(ast.parse(source), {})


def _names_in(scope: ast.AST, outer: dict[str, str]) -> Iterator[str]:
    """`outer`: the modules that the enclosing scopes have imported, by the names they use."""
    modules = dict(outer)
    inner: list[ast.AST] = []
    if isinstance(scope, ast.FunctionDef | ast.Lambda):
        for argument in ast.walk(scope.args):
            if isinstance(argument, ast.arg):
                modules.pop(argument.arg, None)
    own = list(ast.iter_child_nodes(scope))
    for node in own:  # grows
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            inner.append(node)
            continue
        own += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(_PRIVATE):
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}:{alias.name}"
    for node in own:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and isinstance(node.ctx, ast.Load) and not _is_skipped(node.attr):
                yield f"{module}:{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "hooking.used":
            yield str(ast.literal_eval(node.args[0]))
    for function in inner:
        yield from _names_in(function, modules)


def _is_skipped(attribute: str) -> bool:
    """Whether this wheel sets the attribute, or every object has it."""
    return attribute.startswith("_tf_mpi") or attribute.startswith("__")


def is_missing(target: str) -> bool:
    """Whether "module:attribute" is missing; a part of the attribute may be "Name|Other"."""
    module, _, path = target.partition(":")
    found: Any = _module(module)
    for part in path.split("."):
        names = [name for name in part.split("|") if hasattr(found, name)]
        if not names:
            return _module(f"{module}.{path}") is None
        found = getattr(found, names[0])
    return False


def _module(name: str) -> Any:
    """The module or attribute with this dotted name, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        outer, _, attribute = name.rpartition(".")
        return getattr(_module(outer), attribute, None) if outer else None


def put_in_place(package: Path) -> None:
    """Makes `package` importable as tensorflow.mpi."""
    mpi = types.ModuleType("tensorflow.mpi")
    build_info = types.ModuleType("tensorflow.mpi._build_info")
    vars(mpi).update(__path__=[str(package)], _build_info=build_info)
    sys.modules.update({mpi.__name__: mpi, build_info.__name__: build_info})


def replaced(package: Path) -> list[str]:
    """The targets of the table of replaced attributes that the installed versions should have."""
    importlib.import_module("tensorflow")
    put_in_place(package)
    table = importlib.import_module("tensorflow.mpi._src.replaced.table")
    replacement_table = importlib.import_module("tensorflow.mpi._src.interpose.replacement_table")
    return [
        f"{module}:{attribute}"
        for row in table.TABLE
        if row.how not in (replacement_table.How.PATCH, replacement_table.How.DECORATOR)
        and replacement_table._version_matches(row.versions)
        for module, attribute in row.targets()
    ]


def main(package: Path) -> None:
    kinds = {
        "hooks": set(replaced(package)),
        "names": {name for path in package.rglob("*.py") for name in used_names(path.read_text())},
    }
    found = {
        kind: {"count": len(targets), "missing": sorted(filter(is_missing, targets))}
        for kind, targets in kinds.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
