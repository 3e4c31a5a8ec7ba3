"""A fullvm is a computer with a disk, a screen, a keyboard and a console; here with a disk of one sector."""

import hashlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import leftovers
import pytest
import rootfs
import tiny_disk
from on_edge import OnEdge
from png import Picture


@pytest.fixture
def dsec(fullvms):
    return fullvms


def await_log(dsec, name: str, words: str, patience: float = 60) -> str:
    end = time.monotonic() + patience
    while words not in (said := dsec.ok("logs", name)):
        assert time.monotonic() < end, said
        time.sleep(0.1)
    return said


@pytest.fixture
def tiny(dsec):
    dsec.ok("create", "--name", "pc", "base/tiny")
    await_log(dsec, "pc", "here is the disk")
    return dsec


def described(dsec, name: str) -> dict:
    (told,) = json.loads(dsec.ok("inspect", name))
    return told


def test_a_disk_is_a_layer_of_one_blob_of_its_own_kind(dsec):
    manifest = json.loads(dsec.ok("layer", "inspect", "-o", "json", "base/tiny"))
    text = json.dumps(manifest)
    assert '"role": "disk"' in text and '"format": "raw"' in text, text
    assert dsec.ok("layer", "verify", "base/tiny")
    dsec.ok("gc")
    assert "base/tiny" in dsec.ok("layer", "ls")


def test_it_begins_from_its_disk_and_its_console_is_its_log(tiny):
    assert described(tiny, "pc")["state"] == "running"
    assert "console" in tiny.ok("ps")
    tiny.ok("rm", "-f", "pc")


def test_what_is_typed_at_its_keyboard_comes_to_it(tiny):
    tiny.ok("vm", "type", "pc", "Hello, World! {42}~|")
    tiny.ok("vm", "key", "pc", "shift+q")
    assert "Hello, World! {42}~|Q" in await_log(tiny, "pc", "Q")


def test_its_screen_is_seen(tiny, work):
    tiny.ok("vm", "screenshot", "pc", "--out", "one.png")
    one = Picture((work / "one.png").read_bytes())
    assert (one.width, one.height) == (720, 400)
    tiny.ok("vm", "type", "pc", "xxxxxxxxxxxxxxxx")
    await_log(tiny, "pc", "xxxxxxxxxxxxxxxx")
    two = json.loads(tiny.ok("vm", "screenshot", "pc", "--out", "two.png", "-o", "json"))
    content = (work / "two.png").read_bytes()
    assert two == {"file": "two.png", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert Picture(content).rows != one.rows
    streamed = tiny.ok("vm", "screenshot", "pc", "--out", "-").encode("utf-8", "surrogateescape")
    assert Picture(streamed).width == 720


def test_its_console_can_be_typed_at(tiny):
    console = tiny.popen("vm", "console", "pc", stdin=subprocess.PIPE)
    console.stdin.write(b"by the serial port")
    console.stdin.flush()
    await_log(tiny, "pc", "by the serial port")
    tiny.ok("vm", "key", "pc", "esc")
    out, _ = console.communicate(timeout=30)
    assert b"here is the disk" in out and b"by the serial port" in out


def test_a_system_that_turns_it_off_has_stopped(tiny):
    tiny.ok("vm", "key", "pc", "esc")
    assert tiny.run("wait", "pc").code in (0, 125)
    told = described(tiny, "pc")
    assert (told["state"], told["reason"]) == ("stopped", "its system turned it off")
    # What its console said is still there.
    assert "here is the disk" in tiny.ok("logs", "pc")
    assert "is stopped" in tiny.fails(2, "vm", "key", "pc", "a")


def test_a_system_that_knows_no_button_is_stopped_all_the_same(tiny):
    begin = time.monotonic()
    tiny.ok("stop", "--time", "2", "pc")
    assert 1.5 < time.monotonic() - begin < 20
    assert described(tiny, "pc")["state"] == "stopped"


def test_what_is_done_at_its_screen_is_recorded(tiny, work):
    tiny.ok("vm", "type", "pc", "ab", "--op-id", "typed")
    await_log(tiny, "pc", "ab")
    tiny.ok("vm", "screenshot", "pc", "--out", "shot.png", "--op-id", "shot")
    tiny.ok("vm", "click", "pc", "10,20", "--button", "right")
    assert "720 by 400" in tiny.fails(2, "vm", "move", "pc", "720,10")
    shown = [json.loads(line) for line in tiny.ok("traj", "show", "pc", "-o", "json").splitlines()]
    operations = [entry for entry in shown if entry.get("kind") in ("screen-input", "screenshot")]
    assert [(one["kind"], one["outcome"]) for one in operations] == [
        ("screen-input", "ok"), ("screenshot", "ok"), ("screen-input", "ok"), ("screen-input", "failed")]
    assert operations[0]["request"] == {"action": "type", "text": "ab"}
    assert operations[2]["request"] == {"action": "click", "at": [10, 20], "button": "right", "count": 1}
    # Repeated, nothing is typed and the picture of then comes again.
    tiny.ok("vm", "type", "pc", "ab", "--op-id", "typed")
    tiny.ok("vm", "type", "pc", "c")
    assert "abab" not in await_log(tiny, "pc", "abc")
    tiny.ok("vm", "screenshot", "pc", "--out", "again.png", "--op-id", "shot")
    assert (work / "again.png").read_bytes() == (work / "shot.png").read_bytes()
    assert "another request" in tiny.fails(2, "vm", "type", "pc", "other", "--op-id", "typed")


def test_its_screen_is_served_to_viewers(tiny):
    viewer = tiny.popen("vm", "vnc", "pc")
    address, port = viewer.stdout.readline().decode().strip().rsplit(":", 1)
    with socket.create_connection((address, int(port)), timeout=20) as stream:
        assert stream.recv(12).startswith(b"RFB 003.")
    viewer.kill()
    viewer.communicate()


def test_its_disk_is_written_to_beside_the_layer(dsec, work):
    layer = json.loads(dsec.ok("layer", "inspect", "-o", "json", "base/tiny"))
    text = json.dumps(layer)
    dsec.ok("create", "--name", "one", "base/tiny")
    dsec.ok("create", "--name", "two", "--disk", "64MiB", "base/tiny")
    assert "cannot become smaller" in dsec.fails(2, "create", "--disk", "1MiB", "base/tiny")
    assert dsec.ok("layer", "verify", "base/tiny")
    assert json.dumps(json.loads(dsec.ok("layer", "inspect", "-o", "json", "base/tiny"))) == text


def test_the_vmm_has_nothing_of_the_host(tiny):
    told = described(tiny, "pc")
    record = json.loads((tiny.home / "sandboxes" / told["id"] / "state.json").read_text())
    process = Path("/proc", str(record["init_pid"]))
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert all(int(uid) >= 1 << 16 for uid in status["Uid"].split() + status["Gid"].split())
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2" and int(status["Seccomp_filters"]) >= 2
    for namespace in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert os.readlink(process / "ns" / namespace) != os.readlink(f"/proc/self/ns/{namespace}"), namespace
    assert not (process / "root" / "root").exists() and not (process / "root" / "home").exists()
    opened = {os.readlink(process / "fd" / fd) for fd in os.listdir(process / "fd")}
    assert not [path for path in opened if path.startswith(str(tiny.home))], opened


def test_whoever_makes_one_may_be_killed_at_any_time(dsec):
    for delay in (0.0, 0.2, 0.6):
        making = dsec.popen("create", "base/tiny")
        time.sleep(delay)
        making.kill()
        making.communicate()
    for sandbox in leftovers.sandboxes_of(dsec.home):
        dsec.run("rm", "-f", sandbox)
    end = time.monotonic() + 30
    while leftovers.sandboxes_of(dsec.home):
        assert time.monotonic() < end
        dsec.run("gc")
        time.sleep(0.2)


def test_a_paused_one_stands_still_and_goes_on(tiny):
    tiny.ok("pause", "pc")
    assert described(tiny, "pc")["state"] == "paused"
    tiny.ok("vm", "type", "pc", "on")
    await_log(tiny, "pc", "on")
    assert described(tiny, "pc")["state"] == "running"


def test_lifetimes_end_it(dsec):
    dsec.ok("create", "--name", "brief", "--lifetime", "3s", "base/tiny")
    assert dsec.run("wait", "brief").code in (0, 125)
    assert described(dsec, "brief")["reason"] == "its lifetime ended"


def test_without_an_agent_nothing_is_run_in_it(tiny):
    for words in (["exec", "pc", "--", "true"], ["cp", "pc:/etc/passwd", "-"], ["http", "pc", "80"]):
        error = tiny.run(*words)
        assert error.code and "dsec's agent" in error.err, error


REFUSED = {
    "-v": (["-v", "/srv:/srv"], "shares no filesystem with the host"),
    "--network": (["--network", "policy"], "has no network"),
    "--device": (["--device", "/dev/full:/dev/other"], "has no devices of the host"),
    "--read-only": (["--read-only"], "writes to its disk"),
    "--pids": (["--pids", "50"], "as many tasks as its system allows"),
    "--memory": (["-m", "8MiB"], "multiple of 1 MiB"),
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_it_cannot_do_is_refused_before_anything_is_made(dsec, flags):
    words, reason = REFUSED[flags]
    assert reason in dsec.fails(2, "create", *words, "base/tiny")
    assert leftovers.sandboxes_of(dsec.home) == []


def test_its_files_are_its_own(tiny):
    assert "only its own system reads" in tiny.run("diff", "pc").err
    assert "only its own system reads" in tiny.run("snapshot", "pc", "snapshot/x").err
    assert "only its own system reads" in tiny.run("fork", "pc").err


def test_a_disk_is_nothing_for_a_container_and_files_are_nothing_for_a_fullvm(dsec):
    error = dsec.run("run", "--backend", "container", "base/tiny", "--", "true")
    assert "is the disk of a machine" in error.err and "--backend fullvm" in error.err
    rootfs.import_base(dsec)
    assert "is no disk that a machine could start from" in dsec.fails(2, "create", "base/box")
    assert leftovers.sandboxes_of(dsec.home) == []


def test_uefi_is_begun_with_where_the_layer_says_so(dsec, work):
    dsec.ok("import", "base/uefi", f"disk:{work / 'tiny.img'}?firmware=uefi")
    dsec.ok("create", "--name", "pc", "base/uefi")
    # It finds no loader of its kind, and says so.
    await_log(dsec, "pc", "BdsDxe", 240)


@pytest.fixture
def afar(work, kernel_home):
    tool = OnEdge(work / "home", work, "fullvm")
    tool.give_kernel(kernel_home)
    tool.ok("import", "base/tiny", f"disk:{tiny_disk.make(work / 'tiny.img')}")
    yield tool
    tool.clean_up()


def test_an_edge_brings_its_screen(afar, work):
    afar.ok("create", "--name", "pc", "base/tiny")
    await_log(afar, "pc", "here is the disk")
    afar.ok("vm", "type", "pc", "from afar", "--op-id", "typed")
    await_log(afar, "pc", "from afar")
    afar.ok("vm", "screenshot", "pc", "--out", "shot.png")
    assert Picture((work / "shot.png").read_bytes()).width == 720
    afar.ok("vm", "click", "pc", "10,20", "--count", "2")
    assert "720 by 400" in afar.fails(2, "vm", "drag", "pc", "1,1", "720,10")
    viewer = afar.popen("vm", "vnc", "pc")
    address, port = viewer.stdout.readline().decode().strip().rsplit(":", 1)
    with socket.create_connection((address, int(port)), timeout=20) as stream:
        assert stream.recv(12).startswith(b"RFB 003.")
    viewer.kill()
    viewer.communicate()


def test_other_sources_of_disks(dsec, work):
    (work / "vmdk").write_bytes(b"KDMV" + bytes(1 << 20))
    assert "VMDK" in dsec.fails(2, "import", "base/x", f"disk:{work / 'vmdk'}")
    assert "only a base layer" in dsec.fails(2, "import", "workspace/x", f"disk:{work / 'tiny.img'}")
    assert "no option" in dsec.fails(2, "import", "base/x", f"disk:{work / 'tiny.img'}?agent=maybe")
