"""The state of a lease, which the faces for threads and for asyncio share.

Invariant: `cause` is set once, and never taken back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ._pipe import lock
from ._time import NEVER, now_ms
from .errors import LeaseLost

if TYPE_CHECKING:
    from ._session import Session


class LeaseState:
    """A lease that was granted."""

    def __init__(self, session: Session, granted: dict[str, Any]) -> None:
        self.session = session
        self.id: int = granted["lease"]
        self.key: str = granted["key"]
        self.owner: str = granted["owner"]
        self.token: int = granted["token"]
        self.tick: int = granted.get("tick", 0)
        self.deadline: float = granted["deadline_ms"]
        self.scheduled = -math.inf
        """The deadline at which the session looks at this lease."""
        self.cause: str | None = None
        self.is_ending = False
        """Whether the lease is not used any more, although its end is not known: its holder or the program has announced it."""
        self._end: Future[dict[str, Any]] | None = None
        self._progress: Future[dict[str, Any]] | None = None
        self._listeners: list[Callable[[], None]] = []

    def is_valid(self) -> bool:
        if self.cause is not None or self.is_ending:
            return False
        if now_ms() < self.deadline:
            return True
        self.expire()
        return self.cause is None and not self.is_ending

    def remaining(self) -> float:
        """Seconds until the deadline, or 0 if the lease is not valid."""
        if not self.is_valid():
            return 0.0
        return math.inf if self.deadline > NEVER else max(0.0, (self.deadline - now_ms()) / 1000)

    def check(self) -> None:
        """Raises `LeaseLost` if the lease is not valid."""
        if not self.is_valid():
            raise self.error()

    def error(self) -> LeaseLost:
        return LeaseLost(self.key, self.token, self.cause or ("lost" if self._end is None else "released"))

    def ask(self, do: str, members: dict[str, Any]) -> Future[dict[str, Any]]:
        """Sends a request about the lease. Raises `LeaseLost`, and what `Session.send` raises."""
        with lock:
            self.check()
            return self.session.send(do, members, self).future

    def progress(self) -> None:
        """Sends `progress`, unless an earlier one has no answer yet: so no loop floods the program."""
        with lock:
            self.check()
            if self._progress is None or self._progress.done():
                self._progress = self.session.send("progress", {}, self).future

    def end(self, do: str, members: dict[str, Any]) -> Future[dict[str, Any]]:
        """Asks to end the lease. After the first call, returns the same answer again.

        Raises `LeaseLost`, and what `Session.send` raises.
        """
        with lock:
            if self._end is None:
                self._end = self.ask(do, members)
                self.is_ending = True
            return self._end

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` once when the lease has ended. It must neither block nor raise."""
        with lock:
            if self.cause is None:
                self._listeners.append(listener)
                return
        listener()

    def unlisten(self, listener: Callable[[], None]) -> None:
        with lock:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def expire(self) -> None:
        """Loses the lease if its deadline has passed."""
        with lock:
            if self.cause is None and now_ms() >= self.deadline:
                self.session.expire(self)

    # For the session, with `lock`.

    def lose(self, cause: str) -> None:
        if self.cause is None:
            self.cause = cause
            listeners, self._listeners = self._listeners, []
            for listener in listeners:
                listener()

    def finish(self) -> None:
        """The holder has ended the lease."""
        self.lose("released")

    def go_on(self) -> None:
        """The request to end the lease was refused."""
        self.is_ending = False
        self._end = None

    def forget_in_child(self) -> None:
        """In a forked child, neither listeners nor threads of the parent are there."""
        self._listeners.clear()
        self._end = None
        self.lose("forked")
