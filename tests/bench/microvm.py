"""Virtual machines, with KVM where a guest begins under it, else emulated:
- from `dsec create --backend microvm` to its return, when the agent's sandbox runs, against a bare QEMU from its start to
  the first program of the same kernel (goal 1.3), also with layers that are memory of the guest;
- the same from a saved guest, and going on from a saved sandbox, against the bare one (goal 1/4);
- a command in a live guest, against one in a live container;
- output of a command (goal 10 MB/s);
- a file of 1 GB copied in and out again: rates, and that it is the same;
- guests that live at once: what each has of the host's memory for itself, and what all have in common (goal: 20 live).
Needs root, QEMU, and the kernel of guests."""

import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))

import rootfs
from support.measuring import BIN, LONG, PAIRS, compare, tell

MACHINE = ("--backend", "microvm", "-m", "256MiB", "--cpus", "1")
LIVE = 20
MIB = 1 << 20
GIGABYTE = 1_000_000_000
QEMU = "qemu-system-x86_64"


def dsec(*args, **kwargs) -> str:
    done = subprocess.run([str(BIN / "dsec"), *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"dsec {' '.join(map(str, args))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def microseconds(work) -> float:
    began = time.monotonic()
    work()
    return (time.monotonic() - began) * 1e6


def one_file_cpio(name: str, content: bytes) -> bytes:
    def entry(name: str, mode: int, content: bytes, device=(0, 0)) -> bytes:
        fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)

    return (entry("dev", 0o040755, b"") + entry("dev/console", 0o020600, b"", (5, 1)) + entry(name, 0o100755, content)
            + entry("TRAILER!!!", 0, b""))


class BareMachine:
    """The least that a machine with this kernel takes: no drive, no channel, one program."""

    def __init__(self, work: Path, accelerator: list[str]):
        kernel = json.loads(dsec("vm", "kernel", "ls", "-o", "json"))["kernel"]
        initramfs = work / "first-program.cpio"
        initramfs.write_bytes(one_file_cpio("init", (BIN / "bench_first_program").read_bytes()))
        self.argv = [QEMU, "-M", "microvm,acpi=on", *accelerator, "-m", "256M", "-smp", "1", "-nodefaults",
                     "-no-user-config", "-display", "none", "-no-reboot", "-chardev", "stdio,id=console", "-serial",
                     "chardev:console", "-kernel", kernel, "-initrd", str(initramfs), "-append"]
        self.words = "console=ttyS0 quiet panic=-1 reboot=t"
        self.emulated = "tcg" in accelerator[1]

    def begin(self) -> float:
        words = self.words
        if self.emulated:
            words += f" no_timer_check tsc_early_khz={counter_khz()}"
        began = time.monotonic()
        with subprocess.Popen([*self.argv, words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as machine:
            for line in machine.stdout:
                if b"the first program runs" in line:
                    took = time.monotonic() - began
                    machine.kill()
                    return took * 1e6
        sys.exit("the bare machine did not come to its first program")


def counter_khz() -> int:
    found = re.search(r"^cpu MHz\s*: ([\d.]+)", Path("/proc/cpuinfo").read_text(), re.M)
    return int(float(found[1]) * 1000) if found else 2_000_000


def accelerator_of(sandbox: str) -> list[str]:
    """As dsec has chosen it."""
    argv = machine_of(sandbox)
    at = argv.index("-accel")
    return [argv[at], argv[at + 1], "-cpu", argv[argv.index("-cpu") + 1]]


def machine_of(sandbox: str) -> list[str]:
    state = json.loads((Path(os.environ["DSEC_HOME"]) / "sandboxes" / sandbox / "state.json").read_text())
    return Path(f"/proc/{state['init_pid']}/cmdline").read_text().split("\0")


def created(*flags) -> float:
    began = time.monotonic()
    sandbox = dsec("create", *MACHINE, *flags).strip()
    took = time.monotonic() - began
    dsec("rm", "-f", sandbox)
    return took * 1e6


def restored(snapshot: str) -> float:
    began = time.monotonic()
    sandbox = dsec("vm", "restore", snapshot).strip()
    took = time.monotonic() - began
    dsec("rm", "-f", sandbox)
    return took * 1e6


def beginnings(work: Path) -> list[bool]:
    sandbox = dsec("create", *MACHINE, "base/box").strip()
    bare = BareMachine(work, accelerator_of(sandbox))
    dsec("rm", "-f", sandbox)
    print(f"accelerator: {' '.join(bare.argv[3:7])}", flush=True)
    met = [compare("create a microVM", 1.3, bare.begin, lambda: created("base/box")),
           compare("create one whose layer is memory of its guest", 1.3, bare.begin, lambda: created("base/big"))]
    for flags in ([], ["--pmem"]):
        dsec("vm", "warm", "-m", "256MiB", "--cpus", "1", *flags)
    sandbox = dsec("create", *MACHINE, "base/box").strip()
    dsec("exec", "-d", sandbox, "--", "sleep", "1000")
    dsec("vm", "save", sandbox, "kept")
    met.append(compare("go on from a saved sandbox", 0.25, bare.begin, lambda: restored("kept")))
    dsec("rm", "-f", sandbox)
    dsec("vm", "snapshot", "rm", "kept")
    return met + [compare("create from a saved guest", 0.25, bare.begin, lambda: created("base/box")),
                  compare("the same whose layer is memory of its guest", 0.25, bare.begin, lambda: created("base/big"))]


def commands() -> None:
    rounds = 50 if LONG else 20
    took = {}
    for name, flags in (("guest", MACHINE), ("container", ())):
        sandbox = dsec("create", *flags, "base/box").strip()
        dsec("exec", sandbox, "--", "true")
        took[name] = statistics.median(microseconds(lambda: dsec("exec", sandbox, "--", "true")) for _ in range(rounds))
        dsec("rm", "-f", sandbox)
    print(f"true in a live guest, by the command line: {took['guest'] / 1000:.1f} ms; in a live container"
          f" {took['container'] / 1000:.1f} ms", flush=True)


def output(sandbox: str) -> bool:
    size = 100 * MIB
    rates = []
    for _ in range(3):
        began = time.monotonic()
        command = [str(BIN / "dsec"), "exec", sandbox, "--", "dd", "if=/dev/zero", "bs=64k", f"count={size >> 16}"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
            came = sum(len(chunk) for chunk in iter(lambda: running.stdout.read(MIB), b""))
        if came != size or running.returncode != 0:
            sys.exit(f"{came} of {size} bytes of output came")
        rates.append(size / 1e6 / (time.monotonic() - began))
    rate = statistics.median(rates)
    return tell(rate >= 10, f"output of a command: {rate:.0f} MB/s", "10 MB/s")


def sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copies(sandbox: str, work: Path) -> bool:
    there, back = work / "gigabyte", work / "back"
    with open(there, "wb") as file:
        for _ in range(GIGABYTE // 1_000_000):
            file.write(os.urandom(1_000_000))
    taken = microseconds(lambda: dsec("cp", there, f"{sandbox}:/root/gigabyte"))
    brought = microseconds(lambda: dsec("cp", f"{sandbox}:/root/gigabyte", back))
    same = sha256(there) == sha256(back)
    there.unlink(), back.unlink()
    return tell(same, f"a file of 1 GB: in with {GIGABYTE / taken:.0f} MB/s, out with {GIGABYTE / brought:.0f} MB/s,"
                f" {'the same' if same else 'NOT the same'}", "the same")


def live() -> bool:
    began = time.monotonic()
    sandboxes = [dsec("create", *MACHINE, "base/big").strip() for _ in range(LIVE)]
    took = time.monotonic() - began
    for sandbox in sandboxes:
        dsec("exec", sandbox, "--", "sh", "-c", "cat /opt/big >/dev/null")
    memory = [json.loads(dsec("stats", "-o", "json", sandbox))["host_memory"] for sandbox in sandboxes]
    answering = sum(dsec("exec", sandbox, "--", "cat", "/etc/hostname").strip() == sandbox for sandbox in sandboxes)
    own = statistics.median(each["own"] for each in memory) / MIB
    common = sum(each["part_of_shared"] for each in memory) / MIB
    print(f"  {LIVE} guests of 256 MiB in {took:.1f} s; {own:.0f} MiB of its own each, {common:.0f} MiB that they share,"
          f" of which the layer that all have read is 64 MiB", flush=True)
    for sandbox in sandboxes:
        dsec("rm", "-f", sandbox)
    return tell(answering == LIVE, f"guests that live at once: {answering}", str(LIVE))


def main() -> int:
    if os.geteuid() != 0:
        sys.exit("measuring sandboxes needs root")
    # On a disk: a tmpfs would hide what reading and writing costs.
    with tempfile.TemporaryDirectory(prefix="dsec-bench-", dir="/var/tmp") as name:
        work = Path(name)
        os.environ.update(DSEC_HOME=str(work / "home"), DSEC_CONFIG=str(work / "config.yaml"))
        dsec("vm", "kernel", "import", subprocess.run([ROOT / "scripts/guest-kernel"], check=True, text=True,
                                                      stdout=subprocess.PIPE).stdout.strip())
        dsec("import", "base/box", f"tar:{rootfs.write_tar(work / 'box.tar')}")
        dsec("import", "base/big", f"tar:{rootfs.write_tar(work / 'big.tar', {'opt/big': os.urandom(64 * MIB)})}")
        try:
            met = beginnings(work)
            commands()
            sandbox = dsec("create", *MACHINE, "base/box").strip()
            met += [output(sandbox), copies(sandbox, work)]
            dsec("rm", "-f", sandbox)
            met.append(live())
        finally:
            for sandbox in dsec("ps", "-a", "-q").split():
                dsec("rm", "-f", sandbox)
            dsec("gc")
    return 0 if all(met) else 1


sys.exit(main())
