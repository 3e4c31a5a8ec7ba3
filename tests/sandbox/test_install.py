"""An installation stands on its own: it finds its helpers beside itself, wherever it lies."""

import shutil
import subprocess

import pytest
from dsec_tool import BIN
from rootfs import import_base


@pytest.mark.needs("build_tree")
def test_an_installed_dsec_imports_and_runs_with_the_helpers_it_brought(dsec, work, monkeypatch):
    prefix = work / "prefix"
    subprocess.run(["cmake", "--install", BIN.parent, "--prefix", prefix], check=True, capture_output=True)
    for helper in ("dsec-init", "dsec-egress", "dsec-loader", "mkfs.erofs", "fsck.erofs"):
        assert (prefix / "libexec/dsec" / helper).is_file() and not (prefix / "libexec/dsec" / helper).is_symlink()
    moved = work / "moved"
    shutil.move(prefix, moved)
    monkeypatch.setattr("dsec_tool.BIN", moved / "bin")
    dsec.env["PATH"] = "/usr/bin:/bin"
    dsec.env.pop("DSEC_MKFS_EROFS", None)
    import_base(dsec)
    assert dsec.ok("run", "base/box", "--", "echo", "inside") == "inside\n"
