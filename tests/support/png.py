"""Reads pictures of screens: PNG with 8 bits for each of red, green and blue."""

import struct
import zlib


class Picture:
    def __init__(self, content: bytes):
        assert content[:8] == b"\x89PNG\r\n\x1a\n", content[:8]
        self.width, self.height, depth, kind = struct.unpack(">IIBB", content[16:26])
        assert depth == 8 and kind in (2, 6), (depth, kind)
        self.step = 3 if kind == 2 else 4
        packed, at = b"", 8
        while at < len(content):
            size, name = struct.unpack(">I4s", content[at : at + 8])
            if name == b"IDAT":
                packed += content[at + 8 : at + 8 + size]
            at += 12 + size
        self.rows = self._unfilter(zlib.decompress(packed))

    def _unfilter(self, data: bytes) -> list[bytes]:
        length, rows, above = self.width * self.step, [], bytes(self.width * self.step)
        for y in range(self.height):
            begin = y * (length + 1)
            kind, row = data[begin], bytearray(data[begin + 1 : begin + 1 + length])
            for x in range(length if kind else 0):
                left = row[x - self.step] if x >= self.step else 0
                up, corner = above[x], above[x - self.step] if x >= self.step else 0
                row[x] = (row[x] + (left, up, (left + up) // 2, self._nearest(left, up, corner))[kind - 1]) & 255
            above = bytes(row)
            rows.append(above)
        return rows

    @staticmethod
    def _nearest(left: int, up: int, corner: int) -> int:
        guess = left + up - corner
        return min((left, up, corner), key=lambda value: abs(guess - value))

    def at(self, x: int, y: int) -> tuple[int, int, int]:
        return tuple(self.rows[y][x * self.step : x * self.step + 3])

    def colours(self) -> dict[tuple[int, int, int], int]:
        count = {}
        for y in range(self.height):
            for x in range(self.width):
                colour = self.at(x, y)
                count[colour] = count.get(colour, 0) + 1
        return count

    def box_of(self, colour: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
        """The smallest box that has all pixels of this colour: left, top, right, bottom."""
        points = [(x, y) for y in range(self.height) for x in range(self.width) if self.at(x, y) == colour]
        if not points:
            return None
        across, down = [x for x, _ in points], [y for _, y in points]
        return min(across), min(down), max(across), max(down)
