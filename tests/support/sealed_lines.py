"""Reads files of lines with chained checksums, as dsec-trajectory(5) describes them, by a reader of its own."""

import json
from pathlib import Path


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _table()


def crc32c(before: int, data: bytes) -> int:
    state = before ^ 0xFFFFFFFF
    for byte in data:
        state = TABLE[(state ^ byte) & 255] ^ state >> 8
    return state ^ 0xFFFFFFFF


def sealed_lines(file: Path) -> list[dict]:
    """Its records; fails where the chain is broken."""
    records, checksum = [], 0
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        assert line.endswith(b"\n"), f"line {number} is not finished"
        body, found, seal = line[:-1].rpartition(b',"crc":"')
        checksum = crc32c(checksum, body)
        assert found and seal == b'%08x"}' % checksum, f"line {number}: {line!r}"
        records.append(json.loads(line))
    return records
