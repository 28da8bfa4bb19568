"""Carries out the commands of `protocol/pipe-conformance.py` by the client for asyncio."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import commands
from commands import Command
from mongoseal import Done
from mongoseal.aio import Leader, Leaders, Lease, Mongoseal, TickLease


class Adapter:
    def __init__(self) -> None:
        self.seal = Mongoseal()
        self.leases: dict[str, Lease] = {}
        self.observations: dict[str, Leaders] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def carry_out(self, command: Command) -> None:
        try:
            answer = {"ok": commands.shown(await getattr(self, command["do"])(command))}
        except asyncio.CancelledError:
            answer = {"error": "cancelled", "message": "cancelled"}
        except BaseException as error:
            answer = commands.error(error)
        print(json.dumps({"id": command["id"], **answer}), flush=True)

    async def acquire(self, command: Command) -> object:
        lease = self.leases[command["id"]] = await self.seal.acquire(**commands.options(command))
        return {"token": lease.token}

    async def once(self, command: Command) -> object:
        begun = await self.seal.once(**commands.options(command))
        if isinstance(begun, Done):
            return begun
        self.leases[command["id"]] = begun
        return {"token": begun.token, "tick": begun.tick}

    async def campaign(self, command: Command) -> object:
        leader = self.leases[command["id"]] = await self.seal.campaign(**commands.options(command))
        return {"token": leader.token}

    async def observe(self, command: Command) -> None:
        self.observations[command["id"]] = await self.seal.observe(**commands.options(command))

    async def unobserve(self, command: Command) -> None:
        self.observations[command["observation"]].close()

    async def next_leader(self, command: Command) -> object:
        leader = await anext(self.observations[command["observation"]])
        return leader and leader._asdict()

    async def cancel(self, command: Command) -> None:
        task = self.tasks[command["command"]]
        task.cancel()
        await asyncio.wait([task])

    async def close(self, _: Command) -> None:
        await self.seal.close()

    async def is_valid(self, command: Command) -> bool:
        return self.leases[command["lease"]].is_valid

    async def wait_lost(self, command: Command) -> object:
        return {"cause": await self.leases[command["lease"]].lost()}

    async def release(self, command: Command) -> object:
        return {"confirmed": await self.leases[command["lease"]].release(**commands.options(command))}

    async def resign(self, command: Command) -> object:
        leader = self.leases[command["lease"]]
        assert isinstance(leader, Leader)
        return {"confirmed": await leader.resign()}

    async def complete(self, command: Command) -> None:
        tick = self.leases[command["lease"]]
        assert isinstance(tick, TickLease)
        arguments = commands.options(command)
        tick.note = arguments.pop("note", "")
        await tick.complete(**arguments)

    async def progress(self, command: Command) -> None:
        self.leases[command["lease"]].progress()

    def __getattr__(self, do: str) -> Callable[[Command], Coroutine[Any, Any, object]]:
        """The requests that are calls of a lease by the same name."""
        return lambda command: getattr(self.leases[command["lease"]], do)(**commands.options(command))


async def main() -> None:
    adapter = Adapter()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        adapter.tasks[command["id"]] = asyncio.create_task(adapter.carry_out(command))
    await adapter.seal.close()


asyncio.run(main())
