"""The smallest disk that a computer begins from: one sector of code, which answers what is typed at its keyboard and at
its serial port on both its screen and its serial port, and turns the computer off at Escape."""

from pathlib import Path

HELLO = b"here is the disk\r\n"

# In the order of the code; a name is where a jump with `to` leads.
CODE = [
    ("31 c0 8e d8", None),  # ds = 0
    ("be", "hello"),  # si = the text
    "print",
    ("ac 84 c0", None),  # the next character, if there is one
    ("74", "wait"),
    ("e8", "put"),
    ("eb", "print"),
    "wait",
    ("b4 01 cd 16", None),  # has a key been pressed?
    ("75", "pressed"),
    ("ba fd 03 ec a8 01", None),  # has the serial port something?
    ("74", "wait"),
    ("ba f8 03 ec", None),
    ("e8", "put"),
    ("eb", "wait"),
    "pressed",
    ("30 e4 cd 16 3c 1b", None),
    ("74", "off"),
    ("e8", "put"),
    ("eb", "wait"),
    "put",
    ("b4 0e bb 07 00 cd 10 ba f8 03 ee c3", None),
    "off",
    ("ba 04 06 b8 00 20 ef f4 eb fd", None),  # ACPI's S5, as q35 has it once its BIOS is done
    "hello",
]
BEGIN = 0x7C00
WIDE = ("be", "e8")  # jumps and addresses of 16 bits; the others have 8


def _sector() -> bytes:
    places, size = {}, 0
    for step in CODE:
        if isinstance(step, str):
            places[step] = size
        else:
            size += len(bytes.fromhex(step[0])) + (0 if step[1] is None else 2 if step[0] in WIDE else 1)
    code = b""
    for step in CODE:
        if isinstance(step, str):
            continue
        code += bytes.fromhex(step[0])
        if step[1] is None:
            continue
        wide = step[0] in WIDE
        if step[0] == "be":
            code += (BEGIN + places[step[1]]).to_bytes(2, "little")
        else:
            length = 2 if wide else 1
            code += (places[step[1]] - len(code) - length).to_bytes(length, "little", signed=True)
    return (code + HELLO + b"\0").ljust(510, b"\0") + b"\x55\xaa"


def make(file: Path, size: int = 4 << 20) -> Path:
    with file.open("wb") as disk:
        disk.write(_sector())
        disk.truncate(size)
    return file
