"""Layers of git repositories, folders and Debian suites as the kernel shows them."""

import os
import shutil
import stat
import subprocess

import pytest
from git_repo import GitRepo


@pytest.fixture
def mounted(dsec, work):
    """mounted(REF) mounts a layer and gives the folder; all are unmounted at the end."""
    places = []

    def mount(ref):
        place = work / f"mnt{len(places)}"
        place.mkdir()
        dsec.ok("layer", "mount", ref, place)
        places.append(place)
        return place

    yield mount
    for place in places:
        dsec.ok("layer", "umount", place)


def git(folder, *args):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0"}
    return subprocess.run(["git", "-C", folder, *args], env=env, capture_output=True, text=True, check=False)


def test_a_mounted_workspace_is_clean_and_whole_for_git(dsec, work, mounted):
    repo = GitRepo(work / "r")
    for number in range(20):
        repo.commit(a=f"{number}\n" * 100, b=f"b{number}\n")
    (repo.path / "run").write_text("#!/bin/sh\n")
    (repo.path / "run").chmod(0o755)
    (repo.path / "link").symlink_to("a")
    last = repo.commit()
    dsec.ok("import", "workspace/x", f"git:{repo.path}")
    tree = mounted("workspace/x") / "workspace"
    status = git(tree, "status", "--porcelain")
    assert (status.returncode, status.stdout, status.stderr) == (0, "", "")
    fsck = git(tree, "fsck", "--full", "--strict")
    assert (fsck.returncode, fsck.stderr) == (0, "")
    assert git(tree, "rev-parse", "HEAD").stdout.strip() == last
    assert (tree / "run").stat().st_mode & 0o7777 == 0o755
    assert (tree / "a").stat().st_mtime == int(git(tree, "show", "-s", "--format=%ct").stdout)

    # Above a writable layer git works as in any clone.
    upper, place = work / "up", work / "merged"
    for name in ("upper", "work"):
        (upper / name).mkdir(parents=True)
    place.mkdir()
    lower = str(tree.parent)
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o",
                    f"lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work,redirect_dir=nofollow,metacopy=off,index=off",
                    place], check=True)
    try:
        (place / "workspace/a").write_text("changed\n")
        assert git(place / "workspace", "status", "--porcelain").stdout == " M a\n"
        done = git(place / "workspace", "-c", "user.name=T", "-c", "user.email=t@example.invalid", "commit", "-qam", "more")
        assert done.returncode == 0, done.stderr
        assert git(place / "workspace", "fsck", "--full").returncode == 0
        assert git(place / "workspace", "gc", "-q").returncode == 0
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.guest_slow("folders are read alike on any kernel")
def test_a_folder_comes_back_with_all_that_root_sees(dsec, work, mounted):
    root = work / "tree"
    (root / "bin").mkdir(parents=True)
    tool = root / "bin/tool"
    tool.write_bytes(b"x" * 10000)
    os.chown(tool, 1234, 5678)
    tool.chmod(0o6755)
    os.link(tool, root / "bin/alias")
    os.mknod(root / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mkfifo(root / "fifo")
    os.setxattr(tool, "user.note", b"n")
    os.setxattr(tool, "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    os.setxattr(tool, "trusted.overlay.redirect", b"/etc")
    acl = bytes.fromhex("0200000001000700ffffffff02000500e803000004000500ffffffff10000500ffffffff20000500ffffffff")
    os.setxattr(root / "bin", "system.posix_acl_access", acl)
    with open(root / "sparse", "wb") as sparse:
        sparse.truncate(300 << 20)
        sparse.seek(200 << 20)
        sparse.write(b"data")
    dsec.ok("import", "toolkit/x", f"dir:{root}", "--to", "/opt/x")
    size = dsec.json("layer", "inspect", "toolkit/x")[0]["manifest"]["images"]
    assert sum(blob["size"] for image in size for blob in image["blobs"]) < 64 << 20
    place = mounted("toolkit/x") / "opt/x"
    got = (place / "bin/tool").lstat()
    assert (got.st_uid, got.st_gid, stat.S_IMODE(got.st_mode), got.st_nlink) == (1234, 5678, 0o6755, 2)
    assert got.st_mtime_ns == tool.stat().st_mtime_ns
    assert sorted(os.listxattr(place / "bin/tool")) == ["security.capability", "user.note"]
    assert os.getxattr(place / "bin", "system.posix_acl_access") == acl
    assert (place / "null").lstat().st_rdev == os.makedev(1, 3)
    assert stat.S_ISFIFO((place / "fifo").lstat().st_mode)
    assert (place / "sparse").lstat().st_size == 300 << 20
    with open(place / "sparse", "rb") as sparse:
        sparse.seek((200 << 20) - 4)
        assert sparse.read(12) == b"\0\0\0\0data\0\0\0\0"


@pytest.mark.guest_slow("installs a Debian base")
def test_a_suite_becomes_a_base_without_what_is_this_hosts(dsec, work, mounted):
    assert shutil.which("mmdebstrap")
    suite = next(line.split("=")[1].strip() for line in open("/etc/os-release") if line.startswith("VERSION_CODENAME"))
    dsec.ok("import", "base/debian", f"debootstrap:{suite}?variant=essential", timeout=580)
    place = mounted("base/debian")
    assert (place / "usr/bin/dpkg").exists()
    assert not (place / "etc/hostname").exists() and not (place / "etc/machine-id").exists()
    left = [str(path) for folder in ("var/log", "tmp", "var/lib/apt/lists", "var/cache/apt/archives")
            for path in (place / folder).rglob("*") if not path.is_dir()]
    assert left == []
    inputs = dsec.json("layer", "inspect", "base/debian")[0]["manifest"]["provenance"]["inputs"]
    assert inputs["suite"] == suite and inputs["packages"].startswith("sha256:")
