"""Celery: tasks and beats, with published packages. Tests with workers need a replica set and a `redis-server`."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import Retry
from conftest import Server, until

from mongoseal import Held, Invalid, LeaseLost, Mongoseal
from mongoseal.celery import current_lease, exclusive, once_per_tick
from mongoseal.testing import FakeMongoseal

LONG = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
    if not program:
        pytest.fail("put `redis-server` on the PATH, or name it in REDIS_SERVER")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path_factory.mktemp("redis"))],
        stdout=subprocess.DEVNULL,
    )
    uri = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        with suppress(redis.ConnectionError):
            return bool(redis.Redis.from_url(uri).ping())
        return False

    try:
        until(answers, "a broker", LONG)
        yield uri
    finally:
        running.kill()
        running.wait()


class Celeries:
    """An app of `celery_app.py` of one test, and its processes."""

    def __init__(self, server: Server, broker: str, folder: Path) -> None:
        self.server = server
        self.name = f"app{uuid.uuid4().hex[:8]}"
        self.redis = redis.Redis.from_url(broker)
        self.folder = folder
        self.environment = {**server.environment(), "TEST_BROKER": broker, "TEST_APP": self.name}
        self.environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
        self.running: list[subprocess.Popen[bytes]] = []
        self.app = Celery(self.name, broker=broker, backend=broker)
        options = {"global_keyprefix": self.name}
        self.app.conf.update(
            task_default_queue=self.name, broker_transport_options=options, result_backend_transport_options=options
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        # A log for people who look into a failure.
        with open(self.folder / f"celery{len(self.running)}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "celery_app", *arguments, "-l", "INFO"],
                env={**self.environment, **environment}, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        return process

    def worker(self, pool: str = "prefork", *more: str, **environment: str) -> subprocess.Popen[bytes]:
        name = f"w{len(self.running)}@here"
        return self.start("worker", "-P", pool, "-c", "3", "-n", name, "--without-mingle", "--without-gossip", *more, **environment)

    def beat(self, **environment: str) -> subprocess.Popen[bytes]:
        return self.start("beat", "-S", "mongoseal.celery.Scheduler", "--pidfile=", **environment)

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app.send_task(f"tests.{task}", args=args, **options)

    def results(self, *sent: Any) -> list[Any]:
        return [each.get(timeout=LONG) for each in sent]

    def go(self) -> None:
        """Lets the tasks end that wait for that."""
        self.redis.set(f"go {self.name}", 1)

    def log(self, what: str = "") -> list[dict[str, Any]]:
        lines: Any = self.redis.lrange(f"log {self.name}", 0, -1)
        return [line for line in map(json.loads, lines) if what in ("", line["what"])]

    def noted(self, what: str, count: int = 1) -> list[dict[str, Any]]:
        """Waits for what tasks note."""
        until(lambda: len(self.log(what)) >= count, f"{count} times {what!r}: {self.logs()}", LONG)
        return self.log(what)

    def messages(self) -> int:
        """How many messages beats have sent."""
        messages: Any = self.redis.llen(self.name + self.name)
        return int(messages)

    def blocked(self) -> int:
        """How many connections wait for messages."""
        clients: Any = self.redis.info("clients")
        return int(clients["blocked_clients"])

    def ticks(self) -> int:
        """How many ticks the beats have stored."""
        with self.server.client() as seal, seal.acquire(self.name) as lease:
            value = lease.value()
        assert value is not None
        return int(value.content["each second"][0])

    def logs(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in sorted(self.folder.glob("celery*.log")))

    def kill(self) -> None:
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def celeries(server: Server, broker: str, tmp_path: Path) -> Iterator[Celeries]:
    running = Celeries(server, broker, tmp_path)
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def app(seal: Mongoseal) -> Celery:
    """An app that runs its tasks in the process of its caller, on the fake."""
    app = Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=True)
    app.conf.update(task_always_eager=True, task_eager_propagates=True, mongoseal=seal)
    return app


def test_a_task_has_a_lease_while_it_runs_and_none_afterwards(app: Celery, seal: Mongoseal) -> None:
    seen = []

    @app.task
    @exclusive(lambda order, pages=1: f"orders/{order}")
    def pack(order: str, pages: int = 1) -> int:
        seen.append(current_lease().key)
        with pytest.raises(Held):
            seal.acquire("orders/7", wait=0)
        return pages

    assert pack.delay("7", pages=3).get() == 3 and pack("7") == 1
    assert seen == ["orders/7"] * 2
    assert seal.acquire("orders/7", wait=0).release()
    with pytest.raises(LookupError):
        current_lease()
    with pytest.raises(TypeError):  # Celery knows the arguments of the function.
        pack.delay()


def test_a_held_key_skips_a_task_or_retries_it(app: Celery, seal: Mongoseal) -> None:
    ran: list[str] = []
    tried: list[int] = []

    @app.task
    @exclusive("k", if_held="skip")
    def skipped() -> str:
        ran.append("skipped")
        return "ran"

    @app.task(bind=True, max_retries=2, default_retry_delay=0)
    @exclusive(lambda self: tried.append(self.request.retries) or "k")  # type: ignore[func-returns-value]
    def retried(self: Any) -> None:
        ran.append("retried")

    with seal.acquire("k"):
        assert skipped.delay().get() is None
        app.conf.task_eager_propagates = False
        assert isinstance(retried.delay().result, Held)
        with pytest.raises(Held):
            retried()
    assert tried == [0, 1, 2, 0] and not ran
    assert skipped.delay().get() == "ran"


def test_a_tick_runs_until_a_task_succeeds_and_then_no_more(app: Celery) -> None:
    ran = []

    @app.task
    @once_per_tick(lambda number, fails: "batches", tick=lambda number, fails: number)
    def batch(number: int, fails: bool) -> str:
        ran.append(number)
        if fails:
            raise ValueError(number)
        return "ran"

    for _ in range(2):
        with pytest.raises(ValueError):
            batch.delay(4, True)
    assert [batch.delay(4, False).get(), batch.delay(4, False).get(), batch.delay(3, False).get()] == ["ran", None, None]
    assert ran == [4, 4, 4]

    @app.task
    @once_per_tick("k")
    def without_tick() -> None: ...

    with pytest.raises(Invalid):
        without_tick.delay()


def test_a_lost_lease_fails_the_task(app: Celery, fake: FakeMongoseal) -> None:
    @app.task
    @exclusive("k")
    def unaware() -> str:
        fake.lose("k")
        return "done"

    @app.task(autoretry_for=(LeaseLost,), max_retries=1, default_retry_delay=0)
    @exclusive("k")
    def retried() -> str:
        tokens.append(current_lease().token)
        if len(tokens) == 1:
            fake.lose("k")
            current_lease().check()
        return "done"

    tokens: list[int] = []
    with pytest.raises(LeaseLost, match="revoked"):
        unaware.delay()
    with pytest.raises(Retry):
        retried.delay()
    app.conf.task_eager_propagates = False
    tokens.clear()
    assert retried.delay().get() == "done" and tokens == sorted(set(tokens)) and len(tokens) == 2


@pytest.mark.night
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_one_task_runs_at_a_time_and_one_runs_a_tick_over_two_workers(celeries: Celeries, pool: str) -> None:
    for _ in range(2):
        celeries.worker(pool)
    orders = [celeries.send("pack", order) for order in ["a", "b"] * 5]
    reports = [celeries.send("report") for _ in range(8)]
    tokens = celeries.results(*orders)
    assert sorted(map(str, celeries.results(*reports))) == ["None"] * 7 + ["done"]
    assert len(celeries.log("report")) == 1 and len(tokens) == 10
    for order in "ab":
        log = [line for line in celeries.log() if line.get("order") == order]
        assert [line["what"] for line in log] == ["begin", "end"] * 5
        # A later task has a greater token, and each end follows its own begin.
        assert [line["token"] for line in log] == [token for token in sorted({line["token"] for line in log}) for _ in "be"]
    assert len({line["pid"] for line in celeries.log("begin")}) > 1


@pytest.mark.night
def test_children_of_an_opened_worker_share_neither_its_leases_nor_its_program(celeries: Celeries) -> None:
    worker = celeries.worker(OPEN_IN_PARENT="1")
    parent = celeries.noted("parent")[0]["owner"]
    sent = [celeries.send("pack", f"{number}", kwargs={"until": "go"}) for number in range(3)]
    begun = celeries.noted("begin", 3)
    assert {line["parent"] for line in begun} == {"forked"}
    assert len({line["owner"] for line in begun} | {parent}) == 4
    with celeries.server.client() as seal:
        with pytest.raises(Held):
            seal.acquire("parent", wait=0)
        celeries.go()
        celeries.results(*sent)
        worker.terminate()
        worker.wait(LONG)
        # With a pipe in a child, the lease would last.
        assert seal.acquire("parent", wait=LONG).release()


@pytest.mark.night
def test_a_killed_child_releases_its_lease_and_its_message_runs_again(celeries: Celeries) -> None:
    celeries.worker()
    sent = celeries.send("pack_again", "a")
    [begun] = celeries.noted("begin")
    os.kill(begun["pid"], signal.SIGKILL)
    again = celeries.noted("begin", 2)[1]
    assert again["pid"] != begun["pid"] and again["token"] > begun["token"]
    celeries.go()
    assert celeries.results(sent) == [again["token"]]
    assert [line["what"] for line in celeries.log()] == ["begin", "begin", "end"]


@pytest.mark.night
def test_a_killed_worker_releases_its_leases_to_the_next_task(celeries: Celeries) -> None:
    worker = celeries.worker()
    celeries.send("pack", "a", kwargs={"until": "never"})
    celeries.send("slow_report", 1)
    celeries.noted("begin"), celeries.noted("report")
    os.killpg(worker.pid, signal.SIGKILL)
    # Redis would give a message to the connection of the dead worker, of which only its redelivery would tell.
    until(lambda: not celeries.blocked(), "the end of the connection of the dead worker", LONG)
    celeries.worker()
    sent = [celeries.send("pack", "a"), celeries.send("slow_report", 1), celeries.send("slow_report", 1)]
    celeries.noted("report", 2)
    celeries.go()
    assert sorted(map(str, celeries.results(*sent)[1:])) == ["None", "done"]
    assert len(celeries.log("end")) == 1 and len(celeries.log("report")) == 2


@pytest.mark.night
@pytest.mark.parametrize("how", ["time_limit", "soft_time_limit", "revoke", "lost"])
def test_a_task_that_is_ended_leaves_its_key_free_and_its_tick_open(celeries: Celeries, how: str) -> None:
    celeries.worker()
    limit = {how: 10} if how.endswith("limit") else {}
    pause, number = ("lost", -1) if how == "lost" else ("go", 1)
    ended = [celeries.send("pack", "a", kwargs={"until": pause}, **limit), celeries.send("slow_report", number, **limit)]
    celeries.noted("begin"), celeries.noted("report")
    if how == "revoke":
        celeries.app.control.revoke([each.id for each in ended], terminate=True)
    if how == "lost":
        for key in ("orders/a", "slow report"):
            celeries.server.run("revoke", key, "--yes", "--reason", "a test")
    errors = []
    for each in ended:
        with pytest.raises(Exception) as error:
            each.get(timeout=LONG)
        errors.append(type(error.value).__name__)
    if how in ("time_limit", "revoke"):
        # The parent tells of it before the child is killed.
        pids = [line["pid"] for line in celeries.log("begin") + celeries.log("report")]
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the end of the children", LONG)
    names = {"time_limit": "TimeLimitExceeded", "soft_time_limit": "SoftTimeLimitExceeded", "revoke": "TaskRevokedError"}
    assert errors == [names.get(how, "LeaseLost")] * 2
    assert not celeries.log("end")
    celeries.go()
    later = celeries.results(celeries.send("pack", "a"), celeries.send("slow_report", 1), celeries.send("slow_report", 1))
    assert later[0] > celeries.log("begin")[0]["token"] and sorted(map(str, later[1:])) == ["None", "done"]


@pytest.mark.night
def test_a_task_that_retries_leaves_its_tick_open_until_it_succeeds(celeries: Celeries) -> None:
    celeries.worker()
    sent = [celeries.send("report", 2) for _ in range(3)]
    assert sorted(map(str, celeries.results(*sent))) == ["None", "None", "done"]
    # Each of the three runs with two retries, unless the tick is completed before.
    assert 3 <= len(celeries.log("report")) <= 7


def run_on(celeries: Celeries, count: int) -> None:
    """Waits for some more messages."""
    begin = celeries.messages()
    until(lambda: celeries.messages() >= begin + count, f"{count} more messages: {celeries.logs()}", LONG)


@pytest.mark.night
def test_of_two_beats_one_sends_and_the_other_takes_over_when_it_is_asked_to_end(celeries: Celeries) -> None:
    never = "kill@before:1000000"
    beats = {beat.pid: beat for beat in (celeries.beat(FAULT=never), celeries.beat(FAULT=never))}
    run_on(celeries, 4)
    first = beats.pop(celeries.noted("sent")[0]["pid"])
    first.terminate()
    assert first.wait(LONG) == 0
    run_on(celeries, 2)
    [second] = beats.values()
    second.terminate()
    assert second.wait(LONG) == 0
    # None leads, and a later one goes on.
    third = celeries.beat(FAULT="stop@before:3")
    celeries.noted("stop")
    senders = [pid for pid, _ in itertools.groupby(line["pid"] for line in celeries.log("sent"))]
    assert senders == [first.pid, second.pid, third.pid]
    celeries.kill()
    # One that was asked to end between a message and its note repeats that.
    assert celeries.ticks() <= celeries.messages() <= celeries.ticks() + 2


@pytest.mark.night
@pytest.mark.parametrize(("when", "messages"), [("before", 6), ("after", 7)])
def test_a_tick_is_sent_at_least_once_if_the_leader_is_killed(celeries: Celeries, when: str, messages: int) -> None:
    killed = celeries.beat(FAULT=f"kill@{when}:3")
    run_on(celeries, 1)
    celeries.beat(FAULT="stop@before:5")
    assert killed.wait(LONG) == -signal.SIGKILL
    celeries.noted("stop")
    celeries.kill()
    assert (celeries.ticks(), celeries.messages()) == (6, messages)


@pytest.mark.night
def test_a_leader_that_was_stopped_sends_its_message_late_and_then_no_more(celeries: Celeries) -> None:
    stopped = celeries.beat(FAULT="stop@before:3")
    celeries.noted("stop")
    second = celeries.beat(FAULT="stop@before:12")
    celeries.noted("sent", 4)
    stopped.send_signal(signal.SIGCONT)
    celeries.noted("stop", 2)
    log = [line for line in celeries.log() if line["what"] in ("sent", "stop")]
    end = [line["what"] for line in log].index("stop", 3)
    senders = [line["pid"] for line in log[:end] if line["what"] == "sent"]
    late = len(senders) - 1 - senders[::-1].index(stopped.pid)
    assert senders[:2] + senders[late : late + 1] == [stopped.pid] * 3
    assert senders[2:late] + senders[late + 1 :] == [second.pid] * 11 and late < len(senders) - 1


@pytest.mark.night
def test_a_beat_with_a_wrong_clock_sends_the_same_messages(celeries: Celeries) -> None:
    for number, wrong in enumerate(["", "1", ""], 1):
        celeries.beat(WRONG_CLOCK=wrong, FAULT="stop@before:4")
        celeries.noted("stop", number)
        celeries.kill()
        assert (celeries.ticks(), celeries.messages()) == (3 * number, 3 * number)
