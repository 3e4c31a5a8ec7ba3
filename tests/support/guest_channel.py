"""The host's end of a virtual machine's channel, as runners/protocol/guest_channel.h describes it."""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
import time

from guest_configuration import VERSION, Configuration
from wire_fields import Fields, text, u16, u32, u64

MAGIC = 0x31304C4E48435344
HELLO, CONFIGURE, STATISTICS, QUIESCE, THAW, RENEW, POWER_OFF = range(1, 8)
CLOCK = 9
REST = 10
WELCOME, READY, FAILED, DONE, FIGURES, ENDED = range(32, 38)
OPEN, DATA, CREDIT, EOF, CLOSED = range(64, 69)
KEEPER, COPY_OUT, COPY_IN, CONNECT, DIFF, WATCH = range(1, 7)
WRITTEN = 8
GUEST_WINDOW = 256 << 10
MAX_DATA = 32 << 10
NO_OWNER = 2**64 - 1
FIGURE_NAMES = ("", "memory_current", "memory_peak", "memory_anonymous", "memory_file", "cpu_usec", "pids", "oom_kills",
                "guest_memory_total", "guest_memory_available", "guest_memory_free", "disk_bytes", "disk_limit")


class ChannelGone(Exception):
    pass


class Refused(Exception):
    """A Failed frame, or a Closed one that tells of a failure."""

    def __init__(self, number: int, text: str):
        super().__init__(f"{text} ({os.strerror(number)})" if number else text)
        self.errno = number


class Stream:
    """One stream. What arrives is credited when it is read; nothing of it can hold up another."""

    def __init__(self, channel: "GuestChannel", number: int, window: int):
        self.channel, self.number = channel, number
        self.arrived: "queue.Queue[bytes | None]" = queue.Queue()
        self.room = threading.Condition()
        self.credit = GUEST_WINDOW
        self.window, self.uncredited = window, 0
        self.ended = False
        self.closed: tuple[int, str] | None = None
        self.over = threading.Event()

    def read(self, timeout: float = 60) -> bytes:
        """The next piece; b"" at the end."""
        if self.ended:
            return b""
        piece = self.arrived.get(timeout=timeout)
        if piece is None:
            self.ended = True
            return b""
        self.uncredited += len(piece)
        if self.uncredited * 4 >= self.window and not self.over.is_set():
            self.channel.send(CREDIT, self.number, u32(self.uncredited))
            self.uncredited = 0
        return piece

    def read_all(self) -> bytes:
        return b"".join(iter(self.read, b""))

    def write(self, data: bytes, timeout: float = 120) -> None:
        at = 0
        while at < len(data):
            with self.room:
                if not self.room.wait_for(lambda: self.credit > 0 or self.over.is_set(), timeout):
                    raise TimeoutError("the guest gives no credit")
                if self.over.is_set():
                    return
                size = min(self.credit, MAX_DATA, len(data) - at)
                self.credit -= size
            self.channel.send(DATA, self.number, data[at:at + size])
            at += size

    def eof(self) -> None:
        self.channel.send(EOF, self.number)

    def abandon(self) -> None:
        self.channel.send(CLOSED, self.number, u32(0) + text(""))

    def wait_closed(self, timeout: float = 60) -> None:
        """Raises Refused when the guest says that it failed."""
        if not self.over.wait(timeout):
            raise TimeoutError("the guest does not close the stream")
        if self.closed is None:
            raise ChannelGone()
        number, said = self.closed
        if number or said:
            raise Refused(number, said)


class GuestChannel:
    def __init__(self, path: str, timeout: float = 30):
        deadline = time.monotonic() + timeout
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                self.socket.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self.sending = threading.Lock()
        self.answers: "queue.Queue[tuple[int, bytes] | None]" = queue.Queue()
        self.end_reason: "queue.Queue[str]" = queue.Queue()
        self.streams: dict[int, Stream] = {}
        self.last_number = 0
        self.gone = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    # -- frames

    def send(self, kind: int, stream: int = 0, data: bytes = b"") -> None:
        self.send_raw(struct.pack("<IHHI", len(data), kind, 0, stream) + data)

    def send_raw(self, data: bytes) -> None:
        with self.sending:
            self.socket.sendall(data)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(1 << 20, size - len(data)))
            if not piece:
                raise ChannelGone()
            data += piece
        return bytes(data)

    def _read(self) -> None:
        try:
            while True:
                length, kind, zero, number = struct.unpack("<IHHI", self._receive(12))
                assert zero == 0
                self._take(kind, number, self._receive(length))
        except (ChannelGone, OSError):
            pass
        self.gone.set()
        self.answers.put(None)
        for stream in list(self.streams.values()):
            self._finish(stream, None)

    def _take(self, kind: int, number: int, data: bytes) -> None:
        if number == 0:
            if kind == ENDED:
                self.end_reason.put(Fields(data).str())
            else:
                self.answers.put((kind, data))
            return
        stream = self.streams.get(number)
        if stream is None:
            return  # one that was opened by hand
        if kind == DATA:
            assert len(data) <= MAX_DATA
            stream.arrived.put(data)
        elif kind == EOF:
            stream.arrived.put(None)
        elif kind == CREDIT:
            with stream.room:
                stream.credit += Fields(data).u32()
                stream.room.notify_all()
        elif kind == CLOSED:
            fields = Fields(data)
            del self.streams[number]
            self._finish(stream, (fields.u32(), fields.str()))
        else:
            raise AssertionError(f"frame {kind} of stream {number}")

    @staticmethod
    def _finish(stream: Stream, closed) -> None:
        stream.closed = closed
        with stream.room:
            stream.over.set()
            stream.room.notify_all()
        stream.arrived.put(None)

    # -- stream 0

    def request(self, kind: int, data: bytes = b"", timeout: float = 60) -> tuple[int, bytes]:
        self.send(kind, 0, data)
        answer = self.answers.get(timeout=timeout)
        if answer is None:
            raise ChannelGone()
        if answer[0] == FAILED:
            fields = Fields(answer[1])
            number, step, on = fields.u32(), fields.str(), fields.str()
            raise Refused(number, f"{step} {on}".strip())
        return answer

    def hello(self, timeout: float = 60) -> dict:
        data = u64(MAGIC) + u32(VERSION) + u64(time.time_ns() // 1000) + text(os.urandom(64))
        kind, said = self.request(HELLO, data, timeout)
        assert kind == WELCOME
        fields = Fields(said)
        assert fields.u64() == MAGIC and fields.u32() == VERSION
        return {"uptime_us": fields.u64(), "memory": fields.u64(), "release": fields.str(), "state": fields.u32()}

    def configure(self, configuration: Configuration) -> int:
        """Microseconds since the kernel began."""
        kind, said = self.request(CONFIGURE, configuration.encode())
        assert kind == READY
        return Fields(said).u64()

    def figures(self) -> dict[str, int]:
        kind, said = self.request(STATISTICS)
        assert kind == FIGURES
        fields = Fields(said)
        return {FIGURE_NAMES[fields.u32()]: fields.u64() for _ in range(fields.u32())}

    def open(self, service: int, wish: bytes = b"", window: int = 1 << 20) -> Stream:
        self.last_number += 1
        stream = Stream(self, self.last_number, window)
        self.streams[stream.number] = stream
        self.send(OPEN, stream.number, u32(window) + u16(service) + wish)
        return stream

    def copy_out(self, path: str, name: str = "", owner: int = NO_OWNER) -> bytes:
        stream = self.open(COPY_OUT, text(path) + text(name) + u64(owner))
        data = stream.read_all()
        stream.wait_closed()
        return data

    def copy_in(self, path: str, tar: bytes, name: str = "", owner: int = NO_OWNER) -> None:
        stream = self.open(COPY_IN, text(path) + text(name) + u64(owner))
        stream.write(tar)
        if not stream.over.is_set():
            stream.eof()
        stream.wait_closed()

    def close(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
