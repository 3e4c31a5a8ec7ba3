"""What this host can do, for tests that need one kernel or one cgroup layout."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
BUILD_CACHE = Path(__file__).resolve().parents[2] / "build" / "CMakeCache.txt"


def kernel() -> tuple[int, int]:
    major, minor = re.match(r"(\d+)\.(\d+)", os.uname().release).groups()
    return int(major), int(minor)


def v2_root() -> Path | None:
    """The v2 hierarchy: the whole tree, or the part of it on hybrid hosts."""
    for root in (CGROUP, CGROUP / "unified"):
        if (root / "cgroup.controllers").exists():
            return root
    return None


def has_v2_limits() -> bool:
    root = v2_root()
    return root is not None and "memory" in (root / "cgroup.controllers").read_text().split()


def counts_memory_peak() -> bool:
    """Of a group: v1 always did, v2 does from Linux 5.19 on."""
    return not has_v2_limits() or kernel() >= (5, 19)


def has_fuse_mounts() -> bool:
    if os.geteuid() != 0:
        return False
    if not os.path.exists("/dev/fuse"):
        subprocess.run(["modprobe", "fuse"], check=False, stderr=subprocess.DEVNULL)
    return os.access("/dev/fuse", os.R_OK | os.W_OK)


# Each with the lane whose host has it.
FEATURES = {
    "file_backed_mounts": (lambda: kernel() >= (6, 12), "sandbox"),
    "overlay_layers_by_fd": (lambda: kernel() >= (6, 13), "sandbox"),
    "loop_mounts_only": (lambda: kernel() < (6, 12), "guest"),
    "cgroup_v1_limits": (lambda: (CGROUP / "memory").is_dir(), "sandbox"),
    "registry_servers": (lambda: all(map(shutil.which, ("docker-registry", "node"))), "sandbox"),
    "build_tree": (lambda: shutil.which("cmake") is not None and BUILD_CACHE.exists(), "sandbox"),
    "cgroup_v2_limits": (has_v2_limits, "guest"),
    "fuse_mounts": (has_fuse_mounts, "registry, as root"),
}


@functools.cache
def has(feature: str) -> bool:
    return bool(FEATURES[feature][0]())


def lane_of(feature: str) -> str:
    return FEATURES[feature][1]
