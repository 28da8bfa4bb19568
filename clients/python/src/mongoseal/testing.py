"""A fake for tests of code that uses this package: leases in memory, without a program and a server.

    fake = FakeMongoseal()
    with fake.client() as seal, seal.acquire("reports/nightly") as lease:
        fake.lose("reports/nightly")

Its clients are those of this package. A thread answers their requests in place of the program, so leases, losses and errors
are the real ones.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import select
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from . import aio
from ._client import Client
from ._program import Program, begin_thread
from ._sync import Mongoseal
from ._time import NEVER, now_ms

__all__ = ["FakeMongoseal"]

_Json = dict[str, Any]
_TICK_MS = 10
"""How often the fake looks at its times."""


class FakeMongoseal:
    """Keys in memory, which the clients of this fake share as processes share a server.

    Tokens grow, waiters queue, and leases expire by the real clock. Not for a forked child.
    """

    def __init__(self) -> None:
        self.is_reachable = True
        """Set it to `False` to cut off all clients: requests fail with `Unavailable`, and leases expire at their deadline."""
        self._lock = threading.RLock()
        self._keys: defaultdict[str, _Key] = defaultdict(_Key)
        self._tokens = itertools.count(1_000)
        self._owners = itertools.count(1)

    def client(self) -> Mongoseal:
        """Returns a client for threads. Close it, or use it by `with`."""
        client = Mongoseal()
        client._client = self._client()
        return client

    def aio_client(self) -> aio.Mongoseal:
        """Returns a client for asyncio. Close it, or use it by `async with`."""
        client = aio.Mongoseal()
        client._client = self._client()
        return client

    def lose(self, key: str, cause: str = "revoked") -> None:
        """Ends the leases on a key, as an operator does who revokes them. The next waiter gets the key.

        Returns when the clients that held the leases know of the loss.
        """
        with self._lock:
            lost = list(self._keys[key].holders)
            for lease in lost:
                self._lose(lease, cause)
            self._grant_next(key)
        for lease in lost:
            while lease.program.is_believed(lease):
                time.sleep(0.001)

    def _client(self) -> Client:
        client = Client(lambda: _Program(self, client), patience=5)
        return client

    def _carry_out(self, program: _Program, request: _Json) -> None:
        number, do = request.pop("id"), request.pop("do")
        if not self.is_reachable and do not in ("progress", "release", "resign", "unobserve"):
            program.refuse(number, request.get("lease"), "unavailable", "the fake is not reachable")
        elif do in ("acquire", "once", "campaign"):
            key = request.get("key") or request["name"]
            lease = program.leases[number] = _Lease(program, number, key, do, request)
            self._keys[key].queue.append(lease)
            self._grant_next(key)
            if lease in self._keys[key].queue and lease.wait_ms == 0:
                self._end_wait(lease, "held", f"{key!r} is held")
        elif do == "observe":
            self._keys[request["name"]].observers.append((program, number))
            program.emit("observing", id=number)
            program.emit("leader", observation=number, leader=self._keys[request["name"]].leader)
        elif do == "unobserve":
            for state in self._keys.values():
                state.observers = [entry for entry in state.observers if entry != (program, request["observation"])]
            program.emit("unobserved", id=number, observation=request["observation"])
        else:
            self._carry_out_of(program, number, do, request)

    def _carry_out_of(self, program: _Program, number: int, do: str, request: _Json) -> None:
        lease = program.leases.get(request["lease"])
        if lease is None:
            program.refuse(number, request["lease"], "unknown_lease", "there is no such lease")
            return
        state = self._keys[lease.key]
        answer = {"id": number, "lease": lease.id}
        if lease in state.queue:
            if do not in ("release", "resign"):
                program.refuse(number, lease.id, "not_granted", "the lease is not granted yet")
                return
            self._end_wait(lease, "cancelled", "a request ended the wait")
            program.emit("released", **answer, confirmed=False)
        elif do in ("release", "resign", "complete"):
            if do == "complete":
                state.done = {"tick": lease.tick, "by": program.owner, "at": _now()}
            if "value" in request:
                state.value = {"content": request["value"], "token": lease.token, "at": _now()}
            del program.leases[lease.id]
            if self.is_reachable:
                self._free(lease)
            else:
                lease.is_orphan = True
            if do == "complete":
                program.emit("completed", **answer)
            else:
                program.emit("released", **answer, confirmed=self.is_reachable)
            self._grant_next(lease.key)
        else:
            self._answer(lease, do, answer, request)

    def _answer(self, lease: _Lease, do: str, answer: _Json, request: _Json) -> None:
        """Carries out a request that does not end its lease."""
        state, emit = self._keys[lease.key], lease.program.emit
        if do == "progress":
            lease.progress_at = now_ms()
            emit("progressed", **answer)
        elif do == "refresh":
            lease.ttl_ms = request.get("ttl_ms", lease.ttl_ms)
            lease.deadline = now_ms() + lease.ttl_ms
            emit("refreshed", **answer, **lease.times())
        elif do == "verify":
            emit("verified", **answer, **lease.times())
        elif do == "put_value":
            state.value = {"content": request["value"], "token": lease.token, "at": _now()}
            emit("value_put", **answer)
        elif do == "clear_value":
            state.value = None
            emit("value_cleared", **answer)
        elif do == "value":
            emit("value", **answer, value=state.value)
        elif do == "proclaim":
            lease.options["value"] = request["value"]
            self._show_leader(lease.key)
            emit("proclaimed", **answer)

    def _grant_next(self, key: str) -> None:
        """Grants the key to the waiters whose turn it is."""
        state = self._keys[key]
        while self.is_reachable and state.queue and now_ms() >= state.free_at and state.admits(state.queue[0]):
            lease = state.queue.pop(0)
            done = state.done
            if lease.do == "once" and done is not None and done["tick"] >= lease.tick:
                outcome = "already_done" if done["tick"] == lease.tick else "superseded"
                lease.program.emit("done", id=lease.id, outcome=outcome, **done)
                del lease.program.leases[lease.id]
                continue
            lease.grant(next(self._tokens))
            state.holders.append(lease)
            tick = {"tick": lease.tick} if lease.do == "once" else {}
            owner = lease.program.owner
            granted = {"id": lease.id, "lease": lease.id, "key": key, "owner": owner, "token": lease.token, **tick}
            lease.program.emit("granted", **granted, **lease.times())
        self._show_leader(key)

    def _show_leader(self, key: str) -> None:
        state = self._keys[key]
        leader = None
        # A key that is shared has no leader.
        lease = next((lease for lease in state.holders if "shared" not in lease.options), None)
        if lease is not None:
            leader = {"owner": lease.program.owner, "token": lease.token, "value": lease.options.get("value", "")}
        if leader != state.leader:
            state.leader = leader
            for program, number in state.observers:
                program.emit("leader", observation=number, leader=leader)

    def _free(self, lease: _Lease) -> None:
        state = self._keys[lease.key]
        state.holders.remove(lease)
        state.free_at = lease.granted_at + lease.options.get("min_hold_ms", 0)

    def _lose(self, lease: _Lease, cause: str) -> None:
        self._free(lease)
        if not lease.is_orphan:
            del lease.program.leases[lease.id]
            lease.program.emit("lost", lease=lease.id, token=lease.token, cause=cause, message=cause)

    def _end_wait(self, lease: _Lease, code: str, message: str) -> None:
        self._keys[lease.key].queue.remove(lease)
        del lease.program.leases[lease.id]
        lease.program.refuse(lease.id, None, code, message)

    def _look_at_times(self) -> None:
        """Refreshes leases, and ends those leases and waits whose time is over."""
        for key, state in list(self._keys.items()):
            for lease in list(state.holders):
                cause = lease.cause()
                if cause is not None:
                    self._lose(lease, cause)
                elif self.is_reachable and not lease.is_orphan and lease.deadline - now_ms() < lease.ttl_ms * 2 / 3:
                    lease.deadline = now_ms() + lease.ttl_ms
                    lease.program.emit("held", lease=lease.id, **lease.times())
            for lease in list(state.queue):
                if now_ms() >= lease.began_at + lease.wait_ms:
                    self._end_wait(lease, "held", f"{key!r} is held")
            self._grant_next(key)

    def _forget(self, program: _Program) -> None:
        """Releases the leases of a program that ends."""
        for key, state in list(self._keys.items()):
            state.queue = [lease for lease in state.queue if lease.program is not program]
            for lease in [lease for lease in state.holders if lease.program is program and not lease.is_orphan]:
                self._free(lease)
            self._grant_next(key)
            state.observers = [entry for entry in state.observers if entry[0] is not program]


@dataclass
class _Key:
    holders: list[_Lease] = field(default_factory=list)
    queue: list[_Lease] = field(default_factory=list)
    observers: list[tuple[_Program, int]] = field(default_factory=list)
    leader: _Json | None = None
    value: _Json | None = None
    done: _Json | None = None
    free_at: float = 0
    """When the minimum hold of the last lease is over."""

    def admits(self, waiter: _Lease) -> bool:
        return len(self.holders) < min(lease.limit for lease in [*self.holders, waiter])


class _Lease:
    def __init__(self, program: _Program, id: int, key: str, do: str, options: _Json) -> None:
        self.program = program
        self.id = id
        self.key = key
        self.do = do
        self.options = options
        self.limit: int = options.get("shared", 1)
        self.ttl_ms: float = 2 * NEVER if options.get("without_expiry") else options.get("ttl_ms", 30_000)
        # A runner waits for as long as a dead holder can keep the key.
        default_wait = self.ttl_ms + 1_500 if do == "once" else math.inf
        self.wait_ms: float = options.get("wait_ms", default_wait)
        every = options.get("every_ms", 1)
        self.tick: int = options.get("tick", int(time.time() * 1000) // every * every)
        self.began_at = now_ms()
        self.is_orphan = False
        """Whether its release did not reach the fake server."""
        self.token = 0
        self.granted_at = self.progress_at = self.deadline = 0.0

    def grant(self, token: int) -> None:
        self.token = token
        self.granted_at = self.progress_at = now_ms()
        self.deadline = self.granted_at + self.ttl_ms

    def cause(self) -> str | None:
        """Why the lease is over, or `None`."""
        now = now_ms()
        if now >= self.deadline:
            return "expired"
        if now >= self.granted_at + self.options.get("max_hold_ms", math.inf):
            return "held_too_long"
        return "stalled" if now >= self.progress_at + self.options.get("stalled_after_ms", math.inf) else None

    def times(self) -> _Json:
        return {"remaining_ms": int(self.deadline - now_ms()), "deadline_ms": int(self.deadline)}


class _Program(Program):
    """The program of one client: a thread at the other ends of its pipes."""

    def __init__(self, fake: FakeMongoseal, client: Client) -> None:
        self.leases: dict[int, _Lease] = {}
        self._client = client
        self.owner = f"fake-{next(fake._owners)}"
        self._fake = fake
        self._requests, self.input = os.pipe()
        self.output, self._events = os.pipe()
        self._is_killed = False
        self._exited = threading.Event()
        begin_thread(self._run)

    def wait(self, timeout: float) -> int | None:
        return 0 if self._exited.wait(timeout) else None

    def kill(self) -> None:
        self._is_killed = True

    def forget(self) -> None:
        for end in (self._requests, self._events):
            if end >= 0:
                os.close(end)

    def is_believed(self, lease: _Lease) -> bool:
        """Whether the client has not read the event `lost` of a lease."""
        run = self._client.run
        return run is not None and run.program is self and lease.id in run.leases

    def emit(self, event: str, **members: Any) -> None:
        try:
            os.write(self._events, json.dumps({"event": event, **members}).encode() + b"\n")
        except OSError:
            pass  # The client is gone.

    def refuse(self, number: int, lease: int | None, code: str, message: str) -> None:
        about = {} if lease is None else {"lease": lease}
        self.emit("error", id=number, **about, code=code, message=message)

    def _run(self) -> None:
        self.emit("ready", protocol=1, version="fake", owner=self.owner, started_ms=now_ms())
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        rest = b""
        while not self._is_killed:
            data = os.read(self._requests, 65536) if poll.poll(_TICK_MS) else None
            if data == b"":
                break
            *lines, rest = (rest + (data or b"")).split(b"\n")
            with self._fake._lock:
                for line in lines:
                    self._fake._carry_out(self, json.loads(line))
                self._fake._look_at_times()
        with self._fake._lock:
            self._fake._forget(self)
            os.close(self._requests)
            os.close(self._events)
            self._requests = self._events = -1
        self._exited.set()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()
