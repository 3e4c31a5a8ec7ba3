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


def cgroups_of(id_or_beginning: str) -> list[Path]:
    """Groups of a sandbox; of a home, by the id that those of its sandboxes begin with, all of theirs and its own, dsec-ID."""
    found = []
    for folder, below, _ in os.walk(host.CGROUP):
        found += [Path(folder, name) for name in below if name.startswith((id_or_beginning, f"dsec-{id_or_beginning}"))]
    return found


def still_runs(pid: int) -> bool:
    """Not so one that is on its way out, and only waits for somebody to wait for it or for others of its namespace."""
    exiting = 4  # PF_EXITING
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state not in "ZX" and not int(fields[5]) & exiting
    except OSError:
        return False


def serves_a_disk(pid: int) -> bool:
    """One that waits for gc: its machine has ended, and may have been killed together with its keeper."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("dsec-disk")
    except OSError:
        return False


def await_end(sandbox: str) -> None:
    """Of all that ran in a sandbox whose keeper was killed."""
    def running() -> list[int]:
        listed = {int(pid) for group in cgroups_of(sandbox) for pid in read_procs(group)}
        return [pid for pid in listed if still_runs(pid) and not serves_a_disk(pid)]

    assert not settle(running, 30)


def read_procs(group: Path) -> list[str]:
    try:
        return (group / "cgroup.procs").read_text().split()
    except OSError:
        return []


def host_id_of(home: Path) -> str:
    """The beginning of the ids of its sandboxes; empty before the home is first used."""
    try:
        return (home / "host-id").read_text().strip()
    except FileNotFoundError:
        return ""


def sandboxes_of(home: Path) -> list[str]:
    """Ids, also of those whose record is damaged."""
    folder = home / "sandboxes"
    return [name for name in os.listdir(folder) if not name.startswith(".")] if folder.is_dir() else []


def records_below(home: Path) -> list[Path]:
    """What is kept of sandboxes that are there, or were, or are about to be."""
    return [entry for folder in ("sandboxes", "names") if (home / folder).is_dir() for entry in (home / folder).iterdir()]


def settle(check, seconds: float = 5.0):
    """What is still found after some time: killed processes take a moment to go."""
    end = time.monotonic() + seconds
    while (found := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def sweep(home: Path) -> list[str]:
    """One line per thing that is still there of any sandbox that was ever in this home. Removes all of it, so that the next
    test starts clean."""
    faults = []
    host_id = host_id_of(home)
    for pid, arguments in settle(lambda: processes_of(home)).items():
        faults.append(f"process {pid}: {arguments}")
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for point in reversed(settle(lambda: mounts_below(home))):
        faults.append(f"mount {point}")
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
    # The deepest first.
    for cgroup in reversed(settle(lambda: cgroups_of(host_id)) if host_id else []):
        faults.append(f"cgroup {cgroup}")
        for folder, *_ in os.walk(cgroup, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass
    for path in settle(lambda: records_below(home)):
        faults.append(f"file {path}")
    shutil.rmtree(home, ignore_errors=True)
    return faults
