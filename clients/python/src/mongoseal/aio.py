"""The client for asyncio: as `mongoseal`, with coroutines."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from ._client import Client
from ._lease import UNSET, BaseLease
from ._program import launcher
from ._run import LeaseState, Observation, Reply
from ._sync import answered, check_completed, complete_members, done, value_members
from ._time import Seconds, members
from ._values import Done, LeaderInfo, ObservationEnd, StoredValue, Tick, tick_members
from .errors import MongosealError

__all__ = ["Lease", "Leader", "Leaders", "Mongoseal", "TickLease"]

L = TypeVar("L", bound="Lease")
E = TypeVar("E", bound="Lease | TickLease | Done | Leaders")
LostCallback = Callable[["Lease"], object]


class Lease(BaseLease):
    """A lease on a key. `async with` releases it at the end.

    When the lease is lost, `async with` cancels the task that entered it, and raises `LeaseLost`, as `asyncio.timeout` raises
    `TimeoutError`. Code that blocks the loop is not cancelled: it calls `check`.

    A lease that is not released lasts until nothing refers to it any more, the client is closed, or its process ends.

    If a call about the lease is cancelled, its answer is abandoned, and the request is carried out all the same.
    """

    def __init__(self, client: Client, on_lost: LostCallback | None) -> None:
        super().__init__(client, on_lost)
        self._scope: _Scope | None = None

    async def release(self, *, value: Any = UNSET, keep_for: Seconds | None = None) -> bool:
        """Releases the lease. With `value`, stores it as the value of the key in the same write, for `keep_for` seconds.

        Returns whether the server confirmed the release. If not, the key may be held until the lease expires. A second call
        returns the same.

        Raises `LeaseLost` if the lease was lost.
        """
        return await self._confirmed("release", value_members(value, keep_for))

    async def refresh(self, ttl: Seconds | None = None) -> None:
        """Refreshes the lease now, by `ttl` seconds. The program also does that every third of the ttl.

        Raises `LeaseLost`, and `Unavailable` if the server did not answer.
        """
        await self._ask("refresh", members(ttl_ms=ttl))

    async def verify(self) -> None:
        """Checks by a linearizable read of the server that the lease is held at this moment.

        Raises `LeaseLost`, `Unavailable`, and `Invalid` on Redis.
        """
        await self._ask("verify")

    async def value(self) -> StoredValue | None:
        """Reads the value of the key. Raises `LeaseLost` and `Unavailable`."""
        value = (await self._ask("value"))["value"]
        return value and StoredValue(value["content"], value["token"], value["at"])

    async def put_value(self, value: Any, *, keep_for: Seconds | None = None) -> None:
        """Stores any JSON of up to 64 KiB as the value of the key, which later holders read.

        It is kept for `keep_for` seconds after the write; default: 90 days.

        Raises `LeaseLost`, `Unavailable`, and `Invalid` if the value is no JSON or too long.
        """
        await self._ask("put_value", value_members(value, keep_for))

    async def clear_value(self) -> None:
        """Removes the value of the key. Raises `LeaseLost` and `Unavailable`."""
        await self._ask("clear_value")

    async def lost(self) -> str:
        """Waits until the lease has ended, and returns the cause: `released` if its holder has ended it."""
        ended = asyncio.Event()
        listener = _in_loop(ended.set)
        self._state.listen(listener)
        try:
            await ended.wait()
        finally:
            self._state.unlisten(listener)
        return str(self._state.cause)

    async def __aenter__(self: L) -> L:
        self.check()
        self._scope = _Scope(self._state)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._scope is not None
        is_cancelled_by_loss = self._scope.leave(error)
        if is_cancelled_by_loss:
            raise self._state.error() from error
        if kind is not None:
            with suppress(MongosealError):  # The error of the body is what counts.
                await self.release()
        elif self.cause is None:
            await self._end()
        elif self.cause != "released":
            raise self._state.error()

    async def _end(self) -> None:
        await self.release()

    async def _confirmed(self, do: str, members: dict[str, Any]) -> bool:
        event = await self._ended(do, members)
        return event is not None and bool(event.get("confirmed", True))

    async def _ended(self, do: str, members: dict[str, Any]) -> dict[str, Any] | None:
        """Ends the lease. Returns `None` if the program does not answer."""
        client = self._client
        try:
            return await _answer(partial(client.end, self._state, do, members), client.patience)
        except asyncio.TimeoutError:
            self._state.is_given_up = True
            return None

    async def _ask(self, do: str, members: dict[str, Any] | None = None) -> dict[str, Any]:
        return await _answer(partial(self._client.ask, self._state, do, members or {}))

    def _call_if_lost(self, callback: LostCallback | None) -> None:
        if callback is not None:
            state, this, call = self._state, weakref.ref(self), callback

            def on_end() -> None:
                lease = this()
                if lease is not None and state.cause != "released":
                    call(lease)

            state.listeners.append(_in_loop(on_end))


class TickLease(Lease):
    """The lease of a tick: see `Mongoseal.once`. `async with` completes the tick at the end.

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

    async def complete(self, *, failed: bool = False) -> None:
        """Completes the tick and releases the lease, in one write. `failed` notes in the history that the run has failed.

        Raises `LeaseLost` and `Unavailable`. The tick may then be completed or not.
        """
        check_completed(await self._ended("complete", complete_members(failed, self.note)), self._state)

    async def _end(self) -> None:
        await self.complete()


class Leader(Lease):
    """A leadership: a lease on the name of the election. `async with` resigns at the end."""

    async def proclaim(self, value: str) -> None:
        """Replaces the leader's value. Raises `LeaseLost` and `Unavailable`."""
        await self._ask("proclaim", {"value": value})

    async def resign(self) -> bool:
        """Ends the leadership: as `release`."""
        return await self._confirmed("resign", {})

    async def _end(self) -> None:
        await self.resign()


class Leaders(AsyncIterator["LeaderInfo | None"]):
    """An observation: the present leader, and then each change. `None`: there is no leader.

    The iteration ends after `close`, which `async with` calls at the end, and when the client is closed. It raises the error
    that ends the observation, such as `Unavailable` if the program has ended.
    """

    def __init__(self, observation: Observation, items: asyncio.Queue[Any]) -> None:
        self._observation = observation
        self._items = items
        self._last: MongosealError | ObservationEnd | None = None

    def close(self) -> None:
        """Ends the observation."""
        self._observation.close()

    async def __anext__(self) -> LeaderInfo | None:
        if self._last is None:
            self._observation.check_wait()
            item = await self._items.get()
            if not isinstance(item, (MongosealError, ObservationEnd)):
                return item  # type: ignore[no-any-return]
            self._last = item
            self._items.put_nowait(item)  # For another task that waits.
        if isinstance(self._last, MongosealError):
            raise self._last
        raise StopAsyncIteration

    async def __aenter__(self) -> Leaders:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Begin(Awaitable[E], Generic[E]):
    """A request that begins something. Use it by `await`, or by `async with`. It is sent when that begins."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, E]]) -> None:
        self._begin = begin
        self._begun: E | None = None

    def __await__(self) -> Generator[Any, None, E]:
        return self._begin().__await__()

    async def __aenter__(self) -> E:
        self._begun = await self
        await self._begun.__aenter__()
        return self._begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._begun is not None
        await self._begun.__aexit__(kind, error, traceback)


class Mongoseal:
    """Holds leases by the program `mongoseal`, which it starts at the first request, and again after it has ended.

    `async with` closes it at the end. The start takes some milliseconds, in which the loop is blocked.
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
        """Sets the options of the program: as `mongoseal.Mongoseal`."""
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
    ) -> Begin[Lease]:
        """Acquires a key: `lease = await seal.acquire(key)`, or `async with seal.acquire(key) as lease`.

        The options and the errors are those of `mongoseal.Mongoseal.acquire`. `on_lost` is called in the loop.

        If the call is cancelled, its wait ends. If the lease is granted at that moment, it is released.
        """
        request = members(
            key=key, wait_ms=wait, ttl_ms=ttl, grace_ms=grace, shared=shared, min_hold_ms=min_hold, max_hold_ms=max_hold,
            stalled_after_ms=stalled_after, without_expiry=without_expiry, group=group, metadata=metadata and dict(metadata),
        )  # fmt: skip
        return Begin(lambda: self._lease(Lease, "acquire", request, on_lost))

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
    ) -> Begin[TickLease | Done]:
        """Acquires a key to run work once for a tick of a schedule: as `mongoseal.Mongoseal.once`."""
        request = members(
            key=key, keep_for_ms=keep_for, wait_ms=wait, ttl_ms=ttl, grace_ms=grace, min_hold_ms=min_hold,
            max_hold_ms=max_hold, stalled_after_ms=stalled_after, metadata=metadata and dict(metadata),
        )  # fmt: skip
        request.update(tick_members(every, tick, period))
        return Begin(lambda: self._once(request, on_lost))

    def campaign(
        self,
        name: str,
        *,
        value: str | None = None,
        wait: Seconds | None = None,
        ttl: Seconds | None = None,
        on_lost: LostCallback | None = None,
    ) -> Begin[Leader]:
        """Waits until this candidate leads: as `mongoseal.Mongoseal.campaign`."""
        request = members(name=name, value=value, wait_ms=wait, ttl_ms=ttl)
        return Begin(lambda: self._lease(Leader, "campaign", request, on_lost))

    def observe(self, name: str) -> Begin[Leaders]:
        """Observes a leadership: `async with seal.observe(name) as leaders`."""
        return Begin(lambda: self._observe(name))

    async def start(self) -> None:
        """Starts the program, and waits until it is connected to the server: as `mongoseal.Mongoseal.start`."""
        await _answer(self._client.start)

    async def close(self) -> bool:
        """Releases all leases, ends all waits, and ends the program: as `mongoseal.Mongoseal.close`."""
        return bool((await _answer(self._client.close))["is_clean"])

    async def __aenter__(self) -> Mongoseal:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _lease(
        self, kind: Callable[[Client, LostCallback | None], L], do: str, members: dict[str, Any], on_lost: LostCallback | None
    ) -> L:
        return (await self._begin(kind, do, members, on_lost))[0]

    async def _once(self, members: dict[str, Any], on_lost: LostCallback | None) -> TickLease | Done:
        lease, event = await self._begin(TickLease, "once", members, on_lost)
        return lease if event["event"] == "granted" else done(event)

    async def _begin(
        self, kind: Callable[[Client, LostCallback | None], L], do: str, members: dict[str, Any], on_lost: LostCallback | None
    ) -> tuple[L, dict[str, Any]]:
        lease = kind(self._client, on_lost)
        try:
            return lease, await _answer(partial(self._client.begin, do, members, lease._state))
        except BaseException:
            del lease  # The error refers to this frame, and the lease ends when nothing refers to it.
            raise

    async def _observe(self, name: str) -> Leaders:
        items: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        observation = Observation(self._client, lambda item: _call_in(loop, partial(items.put_nowait, item)))
        leaders = Leaders(observation, items)
        self._client.hold(leaders, observation)
        try:
            await _answer(partial(self._client.begin, "observe", {"name": name}, observation))
        except BaseException:
            del leaders
            raise
        return leaders


class _Scope:
    """The body of an `async with`: cancels its task when the lease is lost."""

    def __init__(self, state: LeaseState) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._state = state
        self._is_left = False
        self._has_cancelled = False
        # Python 3.10 counts no cancellations. There the message of the error shows who has cancelled.
        self._cancelling = 0
        if sys.version_info >= (3, 11):
            self._cancelling = task.cancelling()
        self._message = f"the lease on {state.key!r} is lost"
        self._listener = _in_loop(self._cancel)
        state.listen(self._listener)

    def _cancel(self) -> None:
        if not self._is_left and self._state.cause != "released":
            self._has_cancelled = True
            self._task.cancel(self._message)

    def leave(self, error: BaseException | None) -> bool:
        """Ends the scope. Returns whether `error` is the cancellation by the loss, and no other cancellation."""
        self._is_left = True
        self._state.unlisten(self._listener)
        if not self._has_cancelled:
            return False
        if sys.version_info >= (3, 11):
            is_own = self._task.uncancel() <= self._cancelling
        else:
            is_own = error is not None and error.args == (self._message,)
        return is_own and isinstance(error, asyncio.CancelledError)


async def _answer(send: Callable[[Reply], object], timeout: float | None = None) -> dict[str, Any]:
    """Sends a request and waits for its answer. Raises `TimeoutError` if there is none after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def answer_with(event: Any) -> None:
        if not answer.done():
            answer.set_result(event)

    send(lambda event: _call_in(loop, partial(answer_with, event)))
    # Before Python 3.12, `asyncio.wait_for` can swallow a cancellation.
    await asyncio.wait([answer], timeout=timeout)
    if not answer.done():
        raise asyncio.TimeoutError
    return answered(answer.result())


def _in_loop(callback: Callable[[], object]) -> Callable[[], None]:
    """Returns a function that calls back in this loop, from any thread."""
    loop = asyncio.get_running_loop()
    return lambda: _call_in(loop, callback)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass  # The loop is closed.
