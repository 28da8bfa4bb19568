"""The example `examples/agents`: agents that race for a resource, on a replica set."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from conftest import Server
from mcp import Client, StdioServerParameters
from pymongo.collection import Collection

EXAMPLE = Path(__file__).parents[3] / "examples/agents"


def environment(server: Server) -> dict[str, str]:
    """As a user sets it. The documents have a database of their own."""
    uri = re.sub(r"/[^/?]*(\?|$)", rf"/{server.collection}\1", server.uri)
    variables = {**server.environment(), "PYTHONPATH": os.pathsep.join(sys.path), "MONGODB_URI": uri}
    del variables["MONGOSEAL_URI"]
    return variables


@pytest.fixture
def documents(server: Server) -> Iterator[Collection[dict[str, Any]]]:
    with pymongo.MongoClient[dict[str, Any]](server.uri) as client:
        yield client[server.collection]["documents"]
        client.drop_database(server.collection)


def test_the_late_write_of_a_stopped_agent_is_refused(
    server: Server, documents: Collection[dict[str, Any]], tmp_path: Path
) -> None:
    race = [sys.executable, str(EXAMPLE / "race.py"), str(tmp_path)]
    done = subprocess.run(race, env=environment(server), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for resource, write in (("document/plan", "update_document"), ("file/plan.md", "write_file")):
        story = re.search(
            rf"alice: acquired {resource} with token (\d+).*alice is stopped.*"
            rf"bob: acquired {resource} with token (\d+).*bob: wrote 'bob was here. ' with token (\d+).*"
            r"alice continues.*"
            rf"alice: {write} failed: [^\n]* has the newer token (\d+)",
            done.stdout,
            re.DOTALL,
        )
        assert story is not None, done.stdout
        alice, *bob = map(int, story.groups())
        assert bob == [bob[0]] * 3 and alice < bob[0], done.stdout
    assert (tmp_path / "plan.md").read_text() == "bob was here. "
    plan = documents.find_one({"_id": "plan"})
    assert plan is not None and (plan["text"], plan["by"]) == ("bob was here. ", "bob"), plan


@pytest.mark.usefixtures("documents")
def test_an_agent_writes_only_with_a_token_that_it_got_and_only_what_it_has_locked(
    server: Server, tmp_path: Path
) -> None:
    async def run() -> None:
        alice, bob = (
            StdioServerParameters(
                command=sys.executable,
                args=[str(EXAMPLE / "server.py"), name, str(tmp_path)],
                env=environment(server),
            )
            for name in ("alice", "bob")
        )
        async with Client(alice) as first, Client(bob) as second:

            async def refused(client: Client, tool: str, why: str, **arguments: Any) -> None:
                result = await client.call_tool(tool, arguments)
                assert result.is_error and why in str(result.content), result

            async def done(client: Client, tool: str, **arguments: Any) -> Any:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result
                return result.structured_content

            held = await done(first, "acquire", resource="document/plan")
            token = held["token"]
            await done(first, "renew", resource="document/plan", token=token)
            await refused(second, "acquire", "alice", resource="document/plan", wait=0)
            await refused(first, "update_document", "not acquired", name="plan", token=token + 1, text="invented")
            await refused(second, "update_document", "not acquired", name="plan", token=token, text="told")
            await refused(first, "write_file", "not acquired", name="plan.md", token=token, text="another")
            for outside in ("file/../plan.md", "file/.plan.md.token", "file/", "plan"):
                await refused(first, "acquire", "neither", resource=outside)
            await done(first, "update_document", name="plan", token=token, text="draft")
            assert await done(first, "whoami") == {"owner": "alice", "held": {"document/plan": token}}
            await done(first, "release", resource="document/plan", token=token)
            assert (await done(second, "acquire", resource="document/plan"))["text"] == "draft"

    asyncio.run(run())


def test_the_agents_are_typed(tmp_path: Path) -> None:
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path)]
    variables = {**os.environ, "MYPYPATH": str(Path(__file__).parents[1] / "src")}
    files = [str(EXAMPLE / name) for name in ("server.py", "race.py")]
    done = subprocess.run([*mypy, *files], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
