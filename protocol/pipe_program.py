"""The program `mongoseal`, as a case of pipe.json plays it. pipe-conformance.py uses this file.

The client starts this file as `mongoseal`. It passes on each line between the client and the case, over a Unix socket, whose
path is the first argument.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

Json = dict[str, Any]

MAX_LINE = 524_288  # The longest request, in bytes.
ENDS = ("released", "completed", "lost", "unobserved")  # Events that end a lease or an observation.


def play(path: str, arguments: list[str]) -> NoReturn:
    """Is the program that the client starts: passes on lines between the client and the case."""
    started_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 1
    case = socket.socket(socket.AF_UNIX)
    case.connect(path)
    sending = threading.Lock()

    def send(message: Json) -> None:
        with sending:
            case.sendall(json.dumps(message).encode() + b"\n")

    def read_input() -> None:
        for line in sys.stdin.buffer:
            send({"line": line.decode("latin-1")})
        send({"input": "ended"})

    send({"arguments": arguments, "pid": os.getpid(), "group": os.getpgrp(), "started_ms": started_ms})
    threading.Thread(target=read_input, daemon=True).start()
    for order in map(json.loads, case.makefile("rb")):
        if "exit" in order:
            os._exit(order["exit"])
        data = memoryview(order["print"].encode())
        size = 1 if order["bytewise"] else len(data)
        try:
            while data:
                data = data[os.write(1, data[:size]) :]
                if size == 1:
                    time.sleep(0.001)
            send({"output": "written"})
        except BrokenPipeError:
            send({"output": "closed"})
    os._exit(0)


class Program:
    """A program that the client has started, as the case sees it."""

    def __init__(self, connection: socket.socket, inbox: queue.Queue[Callable[[], None]]) -> None:
        self.requests: deque[Json] = deque()
        self.started: Json | None = None
        self.ready = False  # Whether it has printed a `ready` of this version.
        self.input_ended = False
        self.output: str | None = None
        self.ended = False
        self.fault: str | None = None
        self.open: set[str] = set()
        self._process: int | None = None
        self._connection = connection
        self._inbox = inbox
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._connection.makefile("rb"):
                message = json.loads(line)
                self._inbox.put(lambda message=message: self._take(message))  # type: ignore[misc]
        except OSError:
            pass  # The program was killed.
        self._inbox.put(self._end)

    def _end(self) -> None:
        self.ended = True

    def _take(self, message: Json) -> None:
        if "line" in message:
            self._take_request(message["line"].encode("latin-1"))
        elif "input" in message:
            self.input_ended = True
        elif "output" in message:
            self.output = message["output"]
        else:
            self._process = os.pidfd_open(message["pid"])
            self.started = message

    def _take_request(self, line: bytes) -> None:
        """Checks what holds for the requests of all cases."""
        shown = line[:300].decode(errors="replace").rstrip("\n")
        try:
            request = json.loads(line.decode())
        except ValueError as error:
            self.fault = f"a request that is no JSON: {shown} ({error})"
            return
        if not isinstance(request, dict):
            self.fault = f"a request that is no JSON object: {shown}"
            return
        name = request.get("id")
        if not line.endswith(b"\n"):
            self.fault = f"a request without an end of line: {shown}"
        elif len(line) > MAX_LINE + 1:
            self.fault = f"a request of {len(line) - 1} bytes, and at most {MAX_LINE} are allowed"
        elif not (
            (type(name) is int and 0 <= name < 2**53) or (isinstance(name, str) and 1 <= len(name.encode()) <= 64)
        ):
            self.fault = f"a request with a wrong id: {shown}"
        elif json.dumps(name) in self.open:
            self.fault = f"a request with the id of an earlier one, whose lease or answer is open: {shown}"
        else:
            self.open.add(json.dumps(name))
            self.requests.append(request)

    def note(self, event: Json) -> None:
        """Frees the ids that `event` ends."""
        self.ready = self.ready or (event["event"] == "ready" and event["protocol"] == 1 and "started_ms" in event)
        if "id" in event and event["event"] not in ("granted", "observing"):
            self.open.discard(json.dumps(event["id"]))
        if event["event"] in ENDS:
            self.open.discard(json.dumps(event.get("lease", event.get("observation"))))

    def order(self, order: Json) -> None:
        try:
            self._connection.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            pass  # It has ended, which the reading thread reports.

    def signal(self, number: signal.Signals) -> None:
        """Signals the program, if it still runs."""
        if self._process is not None:
            try:
                signal.pidfd_send_signal(self._process, number)
            except ProcessLookupError:
                pass  # It has ended.

    def suspend(self) -> None:
        """Stops the program by SIGSTOP, and waits until it has stopped: it reads no later request."""
        self.signal(signal.SIGSTOP)
        state = ""
        while self.started is not None and state not in ("T", "Z"):
            with open(f"/proc/{self.started['pid']}/stat", encoding="utf-8") as stat:
                state = stat.read().rpartition(")")[2].split()[0]

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        self.signal(signal.SIGKILL)
        self._connection.close()
        if self._process is not None:
            os.close(self._process)


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2:])
