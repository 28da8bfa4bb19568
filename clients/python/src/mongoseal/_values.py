"""What calls return, besides leases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from typing import Any, Literal, NamedTuple

from ._time import Seconds, members
from .errors import Invalid


class LeaderInfo(NamedTuple):
    """The leader, as any process can see it."""

    owner: str
    token: int
    value: str


class StoredValue(NamedTuple):
    """The value of a key, the token of the lease that stored it, and when: a time of the server, for people."""

    content: Any
    token: int
    at: str


@dataclass(frozen=True)
class Done:
    """The outcome of `once` if the tick, or a later one, is completed: the work must not run.

    It is false, and can be used in `with` in place of a lease.
    """

    outcome: Literal["already_done", "superseded"]
    """`superseded` if a later tick is completed."""
    tick: int
    """The last completed tick."""
    by: str
    """The owner of the lease that completed it."""
    at: str
    """When: a time of the server, for people."""

    def __bool__(self) -> Literal[False]:
        return False

    def __enter__(self) -> Done:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Done:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


class ObservationEnd:
    """The last item of an observation that its user has ended."""


Tick = int | datetime | date


def tick_members(every: Seconds | None, tick: Tick | None, period: Seconds | None) -> dict[str, Any]:
    """Returns the members of `once` that name the tick. A time is a number of milliseconds since the Unix epoch."""
    if (every is None) == (tick is None):
        raise Invalid("pass either `every` or `tick`")
    if isinstance(tick, datetime):
        if tick.tzinfo is None:
            raise Invalid("the time of the tick has no time zone: pass one with `tzinfo`")
        tick = round(tick.timestamp() * 1000)
    elif isinstance(tick, date):
        period = 86_400 if period is None else period
        tick = round(datetime.combine(tick, time(), timezone.utc).timestamp() * 1000)
    return members(every_ms=every, tick=tick, period_ms=period)
