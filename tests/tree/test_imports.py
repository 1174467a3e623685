"""The imports inside tensorflow.mpi: no cycles, and each room imports only those below it.

Computed from the source. Imports inside functions and for type checkers count as well, so that
they cannot hide a cycle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "tensorflow_patches" / "python"
NAME = "tensorflow.mpi"

# The modules that each room may import in addition to its own. "public" is the API for scripts;
# "top" are the modules directly below _src, which may import all rooms.
PUBLIC_BELOW = {"config", "errors"}  # public modules that every room uses
_ENGINE = {"runtime", "interpose", "presence", "messaging", "lifecycle"}
MAY_IMPORT: dict[str, set[str]] = {
    "config": set(),
    "errors": set(),
    "mpi": {"config"},
    "runtime": {"config", "errors"},
    "interpose": {"runtime"},
    "presence": {"config", "runtime"},
    "messaging": {"config", "errors", "runtime", "presence"},
    "lifecycle": {"config", "errors", "mpi", "runtime", "interpose", "presence"},
    "gpu": {"config", *_ENGINE},
    "observability": {"config", "errors", "mpi", *_ENGINE},
    "variables": {"config", *_ENGINE},
    "average": {"config", *_ENGINE, "variables"},
    "global_batch": {"config", *_ENGINE, "variables", "average"},
    "random": {"config", *_ENGINE, "variables", "average", "global_batch"},
    "data": {"config", *_ENGINE, "average", "global_batch", "random"},
    "files": {"config", "errors", *_ENGINE, "variables"},
    "distribute": {"config", *_ENGINE, "average", "global_batch", "keras"},
    "compat_v1": {"config", *_ENGINE, "variables", "average", "gpu"},
    "keras": {"config", *_ENGINE, "variables", "average", "random", "global_batch", "data"},
    "readers": {*_ENGINE},
    "horovod": {"config", *_ENGINE, "variables", "average", "keras"},
    "ddl": {"config", *_ENGINE, "average"},
    "launch": {"config", "ddl"},
    "compat": {*_ENGINE, "horovod", "ddl", "launch"},
    "tf_keras": {
        *("config", *_ENGINE, "variables", "average", "random", "global_batch", "data", "keras"),
    },
    "replaced": {
        *(*_ENGINE, "gpu", "variables", "average", "data", "files", "compat_v1", "keras"),
        *("tf_keras", "random", "distribute", "global_batch"),
    },
    "top": {
        *("config", *_ENGINE, "gpu", "observability", "average", "files", "keras", "random"),
        *("data", "variables", "replaced"),
    },
    "public": {
        *("config", "errors", *_ENGINE, "observability", "global_batch", "data", "gpu", "mpi"),
        *("variables", "readers", "launch", "replaced"),
    },
}


def modules() -> dict[str, Path]:
    """All modules of the package by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join([NAME, *(part for part in parts if part != "__init__")])] = path
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """The modules of the package that `name` imports, anywhere in its code."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports are not used here"
            # The name is a submodule (_build_info is written by the builder) or defined in an
            # __init__.
            names = [alias.name for alias in node.names if alias.name != "_build_info"]
            inner = [f"{node.module}.{name}" for name in names]
            wanted = [full if full in MODULES else str(node.module) for full in inner]
        else:
            continue
        yield from (module for module in wanted if module in MODULES and module != name)


GRAPH = {name: set(imported(name)) for name in MODULES}


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Tarjan's strongly connected components of more than one module."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            place = stack.index(name)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def room(module: str) -> str:
    parts = module.removeprefix(NAME).split(".")[1:]
    if parts[:1] == ["compat"]:
        return "compat"
    if parts[:1] != ["_src"]:
        return parts[0] if parts and parts[0] in PUBLIC_BELOW else "public"
    folder = MODULES[module].parent
    return folder.name if folder.name != "_src" else "top"


def test_components_finds_cycles() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e2"}, "e2": {"e"}}
    assert components(graph) == [["b", "c"], ["e", "e2"]]


def test_the_package_has_no_import_cycle() -> None:
    assert len(GRAPH) > 30 and any(GRAPH.values())
    assert components(GRAPH) == []


def test_imports_are_at_the_top_of_modules() -> None:
    """Exceptions have a reason: a closed gate loads nothing; some modules need TensorFlow's
    classes."""
    late = {
        "tensorflow.mpi.__main__": "the other commands need no table",
        "tensorflow.mpi": "a closed gate loads nothing",
        "tensorflow.mpi._src.bootstrap": "a closed gate loads nothing",
        "tensorflow.mpi._src.distribute.strategies": "one_rank.py needs TensorFlow",
        "tensorflow.mpi._src.files.tensorflow_files": "summaries.py needs TensorFlow",
        "tensorflow.mpi.compat.ddl": "callbacks need Keras",
        "tensorflow.mpi.compat.horovod.tensorflow": "SyncBatchNormalization needs Keras",
    }
    found = set()
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text())
        inner = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        if any(NAME in ast.unparse(node) for node in inner if node not in tree.body):
            found.add(name)
    assert found == set(late)


def test_no_function_imports_tensorflow_itself() -> None:
    """A module of tensorflow.mpi is loaded after, or by, the package tensorflow, so `import
    tensorflow as tf` at the top of a module only binds a name. That is not so for tensorflow's
    own modules, which load later."""
    inner = {
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, ast.Import) and node.names[0].name == "tensorflow"
    }
    assert not inner


def test_rooms_import_only_rooms_below() -> None:
    rooms = {room(module) for module in MODULES}
    assert rooms == set(MAY_IMPORT)
    wrong = [
        f"{module} imports {other}"
        for module in MODULES
        for other in sorted(GRAPH[module])
        if room(other) not in {room(module), *MAY_IMPORT[room(module)]}
    ]
    assert not wrong


def test_the_rooms_have_an_order() -> None:
    assert components({name: set(below) for name, below in MAY_IMPORT.items()}) == []


def test_patches_call_exactly_the_hooks_of_the_table() -> None:
    """hooks.py lists what the patches call: nothing is missing and nothing is unused."""
    tree = ast.parse((PACKAGE / "_src/runtime/hooks.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    table = {f.name for f in functions if any(ast.unparse(d) == "_hook" for d in f.decorator_list)}
    called: set[str] = set()
    for patch in (PACKAGE.parent / "patches").glob("*.patch"):
        called |= set(re.findall(r"_mpi_hooks\.(\w+)", patch.read_text()))
    assert called - {"active", "apply_ops", "ASSIGN_OPS"} == table


def test_names_inside_keras_are_looked_up_by_hooking() -> None:
    """So that a name that has moved raises HookError, which names it, not AttributeError."""
    of_keras = re.compile(r"^ *(?:from|import) (?:tf_)?keras\.src\b", re.M)
    assert of_keras.search("def f():\n    from keras.src import backend\n")
    assert not {name for name, path in MODULES.items() if of_keras.search(path.read_text())}
    targets = [
        node.args[0]
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hooking.used"
    ]
    assert len(targets) > 10
    assert all(isinstance(target, ast.Constant) for target in targets)
