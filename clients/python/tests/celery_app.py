"""The tasks of `test_celery.py`, for workers and beats in processes of their own.

Each task notes what it does in the list `log` of Redis. A process takes faults from its environment: `FAULT=kill@before:3`
kills a beat before it sends its third message, `stop` stops it, and `after` is after that. Such a
beat also notes each message.
"""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import datetime, timedelta
from typing import Any

import redis
from celery import Celery, signals

from mongoseal import Mongoseal
from mongoseal.celery import current_lease, exclusive, once_per_tick

BROKER = os.environ.get("TEST_BROKER", "memory://")
NAME = os.environ.get("TEST_APP", "app")

app = Celery(NAME, broker=BROKER, backend=BROKER if BROKER.startswith("redis") else "cache+memory://")
app.conf.update(
    task_default_queue=NAME,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"global_keyprefix": NAME, "visibility_timeout": 3600},
    result_backend_transport_options={"global_keyprefix": NAME},
    result_expires=None,
    task_default_retry_delay=0,
    worker_prefetch_multiplier=1,
    beat_max_loop_interval=1,
    mongoseal_beat={"ttl": 2, "stalled_after": 2, "key": NAME},
    beat_schedule={"each second": {"task": "tests.tick", "schedule": 1.0}},
)
RETRY: Any = {"default_retry_delay": 0.1, "max_retries": None}


def note(what: str, **more: Any) -> None:
    with redis.Redis.from_url(BROKER) as server:
        server.rpush(f"log {NAME}", json.dumps({"what": what, "pid": os.getpid(), **more}))


def wait_for(name: str) -> None:
    """Waits until a test sets a key of Redis."""
    with redis.Redis.from_url(BROKER) as server:
        while not server.exists(f"{name} {NAME}"):
            time.sleep(0.02)


@app.task(name="tests.pack", **RETRY)
@exclusive(lambda order, **_: f"orders/{order}", ttl=20)
def pack(order: str, until: str = "") -> int:
    lease = current_lease()
    note("begin", order=order, token=lease.token, owner=lease.owner, parent=_parent.cause if _parent else None)
    time.sleep(0.02)
    if until == "lost":
        lease.wait_lost()
    elif until:
        wait_for(until)
    lease.check()
    note("end", order=order, token=lease.token)
    return lease.token


@app.task(name="tests.pack_again", acks_late=True, reject_on_worker_lost=True, **RETRY)
@exclusive(lambda order, **_: f"orders/{order}", ttl=20)
def pack_again(order: str) -> int:
    note("begin", order=order, token=current_lease().token)
    wait_for("go")
    note("end", order=order, token=current_lease().token)
    return current_lease().token


@app.task(name="tests.report", bind=True, **RETRY)
@once_per_tick("report", every=timedelta(days=3650), ttl=20)
def report(self: Any, fail: int = 0) -> str:
    note("report", token=current_lease().token)
    if self.request.retries < fail:
        raise self.retry()
    return "done"


@app.task(name="tests.slow_report", **RETRY)
@once_per_tick(lambda number: "slow report", tick=lambda number: abs(number), ttl=20)
def slow_report(number: int) -> str:
    """With a negative number, waits for the loss of its lease."""
    note("report", token=current_lease().token)
    if number < 0:
        current_lease().wait_lost()
    else:
        wait_for("go")
    return "done"


@app.task(name="tests.tick")
def tick() -> None:
    """Is sent by a beat, and not run: the tests count the messages."""


_parent: Any = None

if os.environ.get("OPEN_IN_PARENT"):

    @signals.worker_init.connect
    def open_in_parent(**_: Any) -> None:
        global _parent
        app.conf.mongoseal = Mongoseal()
        _parent = app.conf.mongoseal.acquire("parent")
        note("parent", owner=_parent.owner)


if os.environ.get("WRONG_CLOCK"):
    _right = app.now

    def wrong() -> datetime:
        return _right() + timedelta(days=365)

    app.now = wrong  # type: ignore[method-assign]

_fault, _, _at = os.environ.get("FAULT", "").partition("@")
_when, _, _number = _at.partition(":")
_sent = 0


def fault(**_: Any) -> None:
    global _sent
    _sent += 1
    if _sent == int(_number):
        note(_fault)
        os.kill(os.getpid(), signal.SIGKILL if _fault == "kill" else signal.SIGSTOP)


def sent(**_: Any) -> None:
    note("sent")


if _fault:
    signals.after_task_publish.connect(sent)
    (signals.before_task_publish if _when == "before" else signals.after_task_publish).connect(fault)
