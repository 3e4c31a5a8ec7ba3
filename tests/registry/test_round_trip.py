"""One layer through every kind of registry: it comes back bit by bit as it went in."""

import hashlib
import random

import pytest
from dsec_tool import Dsec
from oci_registry import make_certificates, tar_of
from three_fs import ThreeFs
from web_servers import Nginx, S3Proxy, S3Server


def blobs_of(dsec: Dsec) -> dict[str, str]:
    """Name and sha256 of every blob in the store."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in (dsec.home / "store/blobs/sha256").rglob("*") if file.is_file()}


def import_layer(dsec: Dsec, work) -> dict:
    rng = random.Random(11)
    files = {f"usr/lib/{n}": rng.randbytes(rng.randrange(1, 60_000)) for n in range(200)}
    (work / "x.tar").write_bytes(tar_of({**files, "etc/name": b"x\n", "large": rng.randbytes(3_000_000)}))
    dsec.ok("import", "base/library/x:1.0", f"tar:{work / 'x.tar'}")
    return dsec.json("layer", "inspect", "base/library/x:1.0")[0]


def check_pulled(puller: Dsec, source: str, layer: dict, dsec: Dsec, env: dict | None = None) -> None:
    puller.ok("pull", "base/library/x:1.0", "--from", source, env=env)
    pulled = puller.json("layer", "inspect", "base/library/x:1.0")[0]
    assert (pulled["digest"], pulled["manifest"]) == (layer["digest"], layer["manifest"]), source
    assert blobs_of(puller) == blobs_of(dsec), source
    assert all(name == digest for name, digest in blobs_of(puller).items())
    puller.ok("layer", "verify")


def test_a_layer_is_the_same_through_every_kind_of_registry(dsec, server, work):
    layer = import_layer(dsec, work)
    certificates = work / "certificates"
    certificates.mkdir()
    make_certificates(certificates)
    secret = "secret/of+this=test"
    bucket = S3Server(work / "s3", "layers")
    s3 = S3Proxy(bucket, secret)
    nginx = Nginx(work / "nginx", work / "registry", certificates)
    env = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ACCESS_KEY_ID": s3.key_id, "AWS_SECRET_ACCESS_KEY": secret}
    (work / "config.yaml").write_text(f"hosts:\n  '{nginx.host}': {{ca: {certificates}/ca.crt}}\n")
    try:
        # Each host publishes what it pulled from the one before.
        publisher = dsec
        for to, source in [(f"file://{work}/registry", f"file://{work}/registry"), (None, nginx.url),
                           ("s3://layers/a/b", "s3://layers/a/b"),
                           (f"oci://{server.host}/team/layers", f"oci://{server.host}/team/layers")]:
            if to:
                publisher.ok("publish", "base/library/x:1.0", "--to", to, env=env)
            puller = Dsec(work / f"home-{source.split(':')[0]}", work)
            check_pulled(puller, source, layer, dsec, env)
            publisher = puller
    finally:
        nginx.stop()
        s3.stop()
        bucket.stop()


@pytest.mark.needs("fuse_mounts")
@pytest.mark.parametrize("rings", [True, False])
def test_a_layer_is_the_same_through_3fs(dsec, work, rings):
    layer = import_layer(dsec, work)
    three_fs = ThreeFs(work / "3fs", rings)
    try:
        dsec.ok("publish", "base/library/x:1.0", "--to", three_fs.url)
        first = Dsec(work / "home-first", work)
        check_pulled(first, three_fs.url, layer, dsec)
        # From there on through a directory, and back.
        first.ok("publish", "base/library/x:1.0", "--to", f"file://{work}/registry")
        second = Dsec(work / "home-second", work)
        check_pulled(second, f"file://{work}/registry", layer, dsec)
        second.ok("publish", "base/library/x:1.0", "--to", f"{three_fs.url}-2")
        check_pulled(Dsec(work / "home-third", work), f"{three_fs.url}-2", layer, dsec)
    finally:
        read = three_fs.stop()
    size = max(blob["size"] for blob in layer["manifest"]["images"][0]["blobs"])
    assert read["rings"] >= 2 * size if rings else read["rings"] == 0
