"""Processes that hold leases, for `test_server.py`: hosts.py NAME. Each prints a line of JSON for what it has done."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from typing import Any

from mongoseal import Lease, LeaseLost, Mongoseal


def tell(**what: Any) -> None:
    # One write, so that the lines of several processes do not mix.
    os.write(1, json.dumps({"pid": os.getpid(), **what}).encode() + b"\n")


def prefork() -> None:
    """A server that holds a key, and whose workers are forked. Both workers hold keys of their own."""
    seal = Mongoseal()
    lease = seal.acquire("k")
    for number in range(2):
        if os.fork() == 0:
            own = seal.acquire(f"worker {number}")
            tell(worker=number, sees_lease=lease.is_valid, cause=lease.cause, token=own.token)
            time.sleep(60)
            os._exit(0)
    tell(token=lease.token, is_valid=lease.is_valid)
    time.sleep(60)


def child(seal: Mongoseal, lease: Lease, results: Any) -> None:
    """What a child of `multiprocessing` sees and does."""
    seen: dict[str, Any] = {"is_valid": lease.is_valid, "cause": lease.cause, "remaining": lease.remaining}
    for name in ("check", "release", "verify", "progress"):
        try:
            getattr(lease, name)()
        except LeaseLost as error:
            seen[name] = error.cause
    seen["wait_lost"] = lease.wait_lost(5)
    try:
        with lease:
            seen["entered"] = True
    except LeaseLost as error:
        seen["with"] = error.cause
    with seal.acquire("own", wait=0) as own:
        own.verify()
        seen["own"] = own.is_valid
    seen["closed"] = seal.close()
    results.put(seen)


def forking() -> None:
    """Holds a key while a child of `multiprocessing` lives and ends."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with Mongoseal() as seal:
        with seal.acquire("k") as lease:
            process = context.Process(target=child, args=(seal, lease, results))
            process.start()
            seen = results.get(timeout=20)
            process.join()
            lease.verify()
            tell(child=seen, status=process.exitcode, is_valid=lease.is_valid)
        with seal.acquire("k", wait=0):
            tell(again=True)


def interrupted() -> None:
    """Is interrupted by a Ctrl-C while it holds a key, works on under the lease, and releases it."""
    with Mongoseal() as seal, seal.acquire("k", ttl=5) as lease:
        try:
            tell(token=lease.token)
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(1)
            lease.verify()
            tell(is_valid=lease.is_valid, confirmed=lease.release())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
