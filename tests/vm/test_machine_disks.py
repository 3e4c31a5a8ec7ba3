"""The disks of machines as processes and with peers: QEMU's and libnbd's tools on one end, dsec-disk on the other."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import leftovers
import pytest
from dsec_tool import BIN
from waiting import until

MIB = 1 << 20


def tool(*args) -> str:
    done = subprocess.run([BIN / "machine_disk", *args], text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*args) -> str:
    done = subprocess.run([BIN / "machine_disk", *args], text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 1
    return done.stderr


def peer(*args) -> str:
    done = subprocess.run(args, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, f"{args}\n{done.stdout}{done.stderr}"
    return done.stdout


class Disk:
    def __init__(self, path: Path):
        self.path, self.socket = path, path.with_suffix(".sock")

    @property
    def uri(self) -> str:
        return f"nbd+unix:///?socket={self.socket}"

    def serve(self, *below) -> "Disk":
        tool("serve", self.path, self.socket, *below)
        return self

    def io(self, *commands: str) -> str:
        words = [word for command in commands for word in ("-c", command)]
        said = peer("qemu-io", "-f", "raw", *words, self.uri)
        assert "verification failed" not in said, said
        return said

    def ask(self, op: str) -> dict:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(60)
            control.connect(str(self.path) + ".control")
            control.send(json.dumps({"op": op}).encode())
            return json.loads(control.recv(1 << 16))

    def processes(self) -> dict[str, int]:
        """By what they do: "hold", "serve"."""
        found = leftovers.processes_of(self.path)
        return {words.split()[1]: pid for pid, words in found.items() if "dsec-disk" in words.split()[0]}

    def bytes_on_host(self) -> int:
        return sum(file.stat().st_blocks * 512 for file in self.path.iterdir())


@pytest.fixture
def disks(work):
    made = []

    def make(name: str = "disk", size: int = 64 * MIB, *layers) -> Disk:
        made.append(Disk(work / name))
        tool("create", made[-1].path, str(size), *layers)
        return made[-1]

    yield make
    for disk in made:
        tool("end", disk.path)
    assert until(lambda: leftovers.processes_of(work) == {})


def test_libnbd_sees_the_export(disks):
    disk = disks().serve()
    (export,) = json.loads(peer("nbdinfo", "--json", disk.uri))["exports"]
    assert export["export-size"] == 64 * MIB
    assert (export["block_size_minimum"], export["block_size_preferred"], export["block_size_maximum"]) == (512, 4096, 32 * MIB)
    for ability in ("can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"):
        assert export[ability] is True, ability
    assert export["is_read_only"] is False
    (listed,) = json.loads(peer("nbdinfo", "--list", "--json", disk.uri))["exports"]
    assert listed["export-size"] == 64 * MIB


def test_images_are_copied_in_and_out_unchanged(disks, work):
    disk = disks().serve()
    image = work / "image"
    dice = random.Random(3)
    with open(image, "wb") as file:
        file.truncate(64 * MIB)
        for _ in range(40):
            file.seek(dice.randrange(63 * MIB))
            file.write(dice.randbytes(dice.randrange(1, MIB)))
    peer("nbdcopy", image, disk.uri)
    peer("nbdcopy", disk.uri, work / "copy")
    assert (work / "copy").read_bytes() == image.read_bytes()
    peer("qemu-img", "compare", "-f", "raw", "-F", "raw", disk.uri, image)
    other = disks("other").serve()
    peer("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", image, other.uri)
    peer("qemu-img", "compare", "-f", "raw", "-F", "raw", disk.uri, other.uri)


def test_what_is_discarded_comes_back_to_the_host(disks):
    disk = disks().serve()
    disk.io("write -P 7 0 32M", "flush")
    assert disk.bytes_on_host() > 32 * MIB
    disk.io("discard 0 16M", "write -z -u 16M 15M", "flush", "read -P 0 0 31M", "read -P 7 31M 1M")
    assert disk.bytes_on_host() < 2 * MIB
    # It is no larger than the disk, however often it is written.
    for round in range(5):
        disk.io(f"write -P {round} 0 64M")
    assert disk.bytes_on_host() < 65 * MIB


def test_a_snapshot_is_what_was_there_and_disks_that_stand_on_it_go_their_own_ways(disks, work):
    disk = disks().serve()
    disk.io("write -P 1 0 8M")
    tool("seal", disk.path, work / "snapshot")
    disk.io("write -P 2 0 4M", "write -P 2 16M 1M")
    layers = tool("layers", work / "snapshot").split()
    clones = [disks(f"clone{i}", 0, *layers).serve() for i in range(3)]
    for number, clone in enumerate(clones):
        clone.io("read -P 1 0 8M", "read -P 0 8M 56M", f"write -P {10 + number} 1M 1M")
    for number, clone in enumerate(clones):
        clone.io("read -P 1 0 1M", f"read -P {10 + number} 1M 1M", "read -P 1 2M 6M")
        assert clone.bytes_on_host() < 8 * MIB + 2 * MIB
    disk.io("read -P 2 0 4M", "read -P 1 4M 4M", "read -P 2 16M 1M")
    # Nobody that serves a disk can change what others stand on.
    for layer in map(Path, layers):
        assert (layer.stat().st_uid, layer.stat().st_mode & 0o777, layer.stat().st_nlink) == (0, 0o444, 5)
    assert "exists" in refused("seal", disk.path, work / "snapshot")
    assert "snapshot, which is not written to" in refused("serve", work / "snapshot", work / "none.sock")


def test_a_disk_that_nobody_serves_is_sealed_and_served_again(disks, work):
    disk = disks().serve()
    disk.io("write -P 1 0 1M")
    tool("end", disk.path)
    assert until(lambda: disk.processes() == {})
    tool("seal", disk.path, work / "snapshot")
    disk.serve().io("read -P 1 0 1M", "write -P 2 0 512k")
    disk.ask("seal")
    clone = disks("clone", 0, *tool("layers", work / "snapshot").split()).serve()
    clone.io("read -P 1 0 1M")
    disk.io("read -P 2 0 512k", "read -P 1 512k 512k")


def test_a_disk_is_sealed_in_the_middle_of_writing(disks, work):
    """Each write of a whole block has one number in it, and numbers only grow: a snapshot has some up to its moment."""
    disk = disks().serve()
    commands = [f"aio_write -P {1 + number % 250} {number % 64}M 64k" for number in range(600)]
    writer = subprocess.Popen(["qemu-io", "-f", "raw", disk.uri], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    seals = 0
    for begin in range(0, len(commands), 20):
        writer.stdin.write("\n".join(commands[begin:begin + 20]) + "\n")
        writer.stdin.flush()
        answer = disk.ask("seal")
        assert "error" not in answer, answer
        seals += 1
    writer.stdin.write("aio_flush\nquit\n")
    writer.stdin.close()
    assert writer.wait(60) == 0
    for place in range(64):
        last = max(number for number in range(600) if number % 64 == place)
        disk.io(f"read -P {1 + last % 250} {place}M 64k")
    # Compacted meanwhile.
    assert until(lambda: len(disk.ask("status")["layers"]) < 24), disk.ask("status")
    assert seals == 30 and "problem" not in disk.ask("status")


def test_who_is_killed_is_replaced_and_the_client_goes_on(disks):
    disk = disks().serve()
    options = json.dumps({"driver": "nbd", "server.type": "unix", "server.path": str(disk.socket), "reconnect-delay": 30})
    client = subprocess.Popen(["qemu-io", f"json:{options}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for number in range(30):
        server = disk.processes()["serve"]
        client.stdin.write(f"write -P {number + 1} {number}M 1M\n")
        client.stdin.flush()
        if number == 0:
            # Who has not yet connected for the first time gives up.
            assert until(lambda: sum(file.stat().st_blocks * 512 for file in disk.path.iterdir()) >= MIB)
        if number % 3 == 0:
            time.sleep(0.002 * (number % 7))
            os.kill(server, signal.SIGKILL)
            assert until(lambda gone=server: disk.processes().get("serve", gone) != gone)
    out, _ = client.communicate("".join(f"read -P {number + 1} {number}M 1M\n" for number in range(30)) + "quit\n", timeout=60)
    assert "fail" not in out and out.count("wrote 1048576/1048576") == 30 and out.count("read 1048576/1048576") == 30, out


def test_who_served_goes_on_without_a_holder_and_is_started_again(disks):
    disk = disks().serve()
    disk.io("write -P 1 0 1M")
    os.kill(disk.processes()["hold"], signal.SIGKILL)
    assert until(lambda: "hold" not in disk.processes())
    disk.io("read -P 1 0 1M", "write -P 2 0 1M")
    os.kill(disk.processes()["serve"], signal.SIGKILL)
    assert until(lambda: disk.processes() == {})
    disk.serve().io("read -P 2 0 1M")


def test_serving_twice_is_serving_once(disks):
    disk = disks().serve()
    before = disk.processes()
    disk.serve()
    assert disk.processes() == before and set(before) == {"hold", "serve"}


def test_who_serves_has_no_right_and_sees_nothing_but_the_disk(disks):
    disk = disks().serve()
    process = Path("/proc", str(disk.processes()["serve"]))
    assert os.readlink(process / "root") == str(disk.path)
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {"65534"} and status["Groups"].strip() == "" and status["NoNewPrivs"] == "1"
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert disk.socket.stat().st_mode & 0o777 == 0o600
    assert Path(f"{disk.path}.control").stat().st_mode & 0o777 == 0o600


def test_what_a_server_makes_of_its_disk_leads_nowhere_else(disks, work):
    """A server may be in the hands of its machine, and is started again whenever it is killed."""
    image = work / "image"
    image.write_bytes(b"\x07" * 64 * MIB)
    tool("pack", image, work / "of-another.obd")
    disk = disks()
    stack = json.loads((disk.path / "stack.json").read_text())
    (disk.path / "stack.json").write_text(json.dumps(stack | {"layers": [9]}))
    (disk.path / "9.obd").symlink_to(work / "of-another.obd")
    assert "9.obd" in refused("serve", disk.path, disk.socket)
    (disk.path / "stack.json").write_text(json.dumps(stack))
    disk.serve().io("read -P 0 0 64M")


def test_layers_that_lie_elsewhere_are_read_through_the_files_that_are_given(disks, work):
    image = work / "image"
    image.write_bytes(b"\x05" * 4 * MIB)
    tool("pack", image, work / "low.obd")
    disk = Disk(work / "disk")
    tool("create-below", disk.path, str(8 * MIB), work / "low.obd")
    assert "1 layers that lie elsewhere, and 0 are given" in refused("serve", disk.path, disk.socket)
    disk.serve(work / "low.obd").io("read -P 5 0 4M", "read -P 0 4M 4M", "write -P 6 0 1M")
    # By descriptor: its name is no longer needed, and another server still has it.
    (work / "low.obd").unlink()
    os.kill(disk.processes()["serve"], signal.SIGKILL)
    disk.io("read -P 6 0 1M", "read -P 5 1M 3M")
    tool("end", disk.path)


def test_a_full_host_is_an_error_of_the_disk_and_no_more(work):
    place = work / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], check=True)
    try:
        disk = Disk(place / "disk")
        tool("create", disk.path, str(64 * MIB))
        disk.serve().io("write -P 1 0 2M")
        done = subprocess.run(["qemu-io", "-f", "raw", "-c", "write -P 2 4M 32M", disk.uri], text=True, capture_output=True, check=False)
        assert "Input/output error" in done.stdout + done.stderr
        disk.io("read -P 1 0 2M", "discard 4M 32M", "write -P 3 4M 1M", "read -P 3 4M 1M")
    finally:
        tool("end", place / "disk")
        subprocess.run(["umount", place], check=True)


def test_whoever_asks_for_much_work_is_interrupted(disks):
    disk = disks().serve()
    # The whole disk is written with zeros, 2000 times.
    much = b"\x25\x60\x95\x13\0\2\0\6" + bytes(16) + (64 * MIB).to_bytes(4, "big")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(disk.socket))
        client.sendall(b"\0\0\0\3IHAVEOPT\0\0\0\7\0\0\0\6" + bytes(6))
        client.sendall(much * 2000)
        time.sleep(0.5)
        began = time.monotonic()
        assert "error" not in disk.ask("seal")
        disk.io("write -P 2 0 1M")
        assert time.monotonic() - began < 10


def test_a_hostile_client_harms_nobody_else(disks):
    disk = disks().serve()
    disk.io("write -P 1 0 1M")
    dice = random.Random(5)
    hostile = []
    for _ in range(6):
        client = socket.socket(socket.AF_UNIX)
        client.connect(str(disk.socket))
        client.sendall(b"\0\0\0\3IHAVEOPT\0\0\0\7\0\0\0\6" + bytes(6))
        hostile.append(client)
    hostile[0].sendall(dice.randbytes(100_000))
    # Asks for much and takes nothing.
    hostile[1].setblocking(False)
    try:
        for _ in range(100_000):
            hostile[1].send(b"\x25\x60\x95\x13" + bytes(20) + (32 * MIB).to_bytes(4, "big"))
    except BlockingIOError:
        pass
    hostile[2].sendall(b"\x25\x60\x95\x13\0\0\0\1" + bytes(8) + (1 << 62).to_bytes(8, "big") + (512).to_bytes(4, "big") + bytes(512))
    hostile[3].sendall(b"\x25\x60\x95\x13\0\0\0\1" + bytes(20))
    disk.io("read -P 1 0 1M", "write -P 2 0 1M", "read -P 2 0 1M")
    memory = int(next(line for line in Path("/proc", str(disk.processes()["serve"]), "status").read_text().splitlines()
                      if line.startswith("VmRSS")).split()[1])
    assert memory < 150 * 1024
    for client in hostile:
        client.close()
    assert until(lambda: disk.ask("status")["machines"] == 0)
