"""What goes wrong, as a person should read it: what was attempted, why it failed, what to do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Mapping, Sequence

if TYPE_CHECKING:
    from .values import CommandResult


class DSecError(Exception):
    """A call that was not carried out, or whose outcome is not known.

    `attempt`: what this SDK was asked for. `causes`: why it failed, as the edge tells it, the outermost attempt first.
    `hints`: what to do. `kind`: "usage" (the request is wrong), "failed" or "internal" (a fault of dsec).
    `status`: of the HTTP answer, None without one. `request_id`: names the request in the edge's log.
    `op_id`: names the operation, None for calls that change nothing.
    `safe_to_retry`: whether the same call may be made again, with `op_id=error.op_id` where there is one, and nothing
    is done twice. False also where a repetition would only fail in the same way.
    """

    def __init__(self, attempt: str, causes: Sequence[str] = (), hints: Sequence[str] = (), *, kind: str = "failed",
                 status: int | None = None, op_id: str | None = None, request_id: str | None = None,
                 safe_to_retry: bool = False):
        super().__init__(attempt)
        self.attempt = attempt
        self.causes = tuple(causes)
        self.hints = tuple(hints)
        self.kind = kind
        self.status = status
        self.op_id = op_id
        self.request_id = request_id
        self.safe_to_retry = safe_to_retry

    def __str__(self) -> str:
        lines = [self.attempt]
        lines += [f"  because: {cause}" for cause in self.causes]
        lines += [f"  try: {hint}" for hint in self.hints]
        return "\n".join(lines)


class DSecUsageError(DSecError):
    """The request is wrong, or is about something that is not there; the same request fails again."""


class DSecConnectionError(DSecError):
    """The edge was not reached, or the connection to it was lost. Commands in sandboxes go on."""


class DSecBusyError(DSecError):
    """The edge does as much as it may at once; nothing was done."""


class DSecTimeoutError(DSecError, asyncio.TimeoutError):
    """The `timeout` of a call has passed. What the call had begun by then was ended, unless the text says otherwise."""


class DSecCommandError(DSecError):
    """A command that was run with `check=True` did not end with exit code 0; `result` has what it said until then."""

    def __init__(self, attempt: str, result: CommandResult):
        causes = [result.reason]
        if tail := result.stderr.rstrip()[-2000:]:
            causes.append(f"it said: {tail}")
        super().__init__(attempt, causes)
        self.result = result


def error_from_answer(attempt: str, status: int, document: Any, *, op_id: str | None = None,
                      request_id: str | None = None) -> DSecError:
    """Of the edge's error document, or of whatever else came with this status."""
    told = document.get("error") if isinstance(document, Mapping) else None
    if not isinstance(told, Mapping):
        told = {"kind": "failed", "chain": [f"the edge answered {status} and nothing that tells why"]}
    kind = str(told.get("kind", "failed"))
    busy = status == 503
    wrong = DSecUsageError if kind == "usage" else DSecError
    return (DSecBusyError if busy else wrong)(
        attempt, [str(cause) for cause in told.get("chain", [])], [str(hint) for hint in told.get("try", [])], kind=kind,
        status=status, op_id=op_id, request_id=request_id, safe_to_retry=busy)
