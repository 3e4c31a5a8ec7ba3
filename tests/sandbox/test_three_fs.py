"""Sandboxes whose layers lie on 3FS: their contents come through the loader, and that reads through rings of the 3FS client."""

import hashlib
import time

import pytest
import rootfs
from dsec_tool import Dsec
from three_fs import ThreeFs

pytestmark = pytest.mark.needs("fuse_mounts")

BIG = b"".join(hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range((16 << 20) // 32))


@pytest.fixture
def layer(work):
    """Publishes base/box with a file of 16 MiB to a URL."""
    author = Dsec(work / "author", work)
    author.ok("import", "base/box", f"tar:{rootfs.write_tar(work / 'base.tar', files={'big': BIG})}")
    return lambda url: author.ok("publish", "base/box", "--to", url)


@pytest.mark.needs("build_tree")
@pytest.mark.parametrize("rings", [True, False])
def test_a_sandbox_reads_on_demand_from_3fs(dsec, work, layer, rings):
    three_fs = ThreeFs(work / "3fs", rings)
    try:
        layer(three_fs.url)
        told = dsec.ok("run", "--on-demand", "--registry", three_fs.url, "base/box", "--", "sha256sum", "/big")
        assert told.split()[0] == hashlib.sha256(BIG).hexdigest()
    finally:
        read = three_fs.stop()
    assert read["rings"] >= 14 << 20 if rings else read["rings"] == 0


@pytest.mark.needs("build_tree")
def test_a_3fs_client_that_dies_is_an_error_in_time(dsec, work, layer):
    three_fs = ThreeFs(work / "3fs")
    layer(three_fs.url)
    dsec.ok("create", "--name", "box", "--on-demand", "--registry", three_fs.url, "base/box")
    assert dsec.ok("exec", "box", "--", "head", "-c", "65536", "/big").encode("utf-8", "surrogateescape") == BIG[:65536]
    three_fs.kill()
    start = time.monotonic()
    result = dsec.run("exec", "box", "--", "sha256sum", "/big")
    assert result.code != 0 and "/big" in result.err
    assert time.monotonic() - start < 100
