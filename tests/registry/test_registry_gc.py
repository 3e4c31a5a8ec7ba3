"""dsec registry gc and check on registries of every kind, also beside publishers and pullers."""

import json
import random
import shutil
import threading

import pytest
from dsec_tool import Dsec
from oci_registry import tar_of
from registry_kinds import KINDS


def import_layer(dsec: Dsec, work, name: str, content: bytes) -> str:
    """The digest."""
    tar = work / f"{dsec.home.name}.tar"
    tar.write_bytes(tar_of({"content": content}))
    dsec.ok("import", name, f"tar:{tar}")
    tar.unlink()
    return dsec.json("layer", "inspect", name)[0]["digest"]


def moved(dsec, work, place, env) -> tuple[str, str]:
    """base/x:1 has meant another layer before: both digests."""
    old = import_layer(dsec, work, "base/x:1", b"old" * 1000)
    dsec.ok("publish", "base/x:1", "--to", place, env=env)
    new = import_layer(dsec, work, "base/x:1", b"new" * 1000)
    dsec.ok("publish", "base/x:1", "--to", place, env=env)
    return old, new


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_tag_and_no_lock_names_goes_after_its_grace(dsec, other, work, places, kind):
    place, env = places.url(kind), places.env
    old, new = moved(dsec, work, place, env)
    lock = work / "dsec.lock"
    lock.write_text(json.dumps({"version": 1, "args": {}, "builder": "", "mkfs": "", "kernel": "", "platform": "",
                                "layers": {"base/x:1": {"digest": old, "inputs": {}, "recipe": ""}},
                                "environments": {}}))
    told = dsec.ok("registry", "gc", place, env=env)
    assert "more (" in told and "may go from" in told and "2 layers stay" in told
    told = dsec.json("registry", "gc", place, "--grace", "0", "--dry-run", env=env)
    assert [item["name"] for item in told["removed"] if item["kind"] == "layer"] == [f"base/x {old[7:19]}"]
    assert dsec.json("registry", "gc", place, "--grace", "0", "--locks", lock, env=env)["removed"] == []
    assert dsec.json("registry", "check", place, "--locks", lock, env=env)["problems"] == []
    told = dsec.json("registry", "gc", place, "--grace", "0", env=env)
    assert [item["name"] for item in told["removed"] if item["kind"] == "layer"] == [f"base/x {old[7:19]}"]
    assert told["layers"] == 1 and (told["bytes"] > 0) == (kind != "oci")
    assert dsec.json("registry", "check", place, env=env)["problems"] == []
    told = json.loads(dsec.run("registry", "check", place, "--locks", lock, "-o", "json", env=env).out)
    assert [problem["kind"] for problem in told["problems"]] == ["missing"]
    other.ok("pull", "base/x:1", "--from", place, env=env)
    assert other.json("layer", "inspect", "base/x:1")[0]["digest"] == new
    other.fails(2, "pull", old, "--from", place, env=env)
    # Publishing brings back what went.
    dsec.ok("publish", old, "--to", place, env=env)
    other.ok("pull", old, "--from", place, env=env)


def test_an_oci_registry_frees_the_blobs_of_what_went(dsec, work, places, server):
    old, _ = moved(dsec, work, places.url("oci"), places.env)
    dsec.ok("registry", "gc", places.url("oci"), "--grace", "0")
    assert f"layer-{old[7:]}" not in server.tags("one/layers")
    blobs = [blob["digest"] for blob in server.manifest("one/layers/base/x", "1")["layers"]]
    assert all(server.blob_file(digest).exists() for digest in blobs)


@pytest.mark.parametrize("kind", KINDS)
def test_gc_beside_publishers_and_pullers_takes_nothing_that_is_named(dsec, other, work, places, kind, long_run):
    """Layers lose and get their tags all the time, while gc without any grace runs."""
    place, env = places.url(kind), places.env
    import_layer(dsec, work, "base/x:1", bytes([2]) * 50_000)
    dsec.ok("publish", "base/x:1", "--to", place, env=env)
    rounds, faults, over = 40 if long_run else 8, [], threading.Event()

    def attempt(*args, who=dsec):
        result = who.run(*args, env=env)
        if result.code != 0:
            faults.append(str(result))

    def publish(seed):
        try:
            publish_in_rounds(seed)
        except BaseException as error:  # a thread that dies fails nothing by itself
            faults.append(repr(error))

    def publish_in_rounds(seed):
        rng = random.Random(seed)
        own = Dsec(work / f"home-{seed}", work)
        for n in range(3):
            import_layer(own, work, f"base/x:{n}", bytes([n]) * 50_000)
        for _ in range(rounds):
            # A tag of its own, that means another layer each time.
            own.ok("layer", "tag", f"base/x:{rng.randrange(3)}", f"base/x:of-{seed}")
            attempt("publish", f"base/x:of-{seed}", "--to", place, who=own)
            # Nobody else moves it: what has been published is there, whatever gc did before.
            reader = Dsec(work / f"reader-{seed}", work)
            attempt("pull", f"base/x:of-{seed}", "--from", place, who=reader)
            shutil.rmtree(reader.home)

    def collect():
        while not over.is_set():
            attempt("registry", "gc", place, "--grace", "0")

    def pull():
        while not over.is_set():
            # Without a grace, what a tag meant may be gone when the tag has moved since.
            attempt("pull", "base/x:1", "--from", place, who=other)
            other.run("layer", "rm", "base/x:1")
            other.run("gc")

    publishers = [threading.Thread(target=publish, args=(seed,)) for seed in (1, 2)]
    rest = [threading.Thread(target=collect), threading.Thread(target=pull)]
    for thread in publishers + rest:
        thread.start()
    for thread in publishers:
        thread.join()
    over.set()
    for thread in rest:
        thread.join()
    assert faults == []
    dsec.ok("registry", "gc", place, "--grace", "0", env=env)
    assert dsec.json("registry", "check", place, env=env)["problems"] == []
    for name in ("1", "of-1", "of-2"):
        other.ok("pull", f"base/x:{name}", "--from", place, env=env)
