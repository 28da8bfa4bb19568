"""The two pipes to the program, and the loop that reads and writes them.

Mechanism: a caller writes to the pipe without blocking. What does not fit waits in memory, and the loop writes it. The loop is
the only one that closes the file descriptors.

Invariants: to write never blocks. A forked child closes its copies, so that the program sees the end of its input when the
parent ends.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

from ._program import Program
from .errors import Unavailable

_MAX_BACKLOG = 8 * 1024 * 1024
"""How many bytes can wait for the program, which reads them at once unless it is stopped."""


class ForkLock:
    """The lock of all clients of this process. A fork waits for it, so that the child finds no half-made change.

    A signal handler can use a lease while its thread has the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Replaces the lock in a forked child, in which no thread has it."""
        self._lock = threading.RLock()


lock = ForkLock()


class Pipe:
    """The pipes to one program. `write`, `open` and `close_input` need `lock`."""

    def __init__(self, program: Program) -> None:
        self._input = program.input
        self._output = program.output
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._input, self._output, self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._backlog = bytearray()
        self._is_open = False
        self._is_closing = False

    def write(self, line: bytes) -> None:
        """Writes a line, or keeps it until the program reads on. Raises `Unavailable` if too much waits."""
        if len(self._backlog) > _MAX_BACKLOG:
            raise Unavailable("the program does not read its requests: check whether it is stopped, and retry")
        self._backlog += line
        if self._is_open:
            self._flush()
            if self._backlog:
                self._wake()

    def open(self) -> None:
        """Writes what has waited until now. From then on lines are written at once."""
        self._is_open = True
        self._wake()

    def close_input(self) -> None:
        """Closes the input of the program, after the lines that wait."""
        if not self._is_open:
            self._backlog.clear()
        self._is_closing = True
        self._wake()

    def close(self) -> None:
        """Closes all. Also closes the copies of a forked child."""
        for name in ("_input", "_output", "_wake_read", "_wake_write"):
            self._close(name)

    def read(self, tick: Callable[[], float | None], take: Callable[[bytes], None]) -> None:
        """Reads lines until the end of the output. Calls `tick` before each wait, which returns how many seconds to wait."""
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        rest = b""
        while True:
            seconds = tick()
            watched = self._flush_or_close()
            if watched is not None:
                poll.register(watched, select.POLLOUT)
            # Rounded up, so that the deadline has passed when the wait ends.
            ready = poll.poll(None if seconds is None else int(seconds * 1000) + 1)
            if watched is not None:
                poll.unregister(watched)
            for descriptor, _ in ready:
                if descriptor == self._wake_read:
                    _read(descriptor)
                elif descriptor == self._output:
                    data = _read(descriptor)
                    if data == b"":
                        return
                    *lines, rest = (rest + (data or b"")).split(b"\n")
                    for line in lines:
                        take(line)

    def _flush_or_close(self) -> int | None:
        """Writes what waits, and closes the input if that was asked for. Returns the descriptor if something still waits."""
        with lock:
            if self._is_open:
                self._flush()
                if self._backlog:
                    return self._input
            if self._is_closing:
                self._close("_input")
            return None

    def _flush(self) -> None:
        while self._backlog and self._input >= 0:
            try:
                written = os.write(self._input, self._backlog)
            except BlockingIOError:
                return
            except OSError:
                # The program has ended, which the end of its output shows.
                self._backlog.clear()
                return
            del self._backlog[:written]

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # It is awake.

    def _close(self, name: str) -> None:
        descriptor = getattr(self, name)
        if descriptor >= 0:
            setattr(self, name, -1)
            os.close(descriptor)


def _read(descriptor: int) -> bytes | None:
    """Returns what can be read, `b""` at the end, and `None` if there is nothing yet."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return None
