"""Two scripted agents race for a resource. One of them is stopped in its work, and comes back too late.

    python race.py [FOLDER]

Each agent is a process with a server of its own: see server.py. FOLDER is that of the files, by default a temporary one.
"""

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

HERE = Path(__file__).parent
RENEW_WITHIN = 3.0


async def agent(name: str, resource: str, folder: str) -> None:
    """Acquires the resource, thinks until it gets a line on its input, and writes."""
    server = StdioServerParameters(command=sys.executable, args=[str(HERE / "server.py"), name, folder], env={**os.environ})
    async with Client(server) as client:

        async def call(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            if result.is_error:
                reason = " ".join(getattr(part, "text", "") for part in result.content)
                print(f"{name}: {tool} failed: {reason}", flush=True)
                return None
            return result.structured_content

        if (held := await call("acquire", resource=resource, renew_within=RENEW_WITHIN)) is None:
            return
        print(f"{name}: acquired {resource} with token {held['token']}, and reads {held['text']!r}", flush=True)
        thinks = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        while not thinks.done():
            await call("renew", resource=resource, token=held["token"])
            await asyncio.wait([thinks], timeout=RENEW_WITHIN / 6)

        kind, _, target = resource.partition("/")
        write = "write_file" if kind == "file" else "update_document"
        text = f"{held['text']}{name} was here. "
        if await call(write, name=target, token=held["token"], text=text) is not None:
            print(f"{name}: wrote {text!r} with token {held['token']}", flush=True)
            await call("release", resource=resource, token=held["token"])
        print(f"{name}: sees itself as {await call('whoami')}", flush=True)


async def start(name: str, resource: str, folder: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, __file__, "agent", name, resource, folder, stdin=PIPE, stdout=PIPE
    )


async def until(process: Process, words: str) -> None:
    """Passes on what an agent says, until it says this."""
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        print(line, end="", flush=True)
        if words in line:
            return
    sys.exit(f"an agent ended without {words!r}")


async def go_on(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    await process.stdin.drain()


async def race(resource: str, folder: str) -> None:
    alice = await start("alice", resource, folder)
    await until(alice, "acquired")
    alice.send_signal(signal.SIGSTOP)
    print(f"alice is stopped, and renews nothing. Bob waits for {resource}")
    bob = await start("bob", resource, folder)
    await until(bob, "acquired")
    await go_on(bob)
    await until(bob, "sees itself")
    await go_on(alice)
    alice.send_signal(signal.SIGCONT)
    print("alice continues, and writes what she has made of what she read")
    await until(alice, "sees itself")
    for process in (alice, bob):
        if await process.wait() != 0:
            sys.exit("an agent failed")


async def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = sys.argv[1] if len(sys.argv) > 1 else temporary
        for resource in ("document/plan", "file/plan.md"):
            await race(resource, folder)
        print(f"the file has {(Path(folder) / 'plan.md').read_text()!r}")


asyncio.run(agent(*sys.argv[2:]) if sys.argv[1:2] == ["agent"] else main())
