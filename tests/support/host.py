"""What this host can do, for tests that need one kernel or one cgroup layout."""

import functools
import os
import re
import shutil
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


# Each with the lane whose host has it.
FEATURES = {
    "file_backed_mounts": (lambda: kernel() >= (6, 12), "sandbox"),
    "overlay_layers_by_fd": (lambda: kernel() >= (6, 13), "sandbox"),
    "loop_mounts_only": (lambda: kernel() < (6, 12), "guest"),
    "cgroup_v1_limits": (lambda: (CGROUP / "memory").is_dir(), "sandbox"),
    "build_tree": (lambda: shutil.which("cmake") is not None and BUILD_CACHE.exists(), "sandbox"),
    "cgroup_v2_limits": (has_v2_limits, "guest"),
}


@functools.cache
def has(feature: str) -> bool:
    return bool(FEATURES[feature][0]())


def lane_of(feature: str) -> str:
    return FEATURES[feature][1]
