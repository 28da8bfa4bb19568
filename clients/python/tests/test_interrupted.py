"""Code that runs in the middle of other code: signal handlers, Ctrl-C, finalizers, and the end of the interpreter."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import queue
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import run_of, until

from mongoseal import Invalid, Mongoseal, Unavailable
from mongoseal.testing import FakeMongoseal


@contextmanager
def on_alarm(handler: Callable[[], object]) -> Iterator[None]:
    """Runs a handler of SIGALRM until the end of the body."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def used(fake: FakeMongoseal) -> list[str]:
    """The keys that have a holder or a waiter."""
    return [key for key, state in list(fake._keys.items()) if state.holders or state.queue]


@pytest.mark.parametrize("rounds", [300, pytest.param(10_000, marks=pytest.mark.night)])
def test_a_signal_handler_can_use_leases_in_the_middle_of_any_call(
    fake: FakeMongoseal, seal: Mongoseal, rounds: int
) -> None:
    lease = seal.acquire("k")
    handled = 0

    def handle() -> None:
        nonlocal handled
        lease.progress()
        assert lease.is_valid and lease.value() is None
        seal.acquire(f"handler {handled % 7}").release()
        handled += 1
        signal.setitimer(signal.ITIMER_REAL, 0.001)

    with on_alarm(handle):
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        for number in range(rounds):
            lease.progress()
            seal.acquire(f"k{number % 7}").release()
    assert handled > 10
    assert used(fake) == ["k"]
    assert list(run_of(seal).leases.values()) == [lease._state]


@pytest.mark.parametrize("rounds", [500, pytest.param(5_000, marks=pytest.mark.night)])
def test_no_key_stays_held_after_a_ctrl_c_at_any_moment(fake: FakeMongoseal, seal: Mongoseal, rounds: int) -> None:
    moments = random.Random(rounds)
    is_armed = False
    interrupted = 0

    def interrupt() -> None:
        nonlocal is_armed, interrupted
        if is_armed:
            is_armed = False
            interrupted += 1
            raise KeyboardInterrupt

    def use(number: int) -> None:
        nonlocal is_armed
        try:
            is_armed = True
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00001, 0.0015))
            if number % 3 == 0:
                with seal.acquire(f"k{number % 50}", on_lost=lambda _: None) as lease:
                    lease.progress()
            elif number % 3 == 1:
                lease = seal.acquire(f"k{number % 50}")
                lease.verify()
                lease.release()
            else:
                with seal.once(f"k{number % 50}", tick=number), seal.observe(f"k{number % 50}") as leaders:
                    next(leaders)
            is_armed = False
        except KeyboardInterrupt:
            pass
        finally:
            is_armed = False

    with on_alarm(interrupt):
        for number in range(rounds):
            use(number)
    assert interrupted > rounds / 10
    until(lambda: not used(fake) and not run_of(seal).leases, "the end of all leases")
    assert not run_of(seal)._observations


def test_a_release_in_a_signal_handler_ends_in_the_middle_of_other_calls(seal: Mongoseal) -> None:
    for number in range(200):
        lease = seal.acquire(f"k{number}")
        confirmed: list[bool] = []
        with on_alarm(lambda: confirmed.append(lease.release())):
            signal.setitimer(signal.ITIMER_REAL, 0.0002 + number / 100_000)
            while not confirmed:
                if lease.is_valid:
                    seal.acquire("other").release()
        assert confirmed == [True]


def test_a_lease_to_which_nothing_refers_is_released_with_a_warning(
    fake: FakeMongoseal, seal: Mongoseal, caplog: pytest.LogCaptureFixture
) -> None:
    kept = seal.acquire("kept")
    dropped = seal.acquire("dropped", on_lost=lambda _: pytest.fail("it was not lost"))
    del dropped
    until(lambda: used(fake) == ["kept"], "the release")
    until(lambda: caplog.messages, "the warning")
    assert ["'dropped'" in message for message in caplog.messages] == [True]
    leaders = seal.observe("election")
    del leaders
    until(lambda: not fake._keys["election"].observers, "the end of the observation")
    # What was refused before it was sent has no lease to release.
    with pytest.raises(Invalid):
        seal.acquire("k", metadata={"for": "x" * 600_000})
    kept.verify()


def test_a_finalizer_on_a_thread_of_the_client_does_not_wait(fake: FakeMongoseal, seal: Mongoseal) -> None:
    lease = seal.acquire("k")
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()

    class Finalized:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            try:
                lease.value()
            except Unavailable as error:
                seen.put(str(error))
            seen.put(lease.release())

    Finalized()
    seal._client.put(gc.collect)
    assert "finalizer" in str(seen.get(timeout=5)) and seen.get(timeout=5) is False
    until(lambda: not used(fake), "the release")


def test_a_child_of_code_that_does_not_run_the_handlers_of_python_is_told(seal: Mongoseal) -> None:
    lease = seal.acquire("k")
    # `PyDLL` keeps the interpreter locked, as code in C does that forks.
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        signal.alarm(10)
        try:
            seal.acquire("k")
        except Invalid as error:
            os._exit(0 if "lazy-apps" in str(error) and lease.cause == "forked" else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    lease.verify()


PROGRAM = f"""#!{sys.executable}
import json, sys, time
def say(**event): print(json.dumps(event), flush=True)
say(event="ready", protocol=1, version="0.1.0", owner="o", started_ms=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000) + 1)
for line in sys.stdin:
    request = json.loads(line)
    about = {{"id": request["id"], "lease": request.get("lease", request["id"])}}
    if request["do"] == "acquire":
        say(event="granted", **about, key=request["key"], owner="o", token=7, deadline_ms=2**50)
    elif request["do"] == "release":
        say(event="released", **about, confirmed=True)
    else:
        say(event="value", **about, value=None)
open(sys.argv[0] + ".ended", "w").close()
"""

HOST = """
import atexit, contextlib, signal, sys, threading
from mongoseal import Mongoseal
seal = Mongoseal()

def generator():
    with seal.acquire("k") as lease:
        yield lease

@contextlib.contextmanager
def context():
    with seal.acquire("k") as lease:
        try:
            yield lease
        finally:
            lease.put_value(1)

class Finalized:
    def __init__(self, call):
        self.lease, self.call = seal.acquire("k"), call
    def __del__(self):
        self.call(self.lease)

calls = {
    "release": lambda lease: lease.release(),
    "value": lambda lease: lease.value(),
    "verify": lambda lease: lease.verify(),
    "acquire": lambda lease: seal.acquire("other"),
    "close": lambda lease: seal.close(),
    "wait_lost": lambda lease: lease.wait_lost(),
    "leaders": lambda lease: list(seal.observe("k")),
}
kind, call = sys.argv[1:]
if kind == "generator":
    kept = generator()
    next(kept)
elif kind == "context":
    kept = context()
    kept.__enter__()
elif kind == "finalizer":
    kept = Finalized(calls[call])
elif kind == "cycle":
    kept = Finalized(calls[call])
    kept.itself = kept
elif kind == "atexit":
    atexit.register(calls[call], seal.acquire("k"))
elif kind == "daemon":
    lease = seal.acquire("k")
    threading.Thread(target=calls[call], args=(lease,), daemon=True).start()
"""

CALLS = ("release", "value", "acquire", "verify", "close", "wait_lost", "leaders")
EXITS: list[Any] = [("generator", "-"), ("context", "-"), ("atexit", "value"), ("daemon", "wait_lost")]
EXITS += [("finalizer", call) for call in CALLS[:3]]
EXITS += [pytest.param("finalizer", call, marks=pytest.mark.night) for call in CALLS[3:]]
EXITS += [pytest.param("cycle", call, marks=pytest.mark.night) for call in CALLS]


@pytest.mark.parametrize(("kind", "call"), EXITS)
def test_the_interpreter_ends_whatever_uses_a_lease_at_its_end(tmp_path: Path, kind: str, call: str) -> None:
    program = tmp_path / "mongoseal"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environment = {**os.environ, "MONGOSEAL_PROGRAM": str(program), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", HOST, kind, call], env=environment, timeout=20)
    assert ended.returncode == 0
    until((tmp_path / "mongoseal.ended").exists, "the end of the program, which releases the leases")
