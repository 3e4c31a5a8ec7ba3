"""The layered disk of a microVM against a raw file, in turn, medians of pairs: to make one (mkfs.ext4 of a sparse file against a
disk on the empty layer, server included), 4 KiB and 1 MiB through QEMU's block layer (qemu-img bench, 16 at a time), and
what a guest reads and writes. No goals are set. Needs root, QEMU and qemu-utils."""

import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from dsec_tool import ROOT, Dsec
from guest_keeper import run
from guest_machine import Machine, configuration, make_disk, make_images
from support.measuring import BIN, compare

GIB = 1 << 30
NO_GOAL = 100.0
numbers = itertools.count()


def tool(*args) -> None:
    subprocess.run([BIN / "machine_disk", *args], check=True)


def seconds(action) -> float:
    began = time.monotonic()
    action()
    return (time.monotonic() - began) * 1e6


def mkfs(path: Path) -> None:
    subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal,^resize_inode", "-E",
                    "lazy_itable_init=1,nodiscard", path, "10G"], check=True, stderr=subprocess.DEVNULL)


def making(work: Path) -> bool:
    mkfs(work / "image")
    tool("pack", work / "image", work / "empty.obd")
    made = []

    def layered() -> None:
        made.append(work / f"made{next(numbers)}")
        tool("create", made[-1], "0", work / "empty.obd")
        tool("serve", made[-1], made[-1].with_suffix(".sock"))

    def raw() -> None:
        (work / "raw").unlink(missing_ok=True)
        mkfs(work / "raw")

    met = compare("make a disk", NO_GOAL, lambda: seconds(raw), lambda: seconds(layered))
    for disk in made:
        tool("end", disk)
    return met


def bench(image: str, size: int, step: int, write: bool) -> float:
    """Microseconds of each of 4096 requests."""
    words = ["qemu-img", "bench", "-f", "raw", "-c", "4096", "-d", "16", "-s", str(size), "-S", str(step), *(["-w"] if write else []), image]
    said = subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout
    return float(re.search(r"completed in ([\d.]+) seconds", said)[1]) / 4096 * 1e6


def through_qemu(work: Path) -> bool:
    raw, disk = work / "flat", work / "disk"
    subprocess.run(["truncate", "-s", str(4 * GIB), raw], check=True)
    tool("create", disk, str(4 * GIB))
    tool("serve", disk, work / "disk.sock")
    images = [str(raw), f"nbd+unix:///?socket={work}/disk.sock"]
    # A step that is no divisor of the size goes all over it.
    try:
        for name, size, step, write in (("write 4 KiB in order", 4096, 4096, True), ("write 4 KiB all over", 4096, 500_001 * 4096, True),
                                        ("read 4 KiB in order", 4096, 4096, False), ("read 4 KiB all over", 4096, 500_001 * 4096, False),
                                        ("write 256 KiB in order", 1 << 18, 1 << 18, True), ("read 256 KiB in order", 1 << 18, 1 << 18, False)):
            compare(name, NO_GOAL, lambda: bench(images[0], size, step, write), lambda: bench(images[1], size, step, write))  # noqa: B023
    finally:
        tool("end", disk)
    return True


def in_a_guest(work: Path) -> bool:
    package = subprocess.run([ROOT / "scripts/guest-kernel"], check=True, text=True, capture_output=True).stdout.strip()
    dsec = Dsec(work / "home", work)
    dsec.ok("vm", "kernel", "import", package)
    kernel = json.loads(dsec.ok("vm", "kernel", "ls", "-o", "json"))
    images = make_images(work)
    make_disk(work / "guest-raw", "1G")
    make_disk(work / "guest-image", "1G")
    tool("pack", work / "guest-image", work / "guest.obd")
    tool("create", work / "guest", "0", work / "guest.obd")
    tool("serve", work / "guest", work / "guest.sock")
    nodes = [{"driver": "file", "filename": str(work / "guest-raw")}, {"driver": "nbd", "server": {"type": "unix", "path": str(work / "guest.sock")}}]
    guests = []
    for number, node in enumerate(nodes):
        place = work / f"guest{number}"
        place.mkdir()
        options = json.dumps({**node, "node-name": "top", "discard": "unmap", "detect-zeroes": "unmap"})
        guests.append(Machine(kernel, place, {name: images[name] for name in ("base", "over", "over-data")}, memory="512M",
                              devices=("-blockdev", options, "-device", "virtio-blk-device,drive=top,serial=disk")))
    try:
        for guest in guests:
            guest.start(configuration())
            run(guest.channel, "/bin/sh", "-c", "head -c 64000000 /dev/urandom > /tmp/noise")

        def takes(guest, script: str) -> float:
            began = time.monotonic()
            result = run(guest.channel, "/bin/sh", "-c", script)
            assert result.code == 0, result
            return (time.monotonic() - began) * 1e6

        for name, script in (("a guest writes 64 MB", "dd if=/tmp/noise of=/root/file bs=1M conv=fsync 2>&1"),
                             ("a guest reads 64 MB", "dd if=/root/file of=/dev/null bs=1M iflag=direct 2>&1"),
                             ("a guest writes 4 KiB 500 times, each flushed", "dd if=/tmp/noise of=/root/small bs=4k count=500 oflag=dsync 2>&1")):
            compare(name, NO_GOAL, lambda: takes(guests[0], script), lambda: takes(guests[1], script))  # noqa: B023
    finally:
        for guest in guests:
            guest.stop()
        tool("end", work / "guest")
    return True


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as folder:
        return 0 if all([making(Path(folder)), through_qemu(Path(folder)), in_a_guest(Path(folder))]) else 1


if __name__ == "__main__":
    sys.exit(main())
