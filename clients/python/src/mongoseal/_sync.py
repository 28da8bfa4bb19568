"""The client for threads."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from ._client import Client
from ._lease import UNSET, BaseLease, Unset
from ._program import launcher
from ._run import LeaseState, Observation, Reply
from ._time import Seconds, members
from ._values import Done, LeaderInfo, ObservationEnd, StoredValue, Tick, tick_members
from .errors import CannotWait, Invalid, MongosealError, Unavailable

L = TypeVar("L", bound="Lease")
LostCallback = Callable[["Lease"], object]


class Lease(BaseLease):
    """A lease on a key. `with` releases it at the end.

    A lease that is not released lasts until nothing refers to it any more, the client is closed, or its process ends.

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
        state = self._state
        if state.cause is None:
            self._client.check_wait()
            ended: SimpleQueue[None] = SimpleQueue()
            listener = partial(ended.put, None)
            state.listen(listener)
            try:
                ended.get(timeout=timeout)
            except Empty:
                return None
            finally:
                state.unlisten(listener)
        return state.cause

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
        event = self._ended(do, members)
        return event is not None and bool(event.get("confirmed", True))

    def _ended(self, do: str, members: dict[str, Any]) -> dict[str, Any] | None:
        """Ends the lease. Returns `None` if the program does not answer, or if no answer can be waited for."""
        client = self._client
        answers: SimpleQueue[Any] = SimpleQueue()
        try:
            client.end(self._state, do, members, answers.put)
            client.check_wait()
            return answered(answers.get(timeout=client.patience))
        except (Empty, CannotWait):
            self._state.is_given_up = True
            return None

    def _ask(self, do: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        client = self._client
        return wait(client, partial(client.ask, self._state, do, members or {}))

    def _call_if_lost(self, callback: LostCallback | None) -> None:
        if callback is not None:
            state, this = self._state, weakref.ref(self)

            def listener() -> None:
                lease = this()
                if lease is not None and state.cause != "released":
                    state.run.call(partial(callback, lease))

            state.listeners.append(listener)


class TickLease(Lease):
    """The lease of a tick: see `Mongoseal.once`. `with` completes the tick at the end.

    If the body raises an error, the lease is released and the tick is not completed: the next runner runs it again.
    """

    def __init__(self, client: Client, on_lost: LostCallback | None) -> None:
        super().__init__(client, on_lost)
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
        check_completed(self._ended("complete", complete_members(failed, self.note)), self._state)

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

    def __init__(self, observation: Observation, items: SimpleQueue[Any]) -> None:
        self._observation = observation
        self._items = items
        self._last: MongosealError | ObservationEnd | None = None

    def close(self) -> None:
        """Ends the observation. Can be called from another thread."""
        self._observation.close()

    def __next__(self) -> LeaderInfo | None:
        if self._last is None:
            self._observation.check_wait()
            item = self._items.get()
            if not isinstance(item, (MongosealError, ObservationEnd)):
                return item  # type: ignore[no-any-return]
            self._last = item
            self._items.put(item)  # For another thread that waits.
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

        It waits without a limit unless `wait` is given, as the program does. In Rust one attempt is the default.

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
        return self._begin(Lease, "acquire", request, on_lost)[0]

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
        request.update(tick_members(every, tick, period))
        lease, event = self._begin(TickLease, "once", request, on_lost)
        return lease if event["event"] == "granted" else done(event)

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
        return self._begin(Leader, "campaign", members(name=name, value=value, wait_ms=wait, ttl_ms=ttl), on_lost)[0]

    def observe(self, name: str) -> Leaders:
        """Observes a leadership. Raises `Unavailable`, `Invalid` and `ProgramError`."""
        items: SimpleQueue[Any] = SimpleQueue()
        observation = Observation(self._client, items.put)
        leaders = Leaders(observation, items)
        self._client.hold(leaders, observation)
        try:
            wait(self._client, partial(self._client.begin, "observe", {"name": name}, observation))
        except BaseException:
            del leaders  # The error refers to this frame.
            raise
        return leaders

    def start(self) -> None:
        """Starts the program, and waits until it is connected to the server. Otherwise the first request does that.

        Raises `Unavailable`, `Invalid` and `ProgramError`.
        """
        wait(self._client, self._client.start)

    def close(self) -> bool:
        """Releases all leases, ends all waits, and ends the program. End the work under the leases before.

        Returns whether the program has ended by itself. It is killed if it has not some seconds after the timeout of a request
        to the server. Its leases then expire by their ttl.
        """
        try:
            return bool(wait(self._client, self._client.close)["is_clean"])
        except CannotWait:
            return False

    def __enter__(self) -> Mongoseal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(
        self, kind: Callable[[Client, LostCallback | None], L], do: str, members: dict[str, Any], on_lost: LostCallback | None
    ) -> tuple[L, dict[str, Any]]:
        lease = kind(self._client, on_lost)
        try:
            return lease, wait(self._client, partial(self._client.begin, do, members, lease._state))
        except BaseException:
            del lease  # The error refers to this frame, and the lease ends when nothing refers to it.
            raise


def wait(client: Client, send: Callable[[Reply], object]) -> dict[str, Any]:
    """Sends a request and waits for its answer."""
    client.check_wait()
    answers: SimpleQueue[Any] = SimpleQueue()
    send(answers.put)
    return answered(answers.get())


def answered(answer: Any) -> dict[str, Any]:
    """Returns the event of an answer, or raises its error."""
    if isinstance(answer, MongosealError):
        raise answer
    return answer  # type: ignore[no-any-return]


def done(event: dict[str, Any]) -> Done:
    return Done(event["outcome"], event["tick"], event["by"], event["at"])


def check_completed(event: dict[str, Any] | None, state: LeaseState) -> None:
    """Checks what the end of the lease of a tick was answered with: another end may have come before."""
    if event is None:
        raise Unavailable("the program does not answer: check whether it is stopped. The tick may be completed or not")
    if event.get("event") != "completed":
        raise state.error()


def value_members(value: Any, keep_for: Seconds | None) -> dict[str, Any]:
    if not isinstance(value, Unset):
        return {"value": value, **members(keep_for_ms=keep_for)}
    if keep_for is not None:
        raise Invalid("`keep_for` is the time of a value: pass `value`, too")
    return {}


def complete_members(failed: bool, note: str) -> dict[str, Any]:
    return members(failed=failed or None, note=note or None)
