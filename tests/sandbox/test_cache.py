"""Layers that are evicted and come again, beside sandboxes that use them."""

import hashlib
import shutil
import threading

import pytest
import rootfs

BIG = b"".join(hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range((1 << 20) // 32))
SUM = hashlib.sha256(BIG).hexdigest()

pytestmark = pytest.mark.guest_slow("no kernel decides it; test_on_demand has what one does")


@pytest.fixture
def stored(dsec, work):
    """base/box with a file of 1 MiB, published to a folder and here; the file of its data."""
    dsec.ok("import", "base/box", f"tar:{rootfs.write_tar(work / 'base.tar', files={'big': BIG})}")
    dsec.ok("publish", "base/box", "--to", f"file://{work}/registry")
    image = dsec.json("layer", "inspect", "base/box")[0]["manifest"]["images"][0]
    digest = next(blob["digest"] for blob in image["blobs"] if blob["role"] == "data").removeprefix("sha256:")
    return dsec.home / "store/blobs/sha256" / digest[:2] / digest


def test_what_a_sandbox_uses_stays_and_comes_again_when_it_went(dsec, work, stored):
    sandbox = dsec.ok("create", "base/box").strip()
    assert dsec.json("cache", "ls")["held"] == "sandbox" and dsec.json("cache", "ls")["holder"] == sandbox
    pruned = dsec.json("cache", "prune", "--to", "0")
    assert pruned["evicted"] == [] and pruned["held"]["sandbox"] > len(BIG)
    dsec.ok("rm", "-f", sandbox)
    assert dsec.json("cache", "ls")["held"] == ""
    assert [one["layer"] for one in dsec.json("cache", "prune", "--to", "0")["evicted"]] == ["base/box:latest"]
    assert not stored.exists()
    told = dsec.fails(125, "run", "--offline", "base/box", "--", "true")
    assert "of the data of base/box:latest are not here" in told and "dsec cache warm base/box" in told
    assert SUM in dsec.ok("run", "base/box", "--", "sha256sum", "/big")
    dsec.ok("cache", "warm", "base/box")
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == stored.name
    shutil.rmtree(work / "registry")
    assert SUM in dsec.ok("run", "--offline", "base/box", "--", "sha256sum", "/big")
    # Nobody else has it now.
    assert dsec.json("cache", "prune", "--to", "0")["evicted"] == [] and stored.exists()


def test_the_limit_holds_when_a_run_has_pulled_something(dsec, work, stored):
    for number in range(3):
        tar = rootfs.write_tar(work / "base.tar", files={"big": BIG, "number": str(number).encode()})
        dsec.ok("import", f"base/box:{number}", f"tar:{tar}")
    dsec.ok("publish", *[f"base/box:{number}" for number in range(3)], "--to", f"file://{work}/registry")
    for name in ("latest", 0, 1, 2):
        dsec.ok("layer", "rm", f"base/box:{name}")
    dsec.ok("gc")
    size = len(BIG) + (4 << 20)
    (work / "config.yaml").write_text(
        f"registries: {{team: 'file://{work}/registry'}}\nstore: {{limit: {size}}}\ntrajectories: {{keep: 30d}}\n")
    for number in range(3):
        assert SUM in dsec.ok("run", f"base/box:{number}", "--", "sha256sum", "/big")
        here = sum(file.stat().st_size for file in (dsec.home / "store/blobs").rglob("*") if file.is_file())
        assert here <= size
    rows = {row["tags"][0]: row for row in dsec.json("cache", "ls")}
    assert rows["base/box:2"]["on_demand"] == 0 and rows["base/box:0"]["on_demand"] > 0


def test_runs_beside_evictions_read_the_right_bytes(dsec, stored, long_run):
    faults, over = [], threading.Event()

    def keep_on(*args):
        while not over.is_set():
            result = dsec.run(*args)
            if result.code != 0:
                faults.append(str(result))

    def run():
        for _ in range(30 if long_run else 6):
            result = dsec.run("run", "base/box", "--", "sha256sum", "/big")
            if result.code != 0 or SUM not in result.out:
                faults.append(str(result))

    busy = [threading.Thread(target=keep_on, args=args) for args in (
        ("cache", "prune", "--to", "0"), ("cache", "warm", "base/box"), ("gc",))]
    runners = [threading.Thread(target=run) for _ in range(2)]
    for thread in busy + runners:
        thread.start()
    for thread in runners:
        thread.join()
    over.set()
    for thread in busy:
        thread.join()
    assert faults == []
    dsec.ok("layer", "verify")
