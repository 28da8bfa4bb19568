"""What the adapters of the conformance test share: `protocol/pipe-conformance.py --help` describes the commands."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from mongoseal import Done, MongosealError, StoredValue

Command = dict[str, Any]

_NAMES = ("id", "do", "lease", "observation")


def options(command: Command) -> dict[str, Any]:
    """Returns the arguments of a call. A member such as `ttl_ms` is the argument `ttl`, in seconds."""
    return {
        name.removesuffix("_ms"): value / 1000 if name.endswith("_ms") else value
        for name, value in command.items()
        if name not in _NAMES
    }


def shown(value: object) -> object:
    """Returns the JSON of what a call returns."""
    if isinstance(value, Done):
        return vars(value)
    if isinstance(value, StoredValue):
        return value._asdict()
    return value


async def ended(call: Any) -> Any:
    """Returns what a call of either client returns."""
    return await call if inspect.isawaitable(call) else call


class Adapter:
    """Carries out the commands by one of the two clients."""

    def __init__(self, seal: Any) -> None:
        self.seal = seal
        self.leases: dict[str, Any] = {}
        self.observations: dict[str, Any] = {}

    async def answer(self, command: Command) -> Command:
        """Carries out a command, and returns its answer."""
        try:
            return {"id": command["id"], "ok": shown(await getattr(self, command["do"])(command))}
        except (KeyboardInterrupt, asyncio.CancelledError):
            return {"id": command["id"], "error": "cancelled", "message": "cancelled"}
        except MongosealError as error:
            return {"id": command["id"], "error": error.code, "message": str(error)}
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            return {"id": command["id"], "error": type(error).__name__, "message": str(error)}

    async def acquire(self, command: Command) -> object:
        lease = self.leases[command["id"]] = await ended(self.seal.acquire(**options(command)))
        return {"token": lease.token}

    async def once(self, command: Command) -> object:
        begun = await ended(self.seal.once(**options(command)))
        if isinstance(begun, Done):
            return begun
        self.leases[command["id"]] = begun
        return {"token": begun.token, "tick": begun.tick}

    async def campaign(self, command: Command) -> object:
        leader = self.leases[command["id"]] = await ended(self.seal.campaign(**options(command)))
        return {"token": leader.token}

    async def observe(self, command: Command) -> None:
        self.observations[command["id"]] = await ended(self.seal.observe(**options(command)))

    async def unobserve(self, command: Command) -> None:
        self.observations[command["observation"]].close()

    async def close(self, _: Command) -> None:
        await ended(self.seal.close())

    async def is_valid(self, command: Command) -> object:
        return self.leases[command["lease"]].is_valid

    async def release(self, command: Command) -> object:
        return {"confirmed": await ended(self.leases[command["lease"]].release(**options(command)))}

    async def resign(self, command: Command) -> object:
        return {"confirmed": await ended(self.leases[command["lease"]].resign())}

    async def complete(self, command: Command) -> None:
        tick, arguments = self.leases[command["lease"]], options(command)
        tick.note = arguments.pop("note", "")
        await ended(tick.complete(**arguments))

    def __getattr__(self, do: str) -> Callable[[Command], Coroutine[Any, Any, object]]:
        """The requests that are calls of a lease by the same name."""
        return lambda command: ended(getattr(self.leases[command["lease"]], do)(**options(command)))
