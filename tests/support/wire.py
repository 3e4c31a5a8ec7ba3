"""Speaks to an edge byte by byte, as no client of ours would."""

import http.client
import json
import socket
import struct

STDOUT, STDERR, EXITED, KEEP_ALIVE, FAILED, RECORD, DATA, END, STDIN, STDIN_END, RESIZE = 1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 18


class Connection(http.client.HTTPConnection):
    """Over the socket of an edge at "unix:PATH", or to "http://HOST:PORT"."""

    def __init__(self, url: str, timeout: float = 30):
        self.path = url.removeprefix("unix:") if url.startswith("unix:") else None
        super().__init__("edge" if self.path else url.removeprefix("http://"), timeout=timeout)

    def connect(self):
        if not self.path:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)
        return None


def ask(url: str, method: str, target: str, body=None, headers: dict | None = None):
    """Status, headers and the JSON of the answer."""
    connection = Connection(url)
    text = None if body is None else body if isinstance(body, (bytes, str)) else json.dumps(body)
    connection.request(method, target, text, headers or {})
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    kind = answer.getheader("Content-Type", "")
    return answer.status, dict(answer.getheaders()), json.loads(data) if kind == "application/json" else data.decode(errors="replace")


def raw(url: str) -> socket.socket:
    connection = Connection(url)
    connection.connect()
    return connection.sock


def until_closed(stream: socket.socket) -> bytes:
    data = b""
    try:
        while piece := stream.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data


def frame(kind: int, payload: bytes = b"") -> bytes:
    return struct.pack(">BI", kind, len(payload)) + payload


def frames(read):
    """Pairs of kind and payload, until there are no more; `read(size)` gives up to so many bytes."""
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = read(size - len(data))
            if not piece:
                return b""
            data += piece
        return data

    while head := exactly(5):
        kind, size = struct.unpack(">BI", head)
        yield kind, exactly(size)


def upgrade_begun(url: str, method: str, target: str, body=None, protocol: str = "dsec-frames") -> socket.socket:
    """As upgrade(), without its answer."""
    stream = raw(url)
    text = b"" if body is None else json.dumps(body).encode()
    stream.sendall(f"{method} {target} HTTP/1.1\r\nHost: edge\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n"
                   f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return stream


def upgrade(url: str, method: str, target: str, body=None, protocol: str = "dsec-frames") -> socket.socket:
    stream = upgrade_begun(url, method, target, body, protocol)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        assert byte, head
        head += byte
    assert head.startswith(b"HTTP/1.1 101"), head
    return stream
