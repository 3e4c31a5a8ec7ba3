"""Root inside reaches neither the agent nor its channel."""

import pytest
from guest_configuration import PRIVILEGED
from guest_keeper import run
from guest_machine import configuration


@pytest.fixture(scope="module")
def channel(machines):
    return machines(memory="192M").start(configuration(limits=["pids.max=64"]))


def shell(channel, script: str):
    return run(channel, "/bin/sh", "-c", f"{{ {script}\n}} 2>&1")


def test_no_process_of_the_agent_is_seen(channel):
    said = shell(channel, "ps -o pid,comm").stdout.decode().split("\n")
    assert said[1].split() == ["1", "dsec-init"] and "keeper" not in "".join(said)
    said = shell(channel, "cat /proc/1/mem; cat /proc/1/environ; ls /proc/1/root; readlink -v /proc/1/fd/0; cat /proc/1/fd/0")
    assert said.stdout.count(b"ermission denied") >= 4, said.stdout


@pytest.mark.parametrize("attempt", [
    "mknod /tmp/port c 239 1",
    "mknod /dev/port c 239 1",
    "mount -t devtmpfs none /tmp",
    "mount -t sysfs none /tmp",
    "mount -t tmpfs none /tmp",
    "echo b >/proc/sysrq-trigger",
    "echo x >/proc/sys/kernel/core_pattern",
    "echo 1 >/sys/kernel/mm/transparent_hugepage/enabled",
    "reboot -f",
    "chroot /proc/1/root /bin/true",
    "nsenter -t 1 -m /bin/true",
    "unshare -m /bin/true",
    "insmod /opt/tool",
    "dmesg",
    "hostname other",
    "swapoff -a /dev/null",
])
def test_what_would_lead_out_is_refused(channel, attempt):
    result = shell(channel, attempt)
    assert result.code != 0, f"{attempt}: {result.stdout.decode()}"
    assert run(channel, "/bin/echo", "alive").stdout == b"alive\n"


def test_no_device_of_the_machine_is_there(channel):
    found = shell(channel, "find / -xdev \\( -type b -o -type c \\) ! -path '/dev/*'; ls /sys/class /sys/block /sys/dev")
    assert b"vport" not in found.stdout and b"vda" not in found.stdout


def test_killing_everything_ends_neither_the_sandbox_nor_the_agent(channel):
    shell(channel, "kill -9 -1")
    assert run(channel, "/bin/echo", "alive").stdout == b"alive\n"


def test_a_fork_bomb_stays_in_its_limit(channel):
    bomb = run(channel, "/bin/sh", "-c", "f() { f | f & }; f; sleep 1", timeout_ms=1500)
    assert bomb.cause in ("timed_out", "exited", "signalled")
    assert channel.figures()["pids"] <= 64
    shell(channel, "kill -9 -1")
    assert run(channel, "/bin/echo", "alive").stdout == b"alive\n"


def test_memory_beyond_the_machine_ends_the_command_alone(channel):
    result = run(channel, "/bin/sh", "-c", "tail /dev/zero")
    assert result.cause in ("out_of_memory", "exited", "signalled")
    assert run(channel, "/bin/echo", "alive").stdout == b"alive\n"


def test_a_privileged_guest_gives_the_protection_up(machines):
    channel = machines().start(configuration(flags=PRIVILEGED, masked=[], read_only=[]))
    said = shell(channel, "mount -t tmpfs none /mnt 2>/dev/null || (mkdir -p /mnt && mount -t tmpfs none /mnt) && echo mounted;"
                          "ls /dev; grep CapEff /proc/self/status; ls /sys/fs/cgroup").stdout.decode()
    assert "mounted" in said and "vport" in said and "vda" in said and "cgroup.procs" in said
    assert "CapEff:\t000001ffffffffff" in said
