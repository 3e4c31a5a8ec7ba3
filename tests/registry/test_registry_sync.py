"""dsec registry sync: from every kind of registry to every kind."""

import itertools
import json
import random
import signal
import time

import pytest
from fault_proxy import Fault
from oci_registry import make_certificates, tar_of
from registry_kinds import KINDS
from web_servers import Nginx

BIG = random.Random(3).randbytes(3_000_000)


@pytest.fixture
def layers(dsec, work):
    """base/a:1 and base/b:1."""
    for name, content in (("a", BIG), ("b", b"small")):
        (work / f"{name}.tar").write_bytes(tar_of({"content": content}))
        dsec.ok("import", f"base/{name}:1", f"tar:{work / name}.tar")
    dsec.ok("layer", "tag", "base/a:1", "base/a:latest")
    return {name: dsec.json("layer", "inspect", f"base/{name}:1")[0] for name in "ab"}


def digests(tags) -> dict[str, str]:
    return {tag["ref"]: tag["digest"] for tag in (tags if isinstance(tags, list) else [tags])}


@pytest.mark.parametrize("source,target", itertools.product((*KINDS, "https"), KINDS))
def test_everything_goes_from_any_registry_to_any(dsec, other, work, places, layers, source, target):
    env = places.env
    published = places.url("file" if source == "https" else source, "from")
    dsec.ok("publish", "base/a:1", "base/a:latest", "base/b:1", "--to", published, env=env)
    nginx = None
    if source == "https":
        certificates = work / "certificates"
        certificates.mkdir()
        make_certificates(certificates)
        nginx = Nginx(work / "nginx", work / "registry-from", certificates)
        (work / "config.yaml").write_text(f"hosts:\n  '{nginx.host}': {{ca: {certificates}/ca.crt}}\n")
    try:
        begin, end = nginx.url if nginx else published, places.url(target, "to")
        result = other.json("registry", "sync", "--from", begin, "--to", end, env=env)
        assert result["bytes_copied"] == sum(layer["bytes"] for layer in layers.values())
        assert digests(other.json("registry", "tags", end, env=env)) == digests(
            other.json("registry", "tags", begin, env=env))
        assert other.json("registry", "sync", "--from", begin, "--to", end, env=env)["bytes_copied"] == 0
    finally:
        if nginx:
            nginx.stop()
    assert other.json("layer", "ls") == []
    assert not any(path.is_file() for path in (other.home / "cache").rglob("*"))
    assert other.json("registry", "check", end, env=env)["problems"] == []
    other.ok("pull", "base/a", "--from", end, env=env)
    assert other.json("layer", "inspect", "base/a")[0]["digest"] == layers["a"]["digest"]
    other.ok("layer", "verify")


def test_what_is_named_goes_with_its_tags_and_nothing_else(dsec, places, layers, work):
    begin, end, env = places.url("file", "from"), places.url("s3", "to"), places.env
    dsec.ok("publish", "base/a:1", "base/a:latest", "base/b:1", "--to", begin)
    dsec.ok("registry", "sync", "base/b:1", "--from", begin, "--to", end, env=env)
    assert list(digests(dsec.json("registry", "tags", end, env=env))) == ["base/b:1"]
    lock = {"version": 1, "args": {}, "builder": "", "mkfs": "", "kernel": "", "platform": "",
            "layers": {"base/a:1": {"digest": layers["a"]["digest"], "inputs": {}, "recipe": ""}},
            "environments": {"e": [layers["b"]["digest"]]}}
    (work / "dsec.lock").write_text(json.dumps(lock))
    result = dsec.json("registry", "sync", "--locks", work / "dsec.lock", "--from", begin, "--to", end, env=env)
    assert result["bytes_copied"] == layers["a"]["bytes"]
    assert list(digests(dsec.json("registry", "tags", end, env=env))) == ["base/a:1", "base/b:1"]
    # All that is missing is told at once.
    lock["environments"]["e"] += ["sha256:" + "1" * 64, "sha256:" + "2" * 64]
    (work / "dsec.lock").write_text(json.dumps(lock))
    told = dsec.fails(2, "registry", "sync", "base/none", "--locks", work / "dsec.lock", "--from", begin, "--to", end,
                      env=env)
    assert "1" * 64 in told and "2" * 64 in told and "base/none" in told
    assert "the same registry" in dsec.fails(2, "registry", "sync", "--from", begin, "--to", begin)
    assert "can be read, not published to" in dsec.fails(
        2, "registry", "sync", "--from", begin, "--to", "https://localhost:1/x")


def test_a_sync_that_is_killed_goes_on_where_it_was(dsec, other, work, places, server, proxy, layers):
    dsec.ok("publish", "base/a:1", "base/b:1", "--to", places.url("oci", "from"))
    begin, end = f"oci://{proxy.host}/from/layers", places.url("file", "to")
    proxy.faults = lambda m, p, n: Fault(delay=0.1)
    killed = other.popen("registry", "sync", "--from", begin, "--to", end)
    deadline = time.monotonic() + 60
    while not list((work / "registry-to/blobs").rglob("[0-9a-f]" * 64)):
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    whole = sum(layer["bytes"] for layer in layers.values())
    assert other.json("registry", "sync", "--from", begin, "--to", end)["bytes_copied"] < whole
    assert digests(other.json("registry", "tags", end)) == {
        "base/a:1": layers["a"]["digest"], "base/b:1": layers["b"]["digest"]}
    dsec.ok("registry", "check", "--repair", end)
    assert dsec.json("registry", "check", end)["problems"] == []


@pytest.mark.parametrize("target", KINDS)
def test_a_registry_that_lies_puts_nothing_into_another(dsec, other, places, server, layers, target):
    begin, end = places.url("oci", "from"), places.url(target, "to")
    dsec.ok("publish", "base/a:1", "--to", begin)
    data = next(blob for blob in layers["a"]["manifest"]["images"][0]["blobs"] if blob["role"] == "data")
    file = server.blob_file(data["digest"])
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    if target == "oci":
        end = places.url("file", "to")  # blobs of one server are the same file
    told = other.fails(1, "registry", "sync", "--from", begin, "--to", end, env=places.env)
    assert "is damaged: its bytes have" in told
    # Whole blobs stay for the next attempt, and nothing names them.
    checked = json.loads(other.run("registry", "check", end, "--quick", "-o", "json", env=places.env).out)
    assert (checked["layers"], checked["tags"]) == (0, 0)
    assert {problem["kind"] for problem in checked["problems"]} <= {"unreferenced"}
