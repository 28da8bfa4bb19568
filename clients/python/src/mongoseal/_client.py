"""The client of a process: what callers call, and the thread that alone owns the program and all state.

Mechanism: a caller puts a call into a queue, and the thread carries it out. An answer comes by a function that the thread
calls. A second thread reads the lines of the program, and puts them into the same queue. Both run while the program does.

Invariants:

- A caller holds no lock. So it can be interrupted at any place, and what interrupts it can use the client: a signal handler,
  a finalizer, a Ctrl-C.
- The thread takes no lock that a caller can hold meanwhile. So it writes no log and runs no code of a user: another thread does.
- A request that begins a lease has a holder from the start, an object of its caller. When nothing refers to the holder any
  more, the wait is ended and the lease is released. The end of the holder is noted by code in C, which nothing interrupts.
- A forked child closes its copies of the pipes, so that the program sees the end of its input when the parent ends.
"""

from __future__ import annotations

import _thread
import atexit
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ._json import Json, body_of
from ._program import Program, begin_thread, forking, no_fork
from ._run import Answer, Holder, LeaseState, Observation, Reply, Request, Run
from ._time import now_ms
from .errors import CannotWait, Invalid, MongosealError, ProgramError, Unavailable

_AT_EXIT_SECONDS = 1.0
"""How long the end of the interpreter waits for the threads to close the inputs of their programs."""


class Client:
    """What callers call. Starts the program at the first request, and again after it has ended."""

    def __init__(self, start: Callable[[], Program], patience: float) -> None:
        self.start_program = start
        self.patience = patience
        """How many seconds the program can take to answer a request that ends a lease, and to exit."""
        self.is_closed = False
        self._workers: dict[int, Worker] = {}
        """By process id: after a fork, the child has one of its own."""

    @property
    def run(self) -> Run | None:
        """The present run of the program."""
        return self._worker().run

    def _worker(self) -> Worker:
        """The worker of this process. Raises `Invalid` in a child that was forked without Python's handlers."""
        pid = os.getpid()
        worker = self._workers.get(pid)
        if worker is None:
            if any(worker.run is not None for worker in self._workers.values()):
                raise Invalid(
                    "this process was forked by code in C after the client was used: create the client in the child "
                    "(uWSGI: set lazy-apps = true)"
                )
            worker = self._workers.setdefault(pid, Worker(self))
        return worker

    def put(self, call: Callable[[], object]) -> None:
        """Has the thread carry out a call."""
        self._worker().put(call)

    def check_wait(self) -> None:
        """Raises `CannotWait` where no answer can come."""
        if sys.is_finalizing():
            raise CannotWait("the interpreter ends: the program releases the leases of this process")
        if _thread.get_ident() in self._worker().threads:
            raise CannotWait("a finalizer has run on a thread of the client, and cannot wait there: end leases by `with`")

    def hold(self, held: object, of: LeaseState | Observation) -> None:
        """Makes an object the holder of what is about to begin."""
        # What the thread knows refers to the reference: it must outlive the object.
        of.holder = Holder(held, self._worker().queue.put)
        of.holder.of = of

    def begin(self, do: str, members: Json, begins: LeaseState | Observation, reply: Reply) -> None:
        """Sends a request that begins a lease or an observation. Answers `ProgramError` if the program cannot be started."""
        request = Request(do, body_of({"do": do, **members}), reply, begins=begins)
        worker = self._worker()
        worker.put(partial(worker.begin, request))

    def ask(self, lease: LeaseState, do: str, members: Json, reply: Reply) -> None:
        """Sends a request about a lease."""
        lease.check()
        request = Request(do, body_of({"do": do, "lease": lease.id, **members}), reply, about=lease)
        self.put(partial(lease.run.ask, request, lease))

    def end(self, lease: LeaseState, do: str, members: Json, reply: Reply) -> None:
        """Asks to end a lease. After the first call, answers the same again."""
        lease.check_process()
        request = Request(do, body_of({"do": do, "lease": lease.id, **members}), reply, about=lease)
        lease.is_ending = True
        self.put(partial(lease.run.end, request, lease))

    def start(self, reply: Reply) -> None:
        """Starts the program, and answers when it is connected."""
        worker = self._worker()
        worker.put(partial(worker.connect, reply))

    def close(self, reply: Reply) -> None:
        """Ends all leases, waits and observations, and the program. Answers `is_clean`: whether it has ended by itself."""
        self.is_closed = True
        worker = self._worker()
        worker.put(partial(worker.close, reply))

    def close_at_exit(self, reply: Reply) -> None:
        """Closes the input of the program, and answers at once."""
        self.close(lambda _: None)
        self.put(partial(reply, {}))

    def forget_in_child(self) -> None:
        """Closes the pipes in a forked child, to which no lease belongs."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            if worker.run is not None:
                worker.run.program.close_input()
                worker.run.program.close_output()
                worker.run.program.forget()


class Worker:
    """The thread of a client in one process, and all that only this thread changes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.queue: SimpleQueue[Any] = SimpleQueue()
        self.run: Run | None = None
        self.threads: list[int] = []
        """The threads on which no answer can be waited for."""
        self._serving: dict[str, int] = {}
        """The thread that serves. It enters and leaves by one operation of the dictionary."""

    def put(self, call: Callable[[], object]) -> None:
        self.queue.put(call)
        if not self._serving:
            if sys.is_finalizing():
                raise CannotWait("the interpreter ends")
            begin_thread(self._serve)

    def _serve(self) -> None:
        thread = _thread.get_ident()
        # A caller that sees no thread begins one, so there can be several. One of them enters.
        while self._serving.setdefault("thread", thread) == thread:
            self.threads.append(thread)
            while self.run is not None or not self.queue.empty():
                self._serve_one()
            self.threads.remove(thread)
            self._serving.clear()
            if self.queue.empty():
                return

    def _serve_one(self) -> None:
        try:
            call = self.queue.get(timeout=None if self.run is None else self.run.seconds())
        except Empty:
            call = None
        try:
            if isinstance(call, Holder):
                # Of a caller that had begun nothing when it was interrupted, one of the two is not set.
                run = getattr(getattr(call, "of", None), "run", None)
                if run is not None:
                    run.drop(call.of)
            elif call is not None:
                call()
            if self.run is not None:
                self.run.look()
        except Exception as error:
            if self.run is not None:
                self.run.abort(f"the program and the client do not understand each other: {error!r}")
        if self.run is not None and self.run.is_aborted:
            self._end_run(self.run)

    def _running(self) -> Run:
        """The present run of the program, which is started if there is none. Raises `ProgramError` and `Unavailable`."""
        if self.client.is_closed:
            raise Invalid("the client is closed: create another one")
        if self.run is not None:
            return self.run
        with no_fork():
            try:
                began_ms = now_ms()
                run = self.run = Run(self.client.start_program(), began_ms)
            except MongosealError:
                raise
            except Exception as error:
                raise ProgramError(f"the program cannot be started: {error}") from error
            _clients.add(self.client)
        try:
            begin_thread(self._read, run)
        except Unavailable:
            run.abort("")
            self._end_run(run)
            run.program.close_output()
            raise
        return run

    def _read(self, run: Run) -> None:
        """Reads the lines of the program until the end of its output. This is the second thread."""
        thread = _thread.get_ident()
        self.threads.append(thread)
        rest = b""
        # With gevent, threads are greenlets: `poll` lets the others run, and `os.read` alone would not.
        output = select.poll()
        output.register(run.program.output, select.POLLIN)
        try:
            while output.poll() and (data := os.read(run.program.output, 65536)):
                *lines, rest = (rest + data).split(b"\n")
                self.queue.put(partial(run.take_all, lines))
        finally:
            run.program.close_output()
            self.threads.remove(thread)
            self.queue.put(partial(self._end_run, run))

    def _end_run(self, run: Run) -> None:
        if self.run is run:
            self.run = None
            try:
                run.end_all()
            finally:
                run.program.close_input()
                with no_fork():
                    _clients.discard(self.client)

    def begin(self, request: Request) -> None:
        begins = request.begins
        assert begins is not None and begins.holder is not None
        if begins.holder() is not None:
            try:
                self._running().begin(request, begins)
            except MongosealError as error:
                request.take(error)

    def connect(self, reply: Reply) -> None:
        try:
            self._running().connect(reply)
        except MongosealError as error:
            reply(error)

    def close(self, reply: Reply) -> None:
        if self.run is None:
            reply({"is_clean": True})
        else:
            self.run.close(reply, self.client.patience)


_clients: set[Client] = set()
"""Those whose program may run. Changed with `forking`."""


def _after_fork_in_child() -> None:
    try:
        for client in list(_clients):
            client.forget_in_child()
    finally:
        _clients.clear()
        forking.release()


def _at_exit() -> None:
    """Closes the clients while their threads can run. From then on a call of a finalizer is refused at once."""
    closed: SimpleQueue[Answer] = SimpleQueue()
    clients = list(_clients)
    for client in clients:
        with suppress(MongosealError):
            client.close_at_exit(closed.put)
    end = time.monotonic() + _AT_EXIT_SECONDS
    with suppress(Empty):
        for _ in clients:
            closed.get(timeout=max(0.0, end - time.monotonic()))


# No frame of Python lies between, in which a Ctrl-C could leave the lock locked.
os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
