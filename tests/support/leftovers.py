"""Finds, and then removes, what a test has left on the host."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import host


def mounts_below(path: Path) -> list[str]:
    prefix = str(path).rstrip("/") + "/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [point.encode().decode("unicode_escape") for point in points]
    return [point for point in points if point.startswith(prefix) or point == str(path)]


def processes_of(home: Path) -> dict[int, str]:
    """Processes that work for this home: it stands in their arguments or their environment."""
    found = {}
    needle = str(home).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes()
            if needle in arguments or needle in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(entry.name)] = arguments.replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            pass
    return found


def cgroups_named(names: list[str]) -> list[Path]:
    if not names:
        return []
    found = []
    for folder, below, _ in os.walk(host.CGROUP):
        found += [Path(folder, name) for name in below if any(part in name for part in names)]
    return found


def settle(check, seconds: float = 5.0):
    """What is still found after some time: killed processes take a moment to go."""
    end = time.monotonic() + seconds
    while (found := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def sweep(home: Path, sandbox_ids: list[str]) -> list[str]:
    """One line per thing that is still there. Removes all of it, so that the next test starts clean."""
    faults = []
    for pid, arguments in settle(lambda: processes_of(home)).items():
        faults.append(f"process {pid}: {arguments}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for point in reversed(settle(lambda: mounts_below(home))):
        faults.append(f"mount {point}")
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    for cgroup in settle(lambda: cgroups_named(sandbox_ids)):
        faults.append(f"cgroup {cgroup}")
    shutil.rmtree(home, ignore_errors=True)
    return faults
