"""What a running sandbox shows of its files, walked in its own mount namespace with owners as seen inside."""

import hashlib
import json
import os
import stat
from pathlib import Path

# Mounts of every sandbox, and the files that are bound into it.
NOT_FILES = {"proc", "dev", "sys"}
BOUND = {"etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id"}


def state(dsec, sandbox: str) -> dict:
    return json.loads((dsec.home / "sandboxes" / sandbox / "state.json").read_text())


def content(path: str, info: os.stat_result) -> str:
    if stat.S_ISLNK(info.st_mode):
        return os.readlink(path)
    if not stat.S_ISREG(info.st_mode):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def walk(dsec, sandbox: str) -> dict[str, tuple]:
    """By path ("" is the root): type and mode, owner, group, size, nanoseconds of change, device, xattrs, content, and
    the names that are links to the same file."""
    record = state(dsec, sandbox)
    root = f"/proc/{record['init_pid']}/root"
    first = record["first_id"]
    tree, links = {}, {}

    def visit(path: str):
        full = f"{root}/{path}"
        info = os.lstat(full)
        folder = stat.S_ISDIR(info.st_mode)
        xattrs = {name: os.getxattr(full, name, follow_symlinks=False)
                  for name in os.listxattr(full, follow_symlinks=False)}
        # Access control lists hold ids, too; those in the tests name none.
        if not folder and info.st_nlink > 1:
            links.setdefault((info.st_dev, info.st_ino), []).append(path)
        tree[path] = (stat.filemode(info.st_mode), info.st_uid - first, info.st_gid - first,
                      0 if folder else info.st_size, info.st_mtime_ns,
                      info.st_rdev, tuple(sorted(xattrs.items())), content(full, info))
        if folder:
            for name in sorted(os.listdir(full)):
                below = f"{path}/{name}" if path else name
                if below not in NOT_FILES and below not in BOUND:
                    visit(below)

    visit("")
    for paths in links.values():
        for path in paths:
            tree[path] = (*tree[path], tuple(sorted(paths)))
    return tree


def differences(left: dict, right: dict) -> list[str]:
    return [f"{path!r}: {left.get(path)} / {right.get(path)}" for path in sorted(left.keys() | right.keys())
            if left.get(path) != right.get(path)]


def disk_bytes(*places: Path) -> int:
    """Allocated by all files below, each counted once."""
    seen, total = set(), 0
    for place in places:
        for folder, _, names in os.walk(place):
            for name in names:
                info = os.lstat(os.path.join(folder, name))
                if (info.st_dev, info.st_ino) not in seen:
                    seen.add((info.st_dev, info.st_ino))
                    total += info.st_blocks * 512
    return total
