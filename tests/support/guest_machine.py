"""A virtual machine for tests of its guest side: QEMU started by hand, without dsec's own driver."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import rootfs
from dsec_tool import BIN
from guest_channel import GuestChannel
from guest_configuration import Configuration

# What every sandbox has: the same lists that the programs are built with.
ROOT = Path(__file__).resolve().parents[2]
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP",
                "SETUID", "SYS_CHROOT")
NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETPCAP": 8,
           "NET_BIND_SERVICE": 10, "SYS_CHROOT": 18, "SETFCAP": 31}
PORT = "dsec.channel"


def source_strings(array: str) -> list[str]:
    text = (ROOT / "runners/isolation/sandbox_paths.h").read_text()
    body = text[text.index(f"{array}[] = {{"):]
    return re.findall(r'"([^"]+)"', body[:body.index("};")])


def seccomp_program() -> bytes:
    text = (BIN.parent / "generated/runners/isolation/seccomp_program.h").read_text()
    rows = re.findall(r"\{(\d+), (\d+), (\d+), (\d+)u\}", text)
    return b"".join(int(code).to_bytes(2, "little") + bytes([int(yes), int(no)]) + int(value).to_bytes(4, "little")
                    for code, yes, no, value in rows)


def tsc_khz() -> int:
    """Emulated, the guest's counter runs as the host's does, and there is nothing to measure it with in time."""
    found = re.search(r"^cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text(), re.M)
    return int(float(found[1]) * 1000) if found else 2_000_000


def make_images(folder: Path) -> dict[str, Path]:
    """`base`: busybox; `over` with its data in `over-data`; `disk`: an empty ext4."""
    tar = rootfs.write_tar(folder / "base.tar")
    subprocess.run(["mkfs.erofs", "--quiet", "-E^inline_data", "--tar=f", folder / "base", tar], check=True, stdout=subprocess.DEVNULL)
    tar.unlink()
    tree = folder / "tree"
    (tree / "opt").mkdir(parents=True)
    (tree / "opt" / "tool").write_text("of the second layer\n" * 1000)
    (tree / "etc").mkdir()
    (tree / "etc" / "group").write_text("root:x:0:\nfrom:x:7:\n")
    (tree / "etc" / "machine-id").write_text("")
    subprocess.run(["mkfs.erofs", "--quiet", "--chunksize=4096", f"--blobdev={folder}/over-data", folder / "over", tree],
                   check=True, stdout=subprocess.DEVNULL)
    for name in ("base", "over", "over-data"):
        size = (folder / name).stat().st_size
        with open(folder / name, "r+b") as file:
            file.truncate(-(-size // 4096) * 4096)
    make_disk(folder / "disk")
    return {name: folder / name for name in ("base", "over", "over-data", "disk")}


def make_disk(path: Path, size: str = "256M") -> None:
    subprocess.run(["truncate", "-s", size, path], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True)


def configuration(**changes) -> Configuration:
    wanted = {
        "images": [["base"], ["over", "over-data"]],
        "writable": "disk",
        "capabilities": sum(1 << NUMBERS[name] for name in CAPABILITIES),
        "seccomp": seccomp_program(),
        "masked": source_strings("kMaskedPaths"),
        "read_only": source_strings("kReadOnlyPaths"),
        "machine_id": "0123456789abcdef" * 2,
        "files": [("/etc/hosts", b"127.0.0.1 localhost\n"), ("/etc/hostname", b"machine\n")],
    }
    return Configuration(**{**wanted, **changes})


class Machine:
    """Drives are named by their serials; a drive called "disk…" is writable."""

    def __init__(self, kernel: dict, folder: Path, drives: dict[str, Path], arguments: str = "", memory: str = "256M",
                 machine: str = "microvm,acpi=on", devices: tuple[str, ...] = ()):
        self.folder = folder
        self.socket, self.console = folder / "channel", folder / "console"
        self.socket.unlink(missing_ok=True)
        bus = "pci" if machine.startswith("q35") else "device"
        line = f"console=ttyS0 quiet panic=-1 reboot=t random.trust_cpu=on mitigations=off tsc_early_khz={tsc_khz()}"
        argv = ["qemu-system-x86_64", "-M", machine, "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", memory,
                "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", f"file:{self.console}",
                "-global", "virtio-mmio.force-legacy=false", "-kernel", kernel["kernel"],
                "-initrd", kernel["initramfs"], "-append", f"{line} {arguments}",
                "-device", f"virtio-serial-{bus}", "-device", f"virtio-rng-{bus}",
                "-chardev", f"socket,id=c,path={self.socket},server=on,wait=off",
                "-device", f"virtserialport,chardev=c,name={PORT}"]
        for serial, path in drives.items():
            mode = "cache=unsafe" if serial.startswith("disk") else "readonly=on"
            argv += ["-drive", f"if=none,id={serial},format=raw,{mode},file={path}",
                     "-device", f"virtio-blk-{bus},drive={serial},serial={serial}"]
        self.process = subprocess.Popen([*argv, *devices], stdin=subprocess.DEVNULL)
        self.channel: GuestChannel | None = None

    def connect(self) -> GuestChannel:
        self.channel = GuestChannel(str(self.socket))
        return self.channel

    def start(self, wanted: Configuration | None = None) -> GuestChannel:
        channel = self.connect()
        channel.hello(120)
        channel.configure(wanted or configuration())
        return channel

    def wait_end(self, timeout: float = 60) -> int:
        return self.process.wait(timeout)

    def said(self) -> str:
        return self.console.read_text(errors="replace")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
