"""A layer that was exported as a block device is one that the kernel mounts."""

import random
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def tree(dsec, work) -> Path:
    root = work / "tree"
    (root / "folder").mkdir(parents=True)
    rng = random.Random(1)
    for number, size in enumerate((1, 4096, 300000, 2000000)):
        (root / f"folder/file-{number}").write_bytes(rng.randbytes(size // 2) + b"x" * (size - size // 2))
    (root / "again").hardlink_to(root / "folder/file-2")
    (root / "link").symlink_to("folder/file-1")
    return root


# Linux finds metadata and contents on one device from 6.4 on, so Debian 12's 6.1 mounts the compressed one alone.
@pytest.mark.parametrize("compression", [pytest.param("none", marks=pytest.mark.needs("file_backed_mounts")), "lz4"])
def test_the_kernel_mounts_the_device_of_a_layer(dsec, work, tree, compression):
    dsec.ok("import", "base/tree", "dir:tree", "--compress", compression)
    dsec.ok("layer", "export", "base/tree", "--format", "overlaybd", "--out", "tree.obd", "--compress", "zfile:zstd")
    with open(work / "image", "wb") as image:
        subprocess.run(dsec.argv("obd", "cat", "tree.obd"), stdout=image, check=True, env=dsec.env, cwd=dsec.cwd)
    (work / "mnt").mkdir()
    subprocess.run(["mount", "-t", "erofs", "-o", "ro,loop", work / "image", work / "mnt"], check=True)
    try:
        subprocess.run(["diff", "-r", "--no-dereference", tree, work / "mnt"], check=True)
        assert (work / "mnt/again").stat().st_ino == (work / "mnt/folder/file-2").stat().st_ino
    finally:
        subprocess.run(["umount", work / "mnt"], check=True)
