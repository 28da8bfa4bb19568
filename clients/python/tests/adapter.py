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
from mongoseal import Mongoseal, _sync
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


class Adapter(commands.Adapter):
    def __init__(self) -> None:
        super().__init__(Mongoseal())
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
            # It awaits nothing, so it ends in one step.
            self.answer(command).send(None)
        except StopIteration as ended:
            sent.set()
            with self.output:
                print(json.dumps(ended.value), flush=True)

    async def next_leader(self, command: Command) -> object:
        leader = next(self.observations[command["observation"]])
        return leader and leader._asdict()

    async def wait_lost(self, command: Command) -> object:
        return {"cause": self.leases[command["lease"]].wait_lost()}

    async def cancel(self, command: Command) -> None:
        self.waits[command["command"]].interrupt()
        self.threads[command["command"]].join()


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
