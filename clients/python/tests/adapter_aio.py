"""Carries out the commands of `protocol/pipe-conformance.py` by the client for asyncio."""

from __future__ import annotations

import asyncio
import json
import sys

import commands
from commands import Command
from mongoseal.aio import Mongoseal


class Adapter(commands.Adapter):
    def __init__(self) -> None:
        super().__init__(Mongoseal())
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def carry_out(self, command: Command) -> None:
        print(json.dumps(await self.answer(command)), flush=True)

    async def next_leader(self, command: Command) -> object:
        leader = await anext(self.observations[command["observation"]])
        return leader and leader._asdict()

    async def wait_lost(self, command: Command) -> object:
        return {"cause": await self.leases[command["lease"]].lost()}

    async def cancel(self, command: Command) -> None:
        task = self.tasks[command["command"]]
        task.cancel()
        await asyncio.wait([task])


async def main() -> None:
    adapter = Adapter()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        adapter.tasks[command["id"]] = asyncio.create_task(adapter.carry_out(command))
    await adapter.seal.close()


asyncio.run(main())
