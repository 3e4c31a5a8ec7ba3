"""Commands that run in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import signal as _signal
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Mapping, Sequence

from . import _wire
from ._edge import Connection, Listening, payloads
from ._ending import or_undo, to_end
from ._wire import Bytes, Call, Frame, FrameKind
from .errors import DSecBusyError, DSecCommandError, DSecConnectionError, DSecError, DSecTimeoutError
from .values import CommandResult, ExitStatus

if TYPE_CHECKING:
    from ._edge import Edge

_PIECE = _wire.LONGEST_INPUT
# A process that waits in the kernel does not end at once, whatever it was sent.
_LONGEST_DYING = 5.0


@dataclasses.dataclass(frozen=True)
class Output:
    """A piece of what a command says. `stream`: "stdout" or "stderr"; with a TTY all is "stdout"."""

    stream: str
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Command:
    """A command of a sandbox, whose output is read with `async for` or all at once by `wait()`.

    It belongs to whoever started it: when `async with` is left before its end, or a task that waits in `wait()` is
    cancelled, it is killed with all processes of its group. `detach()` lets it go on without anybody. One that was
    attached to belongs to somebody else and goes on.

    When the connection is lost meanwhile it is followed again from the byte that came last, as long as nobody gives it
    input; the output that was kept longest (`output_limit_mb`) may then have a gap, which the result counts.
    """

    def __init__(self, edge: Edge, sandbox: str, exec_id: str, stream: Connection | Listening, frames: AsyncIterator[Frame], what: str,
                 end_signals: Sequence[int]):
        self.exec_id = exec_id
        """Names the command in `attach()`, `logs()` and `commands()`; unique in its sandbox."""
        self.status: ExitStatus | None = None
        """How it ended; None until that was read."""
        self._edge = edge
        self._sandbox = sandbox
        self._stream: Connection | Listening | None = stream
        self._frames = frames
        self._what = what
        self._end_signals = end_signals
        self._got = {"stdout": 0, "stderr": 0}

    async def __aenter__(self) -> Command:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await to_end(self._end())

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Its output as it comes, to its end. Who stops reading slows nobody down but the command."""
        failures = 0
        while self.status is None and (stream := self._stream):
            try:
                async for frame in self._frames:
                    failures = 0
                    if frame.kind == FrameKind.EXITED:
                        self.status = ExitStatus.of_wire(frame.json())
                    elif frame.kind in (FrameKind.STDOUT, FrameKind.STDERR):
                        name = "stdout" if frame.kind == FrameKind.STDOUT else "stderr"
                        self._got[name] += len(frame.payload)
                        yield Output(name, frame.payload)
            except DSecConnectionError as error:
                failures += 1
                if failures >= self._edge.retries.attempts or isinstance(stream, Connection):
                    error.hints = (*error.hints, f"sandbox.attach({self.exec_id!r}): the command goes on")
                    raise
                stream.close()
                await asyncio.sleep(self._edge.retries.delay(failures))
                self._stream = await self._again()
                self._frames = payloads(self._stream, self._following, self._edge)
        self._let_go()

    async def wait(self, input: Bytes | None = None) -> CommandResult:
        """All that it says from now on, and how it ended. `input`: is written to its standard input, which then ends; for
        commands that were started with `stdin=True`. Cancelled, it kills the command. The output is held in memory: at
        most the output limit of the sandbox for each stream."""
        pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        giving = asyncio.ensure_future(self._give(input)) if input is not None else None
        try:
            async for output in self:
                pieces[output.stream].append(output.data)
        except asyncio.CancelledError:
            await to_end(self._end())
            raise
        finally:
            if giving:
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)
        assert self.status is not None, "its stream has a last frame"
        return CommandResult(**dataclasses.asdict(self.status), exec_id=self.exec_id, stdout_bytes=b"".join(pieces["stdout"]),
                             stderr_bytes=b"".join(pieces["stderr"]))

    async def write(self, data: Bytes) -> None:
        """To its standard input; waits while the command does not read. For commands that were started with `stdin=True`."""
        data = _wire.to_bytes(data)
        for start in range(0, len(data), _PIECE):
            await self._send(FrameKind.STDIN, data[start:start + _PIECE])

    async def close_stdin(self) -> None:
        """The end of its standard input."""
        await self._send(FrameKind.STDIN_END, b"")

    async def resize(self, rows: int, columns: int) -> None:
        """The size of its terminal. For commands that were started with `tty=True`."""
        await self._send(FrameKind.RESIZE, json.dumps({"rows": rows, "columns": columns}).encode())

    async def signal(self, number: int, *, op_id: str | None = None) -> None:
        """Sends a signal to its process group, in a session to what the command has started."""
        await self._edge.ask(f"cannot send signal {number} to {self._what}", _wire.SIGNAL,
                             {"id": self._sandbox, "exec_id": self.exec_id}, {"signal": int(number)}, op_id=op_id)

    async def kill(self) -> None:
        """Sends SIGKILL; its end is still to be read."""
        await self.signal(_signal.SIGKILL)

    async def detach(self) -> None:
        """Stops following it; the command goes on, and `sandbox.attach(exec_id)` follows it again."""
        self._let_go()

    @property
    def _following(self) -> str:
        return f"cannot follow {self._what}"

    async def _give(self, data: Bytes) -> None:
        try:
            await self.write(data)
            await self.close_stdin()
        except DSecConnectionError:
            pass  # it has ended without reading all, or whoever reads its output is told

    async def _send(self, kind: FrameKind, payload: bytes) -> None:
        attempt = f"cannot give input to {self._what}"
        if not isinstance(self._stream, Connection):
            cause = "it was not started with stdin=True or tty=True" if self._stream else "it has ended, or was detached from"
            raise DSecConnectionError(attempt, [cause])
        await self._edge.told(attempt, functools.partial(self._stream.send, _wire.frame(kind, payload)), repeatable=False)

    async def _again(self) -> Listening:
        return await self._edge.listen(self._following, _wire.ATTACH, {
            "id": self._sandbox, "exec_id": self.exec_id, "stdout_from": self._got["stdout"], "stderr_from": self._got["stderr"]})

    def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream:
            stream.close()

    async def _end(self) -> None:
        """Kills it where it was not seen to end, and sees it end. That is no operation of its own: nobody asked for it."""
        unseen = self._end_signals and self.status is None and self._stream is not None
        self._let_go()
        if unseen:
            for number in self._end_signals:
                await self._end_by(number)
            with contextlib.suppress(DSecError, asyncio.TimeoutError):
                await asyncio.wait_for(self._see_end(), _LONGEST_DYING)

    async def _end_by(self, number: int) -> None:
        """It is no error when the command or the sandbox has ended meanwhile."""
        try:
            await self._edge.ask(f"cannot end {self._what}", _wire.SIGNAL, {"id": self._sandbox, "exec_id": self.exec_id},
                                 {"signal": int(number)}, recorded=False)
        except (DSecConnectionError, DSecBusyError, DSecTimeoutError):
            raise
        except DSecError:
            return

    async def _see_end(self) -> None:
        stream = await self._again()
        try:
            async for frame in payloads(stream, self._following, self._edge):
                if frame.kind == FrameKind.EXITED:
                    self.status = ExitStatus.of_wire(frame.json())
        finally:
            stream.close()


@dataclasses.dataclass(frozen=True)
class Start:
    """How to begin a command and follow it. `end_signals`: by which it is ended; none: it is not ours to end."""

    edge: Edge
    sandbox: str
    call: Call
    parameters: Mapping[str, Any]
    body: Mapping[str, Any] | None
    what: str
    interactive: bool
    op_id: str | None
    end_signals: Sequence[int] = (_signal.SIGKILL,)

    async def command(self) -> Command:
        """When it has begun."""
        attempt = f"cannot {'start' if self.end_signals else 'follow'} {self.what}"

        async def undo(command: Command) -> None:
            await command._end()

        return await or_undo(self._begin(attempt), undo, None)

    async def _begin(self, attempt: str) -> Command:
        stream: Connection | Listening
        if self.interactive:
            # With the connection that is to bring the input, the input ends: who came again would find it empty.
            takes_input = bool(self.body and self.body.get("stdin"))
            try:
                stream = await self.edge.upgrade(attempt, self.call, self.parameters, self.body, op_id=self.op_id, repeatable=not takes_input)
            except DSecConnectionError as error:
                if not error.safe_to_retry:
                    error.hints = (*error.hints, f"sandbox.operation({self.op_id!r}) tells whether it has begun; its input has ended then")
                raise
        else:
            stream = await self.edge.listen(attempt, self.call, self.parameters, self.body, op_id=self.op_id)
        frames = payloads(stream, attempt, self.edge)
        first = await frames.__anext__()
        return Command(self.edge, self.sandbox, first.json()["exec_id"], stream, frames, self.what, self.end_signals)


def checked(result: CommandResult, check: bool, attempt: Callable[[], str]) -> CommandResult:
    """The result; raises DSecCommandError where it is to be checked and is not well."""
    if check and not result.ok:
        raise DSecCommandError(attempt(), result)
    return result
