"""dsec cache, the limit of the store, system df by kind and set, and offline mode: what of them needs no sandbox."""

import io
import json
import random
import tarfile

import pytest
from dsec_tool import Dsec

DATA = 600_000


def import_layer(dsec, work, name):
    tar = work / "layer.tar"
    with tarfile.open(tar, "w") as out:
        entry = tarfile.TarInfo("data")
        entry.size, entry.mtime = DATA, 1_600_000_000
        out.addfile(entry, io.BytesIO(random.Random(name).randbytes(DATA)))
    dsec.ok("import", name, f"tar:{tar}")


@pytest.fixture
def registry(work):
    return f"file://{work}/registry"


@pytest.fixture
def other(work):
    return Dsec(work / "other-home", work)


@pytest.fixture
def published(dsec, work, registry):
    """base/a:1, base/b:1 and base/c:1."""
    names = [f"base/{name}:1" for name in "abc"]
    for name in names:
        import_layer(dsec, work, name)
    dsec.ok("publish", *names, "--to", registry)
    dsec.ok("registry", "add", "team", registry)
    return names


def rows(dsec) -> dict:
    listed = dsec.json("cache", "ls")
    return {row["tags"][0]: row for row in (listed if isinstance(listed, list) else [listed])}


def test_what_was_evicted_is_known_and_comes_back(dsec, work, registry, published):
    import_layer(dsec, work, "base/own:1")
    listed = rows(dsec)
    assert listed["base/a:1"]["registries"] == [registry] and listed["base/a:1"]["held"] == ""
    assert listed["base/own:1"]["registries"] == [] and listed["base/own:1"]["held"] == "only-here"
    dsec.ok("cache", "pin", "base/b:1")
    assert rows(dsec)["base/b:1"]["pinned"] and rows(dsec)["base/b:1"]["held"] == "pinned"
    planned = dsec.json("cache", "prune", "--to", "0", "--dry-run")
    assert [one["layer"] for one in planned["evicted"]] == ["base/a:1", "base/c:1"]
    pruned = dsec.json("cache", "prune", "--to", "0")
    assert pruned["evicted"] == planned["evicted"] and pruned["bytes"] >= 2 * DATA
    assert set(pruned["held"]) == {"metadata", "only-here", "pinned"}
    listed = rows(dsec)
    assert listed["base/a:1"]["on_demand"] >= DATA and listed["base/a:1"]["on_demand_here"] == 0
    assert listed["base/b:1"]["on_demand"] == 0
    dsec.ok("gc")
    dsec.ok("layer", "verify")
    warmed = dsec.json("cache", "warm", "base/a:1", "base/b:1")
    assert [(row["ref"], row["result"]) for row in warmed] == [("base/a:1", "brought"), ("base/b:1", "here")]
    assert rows(dsec)["base/a:1"]["on_demand"] == 0
    dsec.ok("layer", "export", "base/c:1", "--out", work / "c.tar")
    dsec.ok("layer", "verify")
    dsec.ok("cache", "pin", "--rm", "base/b:1")
    assert not rows(dsec)["base/b:1"]["pinned"]


def test_how_far_to_prune_has_to_be_said(dsec):
    assert "--to 0 evicts all that can be had again" in dsec.fails(2, "cache", "prune")
    assert "nothing is named" in dsec.fails(2, "cache", "warm")
    assert "no layer 'base/none:latest'" in dsec.fails(2, "cache", "pin", "base/none")


def test_warm_brings_what_a_lock_and_an_environment_name(dsec, other, work, registry, published):
    digests = {name: dsec.json("layer", "inspect", name)[0]["digest"] for name in published}
    (work / "dsec.yaml").write_text("version: 1\nenvironments:\n  e: {base: base/c:1}\n")
    lock = {"version": 1, "args": {}, "builder": "", "mkfs": "", "kernel": "", "platform": "",
            "layers": {"base/a:1": {"digest": digests["base/a:1"], "inputs": {}, "recipe": ""}},
            "environments": {"f": [digests["base/b:1"]]}}
    (work / "tasks.lock").write_text(json.dumps(lock))
    other.ok("cache", "warm", "e", "--locks", work / "tasks.lock")
    assert sorted(row["digest"] for row in other.json("cache", "ls")) == sorted(digests.values())
    told = other.fails(2, "cache", "warm", "base/none:1", "e", "base/other:1")
    assert "base/none:1" in told and "base/other:1" in told


def test_the_store_keeps_to_its_limit(dsec, other, work, registry, published):
    config = (work / "config.yaml").read_text()
    (work / "config.yaml").write_text(config + "store: {limit: 1MB}\n")
    for name in published:
        done = other.run("pull", name)
        assert done.code == 0 and "more than its limit" not in done.err, str(done)
    listed = rows(other)
    assert [listed[name]["on_demand"] > 0 for name in published] == [True, True, False]
    # What nobody else has is no victim, and it is told.
    told = [other.run("import", f"base/own{n}:1", f"dir:{folder_of(work, n)}").err for n in (1, 2)]
    assert "more than its limit" not in told[0]
    assert "the store has" in told[1] and "more than its limit of 976.6 KiB" in told[1] and "only here" in told[1]
    other.ok("layer", "verify")


def folder_of(work, n):
    folder = work / f"folder{n}"
    folder.mkdir()
    (folder / "data").write_bytes(random.Random(n).randbytes(DATA))
    return folder


def test_use_by_kind_and_by_set(dsec, work, published):
    (work / "dsec.yaml").write_text(
        "version: 1\nlayers:\n  toolkit/t: {from: \"dir:tools\"}\nenvironments:\n  e: {base: base/a:1, toolkits: [toolkit/t]}\n")
    (work / "tools").mkdir()
    (work / "tools/file").write_text("x")
    dsec.ok("build")
    kinds = dsec.json("system", "df", "--by", "kind")["kinds"]
    assert [(kind["kind"], kind["layers"]) for kind in kinds] == [("base", 3), ("toolkit", 1)]
    sets = dsec.json("system", "df", "--by", "set")["sets"]
    assert [(one["set"], one["layers"], one["missing"]) for one in sets] == [(str(work / "dsec.lock"), 2, 0), (None, 2, 0)]
    assert sets[0]["alone"] == sets[0]["bytes"] > DATA
    assert dsec.ok("system", "df", "--by", "set").splitlines()[0].split() == [
        "SET", "LAYERS", "SIZE", "ALONE", "ON", "DEMAND"]


def test_offline_tells_all_that_is_missing(dsec, other, work, registry, published):
    other.ok("pull", "base/a:1", "--on-demand")
    other.ok("pull", "base/b:1")
    told = other.fails(2, "pull", "--offline", "base/c:1", "base/b:1", "base/a:1", "base/none:1")
    for words in ("works offline", "layer base/c:1 is not here", "of the data of base/a:1 are not here",
                  "layer base/none:1 is not here", "dsec cache warm base/c:1 base/a:1 base/none:1"):
        assert words in told
    assert "base/b:1 are" not in told
    assert other.json("pull", "--offline", "base/b:1")["bytes_copied"] == 0
    (work / "config.yaml").write_text((work / "config.yaml").read_text() + "offline: true\n")
    told = other.fails(125, "run", "base/c:1", "base/none:1", "--", "true")
    assert "layer base/c:1 is not here" in told and "layer base/none:1 is not here" in told
    assert "--offline=false" in other.fails(125, "run", "--registry", registry, "base/c:1", "--", "true")
    assert "works offline" in other.fails(2, "cache", "warm", "base/c:1")
    other.ok("pull", "--offline=false", "base/c:1")
    assert rows(other)["base/c:1"]["on_demand"] == 0
