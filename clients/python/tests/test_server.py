"""Both clients with the program and a replica set."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import Server, program_pid, run_of, until

from mongoseal import Done, Held, Invalid, LeaderInfo, Lease, LeaseLost, Mongoseal, TickLease, Unavailable, aio


class Host:
    """A process of `hosts.py`, in a process group of its own."""

    def __init__(self, server: Server, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("hosts.py")), name],
            env={**server.environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def told(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.lines.get(timeout=20))
        return result


@contextmanager
def host(server: Server, name: str) -> Iterator[Host]:
    running = Host(server, name)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()


def open_files() -> set[str]:
    """What the file descriptors of this process refer to."""
    links = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # That of the list itself.
            links.add(os.readlink(f"/proc/self/fd/{name}"))
    return links


def test_a_lease_is_held_verified_and_released(server: Server) -> None:
    with server.client() as seal, seal.acquire("k", ttl=2, metadata={"for": "a test"}) as lease:
        lease.verify()
        assert str(lease.token) in server.run("show", "k", "--json")
        time.sleep(2.5)
        assert lease.is_valid
        assert lease.release() is True
    with server.client() as seal:
        with seal.acquire("k", wait=0) as later:
            assert later.token > lease.token


def test_a_revocation_is_reported_with_its_cause(server: Server) -> None:
    lost: queue.SimpleQueue[Lease] = queue.SimpleQueue()
    with server.client() as seal:
        lease = seal.acquire("k", on_lost=lost.put)
        server.run("revoke", "k", "--reason", "a test", "--yes")
        assert lease.wait_lost(10) == "revoked"
        assert lost.get(timeout=5) is lease
        with pytest.raises(LeaseLost, match="revoked"):
            lease.check()


def test_a_killed_program_loses_its_leases_and_is_started_again(server: Server) -> None:
    with server.client() as seal:
        lease = seal.acquire("k", ttl=2)
        waiting: queue.SimpleQueue[Exception] = queue.SimpleQueue()

        def wait() -> None:
            try:
                seal.acquire("k", ttl=2)
            except Unavailable as error:
                waiting.put(error)

        threading.Thread(target=wait, daemon=True).start()
        until(lambda: json.loads(server.run("show", "k", "--json"))["queue"], "the wait")
        first = program_pid(seal)
        os.kill(first, signal.SIGKILL)
        assert lease.wait_lost(5) == "program_ended"
        assert isinstance(waiting.get(timeout=5), Unavailable)
        with pytest.raises(LeaseLost):
            lease.verify()
        # The key is held until the lease expires at the server.
        with seal.acquire("k", wait=30) as later:
            assert later.token > lease.token and program_pid(seal) != first
        assert not lease.is_valid


def test_a_child_of_multiprocessing_has_none_of_the_leases_and_can_acquire_its_own(server: Server) -> None:
    with host(server, "forking") as forking:
        told = forking.told()
        seen = told["child"]
        lost = {name: "forked" for name in ("cause", "check", "release", "verify", "progress", "wait_lost", "with")}
        assert seen == {"is_valid": False, "remaining": 0, **lost, "own": True, "closed": True}
        assert told["is_valid"] is True and told["status"] == 0
        assert forking.told()["again"] is True
        assert forking.process.wait(20) == 0


def test_a_killed_prefork_server_releases_its_leases_while_its_workers_live(server: Server) -> None:
    with host(server, "prefork") as prefork, server.client() as seal:
        told = [prefork.told() for _ in range(3)]
        workers = [line for line in told if "worker" in line]
        assert len(workers) == 2
        assert all(not line["sees_lease"] and line["cause"] == "forked" for line in workers)
        [parent] = [line for line in told if "is_valid" in line]
        assert parent["is_valid"]
        with pytest.raises(Held):
            seal.acquire("k", wait=0)
        prefork.process.kill()
        begin = time.monotonic()
        with seal.acquire("k", wait=20) as lease:
            assert time.monotonic() - begin < 5  # The ttl is 30 s.
            assert lease.token > parent["token"]
        for line in workers:
            os.kill(line["pid"], 0)
            with pytest.raises(Held):
                seal.acquire(f"worker {line['worker']}", wait=0)


def test_a_fork_leaves_no_pipe_open_in_the_child(server: Server) -> None:
    with server.client() as seal:
        seal.acquire("k")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, json.dumps(sorted(open_files())).encode())
            os._exit(0)
        os.waitpid(child, 0)
        inherited = set(json.loads(os.read(read, 65536)))
        program = run_of(seal).program
        own = {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in (program.input, program.output)}
        assert len(own) == 2 and own <= open_files() and not own & inherited


def test_forks_while_other_threads_use_the_client_harm_neither_process(server: Server) -> None:
    with server.client() as seal:
        lease = seal.acquire("k")
        is_over = threading.Event()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while not is_over.is_set():
                    lease.progress()
                    lease.check()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        statuses = []
        for _ in range(50):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                os._exit(0 if lease.cause == "forked" and not lease.is_valid else 1)
            statuses.append(os.waitpid(child, 0)[1])
        is_over.set()
        for thread in threads:
            thread.join()
        assert statuses == [0] * 50 and not failures
        lease.verify()


def test_a_stopped_program_is_killed_by_close(server: Server) -> None:
    seal = Mongoseal(server.uri, db=server.db, collection=server.collection, timeout=3)
    lease = seal.acquire("k")
    pid = program_pid(seal)
    os.kill(pid, signal.SIGSTOP)
    seal._client.patience = 0.5
    assert seal.close() is False
    assert lease.cause == "closed"
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the program")


def test_a_ctrl_c_reaches_the_host_and_not_the_program(server: Server) -> None:
    with host(server, "interrupted") as interrupted:
        interrupted.told()
        os.killpg(interrupted.process.pid, signal.SIGINT)
        told = interrupted.told()
        assert told["is_valid"] is True and told["confirmed"] is True
        assert interrupted.process.wait(20) == 0


def test_a_thousand_leases_are_held_by_one_process(server: Server) -> None:
    async def main() -> None:
        async with aio.Mongoseal(server.uri, db=server.db, collection=server.collection) as seal:
            leases = await asyncio.gather(*(seal.acquire(f"k{number}", ttl=12) for number in range(1_000)))
            await asyncio.sleep(8)
            assert all(lease.is_valid for lease in leases)
            assert all(await asyncio.gather(*(lease.release() for lease in leases)))

    asyncio.run(main())
    with server.client() as seal:
        for number in range(0, 1_000, 100):
            seal.acquire(f"k{number}", wait=0)


def test_values_ticks_and_leaders_are_those_of_the_server(server: Server) -> None:
    with server.client() as seal:
        with seal.acquire("v") as lease:
            lease.put_value({"cursor": [1, None, "ä", 1.5]})
        with seal.acquire("v") as lease:
            value = lease.value()
            assert value is not None and value.content == {"cursor": [1, None, "ä", 1.5]}
            with pytest.raises(Invalid):
                lease.put_value("x" * 70_000)
            lease.clear_value()
            assert lease.value() is None

        with seal.once("t", every=86_400) as tick:
            assert isinstance(tick, TickLease)
            tick.note = "7 rows"
        assert isinstance(seal.once("t", every=86_400), Done)
        assert "7 rows" in server.run("history", "t")

        with seal.observe("e") as leaders:
            assert next(leaders) is None
            with seal.campaign("e", value="a:1") as leader:
                assert next(leaders) == LeaderInfo(leader.owner, leader.token, "a:1")
            assert next(leaders) is None


def test_the_owner_and_the_options_are_passed_on(server: Server) -> None:
    options = {"db": server.db, "collection": server.collection, "owner": "web-1", "timeout": 5}
    with Mongoseal(server.uri, **options) as seal, seal.acquire("k") as lease:  # type: ignore[arg-type]
        assert lease.owner == "web-1"
        assert "web-1" in server.run("show", "k")
        with open(f"/proc/{program_pid(seal)}/cmdline") as file:
            assert server.uri not in file.read()
