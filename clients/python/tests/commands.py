"""What the adapters of the conformance test share: `protocol/pipe.md` describes the commands."""

from __future__ import annotations

import sys
from typing import Any

from mongoseal import Done, MongosealError, StoredValue

Command = dict[str, Any]

_NAMES = ("id", "do", "lease", "observation")


def options(command: Command) -> dict[str, Any]:
    """Returns the arguments of a call. A member such as `ttl_ms` is the argument `ttl`, in seconds."""
    return {
        name.removesuffix("_ms"): value / 1000 if name.endswith("_ms") else value
        for name, value in command.items()
        if name not in _NAMES
    }


def error(error: BaseException) -> dict[str, Any]:
    """Returns the members of an answer about an error."""
    if isinstance(error, MongosealError):
        return {"error": error.code, "message": str(error)}
    print(repr(error), file=sys.stderr)
    return {"error": type(error).__name__, "message": str(error)}


def shown(value: object) -> object:
    """Returns the JSON of what a call returns."""
    if isinstance(value, Done):
        return vars(value)
    if isinstance(value, StoredValue):
        return value._asdict()
    return value
