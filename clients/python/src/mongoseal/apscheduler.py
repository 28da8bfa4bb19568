"""APScheduler 3 and 4: jobs that run once for each tick, over all processes whose schedulers have the job.

    @once_per_tick(seal, "reports/hourly", every=3600)
    def report(): ...

    scheduler.add_job(report, "cron", minute=5)

A client for threads wraps functions, and one for asyncio wraps coroutine functions. `lead` is for APScheduler 3: with 4, a
scheduler is run in `async with seal.campaign(...)`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar, overload

from . import aio
from ._lease import BaseLease
from ._sync import Mongoseal
from ._time import Seconds
from ._values import Done, Tick
from .errors import Held, Invalid, LeaseLost, Unavailable

__all__ = ["current_lease", "lead", "once_per_tick"]

P = ParamSpec("P")
R = TypeVar("R")

_PAUSE = 1.0
"""After how many seconds a process whose leadership is lost campaigns again."""
_log = logging.getLogger("mongoseal")
_lease: ContextVar[BaseLease] = ContextVar("mongoseal_lease")


class _Scheduler(Protocol):
    """A scheduler of APScheduler 3."""

    def start(self, paused: bool = False) -> object: ...

    def pause(self) -> object: ...

    def resume(self) -> object: ...


def current_lease() -> BaseLease:
    """Returns the lease of the job that runs: for its token, and for `check`. Raises `LookupError` outside of such a job."""
    return _lease.get()


@overload
def once_per_tick(
    seal: Mongoseal, key: str, *, every: Seconds | None = None, tick: Callable[[], Tick] | None = None, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...


@overload
def once_per_tick(
    seal: aio.Mongoseal, key: str, *, every: Seconds | None = None, tick: Callable[[], Tick] | None = None, **options: Any
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R | None]]]: ...


def once_per_tick(
    seal: Mongoseal | aio.Mongoseal, key: str, *, every: Seconds | None = None, tick: Callable[[], Tick] | None = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Runs a job once for each tick. The result is `None` if the tick is completed, or still held at the end of the wait.

    The tick is the time of the server when the job begins, cut to `every`; or what `tick` returns. With APScheduler 4, the
    default is the time for which the job was scheduled, cut to a second. Processes with a data store each agree on that by
    cron triggers only: interval triggers begin with the process. A job that fails or dies completes no tick: the next process
    that waits runs it. The other options are those of `Mongoseal.once`, with its default of `wait`.

    A job whose lease was lost fails with `LeaseLost`: at its end, when it calls `current_lease().check()`, or, as a coroutine,
    at once.
    """

    def asked() -> dict[str, Any]:
        if every is not None:
            return {**options, "every": every}
        return {**options, "tick": tick() if tick is not None else _scheduled()}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            assert isinstance(seal, Mongoseal)
            try:
                lease = seal.once(key, **asked())
            except Held:
                return _skip(key, None)
            with lease:
                if isinstance(lease, Done):
                    return _skip(key, lease)
                outer = _lease.set(lease)
                try:
                    return function(*args, **kwargs)
                finally:
                    _lease.reset(outer)

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            assert isinstance(seal, aio.Mongoseal)
            try:
                lease = await seal.once(key, **asked())
            except Held:
                return _skip(key, None)
            async with lease:
                if isinstance(lease, Done):
                    return _skip(key, lease)
                outer = _lease.set(lease)
                try:
                    return await function(*args, **kwargs)
                finally:
                    _lease.reset(outer)

        return run if isinstance(seal, Mongoseal) else run_async

    return decorate


def lead(scheduler: _Scheduler, seal: Mongoseal, name: str, **options: Any) -> NoReturn:
    """Runs a scheduler of APScheduler 3 while this process leads, and pauses it otherwise. Returns only by an error.

    A job that runs when the leadership is lost goes on. A process that was stopped can begin a job before it learns of the
    loss: use `once_per_tick` for a job that must not run twice. The options are those of `Mongoseal.campaign`.
    """
    scheduler.start(paused=True)
    while True:
        try:
            with seal.campaign(name, **options) as leader:
                scheduler.resume()
                try:
                    leader.wait_lost()
                finally:
                    scheduler.pause()
        except (LeaseLost, Unavailable) as error:
            _log.warning("%s", error)
            time.sleep(_PAUSE)


def _scheduled() -> Tick:
    """The time for which APScheduler 4 has scheduled the job that runs. Cron triggers add the microseconds of their start."""
    current = getattr(sys.modules.get("apscheduler"), "current_job", None)
    job = current and current.get(None)
    at: datetime | None = job and job.original_scheduled_time
    if at is None:
        raise Invalid("the tick of this job is not known: pass `every` or `tick`")
    return at.replace(microsecond=0)


def _skip(key: str, done: Done | None) -> None:
    _log.info("%r %s: the job is skipped", key, "is held" if done is None else f"has run by {done.by} for tick {done.tick}")
