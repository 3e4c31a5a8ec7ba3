"""Layers travel from one home to another through a registry: the verbs publish, pull, registry, gc and system df."""

import io
import json
import os
import random
import signal
import tarfile
import time

import pytest
from dsec_tool import Dsec


def tar_of(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mtime = 1_600_000_000
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def other(work):
    """A second home with the same configuration, as another user of the registry has it."""
    home = work / "other-home"
    return Dsec(home, work)


@pytest.fixture
def registry(work):
    return work / "registry"


@pytest.fixture
def layer(dsec, work):
    content = {"etc/name": b"x\n", "data": random.Random(1).randbytes(600_000)}
    dsec.ok("import", "base/x:1", f"tar:{tar_of(work / 'x.tar', content)}")
    return dsec.json("layer", "inspect", "base/x:1")[0]


def leftovers(*roots):
    return [path for root in roots for path in root.rglob(".tmp-*")]


def test_a_layer_comes_out_of_a_registry_as_it_went_in(dsec, other, registry, layer):
    first = dsec.json("publish", "base/x:1", "--to", f"file://{registry}")
    assert first["bytes_copied"] == layer["bytes"]
    assert dsec.json("publish", "base/x:1", "--to", f"file://{registry}")["bytes_copied"] == 0
    other.ok("pull", "base/x:1", "--from", f"file://{registry}")
    pulled = other.json("layer", "inspect", "base/x:1")[0]
    assert pulled["digest"] == layer["digest"]
    assert pulled["manifest"] == layer["manifest"]
    assert not pulled["in_place"]
    other.ok("layer", "verify")
    assert leftovers(dsec.home, other.home, registry) == []


def test_a_wrong_name_is_answered_with_the_nearest(dsec, other, registry, layer):
    dsec.ok("publish", "base/x:1", "--to", f"file://{registry}")
    assert "base/x:1" in other.fails(2, "pull", "base/x:2", "--from", f"file://{registry}")
    assert "no registry 'team'" in dsec.fails(2, "publish", "base/x:1", "--to", "team")
    assert f"file://{registry}" in dsec.fails(2, "publish", "base/x:1", "--to", str(registry))


def test_a_path_that_is_no_3fs_is_not_taken_for_one(dsec, registry, layer):
    told = dsec.fails(2, "publish", "base/x:1", "--to", f"3fs://{registry}")
    assert "does not lie on 3FS" in told and "--allow-any-fs" in told
    assert not registry.exists()
    dsec.ok("publish", "base/x:1", "--to", f"3fs://{registry}", "--allow-any-fs")
    dsec.ok("registry", "check", f"file://{registry}")


def test_a_tag_that_cannot_be_read_is_listed_as_such(dsec, registry, layer):
    dsec.ok("publish", "base/x:1", "--to", f"file://{registry}")
    hex = layer["digest"].removeprefix("sha256:")
    [manifest] = [path for path in (registry / "manifests").rglob("*") if path.is_file() and hex in path.name]
    manifest.chmod(0o644)
    manifest.write_text("{}")
    result = dsec.run("registry", "tags", f"file://{registry}")
    assert result.code == 1 and "base/x:1" in result.out and "base/x:1: " in result.err
    told = dsec.run("registry", "tags", f"file://{registry}", "-o", "json")
    assert told.code == 1 and json.loads(told.out)["problem"]


def test_registries_have_names(dsec, other, registry, layer):
    dsec.ok("registry", "add", "team", f"file://{registry}")
    assert dsec.json("registry", "ls")["name"] == "team"
    dsec.ok("publish", "base/x:1", "--to", "team")
    tags = dsec.json("registry", "tags", "team")
    assert tags["ref"] == "base/x:1" and tags["digest"] == layer["digest"]
    other.ok("pull", "base/x:1", "--from", "team")
    dsec.ok("registry", "rm", "team")
    assert dsec.ok("registry", "ls", "-o", "json") == ""


def test_data_of_an_in_place_registry_stays_there_and_is_shown_as_unverified(dsec, other, registry, layer):
    dsec.ok("publish", "base/x:1", "--to", f"file://{registry}")
    other.ok("registry", "add", "team", f"file://{registry}", "--in-place")
    pulled = other.json("pull", "base/x:1", "--from", "team")
    data = next(blob for blob in layer["manifest"]["images"][0]["blobs"] if blob["role"] == "data")
    assert pulled["bytes_in_place"] == data["size"]
    assert other.json("layer", "inspect", "base/x:1")[0]["in_place"]
    assert "in place, unverified" in other.ok("layer", "ls")
    hexdigits = data["digest"].removeprefix("sha256:")
    assert not (other.home / "store/blobs/sha256" / hexdigits[:2] / hexdigits).exists()
    other.ok("layer", "verify")
    (registry / "blobs/sha256" / hexdigits[:2] / hexdigits).unlink()
    assert other.run("layer", "verify").code == 3


def test_check_finds_what_is_wrong_and_publishing_mends_it(dsec, registry, layer):
    url = f"file://{registry}"
    dsec.ok("publish", "base/x:1", "--to", url)
    assert "all right" in dsec.ok("registry", "check", url)
    blob = max((registry / "blobs").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    blob.chmod(0o644)
    os.truncate(blob, 100)
    broken = dsec.run("registry", "check", url)
    assert broken.code == 3 and "truncated" in broken.out
    assert "check --repair" in dsec.fails(1, "publish", "base/x:1", "--to", url)
    assert dsec.run("registry", "check", "--repair", url).code == 3
    dsec.ok("publish", "base/x:1", "--to", url)
    dsec.ok("registry", "check", url)


def test_gc_takes_a_layer_whose_tag_is_gone(dsec, layer):
    use = dsec.json("system", "df")
    assert use["layers_bytes"] == layer["bytes"] and use["reclaimable_bytes"] == 0
    assert dsec.json("gc")["removed"] == []
    dsec.ok("layer", "rm", "base/x:1")
    assert dsec.json("system", "df")["reclaimable_bytes"] == layer["bytes"]
    dry = dsec.json("gc", "--dry-run")
    assert {item["kind"] for item in dry["removed"]} == {"layer", "blob"}
    assert dsec.json("gc")["bytes"] == dry["bytes"]
    assert dsec.json("layer", "ls", "-a") == []
    assert dsec.json("system", "df")["layers_bytes"] == 0


def test_publishers_that_are_killed_and_publishers_at_once_leave_a_whole_registry(dsec, work, registry, layer, long_run):
    url = f"file://{registry}"
    big = random.Random(2).randbytes(20_000_000)
    dsec.ok("import", "base/big:1", f"tar:{tar_of(work / 'big.tar', {'big': big})}")
    rng = random.Random(3)
    for _ in range(50 if long_run else 5):
        publishers = [dsec.popen("publish", "base/big:1", "base/x:1", "--to", url) for _ in range(2)]
        time.sleep(rng.uniform(0, 0.3))
        publishers[0].send_signal(signal.SIGKILL)
        publishers[0].communicate()
        assert publishers[1].wait(120) == 0, publishers[1].communicate()
        publishers[1].communicate()
        dsec.run("registry", "check", "--repair", url)
        dsec.ok("registry", "check", url)
        for path in (registry / "blobs").rglob("*"):
            if path.is_file() and rng.random() < 0.5:
                path.unlink()
    dsec.ok("publish", "base/big:1", "base/x:1", "--to", url)
    dsec.ok("registry", "check", url)
    dsec.ok("gc")
    dsec.ok("layer", "verify")
    assert leftovers(dsec.home, registry) == []
