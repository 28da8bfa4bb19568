"""Carries out the commands of `protocol/pipe-conformance.py` by the client for threads."""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import commands
from commands import Command
from mongoseal import Done, Leader, Leaders, Lease, Mongoseal, TickLease, _sync
from mongoseal._client import Worker

_WITHOUT_REQUEST = ("wait_lost", "next_leader", "close", "cancel", "is_valid")


class Interruptible(queue.SimpleQueue[Any]):
    """A queue whose `get` can be interrupted, as a Ctrl-C interrupts that of the main thread."""

    def __init__(self) -> None:
        super().__init__()
        adapter.waits[getattr(adapter.current, "command", "")] = self

    def interrupt(self) -> None:
        self.put(KeyboardInterrupt())

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if isinstance(item, KeyboardInterrupt):
            raise item
        return item


class Adapter:
    def __init__(self) -> None:
        self.seal = Mongoseal()
        self.leases: dict[str, Lease] = {}
        self.observations: dict[str, Leaders] = {}
        self.waits: dict[str, Interruptible] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.output = threading.Lock()
        self.current = threading.local()

    def begin(self, command: Command) -> None:
        """Begins a command, and waits until its request is sent, so that requests are in the order of commands."""
        sent = threading.Event()
        thread = threading.Thread(target=self.carry_out, args=(command, sent), daemon=True)
        self.threads[command["id"]] = thread
        thread.start()
        if command["do"] not in _WITHOUT_REQUEST:
            sent.wait()

    def carry_out(self, command: Command, sent: threading.Event) -> None:
        self.current.command, self.current.sent = command["id"], sent
        try:
            answer = {"ok": commands.shown(getattr(self, command["do"])(command))}
        except KeyboardInterrupt:
            answer = {"error": "cancelled", "message": "interrupted"}
        except BaseException as error:
            answer = commands.error(error)
        sent.set()
        with self.output:
            print(json.dumps({"id": command["id"], **answer}), flush=True)

    def acquire(self, command: Command) -> object:
        lease = self.leases[command["id"]] = self.seal.acquire(**commands.options(command))
        return {"token": lease.token}

    def once(self, command: Command) -> object:
        begun = self.seal.once(**commands.options(command))
        if isinstance(begun, Done):
            return begun
        self.leases[command["id"]] = begun
        return {"token": begun.token, "tick": begun.tick}

    def campaign(self, command: Command) -> object:
        leader = self.leases[command["id"]] = self.seal.campaign(**commands.options(command))
        return {"token": leader.token}

    def observe(self, command: Command) -> None:
        self.observations[command["id"]] = self.seal.observe(**commands.options(command))

    def unobserve(self, command: Command) -> None:
        self.observations[command["observation"]].close()

    def next_leader(self, command: Command) -> object:
        leader = next(self.observations[command["observation"]])
        return leader and leader._asdict()

    def cancel(self, command: Command) -> None:
        self.waits[command["command"]].interrupt()
        self.threads[command["command"]].join()

    def close(self, _: Command) -> None:
        self.seal.close()

    def is_valid(self, command: Command) -> bool:
        return self.leases[command["lease"]].is_valid

    def wait_lost(self, command: Command) -> object:
        return {"cause": self.leases[command["lease"]].wait_lost()}

    def release(self, command: Command) -> object:
        return {"confirmed": self.leases[command["lease"]].release(**commands.options(command))}

    def resign(self, command: Command) -> object:
        leader = self.leases[command["lease"]]
        assert isinstance(leader, Leader)
        return {"confirmed": leader.resign()}

    def complete(self, command: Command) -> None:
        tick = self.leases[command["lease"]]
        assert isinstance(tick, TickLease)
        arguments = commands.options(command)
        tick.note = arguments.pop("note", "")
        tick.complete(**arguments)

    def __getattr__(self, do: str) -> Callable[[Command], object]:
        """The requests that are calls of a lease by the same name."""
        return lambda command: getattr(self.leases[command["lease"]], do)(**commands.options(command))


def main() -> None:
    put = Worker.put

    def put_and_report(worker: Worker, call: Callable[[], object]) -> None:
        put(worker, call)
        if hasattr(adapter.current, "sent"):
            adapter.current.sent.set()

    Worker.put = put_and_report  # type: ignore[method-assign,assignment]
    _sync.SimpleQueue = Interruptible  # type: ignore[attr-defined]
    for line in sys.stdin:
        adapter.begin(json.loads(line))
    adapter.seal.close()


adapter = Adapter()
main()
