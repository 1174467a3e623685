"""Raises rank 0's failures to save on the other ranks.

A script may catch the exception of a save by its class, and continue differently. So every rank
raises the same exception as rank 0; its __cause__ says that rank 0 has failed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_MAX_TEXT = 1000  # characters of a message that is sent


def describe(error: BaseException) -> str:
    """Encodes `error` in one line, for `decode`."""
    kind = type(error)
    args = list(error.args)
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args.append(str(error.filename))
        if error.filename2 is not None:
            args += [None, str(error.filename2)]
    if not args or not all(isinstance(value, (str, int, type(None))) for value in args):
        args = [_text(error)]
    args = [value[:_MAX_TEXT] if isinstance(value, str) else value for value in args]
    return json.dumps([kind.__module__, kind.__qualname__, _text(error), args])


def decode(described: str, cause: Exception) -> Exception:
    """The exception that `describe` has encoded, with `cause` as its __cause__.

    If it cannot be created here (this rank has not imported the class, or the class takes other
    arguments), returns `cause` itself.
    """
    module, name, message, args = json.loads(described)
    kind = _find(module, name)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return cause
    try:
        error = _create(kind, message, args)
    except Exception:
        return cause
    if not isinstance(error, kind):
        return cause
    error.__cause__ = cause
    return error


def text(described: str) -> str:
    """The class and message, for a message to the user."""
    _, name, message, _ = json.loads(described)
    return f"{name}: {message}"


def _text(error: BaseException) -> str:
    return str(getattr(error, "message", error))[:_MAX_TEXT]  # an OpError's str has more lines


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _create(kind: Any, message: str, args: list[Any]) -> Any:
    from tensorflow.python.framework import errors

    return kind(None, None, message) if issubclass(kind, errors.OpError) else kind(*args)
