#!/usr/bin/env python3
"""Tests a client of the pipe protocol: plays the program `mongoseal` in the cases of pipe.json.

`--help` describes the adapter, which you write, and the steps of a case.

Each case has one thread that carries out its steps, and one queue with all that comes from the adapter and from the programs
that the client starts.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pipe_self_test
from pipe_program import Json, Program

HERE = Path(__file__).resolve()
READY = {"event": "ready", "protocol": 1, "version": "0.1.0", "owner": "web-1", "started_ms": "started"}
HELP = """\
The script needs Linux and Python 3.10 or later. Exit status: 0 if all cases pass, 1 if one fails, 2 for a wrong usage.

THE ADAPTER

An adapter is a small program that carries out commands with your client. Those of the two clients are
clients/python/tests/adapter.py and clients/node/test/adapter.ts. The script starts it for each case. `mongoseal` on its PATH
is then the script, and MONGOSEAL_PROGRAM has its path.

  - Each line of its input is a command: a JSON object in ASCII with an `id`, which is a text, and `do`.
  - It begins commands in the order of their lines, also while earlier ones still run.
  - It answers each by one line: {"id":ID,"ok":VALUE} or {"id":ID,"error":CODE,"message":TEXT}. Answers can have any order.
    Its standard error is free.
  - At the end of its input it closes the client and exits with status 0.

The commands are the requests of pipe.md, with the same members, and those below. `lease` and `observation` have the `id` of
the command that began them. The `ok` of an answer:

  acquire, campaign  {"token":NUMBER}
  once               `token` and `tick`, or the `outcome`, `tick`, `by` and `at` of `done`
  release, resign    {"confirmed":BOOLEAN}
  value              the `value` of the event
  other requests     null
  is_valid           of a `lease`: `true` or `false`, whether the client believes in it, without a request
  wait_lost          of a `lease`: waits until the client reports the loss, and answers {"cause":TEXT}
  next_leader        of an `observation`: waits for the next `leader` that the adapter has not answered yet, and answers
                     the `leader` of the event
  cancel             null. Cancels the command with the `id` `command`, which waits for a key and answers `cancelled`
  close              null. Closes the input, and waits for the exit of the program

The codes are those of pipe.md. A client finds some without an answer:

  the last `deadline_ms` passes
      `wait_lost`: the cause `expired`
  the output ends
      `wait_lost`: the cause `program_ended`. Requests without an answer: `lost` if they are about a lease, otherwise
      `unavailable`. The next request that begins a lease or an observation starts the program again
  the program prints `error` without `id`
      its `code`, for requests without an answer that are not about a lease
  the program exits with status 125 before `ready`, without an event
      `invalid`
  `ready` has another `protocol`, or no `started_ms`
      `invalid`, with a message that names the protocol, or `started_ms`
  the observation ends by an error
      `next_leader`: the `code` of `unobserved`
  a request about a lease whose event `lost` was read
      `lost`, with or without a request
  a `release` after the deadline, without an event `lost`
      it is sent: the program may still refresh the lease

In each case, the client starts the program as `mongoseal hold`, in a process group of its own, at the first request at the
latest. It sends no option that the command does not have. Each `id` is free, and each line is one JSON object with the
members of the case and no other.

A CASE

Each of the cases of pipe.json has a name, the sentence that it proves, and steps, which follow one after the other. A step
that does not come within 10 s fails the case.

  user               The adapter gets this command.
  user_gets          The adapter has answered the command `id` by this `ok` or `error`, or by any answer if there is neither.
                     `message_has`: a part of the message.
  user_gets_nothing  The adapter has not answered the command with this `id`.
  request            The next request of the client is this one, with no other member.
  event              The program prints this event, or a list of events in one piece. `times`: so often. `bytewise`: each
                     byte is a piece.
  program            starts: the client starts the program, and the next steps are about this one. is_ready: the same, and
                     it prints `ready`. stops, continues: by SIGSTOP, and by SIGCONT. input_ends: the client closes the
                     input. is_left: the client closes the input, or ends the program. exits: with `status`. is_killed:
                     by SIGKILL.
  wait_ms            The script waits.
  hold               The client acquires the key of this name: a command, its request, `granted` with this `token` for
                     `for_ms`, and its answer.

`may` of a case lists requests that the client sends or leaves out, and the `event` that answers each.

The client chooses the ids of its requests. `$a` in `id`, `lease` and `observation` stands for one of them: the first request
with this name gives it its value.

The `deadline_ms` `now+2000` is 2,000 ms after the moment at which the program prints the event. The `started_ms` `started` is
the moment at which the program was started. Both are of the program's clock, which is CLOCK_BOOTTIME, or ahead of it by the
`clock_ahead_ms` of the step that starts the program.

{"$repeat": ["x", 60000]} stands for a text of 60,000 times `x`.
"""


class Failure(Exception):
    """The client, or its adapter, does not do what the case expects."""


def compact(value: object) -> str:
    """`value` as JSON, shortened for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:400]}... ({len(text)} characters)"


def equal(left: object, right: object) -> bool:
    """Whether two JSON values are the same. 1, 1.0 and true differ."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def expand(value: Any) -> Any:
    """Replaces `{"$repeat": [TEXT, COUNT]}` by the long text."""
    if isinstance(value, dict):
        if set(value) == {"$repeat"}:
            text, count = value["$repeat"]
            return text * count
        return {name: expand(member) for name, member in value.items()}
    if isinstance(value, list):
        return [expand(item) for item in value]
    return value


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


# The adapter


class Adapter:
    """The program of the client's author, which carries out commands with the client."""

    def __init__(
        self, arguments: list[str], environment: dict[str, str], log: IO[bytes], inbox: queue.Queue[Callable[[], None]]
    ) -> None:
        self.answers: dict[str, Json] = {}
        self.commands: set[str] = set()
        self.ended = False
        self.fault: str | None = None
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        self._inbox = inbox
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._inbox.put(lambda line=line: self._take(line))  # type: ignore[misc]
        self._inbox.put(self._end)

    def _end(self) -> None:
        self.ended = True

    def _take(self, line: bytes) -> None:
        try:
            answer = json.loads(line)
            name = answer["id"]
            if name not in self.commands or name in self.answers or ("ok" in answer) == ("error" in answer):
                raise ValueError("no answer to an open command, or not one of `ok` and `error`")
        except (ValueError, KeyError, TypeError) as error:
            self.fault = f"a line of the adapter that is no answer: {line[:300].decode(errors='replace')} ({error})"
            return
        self.answers[name] = answer

    def command(self, command: Json) -> None:
        self.commands.add(command["id"])
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # It has ended, which the reading thread reports.

    def close_input(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass


# A case


class Run:
    """One run of one case."""

    def __init__(self, case: Json, arguments: list[str], patience: float, directory: Path) -> None:
        self.case = case
        self.patience = patience  # How many seconds a step waits for the client.
        self.inbox: queue.Queue[Callable[[], None]] = queue.Queue()
        self.programs: list[Program] = []
        self.current = -1  # The index of the program that the steps are about.
        self.ahead_ms = 0  # How far the clock of this program is ahead of CLOCK_BOOTTIME.
        self.names: Json = {}  # The ids of the client, by their names in the case.
        self.log = tempfile.TemporaryFile(dir=directory)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(directory / "socket"))
        self.listener.listen()
        executable = directory / "mongoseal"
        command = [sys.executable, "-I", "-S", str(HERE.with_name("pipe_program.py")), str(directory / "socket")]
        executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        executable.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{directory}:{os.environ.get('PATH', os.defpath)}",
            "MONGOSEAL_PROGRAM": str(executable),
            "MONGODB_URI": "mongodb://127.0.0.1:1/conformance",
        }
        threading.Thread(target=self._accept, daemon=True).start()
        self.adapter = Adapter(arguments, environment, self.log, self.inbox)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # The case is over.
            self.inbox.put(lambda connection=connection: self.programs.append(Program(connection, self.inbox)))  # type: ignore[misc]

    def wait(self, reached: Callable[[], object], expected: str) -> None:
        """Takes in what comes until `reached`, or fails after some seconds."""
        end = time.monotonic() + self.patience
        while not reached():
            if self.adapter.ended:
                raise Failure(f"expected {expected}, got the end of the adapter, status {self.adapter.process.wait()}")
            try:
                self.inbox.get(timeout=max(0.0, end - time.monotonic()))()
            except queue.Empty:
                raise Failure(f"expected {expected}, got nothing for {self.patience:g} s{self.extra()}") from None
            self.check()

    def extra(self) -> str:
        """What came instead of what a step waits for."""
        requests = [request for program in self.programs for request in program.requests]
        return f", but the request {compact(requests[0])}" if requests else ""

    def check(self) -> None:
        """Fails for what no case allows, and answers the requests that the case leaves to the client."""
        for fault in [self.adapter.fault, *(program.fault for program in self.programs)]:
            if fault:
                raise Failure(f"got {fault}")
        for program in self.programs:
            if program.output == "closed":
                raise Failure("expected that the client reads the output to its end, got a closed pipe")
            for request in list(program.requests):
                for allowed in self.case.get("may", []):
                    self.names.pop(allowed["request"]["id"], None)  # Each such request has an id of its own.
                    if self.matches(allowed["request"], request):
                        program.requests.remove(request)
                        self.write(program, [self.filled(allowed["event"])])
                        break

    def matches(self, expected: Json, request: Json) -> bool:
        """Whether `request` is the expected one. A new name of an id, as `$a`, gets the id of the request."""
        name = expected["id"]
        bound = {**self.names, name: request["id"]} if name not in self.names else self.names
        wanted = {
            member: bound.get(value, value) if member in ("id", "lease", "observation") else value
            for member, value in expected.items()
        }
        if equal(wanted, request):
            self.names = bound
            return True
        return False

    def filled(self, event: Json) -> Json:
        """`event` with the ids of the client, and with times."""
        event = dict(event)
        for member in ("id", "lease", "observation"):
            if isinstance(event.get(member), str):
                event[member] = self.names[event[member]]
        deadline = event.get("deadline_ms")
        if isinstance(deadline, str):
            event["deadline_ms"] = boottime_ms() + self.ahead_ms + int(deadline.removeprefix("now"))
        started = self.program().started
        if event.get("started_ms") == "started" and started is not None:
            event["started_ms"] = started["started_ms"] + self.ahead_ms
        return event

    def write(self, program: Program, events: list[Json], times: int = 1, bytewise: bool = False) -> None:
        for event in events:
            program.note(event)
        text = "".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n" for event in events)
        program.output = None
        program.order({"print": text * times, "bytewise": bytewise})

    # Steps. Each is named by its first member.

    def program(self) -> Program:
        return self.programs[self.current]

    def step_hold(self, step: Json) -> None:
        name, ms = step["hold"], step["for_ms"]
        self.step_user({"user": {"id": name, "do": "acquire", "key": name}})
        self.step_request({"request": {"id": f"${name}", "do": "acquire", "key": name}})
        granted = {"event": "granted", "id": f"${name}", "lease": f"${name}", "key": name, "owner": "web-1"}
        self.step_event({"event": {**granted, "token": step["token"], "remaining_ms": ms, "deadline_ms": f"now+{ms}"}})
        self.step_user_gets({"user_gets": {"id": name, "ok": {"token": step["token"]}}})

    def step_user(self, step: Json) -> None:
        self.adapter.command(step["user"])

    def step_user_gets(self, step: Json) -> None:
        wanted = step["user_gets"]
        shown = f"the answer {compact(wanted)}"
        self.wait(lambda: wanted["id"] in self.adapter.answers, shown)
        answer = self.adapter.answers[wanted["id"]]
        for member in ("ok", "error"):
            if member in wanted and not (member in answer and equal(answer[member], wanted[member])):
                raise Failure(f"expected {shown}, got {compact(answer)}")
        if wanted.get("message_has", "") not in str(answer.get("message", "")):
            raise Failure(f"expected a message with the word `{wanted['message_has']}`, got {compact(answer)}")

    def step_user_gets_nothing(self, step: Json) -> None:
        if step["user_gets_nothing"] in self.adapter.answers:
            answer = self.adapter.answers[step["user_gets_nothing"]]
            raise Failure(f"expected no answer yet, got {compact(answer)}")

    def step_request(self, step: Json) -> None:
        requests = self.program().requests
        shown = f"the request {compact(step['request'])}"
        self.wait(lambda: requests or self.program().ended, shown)
        if not requests:
            raise Failure(f"expected {shown}, got the end of the program")
        request = requests.popleft()
        if not self.matches(step["request"], request):
            raise Failure(f"expected {shown}, got {compact(request)}, where {compact(self.names)}")

    def step_event(self, step: Json) -> None:
        events = step["event"] if isinstance(step["event"], list) else [step["event"]]
        program = self.program()
        self.write(program, list(map(self.filled, events)), step.get("times", 1), step.get("bytewise", False))
        self.wait(lambda: program.output or program.ended, "that the client reads the output")

    def step_wait_ms(self, step: Json) -> None:
        end = time.monotonic() + step["wait_ms"] / 1000
        while (left := end - time.monotonic()) > 0:
            try:
                self.inbox.get(timeout=left)()
            except queue.Empty:
                return
            self.check()

    def step_program(self, step: Json) -> None:
        does = step["program"]
        if does in ("starts", "is_ready"):
            self.current += 1
            self.ahead_ms = step.get("clock_ahead_ms", 0)
            started = lambda: len(self.programs) > self.current and self.program().started  # noqa: E731
            self.wait(started, "that the client starts the program")
            info = self.program().started
            assert info is not None
            if info["arguments"][:1] != ["hold"]:
                raise Failure(
                    f"expected that the client starts `mongoseal hold`, got the arguments {info['arguments']}"
                )
            if info["group"] == self.adapter.process.pid:
                raise Failure("expected that the program has a process group of its own, got the group of the client")
            if does == "is_ready":
                self.step_event({"event": READY})
        elif does == "stops":
            self.program().suspend()
        elif does == "continues":
            self.program().signal(signal.SIGCONT)
        elif does == "input_ends":
            self.wait(lambda: self.program().input_ended, "that the client closes the input")
        elif does == "is_left":
            left = lambda: self.program().input_ended or self.program().ended  # noqa: E731
            self.wait(left, "that the client closes the input, or ends the program")
        else:
            if does == "is_killed":
                self.program().signal(signal.SIGKILL)
            else:
                self.program().order({"exit": step["status"]})
            self.wait(lambda: self.program().ended, "that the program ends")

    def run(self) -> None:
        """Carries out the steps, or fails with the step in the message."""
        number = 0
        try:
            for number, step in enumerate(self.case["steps"], 1):
                getattr(self, f"step_{next(iter(step))}")(step)
            number += 1
            step = {"end": "the adapter's input ends"}
            self.finish()
        except Failure as failure:
            raise Failure(f"step {number}, {compact(step)}\n{failure}{self.logged()}") from None

    def finish(self) -> None:
        """Ends the adapter, and plays the programs that still run to their end."""
        if len(self.programs) > self.current + 1:
            raise Failure("expected no further program, got a start of one")
        self.adapter.close_input()
        end = time.monotonic() + self.patience
        while not self.adapter.ended:
            for program in self.programs:
                if not program.ready:
                    program.requests.clear()  # A client may write requests before `ready`, and this program read none.
                for request in program.requests:
                    if request.get("do") not in ("release", "resign", "unobserve"):
                        raise Failure(f"expected no further request, got {compact(request)}")
                    answer = {"id": request["id"], "lease": request.get("lease"), "confirmed": True}
                    name = "unobserved" if request["do"] == "unobserve" else "released"
                    self.write(program, [{"event": name, **answer}])
                program.requests.clear()
                if program.input_ended:
                    program.order({"exit": 0})
            try:
                self.inbox.get(timeout=max(0.0, end - time.monotonic()))()
            except queue.Empty:
                raise Failure(f"expected the exit of the adapter, got nothing for {self.patience:g} s") from None
        status = self.adapter.process.wait()
        if status != 0:
            raise Failure(f"expected the status 0 of the adapter, got {status}")
        self.check()

    def logged(self) -> str:
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        return f"\nstandard error of the adapter:\n{text[-3000:]}" if text else ""

    def stop(self) -> None:
        """Ends all processes of the case."""
        self.listener.shutdown(socket.SHUT_RDWR)  # Ends the thread that accepts.
        self.listener.close()
        if self.adapter.process.poll() is None:
            self.adapter.process.kill()
        self.adapter.process.wait()
        for program in self.programs:
            program.stop()
        self.log.close()


def failure_of(case: Json, arguments: list[str], patience: float = 10) -> str | None:
    """Runs a case. Returns why it fails, or `None`."""
    with tempfile.TemporaryDirectory(prefix="mongoseal-", ignore_cleanup_errors=True) as directory:
        run = Run(case, arguments, patience, Path(directory))
        try:
            run.run()
        except Failure as failure:
            return str(failure)
        finally:
            run.stop()
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Tests a client of the pipe protocol, which pipe.md describes.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME", action="append", help="runs this case only; can be repeated")
    parser.add_argument(
        "--skip", metavar="NAME", action="append", default=[], help="leaves out this case; can be repeated"
    )
    parser.add_argument("--list", action="store_true", help="prints the names of the cases")
    parser.add_argument(
        "--self-test", action="store_true", help="tests the cases by a correct client and by broken ones"
    )
    parser.add_argument("adapter", metavar="ADAPTER", nargs="*", help="the command of the adapter, after `--`")
    options = parser.parse_args()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        parser.error("this system has no CLOCK_BOOTTIME: run the script on Linux")
    cases: list[Json] = [expand(case) for case in json.loads(HERE.with_name("pipe.json").read_text("utf-8"))["cases"]]
    names = [case["name"] for case in cases]
    for name in [*(options.only or []), *options.skip]:
        if name not in names:
            parser.error(f"there is no case `{name}`: see --list")
    if options.list:
        print("\n".join(names))
        return 0
    if options.self_test:
        return pipe_self_test.run(cases, failure_of)
    if not options.adapter or shutil.which(options.adapter[0]) is None:
        parser.error("pass the command of the adapter after `--`: a program that can be executed, and its arguments")
    passed, failed = 0, 0
    for case in cases:
        if options.only and case["name"] not in options.only:
            continue
        if case["name"] in options.skip:
            print(f"skipped: {case['name']}", flush=True)
            continue
        failure = failure_of(case, options.adapter)
        if failure is None:
            passed += 1
            print(f"passed: {case['name']}", flush=True)
        else:
            failed += 1
            print(f"FAILED: {case['name']}\n    " + failure.replace("\n", "\n    "), flush=True)
    print(f"{passed} passed, {failed} failed, {len(options.skip)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
