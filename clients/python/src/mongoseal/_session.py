"""The requests and the leases of one run of the program.

Mechanism: a thread reads the events and looks at the deadlines. The faces for threads and for asyncio wait for futures, which
this thread resolves.

Invariants: a lease is believed in until its last deadline, and no longer. Once lost, it stays lost. Each request is answered,
at the latest when the program ends.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

from ._lease_state import LeaseState
from ._pipe import Pipe, lock
from ._program import Program
from ._time import NEVER, now_ms
from ._values import LeaderInfo, ObservationEnd
from .errors import Invalid, LeaseLost, MongosealError, ProgramError, Unavailable, of_event

Json = dict[str, Any]

PROTOCOL = 1
_MAX_LINE = 524_288
_MAX_DEPTH = 100
"""How deep a value can be nested."""
_CHECK_SECONDS = 1.0
"""How often the deadlines are looked at: a wait does not count the time in which the machine sleeps."""
_EXIT_SECONDS = 5.0
"""How long the program can take to exit after it has closed its output."""
_ENDING = ("release", "resign", "complete")
# Codes of requests that were not carried out.
_REFUSED = ("malformed", "invalid", "busy")

_log = logging.getLogger("mongoseal")


Sink = Callable[[LeaderInfo | None | MongosealError | ObservationEnd], None]


@dataclass(eq=False)
class Request:
    """A request that was sent. `future` has the event that answers it."""

    id: int
    do: str
    future: Future[Json]
    lease: LeaseState | None = None
    """The lease that the request is about, or the lease that it has begun."""
    is_abandoned: bool = False


class Session:
    """One run of the program. All methods but those of the thread take `lock`."""

    def __init__(self, program: Program, patience: float) -> None:
        self.patience = patience
        """How many seconds the program can take to answer a request that ends a lease, and to exit."""
        self.is_over = False
        """Whether the program has ended."""
        self._is_closing = False
        self._is_forked = False
        self._program = program
        self._pipe = Pipe(program)
        self._ids = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._leases: dict[int, LeaseState] = {}
        self._observations: dict[int, Sink] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._is_ready = False
        self._failure: MongosealError | None = None
        self._exit: Future[int | None] = Future()
        self._callbacks: queue.SimpleQueue[Callable[[], object] | None] | None = None
        _sessions.add(self)
        threading.Thread(target=self._run, name="mongoseal", daemon=True).start()

    # For the faces.

    def send(self, do: str, members: Json, lease: LeaseState | None = None, sink: Sink | None = None) -> Request:
        """Sends a request. Raises `Unavailable` if the program has ended or is stopped, and `Invalid` if it is no JSON."""
        with lock:
            if self.is_over or self._is_closing:
                raise Unavailable("the program has ended: retry, which starts it again")
            number = next(self._ids)
            about = {} if lease is None else {"lease": lease.id}
            line = _line({"id": number, "do": do, **about, **members})
            self._pipe.write(line)
            request = Request(number, do, Future(), lease)
            # So that a caller that stops to wait does not cancel the future.
            request.future.set_running_or_notify_cancel()
            self._requests[number] = request
            if sink is not None:
                self._observations[number] = sink
            return request

    def abandon(self, request: Request) -> None:
        """Ends the wait of a request for a lease, and releases the lease if it was granted meanwhile."""
        with lock:
            is_open = self._requests.get(request.id) is request
            if is_open or request.id in self._leases:
                request.is_abandoned = True
                self._leases.pop(request.id, None)
                with suppress(MongosealError):
                    self.send("release", {"lease": request.id})

    def unobserve(self, number: int) -> None:
        """Ends an observation."""
        with lock:
            sink = self._observations.pop(number, None)
            if sink is None or self.is_over:
                return
            sink(ObservationEnd())
            with suppress(MongosealError):
                self.send("unobserve", {"observation": number})

    def check_process(self) -> None:
        """Raises `Unavailable` in a forked child, to which no observation belongs."""
        if self._is_forked:
            raise Unavailable("a child has no observation of its parent: observe again")

    def call(self, callback: Callable[[], object]) -> None:
        """Calls back on a thread for that, one call after the other."""
        with lock:
            if self._callbacks is None:
                self._callbacks = queue.SimpleQueue()
                threading.Thread(target=_call, args=(self._callbacks,), name="mongoseal-callbacks", daemon=True).start()
            self._callbacks.put(callback)
            if self.is_over:
                self._end_callbacks()

    def close(self) -> None:
        """Ends all leases, waits and observations, and closes the input of the program."""
        with lock:
            if self.is_over or self._is_closing:
                return
            self._is_closing = True
            closed = Invalid("the client was closed: create another one")
            self._failure = self._failure or closed
            self._end_leases("closed")
            self._end_observations(ObservationEnd())
            self._fail_requests(closed)
            self._pipe.close_input()

    def wait(self) -> bool:
        """Waits for the exit of the program, and kills it after some seconds. Returns whether it ended by itself."""
        try:
            self._exit.result(self.patience)
            return True
        except FutureTimeout:
            _log.warning("the program did not exit in time and is killed: its leases expire by their ttl")
            self._program.kill()
            return False

    def forget_in_child(self) -> None:
        """Closes the pipes in a forked child, to which no lease belongs."""
        self.is_over = True
        self._is_forked = True
        self._exit = Future()
        self._exit.set_result(None)
        self._pipe.close()
        self._program.forget()
        for lease in self._leases.values():
            lease.forget_in_child()

    # On the thread.

    def _run(self) -> None:
        try:
            self._pipe.read(self._expire, self._take)
        except Exception as error:
            _log.exception("the events of the program cannot be read")
            self._failure = self._failure or ProgramError(f"the events of the program cannot be read: {error!r}")
            self._program.kill()
        with lock:
            self.is_over = True
            _sessions.discard(self)
            self._pipe.close()
            self._end_leases("program_ended")
            self._end_callbacks()
        status = self._program.wait(_EXIT_SECONDS)
        if status is None:
            self._program.kill()
            status = self._program.wait(_EXIT_SECONDS)
        with lock:
            failure = self._failure or self._error_of(status)
            self._fail_requests(failure)
            self._end_observations(failure)
        self._exit.set_result(status)

    def _error_of(self, status: int | None) -> MongosealError:
        """The error of requests that the program did not answer before it ended."""
        if self._is_ready or status != 125:
            return Unavailable(f"the program has ended with status {status}: the request may have taken effect, retry")
        return ProgramError("the program cannot start: see its message on the standard error, and check its version")

    def _expire(self) -> float | None:
        """Loses the leases whose deadline has passed. Returns how many seconds to wait until the next."""
        with lock:
            now = now_ms()
            while self._deadlines:
                deadline, number = self._deadlines[0]
                if deadline > now:
                    return min((deadline - now) / 1000, _CHECK_SECONDS)
                heapq.heappop(self._deadlines)
                lease = self._leases.get(number)
                if lease is not None and lease.scheduled == deadline:
                    lease.expire()
                    self._schedule(lease)
            return None

    def _schedule(self, lease: LeaseState) -> None:
        """Sees to it that the deadline of a lease is looked at."""
        if lease.deadline > NEVER or lease.cause is not None:
            return
        if lease.scheduled <= now_ms() or lease.deadline < lease.scheduled:
            lease.scheduled = lease.deadline
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def _take(self, line: bytes) -> None:
        event = json.loads(line)
        name = event["event"]
        with lock:
            if name == "ready":
                self._on_ready(event)
            elif name == "error" and "id" not in event:
                self._failure = of_event(event)
            elif name == "leader":
                sink = self._observations.get(event["observation"])
                if sink is not None:
                    leader = event["leader"]
                    sink(leader and LeaderInfo(leader["owner"], leader["token"], leader["value"]))
            elif name == "unobserved" and "id" not in event:
                sink = self._observations.pop(event["observation"], None)
                if sink is not None:
                    sink(of_event(event))
            else:
                self._on_event(name, event)

    def _on_ready(self, event: Json) -> None:
        if event["protocol"] == PROTOCOL:
            self._is_ready = True
            self._pipe.open()
            return
        self._failure = ProgramError(
            f"the program speaks protocol {event['protocol']} and this package protocol {PROTOCOL}: "
            "install versions of both that fit"
        )
        self._program.kill()

    def _on_event(self, name: str, event: Json) -> None:
        """Takes in an event of a lease, which can be an answer."""
        lease = self._leases.get(event.get("lease", -1))
        request = self._requests.get(event.get("id", -1))
        if lease is not None and "deadline_ms" in event:
            lease.deadline = event["deadline_ms"]
            self._schedule(lease)
        if name == "lost" and lease is not None:
            del self._leases[lease.id]
            self.lose(lease, event["cause"])
        if name in ("released", "completed") and lease is not None:
            del self._leases[lease.id]
            lease.finish()
        if request is None:
            if "id" in event and event["id"] is None:
                _log.warning("the program has refused a request: %s", event.get("message"))
            return
        if name == "error":
            self._on_error(request, of_event(event))
            return
        del self._requests[request.id]
        if name == "granted" and not request.is_abandoned:
            request.lease = LeaseState(self, event)
            self._leases[request.id] = request.lease
            self._schedule(request.lease)
        request.future.set_result(event)

    def _on_error(self, request: Request, error: MongosealError) -> None:
        """Answers a request by an error. Of a request that ends a lease, any error ends it that does not refuse the request."""
        lease = request.lease
        del self._requests[request.id]
        if lease is not None and error.code in ("lost", "unknown_lease"):
            # After `lost`, the event with the cause follows, unless it has come.
            lease.is_ending = True
            if error.code == "unknown_lease":
                self._leases.pop(lease.id, None)
                lease.lose("lost")
            error = LeaseLost(lease.key, lease.token, lease.cause or "lost")
        elif lease is not None and request.do in _ENDING and lease.cause is None:
            if error.code in _REFUSED:
                lease.go_on()
            else:
                self._leases.pop(lease.id, None)
                lease.finish()
        if request.do == "observe":
            self._observations.pop(request.id, None)
        request.future.set_exception(error)

    # With `lock`.

    def expire(self, lease: LeaseState) -> None:
        """Loses a lease whose deadline has passed, and releases it, because the program may still refresh it."""
        is_ending = lease.is_ending
        self.lose(lease, "expired")
        if not is_ending:
            with suppress(MongosealError):
                self.send("release", {"lease": lease.id})

    def lose(self, lease: LeaseState, cause: str) -> None:
        """Notes the loss of a lease, and answers the requests about it."""
        lease.lose(cause)
        for request in [request for request in self._requests.values() if request.lease is lease]:
            self._answer_about_lost(request, lease, cause)

    def _end_leases(self, cause: str) -> None:
        """Loses all leases. One pass over the requests is enough for all of them."""
        for lease in self._leases.values():
            lease.lose(cause)
        self._leases.clear()
        for request in [request for request in self._requests.values() if request.lease is not None]:
            assert request.lease is not None
            self._answer_about_lost(request, request.lease, cause)

    def _answer_about_lost(self, request: Request, lease: LeaseState, cause: str) -> None:
        """Answers a request about a lease that has ended. The work of a holder who releases it was done before."""
        del self._requests[request.id]
        if cause in ("expired", "closed") and request.do in ("release", "resign"):
            request.future.set_result({"confirmed": False})
        else:
            request.future.set_exception(lease.error())

    def _end_callbacks(self) -> None:
        if self._callbacks is not None:
            self._callbacks.put(None)
            self._callbacks = None

    def _end_observations(self, end: MongosealError | ObservationEnd) -> None:
        for sink in self._observations.values():
            sink(end)
        self._observations.clear()

    def _fail_requests(self, error: MongosealError) -> None:
        for request in self._requests.values():
            request.future.set_exception(copy(error))
        self._requests.clear()


class Client:
    """Starts the program at the first request, and again after it has ended."""

    def __init__(self, start: Callable[[], Program], patience: float) -> None:
        self._start = start
        self._patience = patience
        self._session: Session | None = None
        self._is_closed = False

    def send(self, do: str, members: Json, sink: Sink | None = None) -> tuple[Session, Request]:
        """Sends a request that begins something. Raises what `Session.send` raises, and `ProgramError`."""
        with lock:
            if self._is_closed:
                raise Invalid("the client is closed: create another one")
            if self._session is None or self._session.is_over:
                self._session = Session(self._start(), self._patience)
            return self._session, self._session.send(do, members, sink=sink)

    def close(self) -> Callable[[], bool]:
        """Closes the input of the program. Returns how to wait for its exit."""
        with lock:
            self._is_closed = True
            session = self._session
            if session is not None:
                session.close()
        return lambda: session is None or session.wait()


def _line(request: Json) -> bytes:
    """Returns the line of a request. What the program could not read would have no answer, so it is refused here."""
    try:
        line = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the request is no JSON: {error}") from error
    if len(line) > _MAX_LINE:
        raise Invalid(f"the request has {len(line)} bytes, and at most {_MAX_LINE} are allowed: shorten it")
    if _depth(request.get("value")) > _MAX_DEPTH:
        raise Invalid(f"the value is nested deeper than {_MAX_DEPTH}: make it flatter")
    return line


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, (list, tuple)) else 0


def _call(callbacks: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    """Carries out callbacks until the last. A failed one does not keep the others from being called."""
    while (callback := callbacks.get()) is not None:
        try:
            callback()
        except Exception:
            _log.exception("a callback for the loss of a lease has failed")


_sessions: set[Session] = set()
"""Those whose program may run."""


def _after_fork_in_child() -> None:
    lock.renew()
    for session in _sessions:
        session.forget_in_child()
    _sessions.clear()


os.register_at_fork(before=lock.__enter__, after_in_parent=lock.__exit__, after_in_child=_after_fork_in_child)
