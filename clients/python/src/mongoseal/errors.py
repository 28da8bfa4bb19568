"""The errors of this package. Each class is one thing that a caller can do about it.

| when a call raises | the caller |
|---|---|
| `Held` | does something else, or retries later: another lease holds the key |
| `LeaseLost` | stops acting on the key at once, and acquires it again if it is still needed |
| `Fenced` | stops, and undoes nothing: a later holder has written there |
| `Unavailable` | retries: the server or the program did not answer, and the request may have taken effect |
| `Invalid` | changes the code or the deployment: a retry fails again |
| `ProgramError` | installs the program `mongoseal`, or the version that fits this package |
"""

from __future__ import annotations

from typing import Any


class MongosealError(Exception):
    """The base of all errors of this package. `code` is the code of the pipe protocol."""

    code = "error"

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class Held(MongosealError):
    """The key is held by another lease, and was held until the end of the wait. Or its queue is full."""

    code = "held"


class LeaseLost(MongosealError):
    """The lease has ended.

    `cause` is the cause that the program has sent, such as `revoked`, or one that this package has found:

    | cause | meaning |
    |---|---|
    | `expired` | the last known deadline has passed |
    | `program_ended` | the program has ended or was killed |
    | `closed` | the client was closed |
    | `forked` | the process is a child of the process that holds the lease |
    | `released` | the holder has released the lease, and then used it |
    | `lost` | the program has refused a request about the lease, and not sent a cause |
    """

    code = "lost"

    def __init__(self, key: str, token: int, cause: str) -> None:
        super().__init__("")
        self.args = (key, token, cause)  # What `pickle` and others make the error from again.
        self.key = key
        self.token = token
        self.cause = cause

    def __str__(self) -> str:
        return f"the lease on {self.key!r} with token {self.token} has ended ({self.cause}): stop acting on the key"


class Fenced(MongosealError):
    """A later holder has written the document. Nothing was changed. `newer` is the token of that holder."""

    code = "fenced"

    def __init__(self, newer: int) -> None:
        super().__init__("")
        self.args = (newer,)
        self.newer = newer

    def __str__(self) -> str:
        return f"the document has the newer token {self.newer}: stop acting on the key"


class Unavailable(MongosealError):
    """The server or the program did not answer. The request may have taken effect."""

    code = "unavailable"


class CannotWait(Unavailable):
    """No answer can be waited for: the interpreter ends, or a finalizer runs on a thread of the client."""


class Invalid(MongosealError):
    """The request, the code or the deployment must be changed."""

    code = "invalid"


class ProgramError(Invalid):
    """The program `mongoseal` was not found, cannot be started, or does not fit this package."""


# `busy` and `too_many` end when the caller has waited for an answer, or released some leases.
_CLASSES: dict[str, type[MongosealError]] = {
    "held": Held,
    "unavailable": Unavailable,
    "busy": Unavailable,
    "too_many": Unavailable,
    "invalid": Invalid,
    "malformed": Invalid,
    "failed": Invalid,
}


def of_event(event: dict[str, Any]) -> MongosealError:
    """Returns the error of an event `error` or `unobserved`."""
    code = str(event.get("code", "error"))
    return _CLASSES.get(code, MongosealError)(str(event.get("message", code)), code)
