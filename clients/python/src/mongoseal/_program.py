"""The program `mongoseal hold`: how it is found and started, and what threads of a client need besides.

Invariant: of the pipe to its input, this process alone has the end for writing. `_client.py` closes it in forked children.
"""

from __future__ import annotations

import _thread
import errno
import os
import shutil
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ._time import Seconds, millis
from .errors import ProgramError, Unavailable

_INSTALL = (
    "install the wheel of this package that contains it, put it on the PATH, or name it in MONGOSEAL_PROGRAM"
)

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Errors of a system that has no more files, processes or memory at the moment."""
_MOST_SECONDS = 86_400.0
"""The longest time that the program is waited for. A wait for longer is an error of Python."""
_MARGIN = 5.0
"""How many seconds the program can take to release its leases beyond the timeout of a request to the server."""


forking = threading.RLock()
"""A fork waits for it, so that the child knows all pipes. Besides, only the threads of clients take it."""


_FORK_SECONDS = 1.0
"""A fork that takes longer is interrupted by a signal handler, which waits for the thread that waits for the fork."""


@contextmanager
def no_fork() -> Iterator[None]:
    """Keeps forks off, as far as possible."""
    is_held = forking.acquire(timeout=_FORK_SECONDS)
    try:
        yield
    finally:
        if is_held:
            forking.release()


class Program:
    """A program that speaks the pipe protocol: two ends of pipes, and a process behind them."""

    input: int
    """The file descriptor that requests are written to, or -1."""
    output: int
    """The file descriptor that events are read from, or -1."""

    def wait(self, timeout: float) -> int | None:
        """Returns the exit status, or `None` if the program still runs after `timeout` seconds."""
        raise NotImplementedError

    def kill(self) -> None:
        """Ends the program at once, if it has not ended."""
        raise NotImplementedError

    def forget(self) -> None:
        """Forgets the process in a forked child, whose child it is not."""
        raise NotImplementedError

    def close_input(self) -> None:
        with no_fork():
            if self.input >= 0:
                os.close(self.input)
                self.input = -1

    def close_output(self) -> None:
        with no_fork():
            if self.output >= 0:
                os.close(self.output)
                self.output = -1


def begin_thread(target: Callable[..., object], *arguments: object) -> None:
    """Begins a thread without a lock, which `threading.Thread` takes. Raises `Unavailable` if the system has none."""
    try:
        _thread.start_new_thread(target, arguments)
    except RuntimeError as error:
        raise Unavailable(f"no thread can be started: {error}") from error


def find(program: str | os.PathLike[str] | None = None) -> str:
    """Returns the path of the program: `program`, that of `MONGOSEAL_PROGRAM`, that of this package, or that of the PATH.

    Raises `ProgramError` if there is none.
    """
    named = program or os.environ.get("MONGOSEAL_PROGRAM")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ProgramError(f"there is no program {os.fspath(named)!r}: {_INSTALL}")
        return found
    packaged = os.path.join(sysconfig.get_path("scripts"), "mongoseal")
    found = shutil.which(packaged) or shutil.which("mongoseal")
    if found is None:
        raise ProgramError(f"the program `mongoseal` was not found: {_INSTALL}")
    return found


class Process(Program):
    """The program as a child process, in a process group of its own: a Ctrl-C of the terminal does not reach it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            child_input, self.input, self.output, child_output = ends
            self._process = subprocess.Popen(
                command, stdin=child_input, stdout=child_output, env=environment, start_new_session=True
            )
            ends = [child_input, child_output]
        except OSError as error:
            kind = Unavailable if error.errno in _EXHAUSTED else ProgramError
            raise kind(f"cannot start {command[0]}: {error}") from error
        finally:
            for end in ends:
                os.close(end)

    def wait(self, timeout: float) -> int | None:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        if self._process.poll() is None:
            # Also the program behind a script that has started it.
            os.killpg(self._process.pid, signal.SIGKILL)

    def forget(self) -> None:
        self._process.returncode = 0


def launcher(
    uri: str | None,
    db: str | None,
    collection: str | None,
    owner: str | None,
    timeout: Seconds | None,
    program: str | os.PathLike[str] | None,
) -> tuple[Callable[[], Program], float]:
    """Returns what starts the program with these options, and how many seconds it can take to end a lease or to exit."""
    timeout_ms = None if timeout is None else millis(timeout)
    named = {
        "--db": db,
        "--collection": collection,
        "--owner": owner,
        "--timeout": None if timeout_ms is None else f"{timeout_ms}ms",
    }
    options = [f"{name}={value}" for name, value in named.items() if value is not None]
    # Other users can read the arguments of a process, but not its environment.
    secret = {} if uri is None else {"MONGOSEAL_URI": uri}

    def launch() -> Program:
        return Process([find(program), "hold", *options], {**os.environ, **secret})

    return launch, min((10_000 if timeout_ms is None else timeout_ms) / 1000 + _MARGIN, _MOST_SECONDS)
