"""One edge: calls that are answered, streams that are listened to, and connections that are one's own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import resource
import urllib.parse
import uuid
from typing import Any, AsyncIterator, Awaitable, Callable, Mapping, TypeVar

import aiohttp
import yarl

from . import _wire
from ._wire import Call, Frame, FrameKind, FrameReader
from .errors import DSecBusyError, DSecConnectionError, DSecError, DSecTimeoutError, DSecUsageError, error_from_answer
from .retries import Retries

T = TypeVar("T")

DEFAULT_PORT = 7701
# What the edge takes on at once; more only waits there instead of here.
_CALLS_AT_ONCE = 128
# An edge says something every 15 seconds of a stream.
SILENCE = 60.0
_IDLE_CONNECTION = 30.0  # less than the edge's 60
_PIECE = 256 << 10

Parameters = Mapping[str, Any]
Body = Mapping[str, Any]
SendsBody = Callable[[], AsyncIterator[bytes]]


def new_op_id() -> str:
    return f"sdk-{uuid.uuid4().hex}"


@dataclasses.dataclass(frozen=True)
class Address:
    """Where an edge listens."""

    path: str = ""
    host: str = ""
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, url: str) -> Address:
        """`unix:/PATH` or `http://HOST[:PORT]`; raises DSecUsageError."""
        def wrong(cause: str, *hints: str) -> DSecUsageError:
            return DSecUsageError(f"cannot use {url!r} as the address of an edge", [cause], hints, kind="usage")

        if url.startswith("unix:"):
            if not url.startswith("unix:/"):
                raise wrong("the path of its socket is not absolute", "unix:/PATH")
            return cls(path=url[len("unix:"):])
        try:
            parsed = urllib.parse.urlsplit(url)
            host, port = parsed.hostname, parsed.port
        except ValueError as error:
            raise wrong(str(error), "http://127.0.0.1:7701") from None
        if parsed.scheme == "https":
            raise wrong("edges do not speak TLS yet", "ssh -N -L /run/edge.sock:/run/dsec/edge.sock HOST, then unix:/run/edge.sock")
        if parsed.scheme != "http" or not host:
            raise wrong("it is no address", "unix:/PATH", "http://127.0.0.1:7701")
        return cls(host=host, port=port or DEFAULT_PORT)

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        return "http://edge" if self.path else str(self)


class Connection:
    """A connection that an edge has given away by `Upgrade`: one's own, both ways."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self._first = b""

    async def begun(self) -> Connection:
        """When it has said something: until then all may be asked for again."""
        self._first = await self._some()
        return self

    async def frames(self) -> AsyncIterator[Frame]:
        """Until the last one; a connection that ends before is an error (OSError)."""
        frames, data = FrameReader(), self._first
        while True:
            for frame in frames.feed(data):
                yield frame
                if frame.kind in _wire.LAST_FRAMES:
                    return
            data = await self._some()

    async def _some(self) -> bytes:
        data = await asyncio.wait_for(self.reader.read(_PIECE), SILENCE)
        if not data:
            raise ConnectionResetError("the edge ended the connection")
        return data

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()


class Listening:
    """A stream of frames as the body of an answer, on a connection that is used again afterwards."""

    def __init__(self, response: aiohttp.ClientResponse):
        self._response = response
        self._first = b""

    async def begun(self) -> Listening:
        """When it has said something: until then all may be asked for again."""
        self._first = await self._response.content.readany()
        return self

    async def frames(self) -> AsyncIterator[Frame]:
        """Until the last one, and the end of the body after it, which frees the connection."""
        frames, data, ended = FrameReader(), self._first, False
        while data:
            for frame in frames.feed(data):
                yield frame
                ended = ended or frame.kind in _wire.LAST_FRAMES
            data = await self._response.content.readany()
        if not ended:
            raise ConnectionResetError("the edge ended the stream")

    def close(self) -> None:
        self._response.close()


class Edge:
    """Speaks to one edge. Of one event loop; `open()` before all else, `close()` at last."""

    def __init__(self, address: Address, token: str | None, retries: Retries, connect_timeout: float, call_timeout: float):
        self.address = address
        self.retries = retries
        self.call_timeout = call_timeout
        self._connect_timeout = connect_timeout
        self._token = token
        self._calls: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    def open(self) -> None:
        # Calls have connections of their own: what ends a stream must not wait for one of the streams to end.
        self._calls = self._session(_CALLS_AT_ONCE)
        self._streams = self._session(max(64, min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 512)))

    def _session(self, limit: int) -> aiohttp.ClientSession:
        options: dict[str, Any] = {"limit": limit, "limit_per_host": limit, "keepalive_timeout": _IDLE_CONNECTION}
        connector: aiohttp.BaseConnector
        if self.address.path:
            connector = aiohttp.UnixConnector(self.address.path, **options)
        else:
            connector = aiohttp.TCPConnector(**options)
        return aiohttp.ClientSession(connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar(),
                                     trust_env=False, read_bufsize=_PIECE)

    async def close(self) -> None:
        for session in (self._calls, self._streams):
            if session is not None:
                await session.close()
        self._calls = self._streams = None

    async def ask(self, attempt: str, call: Call, parameters: Parameters | None = None, body: Body | None = None, *,
                  op_id: str | None = None, recorded: bool = True, timeout: float | None = None) -> Any:
        """The JSON of the answer, or its text. `timeout`: seconds without an answer, instead of the client's."""
        return (await self.ask_status(attempt, call, parameters, body, op_id=op_id, recorded=recorded, timeout=timeout))[1]

    async def ask_status(self, attempt: str, call: Call, parameters: Parameters | None = None, body: Body | None = None, *,
                         op_id: str | None = None, recorded: bool = True, timeout: float | None = None) -> tuple[int, Any]:
        return await self._answered(attempt, call, parameters or {}, None if body is None else lambda: json.dumps(body).encode(),
                                    "application/json", op_id, recorded, timeout)

    async def upload(self, attempt: str, call: Call, parameters: Parameters, content: SendsBody, *, op_id: str | None) -> None:
        """`content` gives the body, from its beginning each time that it is called."""
        times = 0

        def counted() -> AsyncIterator[bytes]:
            nonlocal times
            times += 1
            return content()

        for _ in range(self.retries.attempts):
            times = 0
            try:
                await self._answered(attempt, call, parameters, counted, "application/x-tar", op_id, True, SILENCE * 10)
                return
            except DSecError as error:
                # A copy that was cut off is recorded as failed, and its name only tells so again: another one is needed.
                if times < 2 or error.status != 409 or op_id:
                    raise
                last = error
        raise last

    async def _answered(self, attempt: str, call: Call, parameters: Parameters, content: Callable[[], Any] | None, kind: str,
                        op_id: str | None, recorded: bool, timeout: float | None) -> tuple[int, Any]:
        op_id = (op_id or new_op_id()) if call.changes and recorded else None
        headers = self._headers(op_id, recorded)
        if content is not None:
            headers["Content-Type"] = kind
        silence = timeout or self.call_timeout
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout, sock_read=silence)
        repeatable = not call.changes or op_id is not None

        async def once() -> tuple[int, Any]:
            try:
                async with self._opened(self._calls, attempt).request(
                        call.method, self._url(call, parameters), headers=headers, timeout=limits,
                        data=None if content is None else content()) as response:
                    document = _document(response, await response.read())
            except asyncio.TimeoutError:
                raise DSecTimeoutError(attempt, [f"the edge at {self.address} has not answered within {silence:g} s; it may have done it"],
                                       op_id=op_id, safe_to_retry=repeatable) from None
            if response.status >= 300:
                raise error_from_answer(attempt, response.status, document, op_id=op_id,
                                        request_id=response.headers.get(_wire.REQUEST_ID_HEADER))
            return response.status, document

        return await self.persist(attempt, once, repeatable=repeatable, op_id=op_id)

    async def listen(self, attempt: str, call: Call, parameters: Parameters, body: Body | None = None, *,
                     op_id: str | None = None, silence: float | None = SILENCE) -> Listening:
        """A stream that the edge has begun. `silence`: seconds after which it counts as lost."""
        op_id = (op_id or new_op_id()) if call.changes else None
        headers = self._headers(op_id, True)
        if body is not None:
            headers["Content-Type"] = "application/json"
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout, sock_read=silence)

        async def once() -> Listening:
            response = await self._opened(self._streams, attempt).request(
                call.method, self._url(call, parameters), headers=headers, timeout=limits,
                data=None if body is None else json.dumps(body).encode())
            if response.status == 200:
                return await Listening(response).begun()
            async with response:
                raise error_from_answer(attempt, response.status, _document(response, await response.read()), op_id=op_id,
                                        request_id=response.headers.get(_wire.REQUEST_ID_HEADER))

        return await self.persist(attempt, once, repeatable=True, op_id=op_id)

    async def upgrade(self, attempt: str, call: Call, parameters: Parameters, body: Body | None = None, *,
                      protocol: str = _wire.FRAMES_PROTOCOL, op_id: str | None = None, repeatable: bool = True) -> Connection:
        """A connection that the edge has given away. Written here: HTTP libraries know WebSockets alone, if anything.
        `repeatable`: not so where the first connection, once lost, has decided something."""
        op_id = (op_id or new_op_id()) if call.changes else None
        text = b"" if body is None else json.dumps(body).encode()
        headers = {"Host": yarl.URL(self.address.origin).authority, **self._headers(op_id, True), "Connection": "Upgrade",
                   "Upgrade": protocol, "Content-Length": str(len(text))}
        lines = [f"{call.method} {call.target(parameters)} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + text

        async def once() -> Connection:
            reader, writer = await asyncio.wait_for(self._connect(), self._connect_timeout)
            try:
                writer.write(request)
                await writer.drain()
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SILENCE)
                status, answered = _read_head(head)
                if status == 101:
                    connection = Connection(reader, writer)
                    return await connection.begun() if protocol == _wire.FRAMES_PROTOCOL else connection
                document = json.loads(await reader.readexactly(int(answered.get("content-length", "0"))))
            except BaseException:
                writer.close()
                raise
            writer.close()
            raise error_from_answer(attempt, status, document, op_id=op_id,
                                    request_id=answered.get(_wire.REQUEST_ID_HEADER.lower()))

        return await self.persist(attempt, once, repeatable=repeatable, op_id=op_id)

    async def persist(self, attempt: str, work: Callable[[], Awaitable[T]], *, repeatable: bool, op_id: str | None = None) -> T:
        """Does it, and again where it failed and nothing is done twice. `repeatable`: also when it may have been done."""
        failures = 0
        while True:
            try:
                return await self.told(attempt, work, repeatable=repeatable, op_id=op_id)
            except (DSecConnectionError, DSecBusyError) as error:
                failures += 1
                if not error.safe_to_retry or failures >= self.retries.attempts:
                    raise
            await asyncio.sleep(self.retries.delay(failures))

    async def told(self, attempt: str, work: Callable[[], Awaitable[T]], *, repeatable: bool, op_id: str | None = None) -> T:
        """What it gives; failures of the connection as DSecConnectionError."""
        def lost(causes: list[str], *hints: str, safe: bool = repeatable) -> DSecConnectionError:
            where = f"cannot talk to the edge at {self.address}"
            return DSecConnectionError(attempt, [where, *causes], hints, op_id=op_id, safe_to_retry=safe)

        try:
            return await work()
        except DSecError:
            raise
        except (aiohttp.ClientConnectorError, ConnectionRefusedError, FileNotFoundError) as error:
            raise lost([_reason(error)], "dsec edge --listen … on its host", safe=True) from error
        except asyncio.TimeoutError as error:
            raise lost(["it has been silent for too long"]) from error
        except (aiohttp.ClientError, OSError, EOFError, ValueError) as error:
            raise lost([_reason(error)]) from error

    @staticmethod
    def _opened(session: aiohttp.ClientSession | None, attempt: str) -> aiohttp.ClientSession:
        if session is None:
            raise DSecUsageError(attempt, ["the client is not open"], ["async with DSecClient() as client"], kind="usage")
        return session

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.path:
            return await asyncio.open_unix_connection(self.address.path, limit=_PIECE)
        return await asyncio.open_connection(self.address.host, self.address.port, limit=_PIECE)

    def _url(self, call: Call, parameters: Parameters) -> yarl.URL:
        return yarl.URL(self.address.origin + call.target(parameters), encoded=True)

    def _headers(self, op_id: str | None, recorded: bool) -> dict[str, str]:
        headers = {_wire.ORIGIN_HEADER: "sdk"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if op_id:
            headers[_wire.OP_ID_HEADER] = op_id
        if not recorded:
            headers[_wire.RECORDED_HEADER] = "false"
        return headers


async def payloads(stream: Connection | Listening, attempt: str, edge: Edge) -> AsyncIterator[Frame]:
    """The frames that say something; what the edge tells of a failure is raised."""
    frames = stream.frames().__aiter__()
    while True:
        try:
            frame = await edge.told(attempt, frames.__anext__, repeatable=True)
        except StopAsyncIteration:
            return
        if frame.kind == FrameKind.FAILED:
            raise error_from_answer(attempt, 0, frame.json())
        if frame.kind == FrameKind.END:
            continue  # and the end of the body after it
        if frame.kind != FrameKind.KEEP_ALIVE:
            yield frame


def _reason(error: BaseException) -> str:
    """With the system's own words where there are some."""
    inner = getattr(error, "os_error", None) or error
    return str(inner) or type(error).__name__


def _document(response: aiohttp.ClientResponse, text: bytes) -> Any:
    if response.content_type != "application/json":
        return text.decode("utf-8", "replace")
    return json.loads(text)


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ValueError(f"this is no HTTP answer: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines if line)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
