"""Fields of frames, as runners/protocol/wire.h writes and reads them."""

from __future__ import annotations

import struct


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u32(len(data)) + data + b"\0"


def texts(values) -> bytes:
    values = list(values)
    return u32(len(values)) + b"".join(text(value) for value in values)


class Fields:
    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def _take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def u16(self) -> int:
        return self._take("<H")

    def u32(self) -> int:
        return self._take("<I")

    def u64(self) -> int:
        return self._take("<Q")

    def bytes(self) -> bytes:
        size = self.u32()
        value = self.data[self.at:self.at + size]
        assert len(value) == size and self.data[self.at + size] == 0
        self.at += size + 1
        return value

    def str(self) -> str:
        return self.bytes().decode()

    def strs(self) -> list[str]:
        return [self.str() for _ in range(self.u32())]

    def rest(self) -> bytes:
        return self.data[self.at:]
