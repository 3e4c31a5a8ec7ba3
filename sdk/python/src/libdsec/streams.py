"""What a sandbox tells for as long as somebody listens."""

from __future__ import annotations

import json
from typing import Any, AsyncIterator, Awaitable, Callable, Generic, TypeVar

from ._edge import Edge, Listening, payloads
from ._wire import Call, Frame, FrameKind

Record = TypeVar("Record")

# What has to be computed, or asked of a server, begins to come when it is there: until then the edge says nothing.
_LONGEST_BEGINNING = 630.0


class Records(Generic[Record]):
    """Records as they come, for `async for`. Within `async with`, or after `close()`, the edge is told that nobody listens."""

    def __init__(self, edge: Edge, attempt: str, begin: Callable[[], Awaitable[Listening]], read: Callable[[Any], Record]):
        self._edge = edge
        self._attempt = attempt
        self._begin = begin
        self._read: Callable[[Any], Record] = read
        self._stream: Listening | None = None
        self._frames: AsyncIterator[Frame] | None = None

    async def __aenter__(self) -> Records[Record]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for frame in await self._begun():
            if frame.kind == FrameKind.RECORD:
                yield self._read(frame.json())

    async def close(self) -> None:
        """Listens no longer."""
        if self._stream:
            self._stream.close()

    async def _begun(self) -> AsyncIterator[Frame]:
        if self._frames is None:
            self._stream = await self._begin()
            self._frames = payloads(self._stream, self._attempt, self._edge)
        return self._frames

    async def _skip(self) -> None:
        """The first record."""
        await (await self._begun()).__anext__()


async def content(edge: Edge, attempt: str, call: Call, parameters: dict[str, Any], body: dict[str, Any] | None = None, *,
                  op_id: str | None = None) -> AsyncIterator[bytes]:
    """The data of a stream."""
    stream = await edge.listen(attempt, call, parameters, body, op_id=op_id, silence=_LONGEST_BEGINNING)
    try:
        async for frame in payloads(stream, attempt, edge):
            if frame.kind == FrameKind.DATA:
                yield frame.payload
    finally:
        stream.close()


async def head_and_content(edge: Edge, attempt: str, call: Call, parameters: dict[str, Any], body: dict[str, Any] | None = None, *,
                           op_id: str | None = None, silence: float = _LONGEST_BEGINNING) -> tuple[Any, bytes]:
    """A stream of one record and data, whole. `silence`: seconds after which it counts as lost."""
    head: Any = None
    pieces: list[bytes] = []
    stream = await edge.listen(attempt, call, parameters, body, op_id=op_id, silence=silence)
    try:
        async for frame in payloads(stream, attempt, edge):
            if frame.kind == FrameKind.RECORD:
                head = json.loads(frame.payload)
            elif frame.kind == FrameKind.DATA:
                pieces.append(frame.payload)
    finally:
        stream.close()
    return head, b"".join(pieces)
