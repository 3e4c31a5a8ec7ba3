"""Layers that are memory of guests: read-only, the host's page cache once for all, and what a guest has cached goes back
when it is paused."""

import concurrent.futures
import hashlib
import json
import os
import random
import re
import time
from pathlib import Path

import leftovers
import pytest
import rootfs
from on_backend import OnBackend

MIB = 1 << 20
BIG = 200 * MIB
SIZE = ("-m", "384MiB", "--cpus", "1")


@pytest.fixture(scope="module")
def home(kernel_home, tmp_path_factory):
    """With base/box, toolkit/big, which is one file of 200 MB, toolkit/small, toolkit/late, and toolkit/packed, which is compressed."""
    work = tmp_path_factory.mktemp("pmem")
    tool = OnBackend(work / "home", work, "microvm")
    rootfs.import_base(tool)
    for name, size, flags in (("big", BIG, ()), ("small", MIB, ()), ("late", MIB, ()), ("packed", 20 * MIB, ("--compress", "lz4"))):
        tree = work / name / "opt"
        tree.mkdir(parents=True)
        (tree / name).write_bytes(random.Random(name).randbytes(size))
        tool.ok("import", f"toolkit/{name}", f"dir:{tree.parent}", *flags)
    tool.give_kernel(kernel_home)
    yield tool
    tool.clean_up()


@pytest.fixture
def dsec(home):
    yield home
    for sandbox in leftovers.sandboxes_of(home.home):
        home.run("rm", "-f", sandbox)


def process_of(dsec, name: str) -> Path:
    (told,) = json.loads(dsec.ok("inspect", name))
    return Path("/proc", str(json.loads((dsec.home / "sandboxes" / told["id"] / "state.json").read_text())["init_pid"]))


def arguments_of(dsec, name: str) -> str:
    return (process_of(dsec, name) / "cmdline").read_text()


def mapped(dsec, name: str) -> dict[str, str]:
    """Protection of the mappings of drives, by what they are called."""
    lines = (process_of(dsec, name) / "maps").read_text().splitlines()
    return {os.path.basename(line.split()[-1]): line.split()[1] for line in lines if "/drives/" in line}


def blobs_of(dsec, layer: str) -> list[Path]:
    images = json.loads(dsec.ok("layer", "inspect", layer))[0]["manifest"]["images"]
    digests = [blob["digest"].split(":")[1] for image in images for blob in image["blobs"] if blob["role"] != "chunks"]
    return [dsec.home / "store/blobs/sha256" / digest[:2] / digest for digest in digests]


def test_a_large_layer_is_mapped_read_only_and_reads_as_it_is(dsec):
    dsec.ok("create", "--name", "one", *SIZE, "base/box", "toolkit/big")
    assert mapped(dsec, "one") == {"l1m": "r--s", "l1d": "r--s"}
    said = dsec.ok("exec", "one", "--", "md5sum", "/opt/big").split()[0]
    assert said == hashlib.md5(random.Random("big").randbytes(BIG)).hexdigest()
    # What the guest's kernel has of it in its own memory is next to nothing.
    assert dsec.json("stats", "one")["memory_bytes"] < 32 * MIB
    meta, data = blobs_of(dsec, "toolkit/big")
    assert [file.stat().st_size % (2 * MIB) for file in (meta, data)] == [0, 0]
    assert "problem" not in dsec.ok("layer", "verify", "toolkit/big")


def test_the_sandbox_has_no_way_to_the_memory_of_layers(dsec):
    dsec.ok("create", "--name", "one", *SIZE, "--pmem", "on", "base/box", "toolkit/small")
    assert dsec.run("exec", "one", "--", "sh", "-c", "ls /dev/pmem*").code != 0
    opened = process_of(dsec, "one") / "fdinfo"
    for fd in os.listdir(opened):
        if "/drives/l" in os.readlink(process_of(dsec, "one") / "fd" / fd):
            flags = int(re.search(r"^flags:\s*(\d+)", (opened / fd).read_text(), re.M)[1], 8)
            assert flags & os.O_ACCMODE == os.O_RDONLY


def allocated(file: Path) -> int:
    return file.stat().st_blocks * 512


def test_what_is_saved_with_all_that_runs_has_its_layers_in_memory_again(dsec):
    dsec.ok("create", "--name", "one", *SIZE, "base/box", "toolkit/big")
    dsec.ok("exec", "one", "--", "sh", "-c", "md5sum < /opt/big > /dev/shm/sum")
    dsec.ok("vm", "save", "one", "kept")
    try:
        place = dsec.home / "vm/saved/kept"
        # What the host has of the layer already is not written a second time.
        assert allocated(place / "memory") < 150 * MIB and allocated(place / "state") < 20 * MIB
        made = dsec.ok("vm", "restore", "kept", "-n", "2").split()
        (line,) = [json.loads(line) for line in dsec.ok("vm", "snapshot", "ls", "-o", "json").splitlines()]
        assert line["name"] == "kept" and line["pmem"] is True and line["fits"] is True
    finally:
        dsec.ok("vm", "snapshot", "rm", "kept")
    for each in made:
        assert mapped(dsec, each) == {"l1m": "r--s", "l1d": "r--s"}
        assert dsec.ok("exec", each, "--", "sh", "-c", "md5sum < /opt/big") == dsec.ok("exec", each, "--", "cat", "/dev/shm/sum")
    assert dsec.json("stats", made[0])["memory_bytes"] < 64 * MIB


def test_a_layer_that_another_maps_meanwhile_is_still_the_same_layer(dsec):
    dsec.ok("create", "--name", "drive", *SIZE, "--pmem", "off", "base/box", "toolkit/late")
    dsec.ok("vm", "save", "drive", "kept")
    try:
        before = [file.stat().st_size for file in blobs_of(dsec, "toolkit/late")]
        dsec.ok("create", "--name", "maps", *SIZE, "--pmem", "on", "base/box", "toolkit/late")
        assert [file.stat().st_size for file in blobs_of(dsec, "toolkit/late")] != before
        (made,) = dsec.ok("vm", "restore", "kept").split()
    finally:
        dsec.ok("vm", "snapshot", "rm", "kept")
    assert mapped(dsec, made) == {}
    assert dsec.ok("exec", made, "--", "md5sum", "/opt/late").split()[0] == hashlib.md5(random.Random("late").randbytes(MIB)).hexdigest()


def test_a_small_layer_is_a_drive_unless_asked_for(dsec):
    dsec.ok("create", "--name", "small", *SIZE, "base/box", "toolkit/small", "toolkit/packed")
    assert mapped(dsec, "small") == {} and "microvm" in arguments_of(dsec, "small")
    dsec.ok("create", "--name", "asked", *SIZE, "--pmem", "on", "base/box", "toolkit/small", "toolkit/packed")
    assert set(mapped(dsec, "asked")) == {"l0m", "l0d", "l1m", "l1d"}
    for name in ("small", "asked"):
        assert dsec.ok("exec", name, "--", "sh", "-c", "cat /opt/small /opt/packed | wc -c").strip() == str(21 * MIB)


def test_off_is_off(dsec):
    dsec.ok("create", "--name", "off", *SIZE, "--pmem", "off", "base/box", "toolkit/big")
    assert mapped(dsec, "off") == {} and "microvm" in arguments_of(dsec, "off")


def test_what_cannot_be_is_refused(dsec):
    error = dsec.fails(125, "run", "--backend", "container", "--pmem", "off", "base/box", "--", "true")
    assert "whatever --pmem says" in error
    assert leftovers.sandboxes_of(dsec.home) == []


def memory_of(dsec, names: list[str]) -> tuple[float, float]:
    """MiB that all have for themselves, and that they have in common."""
    told = [dsec.json("stats", name)["host_memory"] for name in names]
    return sum(each["own"] for each in told) / MIB, sum(each["part_of_shared"] for each in told) / MIB


@pytest.mark.long
@pytest.mark.alone("it measures the memory of the host")
@pytest.mark.timeout(1800)
def test_guests_that_read_the_same_layer_have_it_once(dsec):
    def reads(name: str) -> int:
        dsec.ok("create", "--name", name, *SIZE, "--pmem", name.rstrip("0123456789"), "base/box", "toolkit/big", timeout=300)
        return int(dsec.ok("exec", name, "--", "sh", "-c", "cat /opt/big | wc -c", timeout=300))

    sums = {}
    for use in ("off", "on"):
        names = [f"{use}{number}" for number in range(8)]
        with concurrent.futures.ThreadPoolExecutor(2) as two:
            assert list(two.map(reads, names)) == [BIG] * 8
        time.sleep(20)  # what a guest has freed, as after its boot, it reports a little later
        sums[use] = memory_of(dsec, names)
        for name in names:
            dsec.ok("rm", "-f", name)
    for use, what in (("off", "virtio-blk"), ("on", "virtio-pmem")):
        own, common = sums[use]
        print(f"8 guests that have read 200 MiB, {what}: {own:.0f} MiB of their own, {common:.0f} MiB in common")
    saved = sum(sums["off"]) - sum(sums["on"])
    assert saved > 6 * 200, sums


def test_it_goes_on_from_a_saved_guest_that_had_no_layers(dsec):
    size = ("-m", "256MiB", "--cpus", "1")
    dsec.ok("vm", "warm", *size, "--pmem", timeout=240)
    dsec.ok("create", "--name", "on", *size, "base/box", "toolkit/big")
    assert "-incoming" in arguments_of(dsec, "on") and set(mapped(dsec, "on")) == {"l1m", "l1d"}
    said = dsec.ok("exec", "on", "--", "md5sum", "/opt/big").split()[0]
    assert said == hashlib.md5(random.Random("big").randbytes(BIG)).hexdigest()
    # That one has no room for it.
    dsec.ok("create", "--name", "off", *size, "--pmem", "off", "base/box")
    assert "-incoming" not in arguments_of(dsec, "off")


def test_what_a_guest_has_cached_goes_back_when_it_is_paused(dsec):
    dsec.ok("create", "--name", "busy", "-m", "512MiB", "--cpus", "1", "base/box")
    dsec.ok("exec", "busy", "--", "sh", "-c", "head -c 150000000 /dev/urandom > /root/file; md5sum /root/file > /root/sum")
    dsec.ok("exec", "-d", "busy", "--", "sleep", "1000")

    def own() -> int:
        return dsec.json("stats", "busy")["host_memory"]["own"] // MIB

    before = own()
    dsec.ok("pause", "busy")
    after = own()
    told = dsec.json("stats", "busy")
    print(f"paused: {before} MiB on the host before, {after} MiB after")
    assert before - after > 100 and told["memory_before_pause"] > told["memory_bytes"] + 100 * MIB
    assert dsec.ok("exec", "busy", "--", "md5sum", "-c", "/root/sum") == "/root/file: OK\n"
    # Asked while it still gives back, it goes on.
    pausing = dsec.popen("pause", "busy")
    time.sleep(1)
    began = time.monotonic()
    assert dsec.ok("exec", "busy", "--", "echo", "lives") == "lives\n"
    assert time.monotonic() - began < 4
    assert pausing.wait(30) != 0 and json.loads(dsec.ok("inspect", "busy"))[0]["state"] == "running"
