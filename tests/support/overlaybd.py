"""OverlayBD layers, made and read without dsec: what its tests compare it with. Written from man dsec-overlaybd alone."""

import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
HEADER = 4096
MAGIC = b"LSMT\0\1\2\0" + bytes.fromhex("657E63D29444084CA2D2C8EC4FCFAE8A")
ZMAGIC = b"ZFile\0\1\0" + bytes.fromhex("74756A692E79796640416C6962616261")
NO_UUID = "0" * 8 + "-0000-0000-0000-" + "0" * 12
FILLER = (1 << 50) - 1
IS_HEADER, IS_DATA, IS_SEALED, IS_SPARSE = 1, 2, 4, 16
LZ4, ZSTD = 1, 2


class Damaged(Exception):
    pass


def need(condition, what: str) -> None:
    if not condition:
        raise Damaged(what)


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _table()


def crc(seed: int, data: bytes) -> int:
    for byte in data:
        seed = TABLE[(seed ^ byte) & 255] ^ seed >> 8
    return seed


# --- making ---------------------------------------------------------------------------------------------------------


def header(flags: int, *, index_offset=0, count=0, size=0, uuid=NO_UUID, parent=NO_UUID, message=b"") -> bytes:
    text = MAGIC + struct.pack("<IIQQQ", 390, flags, index_offset, count, size)
    text += uuid.encode() + b"\0" + parent.encode() + b"\0" + b"\0\0" + b"\1\1" + message
    return text.ljust(HEADER, b"\0")


def mapping(offset: int, length: int, place: int, zero=False, tag=0) -> bytes:
    return struct.pack("<QQ", offset | length << 50, place | int(zero) << 55 | tag << 56)


def writable(operations, **facts) -> tuple[bytes, bytes]:
    """Data and index of a layer after (sector, bytes) was written, or (sector, count) discarded, in this order."""
    data = bytearray(header(IS_HEADER | IS_DATA, **facts))
    index = bytearray(header(IS_HEADER, index_offset=HEADER, **facts))
    for sector, what in operations:
        place = len(data) // SECTOR
        if isinstance(what, int):
            index += mapping(sector, what, place, zero=True)
        else:
            index += mapping(sector, len(what) // SECTOR, place)
            data += what
    return bytes(data), bytes(index)


def sealed(runs, *, fillers=0, in_place=False, **facts) -> bytes:
    """A layer of (sector, bytes) and (sector, count) in order, a mapping each."""
    data, index = b"", b""
    for sector, what in runs:
        place = (HEADER + len(data)) // SECTOR
        if isinstance(what, int):
            index += mapping(sector, what, place, zero=True)
        else:
            index += mapping(sector, len(what) // SECTOR, place)
            data += what
    index += mapping(FILLER, 0, 0) * fillers
    end = HEADER + len(data)
    count = len(index) // 16
    if in_place:
        index = index.ljust((len(index) + SECTOR - 1) // SECTOR * SECTOR, b"\0")
    first = header(IS_HEADER | IS_DATA | (0 if in_place else IS_SEALED), **facts)
    return first + data + index + header(IS_DATA | IS_SEALED, index_offset=end, count=count, **facts)


def lz4_literals(block: bytes) -> bytes:
    """The simplest LZ4 block: nothing but literals."""
    rest = len(block) - 15
    if rest < 0:
        return bytes([len(block) << 4]) + block
    return b"\xf0" + b"\xff" * (rest // 255) + bytes([rest % 255]) + block


def zstd(block: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=block, capture_output=True, check=True).stdout


def zfile_header(flags, index_offset, count, size, index_crc, block_size, algorithm, verify, dictionary=0) -> bytes:
    def text(digest: int) -> bytes:
        head = ZMAGIC + struct.pack("<IIQQQQII", 96, digest, flags, index_offset, count, size, index_crc, 0)
        head += struct.pack("<IBBBBIIB", block_size, algorithm, 0, dictionary, 0, 0, 0, verify)
        return head.ljust(512, b"\0")

    return text(crc(0, text(0)) if flags & 16 else 0)


def zfile(content: bytes, algorithm=LZ4, block_size=4096, verify=True, final=True, digest=True) -> bytes:
    blocks, lengths = b"", b""
    for at in range(0, len(content), block_size):
        block = content[at:at + block_size]
        packed = lz4_literals(block) if algorithm == LZ4 else zstd(block)
        if verify:
            packed += struct.pack("<I", crc(100007, packed))
        blocks += packed
        lengths += struct.pack("<I", len(packed))
    facts = (512 + len(blocks), len(lengths) // 4, len(content), crc(0, lengths), block_size, algorithm, int(verify))
    has_digest = 16 if digest else 0
    first = (zfile_header(1 | 2 | 8 | has_digest, *facts) if final
             else zfile_header(1 | 2 | has_digest, 0, 0, 0, 0, block_size, algorithm, int(verify)))
    return first + blocks + lengths + zfile_header(2 | 4 | has_digest, *facts)


def _tar_header(name: str, kind: bytes, size: int, owner: bool) -> bytes:
    def octal(number: int, width: int) -> bytes:
        return f"{number:{width}o} ".encode()

    head = bytearray(512)
    head[:len(name)] = name.encode()
    head[124:136] = octal(size, 11)
    head[156:157] = kind
    head[257:262], head[263:265] = b"ustar", b"00"
    if owner:
        head[100:107], head[108:115], head[116:123], head[136:148] = (
            octal(0o100644, 6), octal(0, 6), octal(0, 6), octal(0, 11))
        head[265:269] = head[297:301] = b"root"
    head[148:156] = b" " * 8
    head[148:156] = octal(sum(head), 6) + b"\0"
    return bytes(head)


def tar(content: bytes) -> bytes:
    length = 0
    while True:
        record = f"{length} size={len(content)}\n".encode()
        if len(record) == length:
            break
        length = len(record)
    padding = -len(content) % 512
    return (_tar_header("overlaybd.pax", b"x", length, owner=False) + record.ljust(512, b"\0")
            + _tar_header("overlaybd.commit", b"0", 0, owner=True) + content + bytes(padding + 1024))


# --- reading --------------------------------------------------------------------------------------------------------


def lz4_unpack(packed: bytes) -> bytes:
    out = bytearray()
    at = 0

    def long(count: int) -> int:
        nonlocal at
        if count == 15:
            while True:
                count += packed[at]
                at += 1
                if packed[at - 1] != 255:
                    break
        return count

    while at < len(packed):
        token = packed[at]
        at += 1
        literals = long(token >> 4)
        out += packed[at:at + literals]
        at += literals
        if at == len(packed):
            break
        back = packed[at] | packed[at + 1] << 8
        at += 2
        need(0 < back <= len(out), "LZ4: a match before the beginning")
        for _ in range(long(token & 15) + 4):
            out.append(out[-back])
    return bytes(out)


def zstd_unpack(packed: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-d", "-c"], input=packed, capture_output=True, check=True).stdout


def unwrap_tar(data: bytes) -> bytes:
    if data[257:262] != b"ustar":
        return data
    need(data[156:157] == b"x" and data[:13] == b"overlaybd.pax", "not the archive that is expected")
    length = int(data[124:136].strip(), 8)
    record = data[512:512 + length].decode()
    need(record.split(" ")[0] == str(length) and record.endswith("\n"), "PAX record")
    size = int(record.split("size=")[1])
    need(data == tar(data[1536:1536 + size]), "the archive is not as the project writes it")
    return data[1536:1536 + size]


def unwrap_zfile(data: bytes) -> bytes:
    if data[:24] != ZMAGIC:
        return data
    head, tail = data[:512], data[-512:]
    for part in (head, tail):
        need(crc(0, part[:28] + bytes(4) + part[32:]) == struct.unpack_from("<I", part, 28)[0], "digest")
    flags = struct.unpack_from("<Q", head, 32)[0]
    need(flags in (27, 19) and struct.unpack_from("<Q", tail, 32)[0] == 22, "flags")
    if flags == 27:
        need(head[40:] == tail[40:], "header and trailer differ")
    index_offset, count, size, index_crc, _, block_size, algorithm = struct.unpack_from("<QQQIIIB", tail, 40)
    need(tail[88] == 1, "no checksums")
    table = data[index_offset:index_offset + 4 * count]
    need(index_offset + 4 * count + 512 == len(data), "what is behind the table")
    need(crc(0, table) == index_crc, "checksum of the table")
    at, out = 512, b""
    for (length,) in struct.iter_unpack("<I", table):
        packed, sum_ = data[at:at + length - 4], struct.unpack_from("<I", data, at + length - 4)[0]
        need(crc(100007, packed) == sum_, "checksum of a block")
        block = lz4_unpack(packed) if algorithm == LZ4 else zstd_unpack(packed)
        need(len(block) == min(block_size, size - len(out)), "size of a block")
        out += block
        at += length
    need(at == index_offset and len(out) == size, "sizes")
    return out


@dataclass
class Layer:
    size: int
    uuid: str
    parent: str
    message: bytes
    mappings: list = field(default_factory=list)  # (offset, length, place, zero, tag)
    data: bytes = b""

    def paint(self, device: bytearray) -> None:
        for offset, length, place, zero, _ in self.mappings:
            content = bytes(length * SECTOR) if zero else self.data[place * SECTOR:(place + length) * SECTOR]
            need(len(content) == length * SECTOR, "mapped bytes are missing")
            device[offset * SECTOR:(offset + length) * SECTOR] = content


def _layer(head: bytes, data: bytes) -> tuple[Layer, int, int, int]:
    need(head[:24] == MAGIC, "magic")
    used, flags, index_offset, count, size = struct.unpack_from("<IIQQQ", head, 24)
    need(used == 390 and head[132:134] == b"\1\1" and not any(head[390:]) and head[92] == head[129] == 0, "header")
    return (Layer(size, head[56:92].decode(), head[93:129].decode(), head[134:390].rstrip(b"\0"), data=data), flags,
            index_offset, count)


def _mappings(table: bytes):
    for low, high in struct.iter_unpack("<QQ", table):
        yield low & FILLER, low >> 50, high & (1 << 55) - 1, bool(high >> 55 & 1), high >> 56


def read_sealed(path: Path, strict=True) -> Layer:
    """A sealed layer, everything about it verified; `strict`: it is also as dsec and overlaybd-commit write one."""
    data = unwrap_zfile(unwrap_tar(path.read_bytes()))
    _, flags, offset, count = _layer(data[:HEADER], data)
    need(flags == 7 and offset == count == 0, "header of a sealed layer")
    layer, flags, offset, count = _layer(data[-HEADER:], data)
    need(flags == 6, "trailer of a sealed layer")
    need(offset + 16 * count + HEADER == len(data), "size")
    entries = list(_mappings(data[offset:offset + 16 * count]))
    layer.mappings = [entry for entry in entries if entry[0] != FILLER]
    end, place = 0, HEADER // SECTOR
    for first, length, where, zero, _ in layer.mappings:
        need(length > 0 and first >= end, "order")
        end = first + length
        if strict:
            need(where == place, "data are not in the order of the device")
        place = where if zero else where + length
        need(place * SECTOR <= offset, "place")
    if strict:
        need(place * SECTOR == offset, "data that nobody maps")
        need(count % 256 == 0 and entries[len(layer.mappings):] == [(FILLER, 0, 0, False, 0)] * (
            count - len(layer.mappings)) and count - len(layer.mappings) < 256, "fillers")
    return layer


def read_writable(data: Path, index: Path) -> Layer:
    bytes_, table = data.read_bytes(), index.read_bytes()
    _, flags, _, _ = _layer(bytes_[:HEADER], bytes_)
    need(flags == 3, "header of a data file")
    layer, flags, offset, _ = _layer(table[:HEADER], bytes_)
    need(flags == 1 and offset == HEADER, "header of an index file")
    table = table[HEADER:]
    layer.mappings = [m for m in _mappings(table[:len(table) // 16 * 16]) if m[0] != FILLER]
    return layer


def compose(layers: list[Layer]) -> bytes:
    """The device, by painting one layer over the other."""
    size = next(layer.size for layer in reversed(layers) if layer.size)
    device = bytearray(size)
    for layer in layers:
        layer.paint(device)
        need(len(device) == size, "a mapping beyond the end of the device")
    return bytes(device)
