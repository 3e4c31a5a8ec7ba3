"""`dsec cp` as docker users type it, with the real program."""

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.guest_slow("copies say nothing of a kernel that test_run does not")


def make_tree(tree: Path) -> Path:
    for name in ("bin", "etc", "tmp", "data/sub"):
        (tree / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", tree / "bin/busybox")
    for applet in ("sh", "sleep", "stat", "find", "sort", "cat", "mkdir", "seq", "yes", "head"):
        (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    (tree / "data/f").write_text("hello\n")
    (tree / "data/sub/g").write_text("deep\n")
    (tree / "data/l").symlink_to("f")
    return tree


@pytest.fixture
def box(dsec, work):
    dsec.ok("import", "base/box", f"dir:{make_tree(work / 'tree')}")
    dsec.ok("run", "-d", "--name", "box", "--base", "base/box", "--", "/bin/sleep", "1000")
    return dsec


def inside(dsec, script: str) -> str:
    return dsec.ok("exec", "box", "--", "/bin/sh", "-c", script)


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_file_is_copied_under_its_name_or_the_one_that_is_given(box, work):
    box.ok("cp", "box:/data/f", work)
    box.ok("cp", "box:/data/f", work / "named")
    box.ok("cp", "box:data/f", work / "named")
    assert (work / "f").read_text() == (work / "named").read_text() == "hello\n"


def test_a_directory_becomes_the_target_or_goes_into_it(box, work):
    box.ok("cp", "box:/data", work / "new")
    assert names(work / "new") == ["f", "l", "sub", "sub/g"]
    assert os.readlink(work / "new/l") == "f"
    (work / "there").mkdir()
    box.ok("cp", "box:/data", work / "there")
    assert "data/sub/g" in names(work / "there")
    box.ok("cp", "box:/data/.", work / "there")
    assert "sub/g" in names(work / "there")


def test_files_copied_in_belong_to_root_unless_owners_are_kept(box, work):
    (work / "mine").mkdir()
    (work / "mine/file").write_text("x")
    os.chown(work / "mine/file", 1000, 1000)
    box.ok("cp", work / "mine", "box:/root-owned")
    box.ok("cp", "-a", work / "mine", "box:/kept")
    assert inside(box, "stat -c %u:%g /root-owned/file /kept/file") == "0:0\n1000:1000\n"
    box.ok("cp", "-a", "box:/kept", work / "back")
    box.ok("cp", "box:/kept", work / "flat")
    assert (work / "back/file").stat().st_uid == 1000
    assert (work / "flat/file").stat().st_uid == 0


def test_a_setuid_program_of_a_sandbox_is_none_of_ours(box, work):
    inside(box, "cat /bin/busybox >/suid && /bin/busybox chmod 4755 /suid")
    box.ok("cp", "box:/suid", work / "suid")
    assert (work / "suid").stat().st_mode & 0o7777 == 0o755
    assert box.run("cp", "box:/suid", "-").out != ""


def test_tar_streams_go_both_ways(box, work):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        entry = tarfile.TarInfo("über/file")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"abc"))
    box.ok("cp", "-", "box:/tmp", input=stream.getvalue())
    assert inside(box, "cat /tmp/über/file") == "abc"
    out = box.run("cp", "box:/tmp/über", "-").out.encode("utf-8", "surrogateescape")
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        assert tar.getnames() == ["über", "über/file"]
        assert tar.extractfile("über/file").read() == b"abc"


def test_an_ended_sandbox_can_be_copied_from_and_into(box, work):
    inside(box, "echo kept >/kept")
    box.ok("stop", "-t", "0", "box")
    box.ok("cp", "box:/kept", work)
    assert (work / "kept").read_text() == "kept\n"
    box.ok("cp", work / "kept", "box:/data/again")
    box.ok("cp", "box:/data/again", work / "again")
    assert (work / "again").read_text() == "kept\n"
    assert "A /data/again" in box.ok("diff", "box")


def test_a_destination_may_hold_more_than_a_pipe_does(box, work):
    inside(box, "mkdir /full; for n in $(seq 400); do echo $n > /full/$n; done; yes | head -c 1000000 > /full/big")
    (work / "file").write_text("x")
    box.ok("cp", work / "file", "box:/full")
    box.ok("cp", work / "file", "box:/full/big")
    assert inside(box, "cat /full/file /full/big") == "xx"


def test_what_cannot_be_copied_is_said(box, work):
    (work / "file").write_text("x")
    assert "No such file or directory (ENOENT)" in box.fails(1, "cp", "box:/none", work)
    assert "there is no directory" in box.fails(2, "cp", "box:/data/f", f"{work}/none/")
    assert "is a file" in box.fails(2, "cp", "box:/data", work / "file")
    assert "there is no" in box.fails(2, "cp", work / "none", "box:/")
    assert "exactly one" in box.fails(2, "cp", work / "file", work / "other")
    assert "a directory is in its place" in box.fails(1, "cp", "-", "box:/", input=tar_of("data"))
    assert "leads out" in box.fails(2, "cp", "-", "box:/tmp", input=tar_of("../x"))


def tar_of(name: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    return stream.getvalue()
