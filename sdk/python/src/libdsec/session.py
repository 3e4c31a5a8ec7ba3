"""Shells that stay in a sandbox."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from . import _wire
from ._edge import new_op_id
from ._ending import to_end
from ._wire import Bytes, bytes_to_json, milliseconds
from .command import Command, Start, checked
from .errors import DSecBusyError, DSecConnectionError, DSecError, DSecTimeoutError
from .values import CommandResult, SessionInfo

# The first interrupts the shell, which the second would not; the second is for what does not heed the first.
_END_SIGNALS = (signal.SIGINT, signal.SIGKILL)

if TYPE_CHECKING:
    from ._edge import Edge


class Session:
    """A shell that is given one command after the other and keeps directory, variables, functions and background jobs
    between them. It belongs to the sandbox; `async with` closes it at its end."""

    def __init__(self, edge: Edge, sandbox: str, shown: str, info: SessionInfo):
        self.id = info.id
        self.name = info.name
        self.info = info
        """As it was when it was opened or listed."""
        self._edge = edge
        self._sandbox = sandbox
        self._shown = f"session {self.name or self.id} of sandbox {shown}"

    def __repr__(self) -> str:
        return f"<{self._shown}>"

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await to_end(self._end())

    async def run(self, command: Bytes, *, input: Bytes | None = None, timeout: float | None = None, check: bool = False,
                  output_limit: int | None = None, op_id: str | None = None) -> CommandResult:
        """Runs lines of the shell's language to their end.

        `timeout`: seconds, after which the command is interrupted, and the shell killed if it does not come back. Other
        arguments are those of `Sandbox.run`. A second command while one runs is refused (DSecError). Cancelled, it kills
        what the command has started.
        """
        started = await self.start(command, stdin=input is not None, timeout=timeout, output_limit=output_limit, op_id=op_id)
        async with started:
            result = await started.wait(input)
        return checked(result, check, lambda: f"{_shown(command)} failed in {self._shown}")

    async def start(self, command: Bytes, *, stdin: bool = False, rows: int | None = None, columns: int | None = None,
                    timeout: float | None = None, output_limit: int | None = None, op_id: str | None = None) -> Command:
        """Begins a command, which may be followed and given input. `rows`, `columns`: of the session's terminal."""
        body: dict[str, Any] = {"command": bytes_to_json(command), "stdin": stdin}
        optional = {"rows": rows, "columns": columns, "output_limit": output_limit,
                    "timeout_ms": None if timeout is None else milliseconds(timeout)}
        body.update({name: value for name, value in optional.items() if value is not None})
        start = Start(self._edge, self._sandbox, _wire.RUN_IN_SESSION, {"id": self._sandbox, "session": self.id}, body,
                      f"{_shown(command)} in {self._shown}", stdin or self.info.tty, op_id or new_op_id(),
                      _END_SIGNALS)
        return await start.command()

    async def close(self, *, op_id: str | None = None) -> None:
        """Kills the shell and all that was started in it."""
        await self._edge.ask(f"cannot close {self._shown}", _wire.CLOSE_SESSION,
                             {"id": self._sandbox, "session": self.id}, op_id=op_id)

    async def _end(self) -> None:
        try:
            await self.close()
        except (DSecConnectionError, DSecBusyError, DSecTimeoutError):
            raise
        except DSecError:
            return  # its shell, or the sandbox, has ended already


def _shown(command: Bytes) -> str:
    text = _wire.to_bytes(command).decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")
