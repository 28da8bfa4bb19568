"""How the program is found and started, and what a program that does not fit leads to. Scripts play the program."""

from __future__ import annotations

import asyncio
import json
import math
import os
import queue
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import program_pid, run_of, until

from mongoseal import Invalid, LeaseLost, Mongoseal, ProgramError, TickLease, Unavailable, aio
from mongoseal._program import Process, find

READY = {"event": "ready", "protocol": 1, "version": "0.1.0", "owner": "web-1", "started_ms": "STARTED"}


STARTED = "STARTED = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) + 1"


def script(directory: Path, *lines: str) -> Path:
    """Makes a program of some lines of Python."""
    path = directory / "mongoseal"
    path.write_text("\n".join([f"#!{sys.executable}", "import json, os, sys, time", STARTED, *lines, ""]))
    path.chmod(0o755)
    return path


def told(path: Path) -> Any:
    """Waits until a program has written JSON to this file, and returns it."""
    until(lambda: path.exists() and path.read_text(), f"the program writes {path.name}")
    return json.loads(path.read_text())


def says(*events: object) -> str:
    lines = (json.dumps(json.dumps(event)) for event in events)
    return "\n".join(f"print({line}.replace('\"STARTED\"', str(STARTED)), flush=True)" for line in lines)


def test_a_program_that_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MONGOSEAL_PROGRAM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with Mongoseal() as seal:
        for _ in range(2):
            with pytest.raises(ProgramError, match="install the wheel"):
                seal.acquire("k")
    with Mongoseal(program=tmp_path / "missing") as seal, pytest.raises(ProgramError, match="missing"):
        seal.acquire("k")


def test_a_program_is_found_by_argument_variable_package_and_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("argument", "variable", "package", "path")}
    for directory in places.values():
        directory.mkdir()
        script(directory)
    found = {name: str(directory / "mongoseal") for name, directory in places.items()}
    monkeypatch.setenv("MONGOSEAL_PROGRAM", found["variable"])
    monkeypatch.setenv("PATH", str(places["path"]))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(places["package"]))
    assert find(found["argument"]) == found["argument"]
    assert find("mongoseal") == found["path"]
    assert find() == found["variable"]
    monkeypatch.delenv("MONGOSEAL_PROGRAM")
    assert find() == found["package"]
    (places["package"] / "mongoseal").unlink()
    assert find() == found["path"]


def test_the_connection_string_is_in_the_environment_and_options_are_arguments(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    program = script(
        tmp_path,
        f"seen = {{'arguments': sys.argv[1:], 'uri': os.environ.get('MONGOSEAL_URI'), 'group': os.getpgrp()}}",
        f"open({str(seen)!r}, 'w').write(json.dumps(seen))",
        says(READY),
        "sys.stdin.read()",
    )
    with Mongoseal("mongodb://secret@db", db="d", owner="-o", timeout=0.25, program=program) as seal:
        threading.Thread(target=lambda: pytest.raises(Exception, seal.acquire, "k"), daemon=True).start()
        started = told(seen)
    assert started["arguments"] == ["hold", "--db=d", "--owner=-o", "--timeout=250ms"]
    assert started["uri"] == "mongodb://secret@db"
    assert started["group"] != os.getpgrp()


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        (["sys.exit(125)"], ProgramError, "standard error"),
        (["os.kill(os.getpid(), 9)"], Unavailable, "-9"),
        (["print('hello')", "sys.stdin.read()"], ProgramError, "do not understand"),
        ([says({**READY, "protocol": 2}), "sys.stdin.read()"], ProgramError, "protocol 2"),
        ([says({**READY, "started_ms": None}), "sys.stdin.read()"], ProgramError, "started_ms"),
        ([says({"event": "error", "code": "unavailable", "message": "no server"})], Unavailable, "no server"),
        (["os.close(1)", "time.sleep(60)"], Unavailable, "has ended"),
    ],
    ids=["arguments", "killed", "no event", "protocol", "no clock", "no server", "output closed"],
)
def test_a_program_that_does_not_serve_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], error: type[Exception], message: str
) -> None:
    monkeypatch.setattr("mongoseal._run._EXIT_SECONDS", 0.5)
    with Mongoseal(program=script(tmp_path, *lines)) as seal:
        for _ in range(2):
            with pytest.raises(error, match=message):
                seal.acquire("k")


def test_a_file_that_is_no_program_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "mongoseal"
    program.write_bytes(b"\0\1\2")
    program.chmod(0o755)
    descriptors = len(os.listdir("/proc/self/fd"))
    with Mongoseal(program=program) as seal, pytest.raises(ProgramError, match="cannot start"):
        seal.acquire("k")
    assert len(os.listdir("/proc/self/fd")) == descriptors


GRANTED = {"event": "granted", "id": 1, "lease": 1, "key": "k", "owner": "o", "token": 7, "deadline_ms": 2**50}
GRANTS = (says(READY), "sys.stdin.readline()", says(GRANTED))


def grants_for(milliseconds: int) -> tuple[str, ...]:
    """Lines that grant a lease for so long."""
    now = "int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)"
    granted = f"{GRANTED} | {{'deadline_ms': {now} + {milliseconds}}}"
    return (says(READY), "sys.stdin.readline()", f"print(json.dumps({granted}), flush=True)")


def test_a_program_that_does_not_answer_is_not_waited_for_without_end(tmp_path: Path) -> None:
    granted = {**GRANTED, "tick": 7}
    program = script(tmp_path, says(READY), "sys.stdin.readline()", says(granted), "sys.stdin.read()")
    with Mongoseal(program=program) as seal:
        lease = seal.acquire("k")
        seal._client.patience = 0.2
        assert lease.release() is False
        seal._client.patience = 5
    with Mongoseal(program=program) as seal:
        tick = seal.once("k", tick=7)
        assert isinstance(tick, TickLease)
        seal._client.patience = 0.2
        with pytest.raises(Unavailable, match="stopped"):
            tick.complete()
        seal._client.patience = 5

    async def main() -> None:
        async with aio.Mongoseal(program=program) as seal:
            lease = await seal.acquire("k")
            seal._client.patience = 0.2
            assert await lease.release() is False
            seal._client.patience = 5

    asyncio.run(main())


def test_an_end_that_is_refused_when_nobody_waits_for_it_any_more_releases_the_lease(tmp_path: Path) -> None:
    seen, given_up = tmp_path / "seen", tmp_path / "given up"
    refused = {"event": "error", "id": 2, "lease": 1, "code": "invalid", "message": "the value is refused"}
    program = script(
        tmp_path, *GRANTS, "sys.stdin.readline()",
        f"while not os.path.exists({str(given_up)!r}): time.sleep(0.01)", says(refused),
        f"open({str(seen)!r}, 'w').write(sys.stdin.readline())", "sys.stdin.read()",
    )  # fmt: skip
    with Mongoseal(program=program) as seal:
        lease = seal.acquire("k")
        seal._client.patience = 0.2
        assert lease.release(value="x") is False
        given_up.touch()
        seal._client.patience = 5
        assert told(seen) == {"id": 3, "do": "release", "lease": 1}
        assert lease.cause == "released"


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
def test_the_deadline_of_a_program_with_another_clock_counts_from_the_start_of_the_program(
    tmp_path: Path, ahead_ms: int
) -> None:
    program = script(
        tmp_path,
        f"STARTED += {ahead_ms}",
        # `ready` and `granted` come late: what counts is when the program was started.
        "time.sleep(1)",
        says(READY),
        "line = json.loads(sys.stdin.readline())",
        f"granted = {GRANTED} | {{'deadline_ms': STARTED + 30_000}}",
        "print(json.dumps(granted), flush=True)",
        "sys.stdin.read()",
    )
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    with Mongoseal(program=program) as seal:
        lease = seal.acquire("k")
        waited = time.clock_gettime(time.CLOCK_BOOTTIME) - began
        assert waited >= 1
        assert lease.is_valid
        assert 0 < lease.remaining <= 30.002 - waited + 0.5, "no later than the program means"
        run_of(seal)._take({"event": "at_risk", "lease": 1, "deadline_ms": 2**50})
        assert lease.remaining == math.inf, "a lease without an expiry has none on any clock"


def test_a_lease_that_expires_here_is_released_there(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    program = script(
        tmp_path, *grants_for(200), f"open({str(seen)!r}, 'w').write(sys.stdin.readline())", "sys.stdin.read()"
    )
    with Mongoseal(program=program) as seal:
        lease = seal.acquire("k")
        assert told(seen) == {"id": 2, "do": "release", "lease": 1}
        assert lease.cause == "expired"
        with pytest.raises(LeaseLost):
            lease.release()


def test_a_request_that_is_larger_than_the_pipe_is_written_while_the_program_reads(tmp_path: Path) -> None:
    put = {"event": "value_put", "id": 2, "lease": 1}
    program = script(
        tmp_path, *GRANTS, "time.sleep(0.2)", "sys.stdin.readline()", says(put),
        "sys.stdin.read()",
    )  # fmt: skip
    with Mongoseal(program=program) as seal:
        seal.acquire("k").put_value("x" * 500_000)


def test_a_fork_waits_for_the_start_of_a_program_whose_pipe_it_would_inherit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = script(tmp_path, *GRANTS, "sys.stdin.read()")
    begun = threading.Event()
    descriptors: list[int] = []

    class SlowProcess(Process):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            descriptors.extend([self.input, self.output])
            begun.set()
            time.sleep(0.3)

    monkeypatch.setattr("mongoseal._program.Process", SlowProcess)
    with Mongoseal(program=program) as seal:
        thread = threading.Thread(target=seal.acquire, args=("k",))
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            links = [os.path.exists(f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
            os._exit(1 if any(links) else 0)
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        assert len(descriptors) == 2


def test_requests_that_a_stopped_program_does_not_read_are_bounded(tmp_path: Path) -> None:
    program = script(tmp_path, *GRANTS, "time.sleep(60)")
    seal = Mongoseal(program=program)
    lease = seal.acquire("k")
    answers: queue.SimpleQueue[object] = queue.SimpleQueue()
    for _ in range(100):
        seal._client.ask(lease._state, "put_value", {"value": "x" * 500_000}, answers.put)
    refused = answers.get(timeout=5)
    assert isinstance(refused, Unavailable) and "does not read" in str(refused)
    assert lease.is_valid
    seal._client.patience = 0.2
    assert seal.close() is False
    with pytest.raises(LeaseLost, match="closed"):
        lease.check()


def test_a_client_that_is_closed_leaves_neither_descriptor_nor_thread(tmp_path: Path) -> None:
    def used() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    program = script(tmp_path, *GRANTS, "sys.stdin.read()")
    before = used()
    for _ in range(3):
        with Mongoseal(program=program) as seal:
            seal.acquire("k", on_lost=lambda _: None)
    until(lambda: all(now <= then for now, then in zip(used(), before)), f"as few descriptors and threads as {before}")


def test_a_client_can_be_started_before_its_first_request(tmp_path: Path) -> None:
    with Mongoseal(program=script(tmp_path, says(READY), "sys.stdin.read()")) as seal:
        seal.start()
        pid = program_pid(seal)
        seal.start()
        assert program_pid(seal) == pid
    with pytest.raises(Invalid):
        seal.start()
    refused = script(tmp_path, says({"event": "error", "code": "unavailable", "message": "no server"}), "sys.exit(123)")

    async def main() -> None:
        async with aio.Mongoseal(program=refused) as seal:
            with pytest.raises(Unavailable, match="no server"):
                await seal.start()

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        *({"ttl": ttl} for ttl in (-1, math.inf, math.nan, "5s")),
        *({"metadata": {"n": value}} for value in (2**64, 2 * 10**308, "\ud800")),
        {"shared": 2**70},
    ],
    ids=range(8),
)
def test_what_a_request_cannot_carry_is_refused_before_it_is_sent(tmp_path: Path, options: dict[str, Any]) -> None:
    with Mongoseal(program=script(tmp_path, says(READY), "sys.stdin.read()")) as seal:
        seal.start()
        with pytest.raises(Invalid):
            seal.acquire("k", **options)
        deep: Any = {}
        for _ in range(120):
            deep = {"deep": deep}
        with pytest.raises(Invalid, match="flatter"):
            seal.acquire("k", metadata=deep)
        with pytest.raises(Invalid):
            seal.acquire("\ud800")


@pytest.mark.parametrize("options", [{"owner": "a\0b"}, {"db": "\ud800"}, {"uri": "mongodb://x\0"}])
def test_what_the_system_refuses_at_the_start_is_an_error(tmp_path: Path, options: dict[str, Any]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with Mongoseal(program=script(tmp_path), **options) as seal, pytest.raises(ProgramError, match="cannot be started"):
        seal.acquire("k")
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_process_without_a_descriptor_gets_an_error_and_can_retry(tmp_path: Path) -> None:
    program = script(tmp_path, *GRANTS, "sys.stdin.read()")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Mongoseal(program=program) as seal:
        descriptors = len(os.listdir("/proc/self/fd"))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors + 2, limits[1]))
            with pytest.raises(Unavailable, match="Too many open files"):
                seal.acquire("k")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert seal.acquire("k").token == 7


def test_a_process_without_a_thread_gets_errors_and_loses_no_other_lease(
    seal: Mongoseal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: queue.SimpleQueue[object] = queue.SimpleQueue()
    kept, dropped, ended = seal.acquire("kept"), seal.acquire("dropped"), seal.acquire("ended", on_lost=lost.put)

    def begin_no_thread(*_: object) -> None:
        raise Unavailable("no thread can be started")

    monkeypatch.setattr("mongoseal._run.begin_thread", begin_no_thread)
    monkeypatch.setattr("mongoseal._client.begin_thread", begin_no_thread)
    del dropped
    seal._client.put(lambda: ended._state.run._lose(ended._state, "revoked"))
    assert ended.wait_lost(5) == "revoked"
    kept.verify()
    monkeypatch.undo()
    seal.acquire("again", on_lost=lost.put)
    until(lambda: not lost.empty(), "the callback that had no thread")
    kept.verify()


def test_a_program_behind_a_script_is_ended_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    # It is written before the client has a reason to end the program.
    written = f"with open({str(pid)!r}, 'w') as file: file.write(str(os.getpid()))"
    script(tmp_path, written, says({**READY, "protocol": 2}), "time.sleep(60)")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f"#!/bin/sh\n{tmp_path / 'mongoseal'}\nexit\n")
    wrapper.chmod(0o755)
    with Mongoseal(program=wrapper) as seal:
        with pytest.raises(ProgramError, match="protocol 2"):
            seal.acquire("k")
    until(lambda: not os.path.exists(f"/proc/{pid.read_text()}"), "the end of the program behind the script")


@pytest.mark.night
def test_an_end_that_is_refused_after_the_deadline_releases_the_lease(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    refused = {"event": "error", "id": 2, "lease": 1, "code": "invalid", "message": "the value is refused"}
    program = script(
        tmp_path, *grants_for(2_000), "sys.stdin.readline()", "time.sleep(2.5)", says(refused),
        f"open({str(seen)!r}, 'w').write(sys.stdin.readline())", "sys.stdin.read()",
    )  # fmt: skip
    with Mongoseal(program=program) as seal:
        assert seal.acquire("k").release(value="x") is False
        assert told(seen) == {"id": 3, "do": "release", "lease": 1}


def test_a_lease_that_the_program_has_lost_is_not_believed_again_after_a_refused_end(tmp_path: Path) -> None:
    lost = {"event": "error", "id": 2, "lease": 1, "code": "lost", "message": "it is lost"}
    busy = {"event": "error", "id": 3, "lease": 1, "code": "busy", "message": "later"}
    program = script(
        tmp_path, *GRANTS, "sys.stdin.readline()", says(lost),
        "sys.stdin.readline()", says(busy), "sys.stdin.read()",
    )  # fmt: skip
    with Mongoseal(program=program) as seal:
        lease = seal.acquire("k")
        with pytest.raises(LeaseLost):
            lease.verify()
        with pytest.raises(Unavailable):
            lease.release()
        assert not lease.is_valid


def test_a_very_long_timeout_is_a_long_one(tmp_path: Path) -> None:
    program = script(tmp_path, *GRANTS, "sys.stdin.read()")
    with Mongoseal(program=program, timeout=1e11) as seal:
        assert seal.acquire("k").token == 7
