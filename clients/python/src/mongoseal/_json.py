"""The lines of requests."""

from __future__ import annotations

import json
from typing import Any

from .errors import Invalid

Json = dict[str, Any]

_MAX_LINE = 524_288
_MAX_ID = 40
"""How many bytes the `id` can have, with its name."""
_MAX_DEPTH = 100
"""How deep a request can be nested."""
_MIN_INTEGER = -(2**63)
_MAX_INTEGER = 2**64 - 1


def body_of(request: Json) -> str:
    """Returns the line of a request without its `id`. Raises `Invalid` for what the program could not read as it is meant.

    Such a line would have no answer, or another meaning.
    """
    try:
        _check(request, _MAX_DEPTH + 1)
        body = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = len(body.encode()) + _MAX_ID
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the request is no JSON: {error}") from error
    if size > _MAX_LINE:
        raise Invalid(f"the request has {size} bytes, and at most {_MAX_LINE} are allowed: shorten it")
    return body[1:]


def _check(value: Any, levels: int) -> None:
    if isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise Invalid("an integer has more than 64 bits, which the program would round: pass it as a text")
    if isinstance(value, (dict, list, tuple)):
        if levels == 0:
            raise Invalid(f"the request is nested deeper than {_MAX_DEPTH}: make it flatter")
        for one in value.values() if isinstance(value, dict) else value:
            _check(one, levels - 1)
