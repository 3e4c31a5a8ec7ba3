"""Layers as trees: mounted, listed, compared and exported by the real program."""

import os
import subprocess
from pathlib import Path

import pytest


def fill(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture
def stack(dsec, work):
    """base/b, whose /home/user belongs to somebody, and toolkit/t, which is put below it."""
    base = fill(work / "base", {"etc/name": "base", "home/user/notes": "n"})
    os.chmod(base / "home/user", 0o700)
    os.chown(base / "home/user", 1000, 100)
    dsec.ok("import", "base/b", f"dir:{base}")
    dsec.ok("import", "toolkit/t", f"dir:{fill(work / 'tool', {'run': 'tool'})}", "--to", "/home/user/tool")
    return ["base/b", "toolkit/t"]


def test_mounted_layers_show_one_read_only_tree_with_the_attributes_of_the_base(dsec, work, stack):
    tree = work / "tree"
    tree.mkdir()
    dsec.ok("layer", "mount", *stack, tree)
    assert (tree / "home/user/tool/run").read_text() == "tool"
    facts = os.stat(tree / "home/user")
    assert (facts.st_mode & 0o7777, facts.st_uid, facts.st_gid) == (0o700, 1000, 100)
    with pytest.raises(OSError, match="Read-only"):
        (tree / "new").write_text("x")
    dsec.ok("gc")
    assert (tree / "etc/name").read_text() == "base", "gc took away a tree that is in use"
    dsec.ok("layer", "umount", tree)
    assert os.listdir(tree) == []


def test_umount_refuses_what_dsec_did_not_mount(dsec, work):
    place = work / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        assert "no layers are mounted there" in dsec.fails(2, "layer", "umount", place)
        assert os.path.ismount(place)
    finally:
        subprocess.run(["umount", place], check=True)


def test_an_exported_layer_imports_to_the_same_tree(dsec, work, stack):
    archive = work / "t.tar"
    dsec.ok("layer", "export", "toolkit/t", "--out", archive)
    dsec.ok("import", "toolkit/again", f"tar:{archive}")
    assert dsec.ok("layer", "diff", "toolkit/t", "toolkit/again") == ""
    assert dsec.ok("layer", "files", "toolkit/t") == dsec.ok("layer", "files", "toolkit/again")


def test_many_processes_mount_and_unmount_at_once(dsec, work, stack):
    trees = [work / f"tree-{number}" for number in range(8)]
    for tree in trees:
        tree.mkdir()
    mounts = [dsec.popen("layer", "mount", *stack, tree) for tree in trees]
    collectors = [dsec.popen("gc") for _ in range(2)]
    for process in mounts + collectors:
        process.communicate()
        assert process.returncode == 0
    for tree in trees:
        assert (tree / "home/user/tool/run").read_text() == "tool"
        dsec.ok("layer", "umount", tree)
