"""Celery: tasks that run once for each tick or one at a time, and a beat of which any number of processes may run.

    @app.task(bind=True)
    @exclusive(lambda self, order: f"orders/{order}")
    def pack(self, order): ...

The client is the setting `mongoseal` of the app, by default one with the options of the environment. A worker process opens
it at the first use, so a parent of prefork opens nothing. A task that is killed releases its lease: its pipe closes.

Invariants: `beat` sends under a valid lease only, and stores a tick after its message is sent. So a tick is sent at least once,
and again only by a leader that takes over between the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from celery import Celery, beat, current_app, current_task
from celery.utils.log import get_logger

from ._sync import Lease, Mongoseal
from ._time import Seconds, now_ms
from ._values import Done, Tick
from .errors import Held, LeaseLost, MongosealError, Unavailable

__all__ = ["Scheduler", "current_lease", "exclusive", "once_per_tick"]

P = ParamSpec("P")
R = TypeVar("R")
Key = str | Callable[..., str]

_PAUSE = 1.0
"""After how many seconds a beat that does not lead looks again."""
_log = get_logger(__name__)
_default = Mongoseal()
_lease: ContextVar[Lease] = ContextVar("mongoseal_lease")


def current_lease() -> Lease:
    """Returns the lease of the task that runs: for its token, and for `check`. Raises `LookupError` outside of such a task."""
    return _lease.get()


def exclusive(
    key: Key, *, if_held: Literal["retry", "skip"] = "retry", wait: Seconds = 0, **options: Any
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Runs one task at a time under a key: a text, or a function of the arguments of the task.

    If the key is held after `wait` seconds, `retry` retries the task by its `default_retry_delay` and `max_retries`, and `skip`
    ends it with the result `None`. The other options are those of `Mongoseal.acquire`.

    A task whose lease was lost fails with `LeaseLost` at its end, or when it calls `current_lease().check()`.
    """
    return _under(key, if_held, lambda seal, name, _args, _kwargs: seal.acquire(name, wait=wait, **options))


def once_per_tick(
    key: Key, *, every: Seconds | None = None, tick: Callable[..., Tick] | None = None,
    if_held: Literal["retry", "skip"] = "retry", wait: Seconds = 0, **options: Any,
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:  # fmt: skip
    """Runs a task once for each tick, on all workers together. If the tick is completed, the result is `None`.

    The tick is the time of the server when the task begins, cut to `every`; or what `tick` returns for the arguments of the
    task. A task that fails, retries or dies completes no tick: the next one runs it. While another worker runs the tick,
    `if_held` applies as in `exclusive`. The other options are those of `Mongoseal.once`.
    """

    def begin(seal: Mongoseal, name: str, args: Any, kwargs: Any) -> Lease | Done:
        return seal.once(name, every=every, tick=None if tick is None else tick(*args, **kwargs), wait=wait, **options)

    return _under(key, if_held, begin)


def _under(
    key: Key, if_held: str, begin: Callable[[Mongoseal, str, Any, Any], Lease | Done]
) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
    def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | None:
            name = key if isinstance(key, str) else key(*args, **kwargs)
            try:
                lease = begin(_client(current_app), name, args, kwargs)
            except Held as held:
                if if_held == "retry" and current_task:
                    raise current_task.retry(exc=held) from None
                if if_held == "retry":
                    raise  # It was called as a function.
                _log.info("%r is held: the task is skipped", name)
                return None
            with lease:
                if isinstance(lease, Done):
                    _log.info("%r has run by %s for tick %d: the task is skipped", name, lease.by, lease.tick)
                    return None
                outer = _lease.set(lease)
                try:
                    return function(*args, **kwargs)
                finally:
                    _lease.reset(outer)

        # Celery checks the arguments of calls by it.
        run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return run

    return decorate


def _client(app: Celery) -> Mongoseal:
    client: Mongoseal | None = app.conf.get("mongoseal")
    return client or _default


class Scheduler(beat.Scheduler):
    """The scheduler of `celery beat -S mongoseal.celery.Scheduler`: one of any number of processes sends, the others wait.

    The schedule is `beat_schedule` of the leader, and the clock is that of the server. The setting `mongoseal_beat` has options
    of `Mongoseal.acquire`. Beats with one `key` elect one leader; the default has the name of the app. A leader that is stopped
    or hangs is replaced after `stalled_after` and the ttl, each 30 seconds.
    """

    max_interval = 5
    _leader: Lease | None = None
    _is_closed = False
    _ahead_ms = 0.0
    """How far the server's clock is ahead of that of deadlines."""

    def setup_schedule(self) -> None:
        self._sent: dict[str, list[Any]] = {}
        """By entry: how often it was sent, and the time of the last one."""
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        if self._is_closed:
            # A signal handler has closed it, and a finalizer that it has interrupted has swallowed its `SystemExit`.
            raise SystemExit
        try:
            if self._leader is None or not self._leader.is_valid:
                self._leader = None
                self._leader = self._take_over()
            self._leader.progress()
            return super().tick(*args, **kwargs)
        except Held:
            return _PAUSE
        except (LeaseLost, Unavailable) as error:
            _log.warning("beat: %s", error)
            self._heap = None  # The entry whose message was to be sent is not in it.
            return _PAUSE

    def _take_over(self) -> Lease:
        """Waits until this process leads, and goes on where the last leader has stopped."""
        options: dict[str, Any] = {"key": f"celery/beat/{self.app.main}", "ttl": 30, "stalled_after": 30}
        options.update(self.app.conf.get("mongoseal_beat") or {})
        leader = _client(self.app).acquire(wait=self.max_interval, **options)
        value = leader.value()
        stored = {} if value is None else value.content
        # What this process has sent and could not store counts, too.
        known = {name: max(each[name] for each in (self._sent, stored) if name in each) for name in {**self._sent, **stored}}
        self._store(leader, known)
        begin = [0, self._now().astimezone(timezone.utc).isoformat()]
        self._sent = {name: known.get(name, begin) for name in self.schedule}
        for name, entry in self.schedule.items():
            entry.total_run_count, at = self._sent[name]
            entry.last_run_at = datetime.fromisoformat(at).astimezone(self.app.timezone)
            setattr(entry.schedule, "nowfun", self._now)  # The stubs lack it.
        self._heap = None
        self._store(leader, self._sent)
        _log.info("beat: leading with token %d", leader.token)
        return leader

    def apply_entry(self, entry: beat.ScheduleEntry, producer: Any = None) -> None:
        assert self._leader is not None and entry.name is not None
        self._leader.check()
        super().apply_entry(entry, producer=producer)
        sent = self.schedule[entry.name]  # What `reserve` has put in the place of the entry.
        assert sent.last_run_at is not None
        self._sent[entry.name] = [sent.total_run_count, sent.last_run_at.astimezone(timezone.utc).isoformat()]
        self.sync()

    def sync(self) -> None:
        if self._leader is not None and self._leader.is_valid:
            self._store(self._leader, self._sent)

    def _store(self, leader: Lease, sent: dict[str, list[Any]]) -> None:
        leader.put_value(sent)
        value = leader.value()
        if value is not None:
            self._ahead_ms = datetime.fromisoformat(value.at.replace("Z", "+00:00")).timestamp() * 1000 - now_ms()

    def _now(self) -> datetime:
        return datetime.fromtimestamp((now_ms() + self._ahead_ms) / 1000, self.app.timezone)

    def close(self) -> None:
        self._is_closed = True
        with suppress(MongosealError):
            super().close()
        leader, self._leader = self._leader, None
        if leader is not None and leader.is_valid:
            with suppress(MongosealError):
                leader.release()
