"""Control groups of sandboxes, and commands that use just so much."""

import os
from pathlib import Path

import host


def sh(script: str) -> list[str]:
    return ["--", "sh", "-c", script]


def group_files(sandbox: str, name: str) -> dict[str, str]:
    """Content of the files of this name in the groups of a sandbox, by folder below the root of cgroups."""
    found = {}
    for folder, _, files in os.walk(host.CGROUP):
        if Path(folder).name == sandbox and name in files:
            found[str(Path(folder).relative_to(host.CGROUP))] = Path(folder, name).read_text().strip()
    return found


def block(mib: int) -> str:
    """A shell command that allocates a block and writes to all of it."""
    return f"dd if=/dev/zero of=/dev/null bs={mib}M count=1 2>/dev/null"
