"""The client for threads."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from ._lease import UNSET, BaseLease, Unset
from ._lease_state import LeaseState
from ._program import launcher
from ._session import Client, Request, Session
from ._time import Seconds, members
from ._values import Done, LeaderInfo, ObservationEnd, StoredValue, Tick, tick_members
from .errors import Invalid, MongosealError, Unavailable

L = TypeVar("L", bound="Lease")
LostCallback = Callable[["Lease"], object]


class Lease(BaseLease):
    """A lease on a key. `with` releases it at the end.

    A lease that is not released lasts until the client is closed or its process ends.

    At the end of `with`, `LeaseLost` is raised if the lease was lost, unless the body has raised another error.
    """

    def release(self, *, value: Any = UNSET, keep_for: Seconds | None = None) -> bool:
        """Releases the lease. With `value`, stores it as the value of the key in the same write, for `keep_for` seconds.

        Returns whether the server confirmed the release. If not, the key may be held until the lease expires. A second call
        returns the same.

        Raises `LeaseLost` if the lease was lost.
        """
        return self._confirmed("release", value_members(value, keep_for))

    def refresh(self, ttl: Seconds | None = None) -> None:
        """Refreshes the lease now, by `ttl` seconds. The program also does that every third of the ttl.

        Raises `LeaseLost`, and `Unavailable` if the server did not answer.
        """
        self._ask("refresh", members(ttl_ms=ttl))

    def verify(self) -> None:
        """Checks by a linearizable read of the server that the lease is held at this moment.

        Raises `LeaseLost`, `Unavailable`, and `Invalid` on Redis.
        """
        self._ask("verify")

    def value(self) -> StoredValue | None:
        """Reads the value of the key. Raises `LeaseLost` and `Unavailable`."""
        value = self._ask("value")["value"]
        return value and StoredValue(value["content"], value["token"], value["at"])

    def put_value(self, value: Any, *, keep_for: Seconds | None = None) -> None:
        """Stores any JSON of up to 64 KiB as the value of the key, which later holders read.

        It is kept for `keep_for` seconds after the write; default: 90 days.

        Raises `LeaseLost`, `Unavailable`, and `Invalid` if the value is no JSON or too long.
        """
        self._ask("put_value", value_members(value, keep_for))

    def clear_value(self) -> None:
        """Removes the value of the key. Raises `LeaseLost` and `Unavailable`."""
        self._ask("clear_value")

    def wait_lost(self, timeout: float | None = None) -> str | None:
        """Waits until the lease has ended, and returns the cause. Returns `None` after `timeout` seconds."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()

        def listener() -> None:
            ended.put(None)

        self._state.listen(listener)
        try:
            ended.get(timeout=timeout)
        except queue.Empty:
            return None
        finally:
            self._state.unlisten(listener)
        return self._state.cause

    def __enter__(self: L) -> L:
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            with suppress(MongosealError):  # The error of the body is what counts.
                self.release()
        elif self.cause is None:
            self._end()
        elif self.cause != "released":
            raise self._state.error()

    def _end(self) -> None:
        self.release()

    def _confirmed(self, do: str, members: dict[str, Any]) -> bool:
        try:
            event = self._state.end(do, members).result(self._state.session.patience)
            return bool(event.get("confirmed", True))
        except FutureTimeout:
            return False

    def _ask(self, do: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._state.ask(do, members or {}).result()

    def _call_if_lost(self, callback: LostCallback | None) -> None:
        if callback is not None:
            state = self._state

            def listener() -> None:
                if state.cause != "released":
                    state.session.call(lambda: callback(self))

            state.listen(listener)


class TickLease(Lease):
    """The lease of a tick: see `Mongoseal.once`. `with` completes the tick at the end.

    If the body raises an error, the lease is released and the tick is not completed: the next runner runs it again.
    """

    def __init__(self, state: LeaseState) -> None:
        super().__init__(state)
        self.note = ""
        """What the history of the schedule keeps of this run, up to 200 bytes."""

    @property
    def tick(self) -> int:
        """The number of the tick. That of a time is in milliseconds since the Unix epoch."""
        return self._state.tick

    def complete(self, *, failed: bool = False) -> None:
        """Completes the tick and releases the lease, in one write. `failed` notes in the history that the run has failed.

        Raises `LeaseLost` and `Unavailable`. The tick may then be completed or not.
        """
        try:
            self._state.end("complete", complete_members(failed, self.note)).result(self._state.session.patience)
        except FutureTimeout:
            raise unanswered() from None

    def _end(self) -> None:
        self.complete()


class Leader(Lease):
    """A leadership: a lease on the name of the election. `with` resigns at the end."""

    def proclaim(self, value: str) -> None:
        """Replaces the leader's value. Raises `LeaseLost` and `Unavailable`."""
        self._ask("proclaim", {"value": value})

    def resign(self) -> bool:
        """Ends the leadership: as `release`."""
        return self._confirmed("resign", {})

    def _end(self) -> None:
        self.resign()


class Leaders(Iterator["LeaderInfo | None"]):
    """An observation: the present leader, and then each change. `None`: there is no leader.

    The iteration ends after `close`, which `with` calls at the end, and when the client is closed. It raises the error that
    ends the observation, such as `Unavailable` if the program has ended.
    """

    def __init__(self, session: Session, number: int, items: queue.SimpleQueue[Any]) -> None:
        self._session = session
        self._number = number
        self._items = items
        self._last: MongosealError | ObservationEnd | None = None

    def close(self) -> None:
        """Ends the observation. Can be called from another thread."""
        self._session.unobserve(self._number)

    def __next__(self) -> LeaderInfo | None:
        if self._last is None:
            self._session.check_process()
            item = self._items.get()
            if not isinstance(item, (MongosealError, ObservationEnd)):
                return item  # type: ignore[no-any-return]
            self._last = item
        if isinstance(self._last, MongosealError):
            raise self._last
        raise StopIteration

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Mongoseal:
    """Holds leases by the program `mongoseal`, which it starts at the first request, and again after it has ended.

    `with` closes it at the end. All threads can use it.

    A forked child can use it, too: the child starts a program of its own, and has none of its parent's leases.
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        db: str | None = None,
        collection: str | None = None,
        owner: str | None = None,
        timeout: Seconds | None = None,
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        """Sets the options of the program. Default: those of its environment.

        `uri` is the connection string; default: that of `MONGOSEAL_URI`, otherwise `MONGODB_URI`. `timeout` limits one
        request to the server, in seconds; default: 10. `program` is the program; default: that of `MONGOSEAL_PROGRAM`, of
        this package, or of the PATH.
        """
        self._client = Client(*launcher(uri, db, collection, owner, timeout, program))

    def acquire(
        self,
        key: str,
        *,
        wait: Seconds | None = None,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        shared: int | None = None,
        min_hold: Seconds | None = None,
        max_hold: Seconds | None = None,
        stalled_after: Seconds | None = None,
        without_expiry: bool | None = None,
        group: str | None = None,
        metadata: Mapping[str, str] | None = None,
        on_lost: LostCallback | None = None,
    ) -> Lease:
        """Acquires a key. Times are in seconds.

        | option | meaning | default |
        |---|---|---|
        | `wait` | longest wait for the key; 0: no wait | no limit |
        | `ttl` | time after which an unrefreshed lease expires, from 1 | 30 |
        | `grace` | how much longer than the ttl the server keeps the key | a tenth of the ttl, at most 0.5 |
        | `shared` | shares the key among at most this many holders | exclusive |
        | `min_hold` | after an earlier release the key stays unavailable for the rest of this time | 0 |
        | `max_hold` | the lease is lost when it has lasted this long | no limit |
        | `stalled_after` | the lease is lost if there is no `progress` for this long | no limit |
        | `without_expiry` | the lease ends by a release or a revocation only | `False` |
        | `group` | the group of the lease | none |
        | `metadata` | texts that others see | none |
        | `on_lost` | called with the lease when it is lost, on a thread for such calls, one after the other | |

        Raises `Held` if the key is held until the end of the wait, `Unavailable`, `Invalid` and `ProgramError`.

        A `KeyboardInterrupt` ends the wait. If the lease is granted at that moment, it is released.
        """
        request = members(
            key=key, wait_ms=wait, ttl_ms=ttl, grace_ms=grace, shared=shared, min_hold_ms=min_hold, max_hold_ms=max_hold,
            stalled_after_ms=stalled_after, without_expiry=without_expiry, group=group, metadata=metadata and dict(metadata),
        )  # fmt: skip
        lease = Lease(self._begin("acquire", request))
        lease._call_if_lost(on_lost)
        return lease

    def once(
        self,
        key: str,
        *,
        every: Seconds | None = None,
        tick: Tick | None = None,
        period: Seconds | None = None,
        keep_for: Seconds | None = None,
        wait: Seconds | None = None,
        ttl: Seconds | None = None,
        grace: Seconds | None = None,
        min_hold: Seconds | None = None,
        max_hold: Seconds | None = None,
        stalled_after: Seconds | None = None,
        metadata: Mapping[str, str] | None = None,
        on_lost: LostCallback | None = None,
    ) -> TickLease | Done:
        """Acquires a key to run work once for a tick of a schedule. Returns `Done`, which is false, if the work must not run.

            with seal.once("reports/hourly", every=3600) as tick:
                if tick:
                    report(tick.token)

        The tick is the time of the server, cut to `every`; or `tick`: a number, a time with a time zone, or a date. A tick
        of a time can be ahead of the server by `period` at most; default: 1 minute, and 1 day for a date. The completed tick
        is kept for `keep_for` seconds; default: 90 days. The other options and the errors are those of `acquire`.
        """
        request = members(
            key=key, keep_for_ms=keep_for, wait_ms=wait, ttl_ms=ttl, grace_ms=grace, min_hold_ms=min_hold,
            max_hold_ms=max_hold, stalled_after_ms=stalled_after, metadata=metadata and dict(metadata),
        )  # fmt: skip
        begun = self._begin_once({**request, **tick_members(every, tick, period)})
        if isinstance(begun, TickLease):
            begun._call_if_lost(on_lost)
        return begun

    def campaign(
        self,
        name: str,
        *,
        value: str | None = None,
        wait: Seconds | None = None,
        ttl: Seconds | None = None,
        on_lost: LostCallback | None = None,
    ) -> Leader:
        """Waits until this candidate leads. Others see `value`. The options and the errors are those of `acquire`."""
        leader = Leader(self._begin("campaign", members(name=name, value=value, wait_ms=wait, ttl_ms=ttl)))
        leader._call_if_lost(on_lost)
        return leader

    def observe(self, name: str) -> Leaders:
        """Observes a leadership. Raises `Unavailable`, `Invalid` and `ProgramError`."""
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        session, request = self._client.send("observe", {"name": name}, items.put)
        try:
            request.future.result()
        except BaseException:
            session.unobserve(request.id)
            raise
        return Leaders(session, request.id, items)

    def close(self) -> bool:
        """Releases all leases, ends all waits, and ends the program. End the work under the leases before.

        Returns whether the program has ended by itself. It is killed if it has not some seconds after the timeout of a request
        to the server. Its leases then expire by their ttl.
        """
        return self._client.close()()

    def __enter__(self) -> Mongoseal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, do: str, members: dict[str, Any]) -> LeaseState:
        session, request = self._client.send(do, members)
        result(session, request)
        assert request.lease is not None
        return request.lease

    def _begin_once(self, members: dict[str, Any]) -> TickLease | Done:
        session, request = self._client.send("once", members)
        event = result(session, request)
        return done(event) if request.lease is None else TickLease(request.lease)


def result(session: Session, request: Request) -> dict[str, Any]:
    """Waits for the grant. If that is interrupted, ends the wait."""
    try:
        return request.future.result()
    except BaseException:
        session.abandon(request)
        raise


def done(event: dict[str, Any]) -> Done:
    return Done(event["outcome"], event["tick"], event["by"], event["at"])


def unanswered() -> Unavailable:
    return Unavailable("the program does not answer: check whether it is stopped. The tick may be completed or not")


def value_members(value: Any, keep_for: Seconds | None) -> dict[str, Any]:
    if not isinstance(value, Unset):
        return {"value": value, **members(keep_for_ms=keep_for)}
    if keep_for is not None:
        raise Invalid("`keep_for` is the time of a value: pass `value`, too")
    return {}


def complete_members(failed: bool, note: str) -> dict[str, Any]:
    return members(failed=failed or None, note=note or None)
