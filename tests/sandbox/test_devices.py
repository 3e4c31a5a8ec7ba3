"""Devices of the host that are given to sandboxes and function types: alone or shared, and given back by themselves."""

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest
import rootfs

# Harmless ones, each a device of its own for dsec.
ZERO, NULL, FULL = "/dev/zero", "/dev/null", "/dev/full"


@pytest.fixture
def box(dsec) -> str:
    return rootfs.import_base(dsec)


@pytest.fixture
def nodes(work):
    """Nodes of harmless devices under names that no sandbox has: two stand for GPUs, below a folder of /dev."""
    folder = Path("/dev") / f"dsec-test-{work.name[-8:]}"
    folder.mkdir()
    made = []
    for name, source in (("gpu0", ZERO), ("gpu1", FULL), ("ctl", NULL)):
        node = folder / name
        os.mknod(node, stat.S_IFCHR | 0o666, os.stat(source).st_rdev)
        os.chmod(node, 0o666)
        made.append(str(node))
    yield made
    for name in made:
        os.unlink(name)
    folder.rmdir()


def test_a_device_is_there_with_its_mode_and_no_other(dsec, box, nodes):
    gpu, _, ctl = nodes
    os.chmod(ctl, 0o640)
    out = dsec.ok("run", "--device", gpu, "--device", f"{ctl}:/dev/sub/ctl", box, "--", "sh", "-c",
                  f"head -c 3 {gpu} | wc -c; stat -c '%a %u %g' {gpu} /dev/sub/ctl; ls /dev; echo x > /dev/sub/ctl")
    assert out.splitlines()[:3] == ["3", "666 0 0", "640 0 0"]
    assert set(out.splitlines()[3:]) - {Path(gpu).parent.name, "sub"} == set(
        dsec.ok("run", box, "--", "ls", "/dev").split())
    # The folder is as closed to other users as on any host.
    result = dsec.run("run", "-u", "1000", "--device", f"{ctl}:/dev/ctl", box, "--", "cat", "/dev/ctl")
    assert result.code == 1 and "Permission denied" in result.err
    assert dsec.run("run", "-u", "1000", "--device", gpu, box, "--", "head", "-c", "1", gpu).code == 0


def test_nothing_else_can_be_made_of_it(dsec, box, nodes):
    script = (f"mknod /tmp/x c 1 5; mknod /dev/x c 1 5; rm {nodes[0]}; cp -a {nodes[0]} /tmp/copy; chmod 777 {nodes[0]}; "
              "ls /tmp | wc -l")
    result = dsec.run("run", "--device", nodes[0], box, "--", "sh", "-c", script)
    assert result.out == "0\n", str(result)


@pytest.mark.guest_slow("locks and nodes, which every kernel has alike")
def test_devices_stand_in_the_spec_and_environments_have_them(dsec, box, nodes, work):
    (work / "dsec.yaml").write_text(
        "version: 1\nenvironments:\n  e: {base: base/box, devices: [%s, '%s:/dev/c']}\n" % (nodes[0], nodes[2]))
    sandbox = dsec.ok("create", "e").strip()
    assert dsec.json("inspect", sandbox)[0]["spec"]["devices"] == [
        {"source": nodes[0], "target": nodes[0]}, {"source": nodes[2], "target": "/dev/c"}]
    # A fork has them as well.
    fork = dsec.ok("fork", sandbox).strip()
    assert dsec.run("exec", fork, "--", "head", "-c", "1", nodes[0]).code == 0


@pytest.mark.guest_slow("refused before any kernel is asked")
@pytest.mark.parametrize("device, words", [
    ("/dev/loop0", "no character device"), ("/dev/nosuch", "ENOENT"), ("/etc/passwd", "below /dev"),
    ("/dev/../etc/passwd", "below /dev"), ("/dev/zero:/etc/x", "below /dev"), ("/dev/zero", "has a /dev/zero already"),
    ("/dev/zero:/dev/pts/0", "has a /dev/pts already"), ("", "below /dev")])
def test_what_cannot_be_given_is_refused(dsec, box, device, words):
    if device == "/dev/loop0" and not os.path.exists(device):
        device = "/dev/loop-control:/dev/null"
        words = "has a /dev/null already"
    result = dsec.run("run", "--device", device, box, "--", "true")
    assert result.code == 125 and words in result.err, str(result)
    assert dsec.ok("ps", "-aq") == ""


FUNCTIONS = """\
version: 1
environments:
  e: {{base: base/box}}
functions:
  alone:
    environment: e
    command: [sh]
    devices: ["{2}"]
    gpus: {{devices: ["{0}", "{1}"], wait: {wait}}}
    limits: {{time: 30s}}
  both:
    environment: e
    command: [sh]
    gpus: {{devices: ["{0}", "{1}"], mode: shared, wait: {wait}}}
    limits: {{time: 30s}}
"""


def call(dsec, name: str, script: str):
    process = dsec.popen("fn", "run", name, "--stdin", "-", "-o", "json")
    process.stdin.write(script.encode())
    process.stdin.close()
    return process


def result_of(process) -> dict:
    out = process.stdout.read()
    process.stderr.read()
    process.wait(60)
    return json.loads(out)


def running(dsec) -> list[dict]:
    """Those that a command was begun in, but for what goes meanwhile."""
    told = [dsec.run("inspect", each, "-o", "json") for each in dsec.ok("ps", "-q").split()]
    return [info for result in told if result.code == 0 for info in json.loads(result.out) if info["commands"]]


def wait_for(condition, seconds: float = 60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.guest_slow("locks and nodes, which every kernel has alike")
def test_exclusive_users_never_meet_and_wait_for_each_other(dsec, box, nodes, work):
    (work / "dsec.yaml").write_text(FUNCTIONS.format(*nodes, wait="60s"))
    look = f"ls {Path(nodes[0]).parent}; sleep 0.5"
    calls = [call(dsec, "alone", look) for _ in range(5)]
    most = 0
    while any(process.poll() is None for process in calls):
        holders = [device["source"] for info in running(dsec) for device in info["spec"]["devices"]
                   if "gpu" in device["source"]]
        assert len(holders) == len(set(holders)), holders
        most = max(most, len(holders))
    for result in map(result_of, calls):
        assert result["verdict"] == "ok", result
        # One of them and what all have.
        assert sorted(result["stdout"]["data"].split()) in (["ctl", "gpu0"], ["ctl", "gpu1"])
    assert most >= 1


@pytest.mark.guest_slow("locks and nodes, which every kernel has alike")
def test_a_device_in_use_alone_is_refused_and_free_when_its_holder_is_killed(dsec, box, nodes, work):
    (work / "dsec.yaml").write_text(FUNCTIONS.format(*nodes, wait="0s"))
    calls = [call(dsec, "alone", "sleep 25") for _ in range(2)]
    ids = wait_for(lambda: len(found := running(dsec)) == 2 and found)
    assert {device["source"] for info in ids for device in info["spec"]["devices"]} == set(nodes)
    third = result_of(call(dsec, "alone", "true"))
    assert third["verdict"] == "infra" and "0 are free; given to " in third["detail"], third
    shared = result_of(call(dsec, "both", "true"))
    assert shared["verdict"] == "infra", shared
    err = dsec.fails(125, "run", "--device", nodes[0], box, "--", "true")
    assert "in use by one sandbox alone" in err and "given to " in err
    os.kill(ids[0]["keeper_pid"], signal.SIGKILL)
    assert wait_for(lambda: result_of(call(dsec, "alone", "true"))["verdict"] == "ok")
    dsec.ok("rm", "-f", ids[1]["id"])
    for process in calls:
        result_of(process)


@pytest.mark.guest_slow("locks and nodes, which every kernel has alike")
def test_those_who_share_meet_and_keep_out_who_wants_one_alone(dsec, box, nodes, work):
    (work / "dsec.yaml").write_text(FUNCTIONS.format(*nodes, wait="0s"))
    calls = [call(dsec, "both", "sleep 25") for _ in range(4)]
    wait_for(lambda: len(running(dsec)) == 4)
    used = {device["source"] for info in running(dsec) for device in info["spec"]["devices"]}
    alone = result_of(call(dsec, "alone", "true"))
    assert (alone["verdict"] == "ok") == (len(used) == 1), (alone, used)
    for info in running(dsec):
        dsec.ok("rm", "-f", info["id"])
    for process in calls:
        result_of(process)
    assert result_of(call(dsec, "alone", "true"))["verdict"] == "ok"


@pytest.mark.guest_slow("locks and nodes, which every kernel has alike")
def test_a_pool_that_cannot_be_filled_is_told_with_its_place(dsec, box, nodes, work):
    text = FUNCTIONS.format(*nodes, wait="1s").replace("    limits: {time: 30s}", "    pool: 3\n    limits: {time: 30s}", 1)
    (work / "dsec.yaml").write_text(text)
    assert ":10:11: so many sandboxes cannot each have 1 of 2 devices alone" in dsec.fails(125, "fn", "run", "alone")
    (work / "dsec.yaml").write_text(text.replace("pool: 3", "pool: 2"))
    dsec.ok("fn", "pool", "alone", "--fill")
    assert result_of(call(dsec, "alone", "true"))["from_pool"]
    dsec.ok("fn", "pool", "alone", "--drain")
