"""Rank 0's failed saves, as the other ranks raise them.

A script may catch what a save raises, by its class, and go on in another way. So every rank raises
what rank 0 has raised; the cause of that says whose failure it is.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_MAX_TEXT = 1000  # of a message that travels


def describe(error: BaseException) -> str:
    """One line about `error`, for `again`."""
    kind = type(error)
    args = list(error.args)
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args.append(str(error.filename))
    if not args or not all(isinstance(value, (str, int, type(None))) for value in args):
        args = [_text(error)]
    args = [value[:_MAX_TEXT] if isinstance(value, str) else value for value in args]
    return json.dumps([kind.__module__, kind.__qualname__, _text(error), args])


def again(described: str, cause: Exception) -> Exception:
    """What a rank raises for what `describe` has told of: the same, with `cause` as its cause.

    Where that cannot be made here (a class that this rank has not imported, or that takes other
    arguments), it is `cause` itself.
    """
    module, name, _, _ = said = json.loads(described)
    kind = _find(module, name)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return cause
    try:
        error = _made(kind, *said[2:])
    except Exception:
        return cause
    error.__cause__ = cause
    return error


def text(described: str) -> str:
    """Class and message, for people."""
    _, name, message, _ = json.loads(described)
    return f"{name}: {message}"


def _text(error: BaseException) -> str:
    return str(getattr(error, "message", error))[:_MAX_TEXT]  # an OpError's str has more lines


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _made(kind: Any, message: str, args: list[Any]) -> Exception:
    from tensorflow.python.framework import errors

    error = kind(None, None, message) if issubclass(kind, errors.OpError) else kind(*args)
    if type(error) is not kind and not isinstance(error, kind):
        raise TypeError(f"{kind} has made {type(error)}")
    made: Exception = error
    return made
