"""The writable disk of a microVM: layers that are sealed while the guest writes, and a server that may be killed."""

import json
import os
import signal
import socket
import subprocess
import time

import leftovers
import pytest
from dsec_tool import BIN
from guest_keeper import run
from guest_machine import Machine, configuration
from waiting import until

MIB = 1 << 20


@pytest.fixture
def dsec(microvms):
    return microvms


def directory_of(dsec, name: str):
    (told,) = json.loads(dsec.ok("inspect", name))
    return dsec.home / "sandboxes" / told["id"]


def ask(sandbox, op: str) -> dict:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.settimeout(60)
        control.connect(str(sandbox / "disk.control"))
        control.send(json.dumps({"op": op}).encode())
        return json.loads(control.recv(1 << 16))


def servers_of(sandbox) -> dict[str, int]:
    found = leftovers.processes_of(sandbox / "disk")
    return {words.split()[1]: pid for pid, words in found.items() if "dsec-disk" in words.split()[0]}


def bytes_of(disk) -> int:
    return sum(file.stat().st_blocks * 512 for file in disk.iterdir())


def tool(*args) -> str:
    return subprocess.run([BIN / "machine_disk", *args], text=True, stdout=subprocess.PIPE, timeout=120, check=True).stdout


def test_a_guest_writes_is_snapshot_and_goes_on_and_others_go_on_from_there(dsec, kernel, images, work):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox = directory_of(dsec, "box")
    dsec.ok("exec", "box", "--", "sh", "-c", "echo then > /root/word; head -c 3000000 /dev/urandom > /root/noise; sha256sum /root/noise > /root/sum; sync")
    tool("seal", sandbox / "disk", work / "snapshot")
    dsec.ok("exec", "box", "--", "sh", "-c", "echo now > /root/word; rm /root/noise; sync")
    layers = tool("layers", work / "snapshot").split()
    started, disks = [], []
    try:
        for number in range(2):
            place = work / f"clone{number}"
            place.mkdir()
            disks.append(place / "disk")
            tool("create", place / "disk", "0", *layers)
            tool("serve", place / "disk", place / "disk.sock")
            drives = {name: images[name] for name in ("base", "over", "over-data")}
            blockdev = json.dumps({"driver": "nbd", "node-name": "top", "server": {"type": "unix", "path": str(place / "disk.sock")}})
            machine = Machine(kernel, place, drives, devices=("-blockdev", blockdev, "-device", "virtio-blk-device,drive=top,serial=disk"))
            started.append(machine)
            machine.start(configuration())
            said = run(machine.channel, "/bin/sh", "-c", "cat /root/word; cd / && sha256sum -c /root/sum; echo mine > /root/word")
            assert said.stdout.decode().split("\n")[:2] == ["then", "/root/noise: OK"], said
        assert dsec.ok("exec", "box", "--", "cat", "/root/word") == "now\n"
    finally:
        for machine in started:
            machine.stop()
        for disk in disks:
            tool("end", disk)


def test_whoever_serves_the_disk_may_be_killed_while_the_guest_writes(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox = directory_of(dsec, "box")
    writing = dsec.popen("exec", "box", "--", "sh", "-c",
                         "for i in $(seq 40); do head -c 500000 /dev/urandom > /root/$i; sha256sum /root/$i >> /root/sums; sync; done")
    for _ in range(6):
        server = servers_of(sandbox)["serve"]
        time.sleep(0.4)
        os.kill(server, signal.SIGKILL)
        assert until(lambda gone=server: servers_of(sandbox).get("serve", gone) != gone)
        assert "error" not in ask(sandbox, "seal")
    _, err = writing.communicate(timeout=200)
    assert writing.returncode == 0, err
    dsec.ok("exec", "box", "--", "sh", "-c", "echo 3 > /proc/sys/vm/drop_caches 2>/dev/null; sha256sum -c /root/sums > /dev/null && test $(wc -l < /root/sums) = 40")
    for pid in servers_of(sandbox).values():
        os.kill(pid, signal.SIGKILL)
    assert until(lambda: servers_of(sandbox) == {})
    assert dsec.ok("exec", "box", "--", "sh", "-c", "echo again > /root/word; sync; cat /root/word") == "again\n"
    assert set(servers_of(sandbox)) == {"hold", "serve"}


def test_the_server_of_the_disk_is_in_the_groups_of_its_sandbox_and_ends_with_it(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox = directory_of(dsec, "box")
    pids = servers_of(sandbox).values()
    for pid in pids:
        with open(f"/proc/{pid}/cgroup") as groups:
            assert sandbox.name in groups.read()
    record = json.loads((sandbox / "state.json").read_text())
    os.kill(record["keeper_pid"], signal.SIGKILL)
    dsec.ok("gc")
    assert not any(leftovers.still_runs(pid) for pid in pids)
    assert not sandbox.exists()
    dsec.ok("create", "--name", "other", "base/box")
    sandbox = directory_of(dsec, "other")
    pids = servers_of(sandbox).values()
    dsec.ok("stop", "other")
    assert until(lambda: not any(leftovers.still_runs(pid) for pid in pids))


def test_the_disk_is_as_large_as_was_asked_and_gives_back_what_is_deleted(dsec):
    dsec.ok("create", "--name", "box", "--disk", "32MiB", "base/box")
    disk = directory_of(dsec, "box") / "disk"
    full = dsec.run("exec", "box", "--", "sh", "-c", "yes word | head -c 40000000 > /root/file; sync; echo more > /root/more")
    assert "No space left" in full.err
    assert 20 * MIB < bytes_of(disk) < 33 * MIB
    for _ in range(3):
        dsec.ok("exec", "box", "--", "sh", "-c", "rm /root/file; sync; yes again | head -c 12000000 > /root/file; sync")
    assert bytes_of(disk) < 33 * MIB
    dsec.ok("exec", "box", "--", "sh", "-c", "rm /root/file; sync")
    assert until(lambda: bytes_of(disk) < 8 * MIB), bytes_of(disk)


def test_disks_of_a_size_have_their_beginning_in_common(dsec):
    dsec.ok("create", "--name", "one", "base/box")
    dsec.ok("create", "--name", "two", "base/box")
    (empty,) = (dsec.home / "vm" / "disks").iterdir()
    assert empty.name == f"ext4-{10 << 30}.obd"
    for name in ("one", "two"):
        assert (directory_of(dsec, name) / "disk" / "1.obd").samefile(empty)
    dsec.ok("exec", "one", "--", "sh", "-c", "echo one > /root/word; sync")
    assert dsec.run("exec", "two", "--", "cat", "/root/word").code == 1
