"""APScheduler 3 and 4, with published packages: jobs and a leader, in processes of their own."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Server, until

from mongoseal import Invalid, LeaseLost, Mongoseal
from mongoseal.apscheduler import current_lease, once_per_tick
from mongoseal.testing import FakeMongoseal

LONG = 120.0
FOUR = Path(sys.prefix, "apscheduler4")


class Line(NamedTuple):
    what: str
    pid: int
    tick: int
    token: int


class Hosts:
    """Processes of `apscheduler_hosts.py`."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *path: str) -> int:
        environment = {**self.server.environment(), "PYTHONPATH": os.pathsep.join([*path, *sys.path])}
        program = Path(__file__).with_name("apscheduler_hosts.py")
        with open(self.folder / f"host{len(self.running)}.out", "wb") as output:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, str(program), name, str(self.folder)],
                    env=environment, cwd=self.folder, stdout=output, stderr=output,
                )
            )  # fmt: skip
        return self.running[-1].pid

    def log(self, *what: str) -> list[Line]:
        path = self.folder / "log"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Line(name, *map(int, numbers)) for name, *numbers in lines if name in what]

    def noted(self, what: str, count: int) -> list[Line]:
        until(lambda: len(self.log(what)) >= count, f"{count} times {what!r}: {self.outputs()}", LONG)
        return self.log(what)

    def outputs(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in sorted(self.folder.glob("host*.out")))

    def kill(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def hosts(server: Server, tmp_path: Path) -> Iterator[Hosts]:
    running = Hosts(server, tmp_path)
    try:
        yield running
    finally:
        running.kill()


def test_a_job_runs_once_for_a_tick_under_a_lease(seal: Mongoseal, fake: FakeMongoseal) -> None:
    number = 1
    seen: list[int] = []

    @once_per_tick(seal, "k", tick=lambda: number, wait=0)
    def job(page: int) -> int:
        seen.append(current_lease().token)
        if page < 0:
            raise ValueError(page)
        return page

    with pytest.raises(ValueError):
        job(-1)
    assert (job(7), job(8)) == (7, None)
    number = 2
    with seal.acquire("k"):
        assert job(9) is None
    assert job(page=9) == 9 and len(seen) == 3
    with pytest.raises(LookupError):
        current_lease()
    with pytest.raises(Invalid, match="every"):
        once_per_tick(seal, "k")(print)()


def test_a_coroutine_is_cancelled_when_its_lease_is_lost(fake: FakeMongoseal) -> None:
    async def main() -> None:
        async with fake.aio_client() as seal:

            @once_per_tick(seal, "k", tick=lambda: 1)
            async def job(is_lost: bool) -> str:
                if is_lost:
                    await asyncio.to_thread(fake.lose, "k")
                    await asyncio.sleep(600)
                return current_lease().key

            with pytest.raises(LeaseLost):
                await job(True)
            assert (await job(False), await job(False)) == ("k", None)

    asyncio.run(main())


@pytest.mark.night
@pytest.mark.parametrize("name", ["threads", "in_loop", "four"])
def test_each_tick_runs_once_in_several_processes(hosts: Hosts, name: str) -> None:
    if name == "four":
        assert FOUR.is_dir(), f"python -m pip install --target {FOUR} apscheduler==4.0.0a6"
    path = [str(FOUR)] if name == "four" else []
    killed, *_ = [hosts.start(name, *path) for _ in range(4)]
    hosts.noted("end", 3)
    os.kill(killed, signal.SIGKILL)
    lines = hosts.noted("end", 10)
    ticks = [line.tick for line in lines]
    assert ticks == sorted(set(ticks)) and all(tick % 1000 == 0 for tick in ticks)
    assert [line.token for line in lines] == sorted(line.token for line in lines)


@pytest.mark.night
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_another_process_runs_the_tick_of_one_that_is_killed_or_stopped(hosts: Hosts, how: signal.Signals) -> None:
    pids = [hosts.start("slowly") for _ in range(2)]
    [first] = hosts.noted("begin", 1)
    os.kill(first.pid, how)
    second = hosts.noted("begin", 2)[1]
    assert second.pid in pids and second.pid != first.pid and second.token > first.token
    for pid in pids:
        (hosts.folder / f"go {pid}").touch()
    with suppress(ProcessLookupError):
        os.kill(first.pid, signal.SIGCONT)
    if how == signal.SIGSTOP:
        until(lambda: "LeaseLost" in hosts.outputs(), "the loss", LONG)
    hosts.noted("end", 1)
    third = hosts.start("slowly")
    (hosts.folder / f"go {third}").touch()
    hosts.start("threads")
    until(lambda: any(line.tick > 1 for line in hosts.log("end")), "jobs of a later process", LONG)
    assert [line for line in hosts.log("begin", "end") if line.tick == 1] == [first, second, second._replace(what="end")]


@pytest.mark.night
@pytest.mark.parametrize("name", ["leading", "four_leading"])
def test_the_scheduler_of_the_leader_alone_runs_jobs(hosts: Hosts, name: str) -> None:
    path = [str(FOUR)] if name == "four_leading" else []
    for _ in range(3):
        hosts.start(name, *path)
    leaders = []
    for _ in range(3):
        begun = len(hosts.log("job"))
        leaders.append(hosts.noted("job", begun + 1)[begun].pid)
        hosts.noted("job", begun + 5)
        os.kill(leaders[-1], signal.SIGKILL)
        for process in hosts.running:
            if process.pid == leaders[-1]:
                process.wait()
    assert len(set(leaders)) == 3
    assert [pid for pid, _ in itertools.groupby(line.pid for line in hosts.log("job"))] == leaders
