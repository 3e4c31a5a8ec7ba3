"""Whatever a guest sends, or does not, its sandbox ends in time and with a reason, and nothing of it stays."""

import json
import shutil
import struct
import subprocess
import time
from pathlib import Path

import leftovers
import pytest
import rootfs
from waiting import until

HELLO, CONFIGURE, WELCOME, READY, FAILED = 1, 2, 32, 33, 34
MAGIC = 0x31304C4E48435344


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value + b"\0"


def frame(kind: int, fields: bytes, stream: int = 0) -> bytes:
    return struct.pack("<IHHI", len(fields), kind, 0, stream) + fields


def welcome(magic: int = MAGIC, version: int = 1) -> bytes:
    return frame(WELCOME, struct.pack("<QIQQ", magic, version, 1, 1 << 28) + text(b"6.1") + struct.pack("<I", 0))


READY_FRAME = frame(READY, struct.pack("<Q", 2))


def shell_bytes(data: bytes) -> str:
    return "printf '" + "".join(f"\\{byte:03o}" for byte in data) + "'"


def make_guest(dsec, work: Path, script: str, files: dict[str, bytes] | None = None) -> None:
    """An initramfs with the modules of the kernel's own and another first program, which has the port as descriptor 3."""
    (modules,) = (dsec.home / "vm" / "kernels").glob("*/modules.cpio")
    tree = work / "initramfs"
    tree.mkdir()
    (tree / "bin").mkdir(exist_ok=True)
    shutil.copy(rootfs.busybox(), tree / "bin/busybox")
    (tree / "init").write_text("\n".join([
        "#!/bin/busybox sh", "/bin/busybox mkdir -p /proc /sys /dev", "/bin/busybox --install -s /bin", "export PATH=/bin",
        "mount -t proc proc /proc", "mount -t sysfs sys /sys", "mount -t devtmpfs dev /dev 2>/dev/null",
        "for module in $(cat /modules/boot); do insmod /modules/$module; done",
        "until port=$(grep -l dsec.channel /sys/class/virtio-ports/*/name); do sleep 0.05; done",
        "port=${port%/name}; exec 3<>/dev/${port##*/}", script, "reboot -f", ""]))
    (tree / "init").chmod(0o755)
    for name, content in (files or {}).items():
        (tree / name).write_bytes(content)
    made = subprocess.run(["bash", "-c", "find . | cpio --quiet -o -H newc -R 0:0 | gzip -1"], cwd=tree, check=True,
                          stdout=subprocess.PIPE).stdout
    # The kernel unpacks one archive after the other.
    (modules.parent / "initramfs").write_bytes(modules.read_bytes() + made)


@pytest.fixture
def dsec(microvms):
    return microvms


# What a guest does at its channel before its sandbox is said to run, and what dsec tells of it.
BEFORE = {
    "garbage": ("head -c 100000 /dev/urandom >&3; sleep 100", "does not speak the protocol"),
    "its end": ("echo last words > /dev/console", "its kernel's last words"),
    "a panic": ("exec /bin/busybox false", "its machine did not begin"),
    "another magic": (shell_bytes(welcome(magic=5)) + " >&3; sleep 100", "has no agent of dsec"),
    "another version": (shell_bytes(welcome(version=9)) + " >&3; sleep 100", "speaks version 9"),
    "an answer nobody asked for": (shell_bytes(READY_FRAME) + " >&3; sleep 100", "answers what was not asked"),
    "a frame of a stream": (shell_bytes(frame(65, b"x", 7)) + " >&3; sleep 100", "does not speak the protocol"),
    "too long a frame": (shell_bytes(struct.pack("<IHHI", 1 << 30, WELCOME, 0, 0)) + " >&3; sleep 100", "does not speak"),
    "a refusal": (shell_bytes(welcome()) + " >&3; " + shell_bytes(frame(
        FAILED, struct.pack("<I", 5) + text(b"mount the\nlayers") + text(b"\x1b[31mdisk"))) + " >&3; sleep 100",
        "Input/output error (EIO)"),
    "a flood on its console": ("yes console > /dev/console & sleep 3; head -c 1000 /dev/urandom >&3; sleep 100", "does not speak"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_guest_that_does_not_begin_as_it_must_is_ended_with_a_reason(dsec, work, name):
    script, reason = BEFORE[name]
    make_guest(dsec, work, script)
    begin = time.monotonic()
    error = dsec.fails(125, "run", "base/box", "--", "true")
    assert reason in error
    assert "\x1b" not in error
    assert time.monotonic() - begin < 100
    assert leftovers.sandboxes_of(dsec.home) == []


# The same once it runs: what it says to whoever executes a command.
AFTER = {
    "garbage": "head -c 100000 /dev/urandom >&3; sleep 1000",
    "its end": "",
    "data beyond its window": "while :; do " + shell_bytes(frame(65, b"x" * 32000, 1)) + " >&3; done",
    "a frame of a stream nobody opened": shell_bytes(frame(65, b"x", 77)) + " >&3; sleep 1000",
    "a result that makes no sense": shell_bytes(frame(65, struct.pack("<IHH", 4, 37, 0) + b"\xff\xff\xff\xff", 1)) + " >&3; sleep 1000",
    "a frame of the keeper without an end": shell_bytes(frame(65, struct.pack("<IHH", 1 << 30, 35, 0), 1)) + " >&3; sleep 1000",
    "a closed stream": shell_bytes(frame(68, struct.pack("<I", 5) + text(b"gone"), 1)) + " >&3; sleep 1000",
}


@pytest.mark.parametrize("name", AFTER)
def test_a_guest_that_breaks_the_protocol_later_ends_its_command(dsec, work, name):
    begin_well = shell_bytes(welcome()) + " >&3; sleep 0.5; " + shell_bytes(READY_FRAME) + " >&3; sleep 4\n"
    make_guest(dsec, work, begin_well + AFTER[name])
    dsec.ok("create", "--name", "box", "base/box")
    begin = time.monotonic()
    result = dsec.run("exec", "--timeout", "20s", "box", "--", "true")
    assert result.code in (125, 124, 137), result
    assert time.monotonic() - begin < 60
    if name not in ("a closed stream", "a result that makes no sense"):
        # The command may hear of its end first.
        assert until(lambda: json.loads(dsec.ok("inspect", "box"))[0]["state"] == "failed")
        assert json.loads(dsec.ok("inspect", "box"))[0]["reason"]
    dsec.ok("rm", "-f", "box")


BEGIN_WELL = shell_bytes(welcome()) + " >&3; sleep 0.5; " + shell_bytes(READY_FRAME) + " >&3; sleep 4; cat /said >&3; sleep 1000"
OUT = 1 << 31


def way_out(number: int, service: int = 7, protocol: int = 6, address: bytes = bytes(10) + b"\xff\xff\x0b\0\0\x0a") -> bytes:
    """Open of a connection to 11.0.0.10, which no policy here allows."""
    return frame(64, struct.pack("<HHH", service, protocol, 80) + text(address), number)


# What a guest says of connections that go out.
OUTWARD = {
    "a number of the host's": way_out(5),
    "the same number twice": way_out(OUT + 1) + way_out(OUT + 1),
    "another service": way_out(OUT + 1, service=4),
    "another protocol": way_out(OUT + 1, protocol=1),
    "half an address": way_out(OUT + 1, address=b"1234"),
    "credit without bounds": way_out(OUT + 1) + frame(66, struct.pack("<I", 0xffffffff), OUT + 1),
    "connections without end": b"".join(way_out(OUT + number) for number in range(1, 9000)),
    "connections without a policy": way_out(OUT + 1),
}


@pytest.mark.parametrize("name", OUTWARD)
def test_a_guest_that_breaks_the_protocol_of_its_way_out_is_ended(dsec, work, name):
    make_guest(dsec, work, BEGIN_WELL, {"said": OUTWARD[name]})
    policy = [] if name == "connections without a policy" else ["--network", "policy"]
    dsec.ok("create", "--name", "box", *policy, "base/box")
    assert until(lambda: json.loads(dsec.ok("inspect", "box"))[0]["state"] == "failed", 40)
    assert json.loads(dsec.ok("inspect", "box"))[0]["reason"] == "its guest broke the protocol of the channel"
    dsec.ok("rm", "-f", "box")


def test_a_guest_whose_connections_are_refused_goes_on(dsec, work):
    refused = way_out(OUT + 1) + way_out(OUT + 2, protocol=17) + frame(65, struct.pack("<H", 5) + b"12345", OUT + 2) + \
        way_out(OUT + 3, address=bytes(16)) + frame(68, struct.pack("<I", 104) + text(b"reset"), OUT + 1)
    make_guest(dsec, work, BEGIN_WELL, {"said": refused})
    dsec.ok("create", "--name", "box", "--network", "policy", "base/box")
    assert until(lambda: "11.0.0.10" in dsec.ok("net", "log", "box"), 40)
    assert json.loads(dsec.ok("inspect", "box"))[0]["state"] == "running"
    dsec.ok("rm", "-f", "box")
