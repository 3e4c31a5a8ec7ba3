"""The client's end of a keeper's protocol (runners/protocol/wire.h), over a stream of a virtual machine's channel."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass

from guest_channel import KEEPER, ChannelGone, GuestChannel, Refused
from wire_fields import Fields, text, texts, u16, u32, u64

EXEC, STDIN, STDIN_EOF, RESIZE, SIGNAL, STOP, LIST, WAIT, SIGNAL_TO = 2, 4, 5, 6, 7, 8, 9, 10, 11
SESSION_OPEN, SESSION_RUN, SESSION_LIST, SESSION_CLOSE, SESSION = 64, 65, 66, 67, 80
FAILED, EXEC_STARTED, STDOUT, STDERR, EXITED, COMMAND, DONE, ENDED = 33, 34, 35, 36, 37, 39, 40, 41
TTY, WITH_STDIN, MAIN, DETACH, TIED = 1, 2, 4, 8, 16
CAUSES = ("exited", "signalled", "timed_out", "out_of_memory", "cannot_execute", "not_found", "lost")


@dataclass
class Result:
    cause: str
    code: int
    signal: int
    stdout: bytes = b""
    stderr: bytes = b""
    message: str = ""
    oom_kills: int = 0


class Connection:
    """One connection to the keeper: requests, or one command."""

    def __init__(self, channel: GuestChannel, window: int = 1 << 20):
        self.stream = channel.open(KEEPER, window=window)
        self.received = b""

    def send(self, kind: int, data: bytes = b"") -> None:
        self.stream.write(struct.pack("<IHH", len(data), kind, 0) + data)

    def frame(self, timeout: float = 60) -> tuple[int, bytes]:
        while True:
            if len(self.received) >= 8:
                length, kind, _ = struct.unpack_from("<IHH", self.received)
                if len(self.received) >= 8 + length:
                    data, self.received = self.received[8:8 + length], self.received[8 + length:]
                    if kind == FAILED:
                        fields = Fields(data)
                        raise Refused(fields.u32(), f"{fields.str()} {fields.str()}".strip())
                    return kind, data
            piece = self.stream.read(timeout)
            if not piece:
                self.stream.wait_closed(timeout)  # tells why, if it failed
                raise ChannelGone()
            self.received += piece


def command_fields(argv=(), flags: int = 0, rows: int = 0, columns: int = 0, timeout_ms: int = 0, user: str = "",
                   workdir: str = "", env=()) -> bytes:
    out = u32(flags) + u16(rows) + u16(columns) + u64(timeout_ms) + u64(0) + text(user) + text(workdir)
    return out + texts(argv) + texts(env) + text("") + u32(0) + text("{}")


class Command(Connection):
    def __init__(self, channel: GuestChannel, argv, window: int = 1 << 20, **options):
        super().__init__(channel, window)
        self.send(EXEC, command_fields(argv, **options))
        kind, data = self.frame()
        assert kind == EXEC_STARTED, kind
        self.id = data.decode()

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), 64 << 10):
            self.send(STDIN, data[at:at + (64 << 10)])

    def end_input(self) -> None:
        self.send(STDIN_EOF)

    def signal(self, number: int) -> None:
        self.send(SIGNAL, u32(number))

    def resize(self, rows: int, columns: int) -> None:
        self.send(RESIZE, u16(rows) + u16(columns))

    def event(self, timeout: float = 60):
        """("stdout", bytes), ("stderr", bytes) or ("exited", Result)."""
        while True:
            kind, data = self.frame(timeout)
            if kind in (STDOUT, STDERR):
                return ("stdout" if kind == STDOUT else "stderr"), data[8:]
            if kind == EXITED:
                return "exited", result_of(data)

    def wait(self, timeout: float = 60) -> Result:
        said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        while True:
            kind, value = self.event(timeout)
            if kind == "exited":
                value.stdout, value.stderr = b"".join(said["stdout"]), b"".join(said["stderr"])
                return value
            said[kind].append(value)


def result_of(data: bytes) -> Result:
    fields = Fields(data)
    cause, code, number = fields.u32(), fields.u32(), fields.u32()
    for _ in range(5):
        fields.u64()
    fields.u32()
    message = f"{fields.str()} {fields.str()}".strip()
    fields.u32()
    return Result(CAUSES[cause], code, number, message=message, oom_kills=fields.u64())


def run(channel: GuestChannel, *argv: str, input: bytes | None = None, timeout: float = 60, **options) -> Result:
    if input is not None:
        options["flags"] = options.get("flags", 0) | WITH_STDIN
    command = Command(channel, argv, **options)
    if input is None:
        return command.wait(timeout)

    # Beside us: what it says of the beginning may have to be read before it takes the rest.
    def feed() -> None:
        command.write(input)
        command.end_input()

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    result = command.wait(timeout)
    feeder.join(timeout)
    return result
