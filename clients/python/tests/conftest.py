"""What the tests share. Tests with a server need `MONGOSEAL_TEST_URI`: README.md says how to start one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from mongoseal import Mongoseal
from mongoseal._run import Run
from mongoseal._program import find
from mongoseal.testing import FakeMongoseal

SECONDS = 10.0


def until(condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Waits for a condition, or fails."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def run_of(seal: Mongoseal) -> Run:
    """The present run of the program of a client."""
    run = seal._client.run
    assert run is not None
    return run


def program_pid(seal: Mongoseal) -> int:
    """The process id of the program of a client."""
    return int(run_of(seal).program._process.pid)  # type: ignore[attr-defined]


class Server:
    """A replica set, a collection for the leases of one test, and the program."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.db = "mongoseal_python"
        self.collection = f"leases_{uuid.uuid4().hex[:8]}"
        self.program = find()

    def client(self) -> Mongoseal:
        return Mongoseal(self.uri, db=self.db, collection=self.collection)

    def environment(self) -> dict[str, str]:
        """The environment of a host that uses the same leases."""
        return {
            **os.environ,
            "MONGOSEAL_URI": self.uri,
            "MONGOSEAL_DB": self.db,
            "MONGOSEAL_COLLECTION": self.collection,
            "MONGOSEAL_PROGRAM": self.program,
        }

    def run(self, *arguments: str) -> str:
        """Runs a command of the program."""
        done = subprocess.run([self.program, *arguments], env=self.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def server() -> Server:
    uri = os.environ.get("MONGOSEAL_TEST_URI")
    if not uri:
        pytest.fail(
            "set MONGOSEAL_TEST_URI to the connection string of a replica set, for example of "
            "`mongod --replSet rs0 --dbpath DIR` and `rs.initiate()`: mongodb://127.0.0.1/?replicaSet=rs0"
        )
    if not os.environ.get("MONGOSEAL_PROGRAM") and not shutil.which("mongoseal"):
        pytest.fail("put the program `mongoseal` on the PATH, or name it in MONGOSEAL_PROGRAM")
    return Server(uri)


@pytest.fixture
def fake() -> FakeMongoseal:
    return FakeMongoseal()


@pytest.fixture
def seal(fake: FakeMongoseal) -> Iterator[Mongoseal]:
    with fake.client() as seal:
        yield seal
