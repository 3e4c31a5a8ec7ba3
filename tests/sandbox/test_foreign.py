"""Layers that come from another host's registry: checked before the kernel mounts them, then as good as our own."""

import io
import tarfile

import pytest
import rootfs
from dsec_tool import Dsec


@pytest.fixture
def elsewhere(dsec, work):
    """Another host, as far as dsec is concerned: a home of its own."""
    other = Dsec(work / "elsewhere", work)
    yield other
    other.run("gc")


def test_a_base_with_device_nodes_runs_elsewhere_and_its_nodes_are_dead(dsec, elsewhere, work):
    archive = rootfs.write_tar(work / "base.tar")
    with tarfile.open(archive, "a") as tar:
        node = tarfile.TarInfo("srv-null")
        node.type, node.mode, node.devmajor, node.devminor = tarfile.CHRTYPE, 0o666, 1, 3
        tar.addfile(node, io.BytesIO())
    elsewhere.ok("import", "base/box", f"tar:{archive}")
    elsewhere.ok("publish", "base/box", "--to", f"file://{work}/registry")
    dsec.ok("registry", "add", "r", f"file://{work}/registry")
    out = dsec.run("run", "--registry", "r", "base/box", "--", "sh", "-c", "stat -c %F /srv-null; cat /srv-null")
    assert out.out == "character special file\n"
    assert "Permission denied" in out.err
