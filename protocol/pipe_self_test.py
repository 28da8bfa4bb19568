"""Tests the cases of pipe.json: a correct client passes all of them, and each broken client fails.

`pipe-conformance.py --self-test` runs this. The client has what pipe.md requires, and no more. This file is also its adapter.
The first argument names what is broken: a key of `BROKEN`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PROTOCOL = "A `ready` with another protocol is refused, with a message that names the protocol, and the client ends this program."
AHEAD = "A program whose clock is ahead of the client's: the client reckons the difference, and believes no longer."
BEHIND = "A program whose clock is behind the client's: its leases are not lost at once."
NO_CLOCK = "A `ready` without `started_ms` is refused, because the client could not tell whose clock a deadline is of."
# What is broken in a client, and the case that must fail.
BROKEN = {
    "ignores the deadline": "A lease is lost at its deadline, although no event came.",
    "reports no loss at the deadline": "A lease is lost at its deadline, although no event came.",
    "counts the remaining time": "The deadline counts, and not the remaining time, which is outdated when a line is read late.",
    "takes a clock that is ahead for its own": AHEAD,
    "takes a clock that is behind for its own": BEHIND,
    "counts from the line `ready`": "The difference of the clocks counts from the start of the program, and not from a line that is read late.",
    "needs no `started_ms`": NO_CLOCK,
    "keeps the latest deadline": "`refreshed` moves the deadline, also to an earlier time.",
    "ignores `held`": "`held` moves the deadline.",
    "ignores `verified`": "`verified` moves the deadline.",
    "loses the lease at `at_risk`": "`at_risk` does not end the lease, and `held` after it moves the deadline.",
    "has a timer of 31 bits": "A lease of 60 days is not lost at once.",
    "blocks while it writes": "A lease is lost at its deadline while the program is stopped and reads nothing.",
    "releases by itself after the deadline": "A release after the deadline is sent, because the program may still refresh the lease.",
    "ignores `lost`": "`lost` ends the lease before its deadline, and no other lease.",
    "loses all leases by one loss": "`lost` ends the lease before its deadline, and no other lease.",
    "knows no further cause": "A cause that the client does not know is a loss, too.",
    "ignores the end of the output": "The end of the output is the loss of all leases.",
    "does not start the program again": "After a crash of the program the next acquire starts it again, and the old leases stay lost.",
    "uses old leases of a new program": "After a crash of the program the next acquire starts it again, and the old leases stay lost.",
    "waits without end at a crash": "A wait fails with `unavailable` if the program ends.",
    "ignores an `error` without id": "A deployment that must be changed refuses the acquire with `invalid`.",
    "takes each protocol": PROTOCOL,
    "leaves a program with another protocol running": PROTOCOL,
    "fails at an unknown event": "Events and members that the client does not know are ignored.",
    "decodes each piece": "A line is read whole, whatever its pieces are.",
    "reads one line of a piece": "Several lines are read from one piece.",
    "ends lines at each separator": "Only a line feed ends a line, and no other separator in a text.",
    "reads on demand": "The output is read while the user does nothing.",
    "reads lines of 8 KiB": "A value of 64 KiB is written and read.",
    "takes an `error` with the id `null` for the end": "An `error` whose id is `null` ends neither the program nor a request.",
    "loses a lease by an error": "An error of a request does not end the lease.",
    "confirms each release": "The user sees a release that is not confirmed.",
    "gives a lease up that a refused release leaves": "A request to end a lease that is refused ends nothing.",
    "believes in a lease after a release that failed": "A request to end a lease that fails by any other code ends the lease.",
    "knows no further code": "A request to end a lease that fails by any other code ends the lease.",
    "believes in a released lease": "A release ends the lease, and its confirmation is passed on.",
    "forgets a cancelled wait": "A wait that is cancelled is released.",
    "returns a grant after the cancellation": "A grant that crosses the cancellation is released, and the user does not get it.",
    "answers in order": "The answers about two leases have any order.",
    "uses the id of a lease again": "The id of a lease is not used again while the lease lasts.",
    "shares its process group": "A granted lease has the token of the event, and is valid.",
    "writes tokens as floats": "A granted lease has the token of the event, and is valid.",
    "writes the defaults of options": "A granted lease has the token of the event, and is valid.",
    "writes times as floats": "Each option of a lease is sent as its member.",
    "does not close the input": "`close` closes the input, and waits for the exit of the program.",
    "does not wait for the exit": "`close` closes the input, and waits for the exit of the program.",
    "believes in leases after `close`": "`close` ends the leases that are held.",
    "drops null": "The value `null` is stored, and differs from no value.",
    "takes `done` for an error": "`once` of a tick that is done, or superseded, is no lease and no error.",
    "mixes observations": "Two observations do not mix.",
    "waits without end after `unobserved`": "An observation that ends by an error tells its code.",
}
MOVES = ("granted", "held", "at_risk", "refreshed", "verified")  # Events that move the deadline.
ENDS = ("release", "resign", "complete")  # Requests that end a lease.
BEGINS = ("acquire", "once", "campaign", "observe")  # Requests that begin a lease or an observation.
broken = sys.argv[1] if len(sys.argv) > 1 else ""


class Refused(Exception):
    """A request without the answer that was asked for."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def settle(future: Future[Any], result: Any) -> None:
    """Sets a result or an exception, unless there is one."""
    if not future.done():
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


class Request:
    """A request, and the lease or observation that it began."""

    def __init__(self, name: int, members: Json) -> None:
        self.name = name
        self.members = members
        self.answer: Future[Any] = Future()
        self.cancelled = False
        # Of a lease:
        self.deadline_ms = 0
        self.over = False
        self.lost: Future[Json] = Future()
        # Of an observation:
        self.leaders: deque[Any] = deque()
        self.readers: deque[Future[Any]] = deque()

    def believed(self) -> bool:
        late = boottime_ms() >= self.deadline_ms and broken != "ignores the deadline"
        return not self.over and not late

    def lose(self, cause: str) -> None:
        self.over = True
        settle(self.lost, {"cause": cause})

    def offer(self, leader: Any) -> None:
        """Passes on a leader, or an exception as the end of the observation."""
        self.leaders.append(leader)
        while self.readers and self.leaders:
            settle(self.readers.popleft(), self.leaders.popleft())


class Program:
    """One run of the program."""

    def __init__(self) -> None:
        own = broken != "shares its process group"
        self.began_ms = boottime_ms()
        self.ahead_ms = 0  # How far the clock of the program is ahead of this one, or more.
        self.process = subprocess.Popen(
            ["mongoseal", "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=own
        )
        self.lock = threading.RLock()
        self.ready = False
        self.ended = False
        self.end = Refused("unavailable", "the program has ended")
        self.last_id = 0
        self.pending: dict[int, Request] = {}
        self.begun: dict[int, Request] = {}
        self.lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self.write, daemon=True).start()
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=self.watch, daemon=True).start()

    def write(self) -> None:
        """Writes the requests, so that nothing else waits for a program that does not read."""
        assert self.process.stdin is not None
        try:
            while (line := self.lines.get()) is not None:
                self.process.stdin.write(line)
                self.process.stdin.flush()
            if broken != "does not close the input":
                self.process.stdin.close()
        except OSError:
            pass  # The program has ended.

    def watch(self) -> None:
        """Reports losses at the deadline. A poll sees the clock also after a sleep of the machine."""
        while not self.ended:
            with self.lock:
                for lease in self.begun.values():
                    far = broken == "has a timer of 31 bits" and lease.deadline_ms - boottime_ms() >= 2**31
                    if lease.deadline_ms and not lease.over and (far or boottime_ms() >= lease.deadline_ms):
                        if broken != "reports no loss at the deadline":
                            settle(lease.lost, {"cause": "expired"})
            time.sleep(0.02)

    def read(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        while piece := os.read(self.process.stdout.fileno(), 65536):
            if broken == "decodes each piece":
                piece = piece.decode(errors="replace").encode()
            if broken == "ends lines at each separator":
                lines = [line.encode() for line in (rest + piece).decode(errors="replace").splitlines()]
                rest = b"" if piece.endswith(b"\n") else lines.pop()
            else:
                *lines, rest = (rest + piece).split(b"\n")
            if broken == "reads lines of 8 KiB":
                lines = [line[:8192] for line in lines]
            for line in lines[:1] if broken == "reads one line of a piece" else lines:
                with self.lock:
                    self.take(json.loads(line))
            while broken == "reads on demand" and not self.pending:
                time.sleep(0.01)
        if broken == "ignores the end of the output":
            return
        status = self.process.wait()
        with self.lock:
            if status == 125 and not self.ready and self.end.code == "unavailable":
                self.end = Refused("invalid", "the program refuses its arguments: see its standard error")
            self.finish("program_ended")

    def finish(self, cause: str) -> None:
        """Ends what is open."""
        self.ended = True
        for request in self.begun.values():
            request.lose(cause)
            request.offer(self.end)
        for request in self.pending.values():
            if broken != "waits without end at a crash":
                lost = Refused("lost", "the program has ended")
                settle(request.answer, lost if "lease" in request.members else self.end)

    def send(self, members: Json) -> Request:
        with self.lock:
            self.last_id += 1
            if broken == "uses the id of a lease again":
                self.last_id = min(set(range(1, self.last_id + 1)) - set(self.pending))
            request = Request(self.last_id, members)
            if self.ended:
                request.answer.set_exception(self.end)
                return request
            self.pending[request.name] = request
            line = json.dumps({"id": request.name, **members}).encode() + b"\n"
            if broken == "blocks while it writes":
                assert self.process.stdin is not None
                os.write(self.process.stdin.fileno(), line)
            else:
                self.lines.put(line)
        return request

    def take(self, event: Json) -> None:
        kind = event["event"]
        if kind == "ready":
            if event["protocol"] != 1 and broken != "takes each protocol":
                self.end = Refused(
                    "invalid", f"the program has the protocol {event['protocol']}: install one with protocol 1"
                )
                self.finish("program_ended")
                if broken != "leaves a program with another protocol running":
                    self.lines.put(None)
            elif "started_ms" in event:
                self.reckon(event["started_ms"])
            elif broken != "needs no `started_ms`":
                self.end = Refused("invalid", "the program has no `started_ms`: install one that has")
                self.finish("program_ended")
                self.lines.put(None)
            self.ready = True
        elif kind == "error" and "id" not in event:
            if broken != "ignores an `error` without id":
                self.end = Refused(event["code"], event["message"])
        elif kind == "error" and event["id"] is None:
            if broken == "takes an `error` with the id `null` for the end":
                self.finish("program_ended")
        elif event.get("id") in self.pending and kind != "waiting":
            self.take_answer(kind, event)
        elif kind in ("held", "at_risk", "lost"):
            self.take_state(kind, self.begun.get(event["lease"]), event)
        elif kind == "leader":
            name = min(self.begun) if broken == "mixes observations" else event["observation"]
            self.begun[name].offer(event["leader"])
        elif kind == "unobserved" and broken != "waits without end after `unobserved`":
            self.begun[event["observation"]].offer(Refused(event["code"], event["message"]))
        elif kind not in ("waiting", "unobserved") and broken == "fails at an unknown event":
            raise ValueError(f"an unknown event: {event}")

    def reckon(self, started_ms: int) -> None:
        """Compares the clocks. Another clock counts from the moment before the program was started."""
        if not self.began_ms <= started_ms <= boottime_ms() + 1:
            own = {"takes a clock that is ahead for its own": 1, "takes a clock that is behind for its own": -1}.get(broken, 0)
            began_ms = boottime_ms() if broken == "counts from the line `ready`" else self.began_ms
            self.ahead_ms = 0 if own * started_ms > own * began_ms else started_ms - began_ms

    def take_answer(self, kind: str, event: Json) -> None:
        if broken == "answers in order":
            event["id"] = min(self.pending)
        request = self.pending.pop(event["id"])
        lease = self.begun.get(request.members.get("lease", -1))
        if lease is not None:
            self.take_state(kind, lease, event)
        result: Any = None
        if kind == "error":
            if lease is not None and request.members["do"] in ENDS and self.ends(event["code"]):
                lease.over = True
            code = "lost" if event["code"] == "unknown_lease" else event["code"]
            result = Refused("cancelled" if request.cancelled else code, event["message"])
        elif kind in ("granted", "observing"):
            self.begun[request.name] = request
            self.take_state(kind, request, event)
            if kind == "granted":
                token = float(event["token"]) if broken == "writes tokens as floats" else event["token"]
                result = {"token": token, **({"tick": event["tick"]} if "tick" in event else {})}
            if request.cancelled and broken != "returns a grant after the cancellation":
                result = Refused("cancelled", "the wait was cancelled")
        elif kind == "done":
            result = {member: event[member] for member in ("outcome", "tick", "by", "at")}
            if broken == "takes `done` for an error":
                result = Refused(event["outcome"], "the tick is done")
        elif kind == "released":
            result = {"confirmed": event["confirmed"] or broken == "confirms each release"}
        elif kind == "value":
            result = event["value"]
        settle(request.answer, result)

    @staticmethod
    def ends(code: str) -> bool:
        """Tells whether an answer with this code to a request that ends a lease has ended it."""
        if broken == "knows no further code":
            return code in ("failed", "unavailable", "unknown_lease", "lost", "held")
        if broken == "believes in a lease after a release that failed":
            return code in ("unknown_lease", "lost")
        return code not in ("malformed", "invalid", "busy") or broken == "gives a lease up that a refused release leaves"

    def take_state(self, kind: str, lease: Request | None, event: Json) -> None:
        """What an event tells about a lease."""
        if lease is None:
            return
        if kind in MOVES and kind not in {"ignores `held`": "held", "ignores `verified`": "verified"}.get(broken, ""):
            deadline = event["deadline_ms"] - self.ahead_ms
            if broken == "counts the remaining time":
                deadline = boottime_ms() + event["remaining_ms"]
            lease.deadline_ms = max(deadline, lease.deadline_ms if broken == "keeps the latest deadline" else 0)
        if kind in ("released", "completed") and broken != "believes in a released lease":
            lease.over = True
        cause = event.get("cause")
        if (kind == "at_risk" and broken == "loses the lease at `at_risk`") or (
            kind == "error" and broken == "loses a lease by an error"
        ):
            lease.lose("expired")
        elif (
            kind == "lost"
            and broken != "ignores `lost`"
            and (cause != "moved_away" or broken != "knows no further cause")
        ):
            for each in self.begun.values() if broken == "loses all leases by one loss" else [lease]:
                each.lose(str(cause))

    def close(self) -> None:
        with self.lock:
            if broken != "believes in leases after `close`":
                for lease in self.begun.values():
                    lease.over = True
            self.lines.put(None)
        if broken != "does not wait for the exit":
            self.process.wait()


class Adapter:
    """Carries out the commands. The programs of a client are replaced when they have ended."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.requests: dict[str, tuple[Program, Request]] = {}
        self.writing = threading.Lock()

    def answer(self, name: str, future: Future[Any]) -> None:
        """Writes the answer when the future has one."""

        def write(done: Future[Any]) -> None:
            error = done.exception()
            answer = (
                {"error": error.code, "message": str(error)} if isinstance(error, Refused) else {"ok": done.result()}
            )
            with self.writing:
                print(json.dumps({"id": name, **answer}), flush=True)

        future.add_done_callback(write)

    def carry_out(self, command: Json) -> None:
        name, do = command["id"], command["do"]
        members = {member: value for member, value in command.items() if member != "id"}
        done: Future[Any] = Future()
        if do in BEGINS:
            if self.program is None or (self.program.ended and broken != "does not start the program again"):
                self.program = Program()
            if broken == "writes the defaults of options" and do == "acquire":
                members = {"ttl_ms": 30_000, **members}
            if broken == "writes times as floats":
                members = {
                    member: float(value) if member.endswith("_ms") else value for member, value in members.items()
                }
            request = self.program.send(members)
            self.requests[name] = (self.program, request)
            self.answer(name, request.answer)
            return
        self.answer(name, done)
        if do == "close":
            threading.Thread(target=self.close, args=(done,), daemon=True).start()
            return
        program, begun = self.requests[command.get("lease") or command.get("observation") or command["command"]]
        if do == "is_valid":
            done.set_result(begun.believed())
        elif do == "wait_lost":
            begun.lost.add_done_callback(lambda lost: done.set_result(lost.result()))
        elif do == "next_leader":
            with program.lock:
                begun.readers.append(done)
                if begun.leaders:
                    begun.offer(begun.leaders.pop())
        elif do == "cancel":
            begun.cancelled = True
            if broken == "forgets a cancelled wait":
                settle(begun.answer, Refused("cancelled", "the wait was cancelled"))
            else:
                program.send({"do": "release", "lease": begun.name})
            done.set_result(None)
        else:
            self.send_about(program, begun, members, done)

    def send_about(self, program: Program, begun: Request, members: Json, done: Future[Any]) -> None:
        """Sends a request about a lease or an observation."""
        if "observation" in members:
            members["observation"] = begun.name
        else:
            if broken == "uses old leases of a new program" and self.program is not None:
                program = self.program
            elif begun.over or (broken == "releases by itself after the deadline" and not begun.believed()):
                done.set_exception(Refused("lost", "the lease has ended"))
                return
            members["lease"] = begun.name
        if broken == "drops null":
            members = {member: value for member, value in members.items() if value is not None}
        answer = program.send(members).answer
        answer.add_done_callback(lambda got: settle(done, got.exception() or got.result()))

    def close(self, done: Future[Any]) -> None:
        if self.program is not None:
            self.program.close()
        done.set_result(None)


def run(cases: list[Json], failure_of: Callable[[Json, list[str], float], str | None]) -> int:
    """Runs the correct client in each case, and each broken one in the case that must fail."""
    wrong = 0
    client = [sys.executable, str(Path(__file__).resolve())]
    for case in cases:
        failure = failure_of(case, client, 10)
        if failure is not None:
            wrong += 1
            print(f"FAILED by the correct client: {case['name']}\n{failure}", flush=True)
    named = {case["name"]: case for case in cases}
    for what, name in BROKEN.items():
        failure = failure_of(named[name], [*client, what], 4)
        if failure is None:
            wrong += 1
            print(f"PASSED by a client that {what}: {name}", flush=True)
        else:
            print(f"caught: a client that {what}\n    {failure.splitlines()[1]}", flush=True)
    print(f"{len(cases)} cases, {len(BROKEN)} broken clients, {wrong} wrong results")
    return 1 if wrong else 0


if __name__ == "__main__":
    adapter = Adapter()
    for text in sys.stdin:
        adapter.carry_out(json.loads(text))
    adapter.close(Future())
