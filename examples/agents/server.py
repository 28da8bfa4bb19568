"""A server of the Model Context Protocol with tools to lock a resource, and to write it while nobody else has locked it since.

    python server.py NAME FOLDER

NAME is the owner of its locks. MONGODB_URI names the server of the locks and of the documents, FOLDER has the files.
"""

import asyncio
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pymongo import AsyncMongoClient

from mongoseal import MongosealError
from mongoseal.aio import Lease, Mongoseal
from mongoseal.fence import fenced

NAME, FOLDER = sys.argv[1], Path(sys.argv[2])
seal = Mongoseal(owner=NAME)  # closed with the server, which releases all leases
documents = AsyncMongoClient[dict[str, Any]](os.environ["MONGODB_URI"]).get_default_database("agents")["documents"]
# By resource and token. Also those that are lost: it is the storage that refuses their writes.
leases: dict[tuple[str, int], Lease] = {}
mcp = MCPServer("locks", lifespan=lambda _: seal, log_level="WARNING", instructions="""
A resource is `document/NAME` or `file/NAME`. Acquire it, read the text that you get, renew it while you work, and write it with
its token. If a call is refused, another agent may have changed the text: acquire the resource again, and read it again.""")


@contextmanager
def told() -> Iterator[None]:
    try:
        yield
    except MongosealError as error:
        raise ToolError(f"refused: {error}") from error


def lease_of(resource: str, token: int) -> Lease:
    if (lease := leases.get((resource, token))) is None:
        raise ToolError(f"{resource} was not acquired with token {token}")
    return lease


def fenced_file(name: str, token: int, text: str | None = None) -> str:
    """Leaves the token beside the file unless a larger one is there, and writes the text. Returns the text of the file.

    The token is locked until the write is made, also while this process is stopped in between.
    """
    file, new = FOLDER / name, FOLDER / f".{name}.new"
    with open(os.open(FOLDER / f".{name}.token", os.O_RDWR | os.O_CREAT), "r+b", buffering=0) as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        if (newest := int(mark.read() or 0)) > token:
            raise ToolError(f"refused: the file has the newer token {newest}")
        os.pwrite(mark.fileno(), b"%016d" % token, 0)
        if text is not None:
            new.write_text(text)
            new.rename(file)
        return file.read_text() if file.exists() else ""


@mcp.tool()
async def acquire(resource: str, wait: float = 60, renew_within: float = 120) -> dict[str, Any]:
    """Locks a resource. Returns its token and its text. The lock is lost if you do not renew it within these seconds."""
    kind, _, name = resource.partition("/")
    if kind not in ("document", "file") or not name or "/" in name or name.startswith("."):
        raise ToolError(f"{resource!r} is neither document/NAME nor file/NAME")
    with told():
        lease = await seal.acquire(resource, wait=wait, ttl=min(renew_within, 30), stalled_after=renew_within)
        leases[resource, lease.token] = lease
        # The claim: from here on, the storage refuses all earlier holders. What is read now is what they have left.
        if kind == "file":
            text = await asyncio.to_thread(fenced_file, name, lease.token)
        else:
            text = (await fenced(documents, lease).claim({"_id": name}, upsert=True)).get("text", "")
        return {"token": lease.token, "text": text}


@mcp.tool()
async def renew(resource: str, token: int) -> None:
    """Reports that you still work on a resource. Call it more often than `renew_within` says."""
    with told():
        lease_of(resource, token).progress()


@mcp.tool()
async def update_document(name: str, token: int, text: str) -> None:
    """Replaces the text of document/NAME. Refused if another agent has acquired it since."""
    lease_of(f"document/{name}", token)
    with told():
        # The token and not the lease: whatever this process believes of its lease, MongoDB compares the tokens.
        await fenced(documents, token).update_one({"_id": name}, {"$set": {"text": text, "by": NAME}})


@mcp.tool()
async def write_file(name: str, token: int, text: str) -> None:
    """Replaces the text of file/NAME. Refused if another agent has acquired it since."""
    lease_of(f"file/{name}", token)
    with told():
        await asyncio.to_thread(fenced_file, name, token, text)


@mcp.tool()
async def release(resource: str, token: int) -> None:
    """Unlocks a resource for the next agent. Call it after the last write."""
    with told():
        await lease_of(resource, token).release()


@mcp.tool()
async def whoami() -> dict[str, Any]:
    """Says by which name others see you, and the tokens of what you have locked."""
    return {"owner": NAME, "held": {resource: token for (resource, token), lease in leases.items() if lease.is_valid}}


mcp.run()
