"""No statement is unreachable, for example after a return or a try that always returns.

mypy (`warn_unreachable`) finds what types rule out. This test uses only the syntax, so it also
covers programs and examples that mypy does not check.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tensorflow_patches", "build", "tests", "examples", "benchmarks")


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether code after `body` is never reached."""
    return any(map(_ends, body))


def _ends(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(statement, ast.If):
        return _leaves(statement.body) and _leaves(statement.orelse)
    if isinstance(statement, ast.Try):
        tried = _leaves(statement.body) or _leaves(statement.orelse)
        handled = all(_leaves(handler.body) for handler in statement.handlers)
        return _leaves(statement.finalbody) or (tried and handled)
    if isinstance(statement, ast.While):
        for_ever = isinstance(statement.test, ast.Constant) and bool(statement.test.value)
        return for_ever and not any(map(_breaks, statement.body))
    return False  # also `with`, which may suppress an exception before a return


def _breaks(statement: ast.stmt) -> bool:
    """Whether it may break out of its loop."""
    if isinstance(statement, ast.Break):
        return True
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
        return any(map(_breaks, statement.orelse))
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(_breaks(inner) for body in _bodies(statement) for inner in body)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside a statement, a handler or a case."""
    for _, value in ast.iter_fields(node):
        if not isinstance(value, list):
            continue
        if value and isinstance(value[0], ast.stmt):
            yield value
        for inner in value:
            if isinstance(inner, (ast.ExceptHandler, ast.match_case)):
                yield inner.body


def unreachable(source: str) -> list[int]:
    """The lines of statements after one that never completes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for body in _bodies(node):
            found += [after.lineno for one, after in zip(body, body[1:]) if _ends(one)]
    return sorted(set(found))


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_statement_can_be_reached(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(path.relative_to(ROOT)): unreachable(path.read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_the_check_finds_unreachable_statements() -> None:
    """It reports exactly the marked lines."""
    source = """
def waits(one):
    try:
        return one.wait()
    finally:
        one.close()
    one.look()  # never

def chooses(one):
    for each in one:
        if each:
            continue
        else:
            raise ValueError(each)
        each.close()  # never
    while True:
        if one:
            return 1
    return 2  # never

def goes_on(one):
    try:
        return one.wait()
    except ValueError:
        pass
    with suppress(KeyError):
        return one.look()
    while True:
        for each in one:
            break
        else:
            break
    return 3

def matches(one):
    match one:
        case 1:
            raise KeyError
            one = 2  # never
    try:
        one += 1
    except KeyError:
        one = 3
        raise
        one = 4  # never
    return one
"""
    lines = source.splitlines()
    never = [number for number, line in enumerate(lines, 1) if line.endswith("# never")]
    assert unreachable(source) == never
