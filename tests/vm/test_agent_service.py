"""The agent as a service of a system that begins by itself: commands run in that system as it is."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from dsec_tool import BIN
from guest_channel import COPY_OUT, NO_OWNER
from guest_configuration import GUEST_NETWORK, PRIVILEGED, READ_ONLY, WHOLE_MACHINE
from guest_keeper import TTY, run
from guest_machine import Machine, configuration
from wire_fields import text, u64

WHOLE = READ_ONLY | PRIVILEGED | GUEST_NETWORK | WHOLE_MACHINE
# The smallest system: its first root is left for one that has a parent, as every system's has.
FIRST = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /new
/bin/busybox mount -t tmpfs none /new
/bin/busybox cp -a /bin /usr /modules /etc /second /new/
/bin/busybox mkdir -p /new/proc /new/sys /new/dev /new/run /new/tmp /new/root
exec /bin/busybox switch_root /new /second
"""
SECOND = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox mount -t proc none /proc
/bin/busybox --install -s /bin
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
for module in $(cat /modules/boot); do insmod /modules/$module; done
echo "the system is there" > /root/mark
# What begins again what ends, as systemd does.
while true; do /usr/lib/dsec/dsec-init agent; sleep 0.1; done &
while true; do sleep 1; done
"""


def pack(tree: Path, target: Path, below: Path) -> None:
    names = subprocess.run(["find", "."], cwd=tree, check=True, capture_output=True).stdout
    packed = subprocess.run(["cpio", "--quiet", "-o", "-H", "newc"], cwd=tree, input=names, check=True, capture_output=True)
    target.write_bytes(below.read_bytes() + packed.stdout)


@pytest.fixture(scope="module")
def machine(kernel):
    with tempfile.TemporaryDirectory(prefix="dsec-vm-") as folder:
        tree = Path(folder) / "tree"
        for name in ("bin", "usr/lib/dsec", "etc"):
            (tree / name).mkdir(parents=True)
        shutil.copy("/bin/busybox", tree / "bin/busybox")
        for name in ("dsec-init", "dsec-guest"):
            shutil.copy(BIN / name, tree / "usr/lib/dsec" / name)
        (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
        (tree / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
        for name, script in (("init", FIRST), ("second", SECOND)):
            (tree / name).write_text(script)
            (tree / name).chmod(0o755)
        # The modules of that kernel, without the agent that would be PID 1.
        modules = Path(kernel["initramfs"]).with_name("modules.cpio")
        pack(tree, Path(folder) / "initramfs", modules)
        made = Machine({**kernel, "initramfs": str(Path(folder) / "initramfs")}, Path(folder), {}, memory="384M")
        yield made
        made.stop()


@pytest.fixture(scope="module")
def system(machine):
    channel = machine.connect()
    channel.hello(120)
    channel.configure(configuration(flags=WHOLE, images=[], writable="", files=[], machine_id="", hostname="pc",
                                    capabilities=2**64 - 1, env=["OF=sandbox"]))
    yield channel


def test_a_command_is_in_the_system(system):
    result = run(system, "sh", "-c", "cat /root/mark; echo $OF; hostname; cat /proc/1/comm; echo said >&2; exit 3")
    assert (result.code, result.stderr) == (3, b"said\n")
    assert result.stdout.splitlines() == [b"the system is there", b"sandbox", b"pc", b"second"]


def test_it_sees_all_processes_and_may_do_what_root_may(system):
    assert b"/usr/lib/dsec/dsec-init agent" in run(system, "ps", "-o", "args").stdout
    assert run(system, "mount", "-t", "tmpfs", "none", "/tmp").code == 0
    assert b"none /tmp tmpfs" in run(system, "cat", "/proc/1/mounts").stdout
    status = run(system, "sh", "-c", "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status").stdout.split()
    assert status == [b"NoNewPrivs:", b"0", b"Seccomp:", b"0"]


def test_other_users_have_their_own_rights(system):
    assert run(system, "id", "-u", user="user").stdout == b"1000\n"
    assert run(system, "cat", "/proc/1/environ", user="user").code != 0


def test_input_terminals_and_timeouts_are_as_ever(system):
    assert run(system, "tr", "a-z", "A-Z", input=b"given").stdout == b"GIVEN"
    assert run(system, "tty", flags=TTY).stdout.startswith(b"/dev/pts/")
    assert run(system, "sleep", "60", timeout_ms=500).cause == "timed_out"


def test_files_are_read_from_its_root(system):
    stream = system.open(COPY_OUT, text("/root/mark") + text("") + u64(NO_OWNER))
    assert b"the system is there" in stream.read_all()


def test_its_root_is_not_the_agents(system):
    shown = run(system, "sh", "-c", "ls /; cat /proc/1/mounts").stdout.decode()
    assert "place" not in shown.split() and "keeper" not in shown, shown
