"""The state of a lease, which the faces for threads and for asyncio share.

Invariants: `cause` is set once, and never taken back. What a caller sets is set by one operation, so no lock is needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ._time import NEVER, now_ms
from .errors import LeaseLost

if TYPE_CHECKING:
    from ._client import Client
    from ._run import Holder, Request, Run


class LeaseState:
    """A lease, from the request for it on."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.pid = os.getpid()
        self.key = self.owner = ""
        self.id = self.token = self.tick = 0
        self.deadline: float = math.inf
        self.run: Run
        """Is set at the grant."""
        self.is_ending = False
        """Whether its holder has begun to end it."""
        self.is_doubtful = False
        """Whether the program has refused a request about it as lost, and not said the cause."""
        self.is_given_up = False
        """Whether its holder has stopped waiting for the answer of the request that ends it."""
        self._end: dict[str, str] = {}
        # For the thread alone.
        self.holder: Holder | None = None
        self.is_abandoned = False
        """Whether its holder has ended before the grant."""
        self.scheduled = -math.inf
        """The deadline at which the thread looks at this lease."""
        self.is_progressing = False
        self.ending: Request | None = None
        self.listeners: list[Callable[[], object]] = []
        """Are called once when the lease has ended. They must neither block nor raise."""

    def grant(self, granted: dict[str, Any]) -> None:
        self.key, self.owner, self.token = granted["key"], granted["owner"], granted["token"]
        self.tick = granted.get("tick", 0)
        self.deadline = granted["deadline_ms"]

    @property
    def cause(self) -> str | None:
        """Why the lease has ended. From the deadline on it has, also if the thread has not seen that."""
        if self.pid != os.getpid():
            return "forked"
        cause = self._end.get("cause")
        if cause is None and now_ms() >= self.deadline:
            cause = self._end.setdefault("cause", "expired")
            self.client.put(partial(self.run.expire, self))
        return cause

    def lose(self, cause: str) -> None:
        self._end.setdefault("cause", cause)

    def is_valid(self) -> bool:
        return not self.is_ending and not self.is_doubtful and self.cause is None

    def remaining(self) -> float:
        """Seconds until the deadline, or 0 if the lease is not valid."""
        if not self.is_valid():
            return 0.0
        return math.inf if self.deadline > NEVER else max(0.0, (self.deadline - now_ms()) / 1000)

    def check(self) -> None:
        """Raises `LeaseLost` if the lease is not valid."""
        if not self.is_valid():
            raise self.error()

    def check_process(self) -> None:
        """Raises `LeaseLost` in a forked child."""
        if self.pid != os.getpid():
            raise self.error()

    def error(self) -> LeaseLost:
        return LeaseLost(self.key, self.token, self.cause or ("released" if self.is_ending and not self.is_doubtful else "lost"))

    def progress(self) -> None:
        self.check()
        if not self.is_progressing:
            self.client.put(partial(self.run.progress, self))

    def listen(self, listener: Callable[[], object]) -> None:
        self.client.put(partial(self.run.listen, self, listener))

    def unlisten(self, listener: Callable[[], object]) -> None:
        self.client.put(partial(self.run.unlisten, self, listener))
