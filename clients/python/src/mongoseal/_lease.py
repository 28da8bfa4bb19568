"""What a lease has in common for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ._client import Client
from ._run import LeaseState


class Unset:
    """The absence of a value, where `None` is one."""


UNSET: Final = Unset()


class BaseLease:
    """A lease. The program releases it when nothing refers to this object any more.

    Each of these members can be used from any thread, and none of them waits."""

    def __init__(self, client: Client, on_lost: Callable[[Any], object] | None) -> None:
        """The lease is the holder of the request for it, which follows."""
        self._client = client
        self._state = LeaseState(client)
        self._call_if_lost(on_lost)
        client.hold(self, self._state)

    def _call_if_lost(self, callback: Callable[[Any], object] | None) -> None:
        """Sets what is called with the lease when it is lost. The callback does not keep the lease."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        return self._state.key

    @property
    def owner(self) -> str:
        """The owner, as other processes see it."""
        return self._state.owner

    @property
    def token(self) -> int:
        """The fencing token, to pass with each write. It is below 2**53."""
        return self._state.token

    @property
    def is_valid(self) -> bool:
        """Whether the lease is held. It is not from the last known deadline on, also if no event has come."""
        return self._state.is_valid()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, unless it is moved by a refresh. `inf` without an expiry, 0 if the lease has ended."""
        return self._state.remaining()

    @property
    def cause(self) -> str | None:
        """Why the lease has ended, or `None`: see `LeaseLost`."""
        self._state.is_valid()
        return self._state.cause

    def check(self) -> None:
        """Raises `LeaseLost` if the lease has ended."""
        self._state.check()

    def progress(self) -> None:
        """Notes that the holder makes progress, for `stalled_after`. Does not wait for an answer.

        Raises `LeaseLost` if the lease has ended.
        """
        self._state.progress()

    def __repr__(self) -> str:
        state = self._state
        return f"<{type(self).__name__} on {state.key!r} with token {state.token}, {state.cause or 'held'}>"
