"""One run of the program: its pipes, requests, leases and observations. Belongs to the thread of a client, but for what a
caller reads of a `LeaseState`.

Invariants: a lease is believed in until its last deadline, and no longer. Once lost, it stays lost: `LeaseState.cause` is set
once. What a caller sets of a lease is set by one operation, so no lock is needed. Each request is answered, at the latest
when the program ends. Nothing here takes a lock that a caller can hold.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from ._json import Json, body_of
from ._program import Program, begin_thread
from ._time import NEVER, now_ms
from ._values import LeaderInfo, ObservationEnd
from .errors import Invalid, LeaseLost, MongosealError, ProgramError, Unavailable, of_event

PROTOCOL = 1
_MAX_BACKLOG = 8 * 1024 * 1024
"""How many bytes can wait for the program, which reads them at once unless it is stopped."""
_BACKLOG_SECONDS = 0.01
"""After which time the thread tries again to write what the program has not read."""
_CHECK_SECONDS = 1.0
"""How often the deadlines are looked at: a wait does not count the time in which the machine sleeps."""
_SLOWEST_START_MS = 2_000
"""A program on the same clock that takes longer to start is taken for one on another clock."""
_EXIT_SECONDS = 5.0
"""How long the program can take to exit after it has closed its output."""
_ENDINGS = ("release", "resign", "complete")
_REFUSED = ("malformed", "invalid", "busy")
"""Codes of requests that were not carried out."""

_log = logging.getLogger("mongoseal")

Answer = Any
"""The event that answers a request, or a `MongosealError`."""
Reply = Callable[[Answer], object]
"""Takes an answer. It is called once, on the thread, and must neither block nor raise."""
Sink = Callable[[LeaderInfo | None | MongosealError | ObservationEnd], object]
"""Takes the items of an observation, as a `Reply`."""


class Thread(Protocol):
    """The thread of a client, on which calls are carried out one after the other."""

    def put(self, call: Callable[[], object]) -> object: ...

    def check_wait(self) -> None: ...


class LeaseState:
    """A lease, from the request for it on."""

    def __init__(self, client: Thread) -> None:
        self.client = client
        self.pid = os.getpid()
        self.key = self.owner = ""
        self.id = self.token = self.tick = 0
        self.deadline: float = math.inf
        self.run: Run
        """Is set at the grant."""
        self.is_ending = False
        """Whether its holder has begun to end it."""
        self.is_doubtful = False
        """Whether the program has refused a request about it as lost, and not said the cause."""
        self.is_given_up = False
        """Whether its holder has stopped waiting for the answer of the request that ends it."""
        self._end: dict[str, str] = {}
        # For the thread alone.
        self.holder: Holder | None = None
        self.is_abandoned = False
        """Whether its holder has ended before the grant."""
        self.scheduled = -math.inf
        """The deadline at which the thread looks at this lease."""
        self.is_progressing = False
        self.ending: Request | None = None
        self.listeners: list[Callable[[], object]] = []
        """Are called once when the lease has ended. They must neither block nor raise."""

    def grant(self, granted: dict[str, Any]) -> None:
        self.key, self.owner, self.token = granted["key"], granted["owner"], granted["token"]
        self.tick = granted.get("tick", 0)
        self.deadline = granted["deadline_ms"]

    @property
    def cause(self) -> str | None:
        """Why the lease has ended. From the deadline on it has, also if the thread has not seen that."""
        if self.pid != os.getpid():
            return "forked"
        cause = self._end.get("cause")
        if cause is None and now_ms() >= self.deadline:
            cause = self._end.setdefault("cause", "expired")
            self.client.put(partial(self.run.expire, self))
        return cause

    def lose(self, cause: str) -> None:
        self._end.setdefault("cause", cause)

    def is_valid(self) -> bool:
        return not self.is_ending and not self.is_doubtful and self.cause is None

    def remaining(self) -> float:
        """Seconds until the deadline, or 0 if the lease is not valid."""
        if not self.is_valid():
            return 0.0
        return math.inf if self.deadline > NEVER else max(0.0, (self.deadline - now_ms()) / 1000)

    def check(self) -> None:
        """Raises `LeaseLost` if the lease is not valid."""
        if not self.is_valid():
            raise self.error()

    def check_process(self) -> None:
        """Raises `LeaseLost` in a forked child."""
        if self.pid != os.getpid():
            raise self.error()

    def error(self) -> LeaseLost:
        return LeaseLost(self.key, self.token, self.cause or ("released" if self.is_ending and not self.is_doubtful else "lost"))

    def progress(self) -> None:
        self.check()
        if not self.is_progressing:
            self.client.put(partial(self.run.progress, self))

    def listen(self, listener: Callable[[], object]) -> None:
        self.client.put(partial(self.run.listen, self, listener))

    def unlisten(self, listener: Callable[[], object]) -> None:
        self.client.put(partial(self.run.unlisten, self, listener))


class Observation:
    """An observation of a leadership."""

    def __init__(self, client: Thread, sink: Sink) -> None:
        self.client = client
        self.sink = sink
        self.pid = os.getpid()
        self.run: Run | None = None
        self.holder: Holder | None = None
        self.id = 0

    def close(self) -> None:
        if self.run is not None and self.pid == os.getpid():
            self.client.put(partial(self.run.drop, self))

    def check_wait(self) -> None:
        if self.pid != os.getpid():
            raise Unavailable("a child has no observation of its parent: observe again")
        self.client.check_wait()


class Holder(weakref.ref[Any]):
    """What a caller has of a lease or an observation. When it ends, this reference itself comes into the queue."""

    __slots__ = ("of",)
    of: LeaseState | Observation


class Request:
    """A request, and what waits for its answer."""

    def __init__(
        self, do: str, body: str, *replies: Reply, about: LeaseState | None = None, begins: LeaseState | Observation | None = None
    ) -> None:
        self.do = do
        self.body = body
        """The line without the `id`."""
        self.replies = list(replies)
        self.about = about
        self.begins = begins
        self.id = 0
        self.answer: Answer = None

    def take(self, answer: Answer) -> None:
        """Answers all that wait. The first answer counts."""
        if self.answer is None:
            self.answer = answer
        for reply in self.replies:
            reply(copy(answer))
        self.replies.clear()


class Run:
    """One run of the program."""

    def __init__(self, program: Program, began_ms: float) -> None:
        self.program = program
        self._began_ms = began_ms
        """The clock of deadlines before the program was started."""
        self._ahead_ms = 0.0
        """How far the clock of the program is ahead of it, or more."""
        os.set_blocking(program.input, False)
        self.leases: dict[int, LeaseState] = {}
        self._ids = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._observations: dict[int, Observation] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._backlog = bytearray()
        self._is_ready = False
        self.is_aborted = False
        """Whether nothing more can be done with it: it is over, whatever its output says."""
        self._is_killed = False
        self._kill_at: float | None = None
        """When the program is killed, if the client was closed."""
        self._failure: MongosealError | None = None
        """What requests without an answer fail with."""
        self._starters: list[Reply] = []
        self._closers: list[Reply] = []
        self._callbacks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_calling = False

    # Calls of callers.

    def begin(self, request: Request, begins: LeaseState | Observation) -> None:
        self._send(request)
        begins.id, begins.run = request.id, self
        if isinstance(begins, Observation) and request.id in self._requests:
            self._observations[begins.id] = begins

    def ask(self, request: Request, lease: LeaseState) -> None:
        if lease.cause is None:
            self._send(request)
        else:
            request.take(lease.error())

    def end(self, request: Request, lease: LeaseState) -> None:
        if lease.ending is None and lease.cause is None:
            lease.is_ending = True
            lease.ending = request
            self._send(request)
            if request.answer is not None:
                self._go_on(lease)
        elif lease.ending is None:
            request.take(lease.error())
        elif lease.ending.answer is None:
            lease.ending.replies += request.replies
        else:
            request.take(lease.ending.answer)

    def progress(self, lease: LeaseState) -> None:
        """Sends `progress`, unless an earlier one has no answer yet: so no loop floods the program."""
        if lease.cause is None and not lease.is_progressing:
            lease.is_progressing = True
            body = body_of({"do": "progress", "lease": lease.id})
            self._send(Request("progress", body, lambda _: setattr(lease, "is_progressing", False), about=lease))

    def listen(self, lease: LeaseState, listener: Callable[[], object]) -> None:
        if lease.cause is None:
            lease.listeners.append(listener)
        else:
            listener()

    def unlisten(self, lease: LeaseState, listener: Callable[[], object]) -> None:
        if listener in lease.listeners:
            lease.listeners.remove(listener)

    def expire(self, lease: LeaseState) -> None:
        """Loses a lease whose deadline has passed, and releases it, because the program may still refresh it."""
        if lease.id in self.leases:
            self._lose(lease, "expired")
            # If the program refuses the end that is on its way, the release follows then.
            if lease.ending is None and not lease.is_doubtful:
                self._release(lease.id)

    def drop(self, of: LeaseState | Observation) -> None:
        """Takes back what has no holder any more."""
        if isinstance(of, Observation):
            if self._observations.pop(of.id, None) is not None:
                of.sink(ObservationEnd())
                self._send(Request("unobserve", body_of({"do": "unobserve", "observation": of.id})))
        elif of.id in self._requests:
            of.is_abandoned = True
            self._release(of.id)
        elif of.id in self.leases and of.ending is None:
            self._lose(of, "released")
            self._release(of.id)
            self.say(f"the lease on {of.key!r} is released, because nothing refers to it any more: keep it, or release it")

    def connect(self, reply: Reply) -> None:
        self._starters.append(reply)
        if self._is_ready:
            _tell(self._starters, {})

    def close(self, reply: Reply, patience: float) -> None:
        """Ends all, closes the input, and answers when the program has exited or was killed."""
        self._closers.append(reply)
        if self._is_killed:
            _tell(self._closers, {"is_clean": False})
        elif self._kill_at is None:
            self._kill_at = time.monotonic() + patience
            closed = Invalid("the client was closed: create another one")
            self._failure = self._failure or closed
            if not self._is_ready:
                self._backlog.clear()
            self._end_leases("closed")
            self._end_requests(closed, ObservationEnd())

    # The pipes.

    def seconds(self) -> float | None:
        """How long the thread can wait for the next call."""
        waits = [_BACKLOG_SECONDS] if self._backlog and self._is_ready else []
        if self._deadlines:
            waits.append(min(max(0.0, self._deadlines[0][0] - now_ms()) / 1000 + 0.001, _CHECK_SECONDS))
        if self._kill_at is not None and not self._is_killed:
            waits.append(max(0.0, self._kill_at - time.monotonic()))
        return min(waits, default=None)

    def look(self) -> None:
        """Does what is due."""
        self._write()
        now = now_ms()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, number = heapq.heappop(self._deadlines)
            lease = self.leases.get(number)
            if lease is not None and lease.deadline <= now:
                self.expire(lease)
            elif lease is not None and lease.scheduled == deadline:
                self._schedule(lease)
        if self._kill_at is not None and time.monotonic() >= self._kill_at and not self._is_killed:
            self._kill()
            _tell(self._closers, {"is_clean": False})
            self.say("the program did not exit in time and is killed: its leases expire by their ttl")

    def _write(self) -> None:
        """Writes what the program reads at once. It gets no request before it has said which protocol it speaks."""
        while self._is_ready and self._backlog:
            try:
                del self._backlog[: os.write(self.program.input, self._backlog)]
            except BlockingIOError:
                return
            except OSError:
                # The program has ended, which the end of its output shows.
                self._backlog.clear()
        if self._kill_at is not None and not self._backlog:
            self.program.close_input()

    def _send(self, request: Request) -> None:
        # A request for a caller that has gone is not refused: no caller would send it again.
        if len(self._backlog) > _MAX_BACKLOG and request.replies:
            request.take(Unavailable("the program does not read its requests: check whether it is stopped, and retry"))
            return
        request.id = next(self._ids)
        self._requests[request.id] = request
        self._backlog += f'{{"id":{request.id},{request.body}\n'.encode()

    def _release(self, number: int) -> None:
        """Sends a release for whose answer nobody waits."""
        self._send(Request("release", body_of({"do": "release", "lease": number})))

    def abort(self, reason: str) -> None:
        """Kills the program, with which nothing more can be done."""
        self._failure = self._failure or ProgramError(reason)
        self.is_aborted = True
        self._kill()

    def _kill(self) -> None:
        self._is_killed = True
        self.program.kill()

    def end_all(self) -> None:
        """The program has closed its output, or nobody can read it."""
        self._end_leases("program_ended")
        status = self.program.wait(_EXIT_SECONDS)
        if status is None:
            self.program.kill()
            status = self.program.wait(_EXIT_SECONDS)
        failure = self._failure
        if failure is None and status == 125 and not self._is_ready:
            failure = ProgramError("the program cannot start: see its message on the standard error, and check its version")
        elif failure is None:
            failure = Unavailable(f"the program has ended with status {status}: the request may have taken effect, retry")
        self._end_requests(failure, failure)
        _tell(self._starters, failure)
        _tell(self._closers, {"is_clean": not self._is_killed})
        self._callbacks.put(None)

    # Events of the program.

    def take_all(self, lines: list[bytes]) -> None:
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: Json) -> None:
        name = event["event"]
        if name == "ready":
            self._take_ready(event)
        elif name == "error" and "id" not in event:
            self._failure = of_event(event)
        elif name == "leader":
            observation = self._observations.get(event["observation"])
            if observation is not None:
                leader = event["leader"]
                observation.sink(leader and LeaderInfo(leader["owner"], leader["token"], leader["value"]))
        elif name == "unobserved" and "id" not in event:
            observation = self._observations.pop(event["observation"], None)
            if observation is not None:
                observation.sink(of_event(event))
        else:
            self._take_of_lease(name, event)

    def _take_ready(self, event: Json) -> None:
        started = event.get("started_ms")
        if event["protocol"] != PROTOCOL:
            what = f"speaks protocol {event['protocol']} and this package protocol {PROTOCOL}"
        elif not isinstance(started, (int, float)):
            what = "says no `started_ms`, without which the time of its deadlines is not known"
        else:
            if not 0 <= started - self._began_ms <= _SLOWEST_START_MS:
                # It is another clock. The program was started after `_began_ms`, so no deadline comes out too late.
                self._ahead_ms = started - self._began_ms
            self._is_ready = True
            _tell(self._starters, {})
            return
        self.abort(f"the program {what}: install versions of both that fit")

    def _take_of_lease(self, name: str, event: Json) -> None:
        """Takes in an event of a lease, which can be an answer."""
        if event.get("deadline_ms", math.inf) <= NEVER:
            event["deadline_ms"] -= self._ahead_ms
        lease = self.leases.get(event.get("lease", -1))
        if lease is not None and "deadline_ms" in event and lease.cause is None:
            lease.deadline = event["deadline_ms"]
            self._schedule(lease)
        if name == "lost" and lease is not None:
            self._lose(lease, event["cause"])
        if name in ("released", "completed") and lease is not None:
            self._finish(lease, "released")
        request = self._requests.pop(event.get("id", -1), None)
        if request is None:
            if "id" in event and event["id"] is None:
                self.say(f"the program has refused a request: {event.get('message')}")
        elif name == "error":
            self._refuse(request, of_event(event))
        else:
            begins = request.begins
            if name == "granted" and isinstance(begins, LeaseState) and not begins.is_abandoned:
                begins.grant(event)
                self.leases[begins.id] = begins
                self._schedule(begins)
            request.take(event)

    def _refuse(self, request: Request, error: MongosealError) -> None:
        """Answers a request by an error. Of a request that ends a lease, any error ends it that does not refuse the request."""
        lease = request.about
        if lease is not None and error.code in ("lost", "unknown_lease"):
            # After `lost`, the event with the cause follows, unless it has come.
            lease.is_doubtful = True
            if error.code == "unknown_lease":
                self._finish(lease, "lost")
            error = LeaseLost(lease.key, lease.token, lease.cause or "lost")
        elif lease is not None and request.do in _ENDINGS:
            if error.code in _REFUSED:
                self._go_on(lease)
            elif lease.cause is None:
                self._finish(lease, "released")
        if isinstance(request.begins, Observation):
            self._observations.pop(request.id, None)
        request.take(error)

    # Leases.

    def _schedule(self, lease: LeaseState) -> None:
        """Sees to it that the deadline of a lease is looked at."""
        if lease.deadline <= NEVER and (lease.scheduled <= now_ms() or lease.deadline < lease.scheduled):
            lease.scheduled = lease.deadline
            heapq.heappush(self._deadlines, (lease.deadline, lease.id))

    def _go_on(self, lease: LeaseState) -> None:
        """The request to end a lease was refused: it goes on, if it still has a holder."""
        lease.ending = None
        lease.is_ending = False
        assert lease.holder is not None
        if lease.is_given_up or lease.cause is not None:
            self._lose(lease, "released")
            self._release(lease.id)
        elif lease.holder() is None:
            self.drop(lease)

    def _lose(self, lease: LeaseState, cause: str) -> None:
        """Notes the end of a lease, and answers the requests about it."""
        self._finish(lease, cause)
        for request in [request for request in self._requests.values() if request.about is lease]:
            self._answer_about_lost(request, lease)

    def _finish(self, lease: LeaseState, cause: str) -> None:
        self.leases.pop(lease.id, None)
        lease.lose(cause)
        listeners, lease.listeners = lease.listeners, []
        for listener in listeners:
            listener()

    def _answer_about_lost(self, request: Request, lease: LeaseState) -> None:
        """Answers a request about a lease that has ended. The work of a holder who releases it was done before."""
        if request.do not in _ENDINGS:
            # Of the others, the program still says whether it has ended the lease.
            del self._requests[request.id]
        if lease.cause in ("expired", "closed") and request.do in ("release", "resign"):
            request.take({"confirmed": False})
        else:
            request.take(lease.error())

    def _end_leases(self, cause: str) -> None:
        """Loses all leases. One pass over the requests is enough for all of them."""
        for lease in list(self.leases.values()):
            self._finish(lease, cause)
        for request in list(self._requests.values()):
            if request.about is not None:
                self._answer_about_lost(request, request.about)

    def _end_requests(self, error: MongosealError, end: MongosealError | ObservationEnd) -> None:
        """Ends all other requests and the observations."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.take(error)
        observations, self._observations = self._observations, {}
        for observation in observations.values():
            observation.sink(end)

    # What another thread does.

    def call(self, callback: Callable[[], object]) -> None:
        """Calls back on a thread for that, one call after the other."""
        self._callbacks.put(callback)
        if not self._is_calling:
            # If there is no thread now, the next call begins one.
            with suppress(Unavailable):
                begin_thread(_call_all, self._callbacks)
                self._is_calling = True

    def say(self, message: str) -> None:
        self.call(partial(_log.warning, "%s", message))


def _tell(replies: list[Reply], answer: Answer) -> None:
    for reply in replies:
        reply(answer)
    replies.clear()


def _call_all(callbacks: SimpleQueue[Callable[[], object] | None]) -> None:
    """Carries out callbacks until the last. A failed one does not keep the others from being called."""
    while (callback := callbacks.get()) is not None:
        try:
            callback()
        except BaseException:
            _log.exception("a callback for the loss of a lease has failed")
