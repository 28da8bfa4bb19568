"""Processes with schedulers, for `test_apscheduler.py`: apscheduler_hosts.py NAME FOLDER.

Each appends lines to the file `log` of the folder: what it does, its process id, the tick and the token.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mongoseal import Mongoseal, TickLease, aio
from mongoseal.apscheduler import current_lease, lead, once_per_tick

FOLDER = Path(sys.argv[2])
seal = Mongoseal()
aio_seal = aio.Mongoseal()


def note(what: str) -> None:
    lease: Any = current_lease() if what != "job" else None
    line = f"{what} {os.getpid()} {lease.tick if lease else 0} {lease.token if lease else 0}\n"
    # One write to the end, so that the lines of several processes do not mix.
    log = os.open(FOLDER / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, line.encode())
    os.close(log)


@once_per_tick(seal, "each second", every=1)
def each_second() -> None:
    note("end")


@once_per_tick(aio_seal, "each second", every=1)
async def each_second_async() -> None:
    note("end")


@once_per_tick(seal, "slow", tick=lambda: 1, ttl=2, stalled_after=2, wait=600)
def slow() -> None:
    note("begin")
    while not (FOLDER / f"go {os.getpid()}").exists():
        time.sleep(0.01)
    current_lease().check()
    note("end")


@once_per_tick(seal, "scheduled")
def scheduled() -> None:
    assert isinstance(current_lease(), TickLease)
    note("end")


@once_per_tick(aio_seal, "scheduled")
async def scheduled_async() -> None:
    note("end")


def unlocked() -> None:
    note("job")


def run(job: Any, trigger: str, **options: Any) -> None:
    """Runs a job on APScheduler 3, in the background."""
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler(timezone=timezone.utc, job_defaults={"misfire_grace_time": None})
    scheduler.add_job(job, trigger, **options)
    scheduler.start()
    time.sleep(600)


def threads() -> None:
    run(each_second, "cron", second="*")


def slowly() -> None:
    run(slow, "date", run_date=datetime.now(timezone.utc))


def leading() -> None:
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler(timezone=timezone.utc)
    scheduler.add_job(unlocked, "interval", seconds=0.2)
    lead(scheduler, seal, "scheduler", ttl=2)


def in_loop() -> None:
    from apscheduler.schedulers.asyncio import AsyncIOScheduler

    async def main() -> None:
        scheduler = AsyncIOScheduler(timezone=timezone.utc, job_defaults={"misfire_grace_time": None})
        scheduler.add_job(each_second_async, "cron", second="*")
        scheduler.start()
        await asyncio.sleep(600)

    asyncio.run(main())


def four() -> None:
    """APScheduler 4, with a job of each kind for one schedule."""
    from apscheduler import AsyncScheduler
    from apscheduler.triggers.cron import CronTrigger

    job = scheduled if os.getpid() % 2 else scheduled_async

    async def main() -> None:
        async with AsyncScheduler() as scheduler:
            await scheduler.add_schedule(job, CronTrigger(second="*"), misfire_grace_time=None)
            await scheduler.run_until_stopped()

    asyncio.run(main())


def four_leading() -> None:
    """APScheduler 4, of which only the leader's runs."""
    from apscheduler import AsyncScheduler
    from apscheduler.triggers.interval import IntervalTrigger

    async def main() -> None:
        async with aio_seal, aio_seal.campaign("scheduler", ttl=2):
            async with AsyncScheduler() as scheduler:
                await scheduler.add_schedule(unlocked, IntervalTrigger(seconds=0.2))
                await scheduler.run_until_stopped()

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
