"""Durations and the clock of deadlines."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from .errors import Invalid

Seconds = float | timedelta

# The clock of the program's deadlines, unless the program runs elsewhere. It goes on while the machine sleeps: on Linux by
# its name, on macOS by its kind.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

NEVER = 2.0**44
"""A deadline above this number of milliseconds is that of a lease without an expiry."""


def now_ms() -> float:
    """The clock of deadlines, in milliseconds."""
    return time.clock_gettime(_CLOCK) * 1000


def seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else value


def millis(value: Seconds) -> int:
    """Returns the milliseconds of a duration. Raises `Invalid` if it is negative or no number."""
    try:
        number = round(seconds(value) * 1000)
    except (OverflowError, TypeError, ValueError) as error:
        raise Invalid(f"{value!r} is no time: pass a number of seconds or a `timedelta`") from error
    if number < 0:
        raise Invalid(f"{value!r} is negative: pass a number of seconds from 0")
    return number


def members(**values: Any) -> dict[str, Any]:
    """Returns the members of a request. Leaves out what is `None`, and converts the durations: members with `_ms`."""
    return {
        name: millis(value) if name.endswith("_ms") else value for name, value in values.items() if value is not None
    }
