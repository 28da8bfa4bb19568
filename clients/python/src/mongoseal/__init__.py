"""Leases with fencing tokens on MongoDB, by the program `mongoseal`.

    with Mongoseal("mongodb://db0,db1,db2/app?replicaSet=rs0") as seal, seal.acquire("reports/nightly") as lease:
        report(lease.token)

`mongoseal.aio` is the same for asyncio, `mongoseal.fence` has fenced collections of PyMongo, and `mongoseal.testing` a fake
for tests.
"""

from ._sync import Leader, Leaders, Lease, Mongoseal, TickLease
from ._values import Done, LeaderInfo, StoredValue
from .errors import Fenced, Held, Invalid, LeaseLost, MongosealError, ProgramError, Unavailable

__all__ = [
    "Done",
    "Fenced",
    "Held",
    "Invalid",
    "Leader",
    "LeaderInfo",
    "Leaders",
    "Lease",
    "LeaseLost",
    "Mongoseal",
    "MongosealError",
    "ProgramError",
    "StoredValue",
    "TickLease",
    "Unavailable",
]
