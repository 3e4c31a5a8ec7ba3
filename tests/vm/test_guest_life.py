"""How a machine begins, stands still, and ends."""

import os
import time

import pytest
from guest_channel import CLOCK, OPEN, QUIESCE, RENEW, REST, THAW, Refused
from guest_configuration import READ_ONLY
from guest_keeper import MAIN, Command, run
from guest_machine import configuration
from wire_fields import text, u16, u32, u64


def now_us() -> int:
    return time.time_ns() // 1000


@pytest.fixture(scope="module")
def living(machines):
    machine = machines()
    machine.start()
    return machine


def test_the_clock_is_the_hosts(living):
    said = int(run(living.channel, "/bin/date", "+%s").stdout)
    assert abs(said - time.time()) < 10


def test_the_clock_is_set_while_it_runs(living):
    day = 86_400 * 1_000_000
    living.channel.request(CLOCK, u64(now_us() + day))
    assert abs(int(run(living.channel, "/bin/date", "+%s").stdout) - time.time() - 86_400) < 10
    living.channel.request(CLOCK, u64(now_us()))


def test_a_second_configuration_is_refused(living):
    with pytest.raises(Refused, match="twice"):
        living.channel.configure(configuration())
    assert run(living.channel, "/bin/true").code == 0


def test_one_that_rests_gives_back_what_it_has_cached_and_goes_on(living):
    channel = living.channel
    run(channel, "/bin/sh", "-c", "head -c 30000000 /dev/urandom > /root/file; md5sum /root/file > /root/sum")
    ticks = Command(channel, ["/bin/sh", "-c", "while :; do echo tick; sleep 0.02; done"])
    assert ticks.event() == ("stdout", b"tick\n")
    before = channel.figures()["guest_memory_free"]
    channel.request(REST)
    time.sleep(0.2)
    came = ticks.stream.arrived.qsize()
    assert channel.figures()["guest_memory_free"] - before > 20_000_000
    time.sleep(0.5)
    assert ticks.stream.arrived.qsize() == came
    channel.request(CLOCK, u64(now_us()))
    while ticks.stream.arrived.qsize() <= came:
        time.sleep(0.01)
    ticks.signal(9)
    assert ticks.wait().cause == "signalled"
    assert run(channel, "/bin/md5sum", "-c", "/root/sum").stdout == b"/root/file: OK\n"


def test_a_quiesced_guest_is_silent_and_goes_on(living):
    channel = living.channel
    ticks = Command(channel, ["/bin/sh", "-c", "while :; do echo tick; sleep 0.02; done"])
    assert ticks.event() == ("stdout", b"tick\n")
    channel.request(QUIESCE)
    before = ticks.stream.arrived.qsize()
    time.sleep(0.5)
    assert ticks.stream.arrived.qsize() == before
    with pytest.raises(Refused, match="stands still"):
        run(channel, "/bin/true")
    assert channel.figures()["pids"] > 1
    channel.request(THAW, u64(now_us()))
    while ticks.stream.arrived.qsize() <= before:
        time.sleep(0.01)
    ticks.signal(9)
    assert ticks.wait().cause == "signalled"


def test_a_guest_that_was_saved_begins_anew_with_another_client(living):
    run(living.channel, "/bin/sh", "-c", "echo kept >/tmp/kept")
    living.channel.request(QUIESCE)
    living.channel.close()
    time.sleep(0.2)
    channel = living.connect()
    assert channel.hello()["state"] == 2
    channel.request(RENEW, text("f" * 32) + text("clone") + text(os.urandom(64)) + u32(0))
    day = 86_400 * 1_000_000
    channel.request(THAW, u64(now_us() + day))
    said = run(channel, "/bin/sh", "-c", "hostname; cat /etc/machine-id /etc/hostname /tmp/kept; date +%s").stdout.decode().split()
    assert said[:4] == ["clone", "f" * 32, "clone", "kept"] and abs(int(said[4]) - time.time() - 86_400) < 10


def test_one_without_a_sandbox_can_be_saved_and_is_told_of_it_later(machines):
    machine = machines(arguments="dsec.drives=late")
    channel = machine.connect()
    channel.hello(120)
    channel.request(QUIESCE)
    with pytest.raises(Refused, match="stands still"):
        run(channel, "/bin/true")
    channel.close()
    time.sleep(0.2)
    channel = machine.connect()
    assert channel.hello()["state"] == 0
    channel.request(QUIESCE)
    channel.request(THAW, u64(now_us()))
    # The drives are those of the sandbox, and no others.
    channel.configure(configuration())
    said = run(channel, "/bin/sh", "-c", "wc -c </opt/tool; echo kept >/tmp/kept; cat /tmp/kept").stdout
    assert said == b"20000\nkept\n"


def test_what_is_not_frozen_is_not_thawed(living):
    with pytest.raises(Refused, match="not frozen"):
        living.channel.request(THAW, u64(0))


def test_a_closed_channel_ends_the_machine(living):
    Command(living.channel, ["/bin/sleep", "1000"])
    living.channel.close()
    assert living.wait_end(30) == 0
    assert "panic" not in living.said()


def frame(length: int, kind: int, zero: int, stream: int) -> bytes:
    return u32(length) + u16(kind) + u16(zero) + u32(stream)


@pytest.mark.parametrize("rubbish", [
    b"garbage! garbage!",
    frame(1 << 30, OPEN, 0, 5),
    # A stream that is opened twice.
    (frame(6, OPEN, 0, 5) + u32(1000) + u16(1)) * 2,
], ids=["text", "length", "opened twice"])
def test_rubbish_on_the_channel_ends_the_machine(machines, rubbish):
    machine = machines()
    channel = machine.start()
    channel.send_raw(rubbish)
    assert machine.wait_end(30) == 0
    assert "on the channel" in machine.said() and "panic" not in machine.said()


def test_the_end_of_the_main_command_is_told(machines):
    machine = machines()
    channel = machine.start()
    assert run(channel, "/bin/sh", "-c", "exit 4", flags=MAIN).code == 4
    assert channel.end_reason.get(timeout=30) == "the sandbox has ended"
    with pytest.raises(Refused, match="reach the keeper"):
        run(channel, "/bin/true")
    with pytest.raises(Refused, match="what does not run"):
        channel.request(QUIESCE)


def test_a_guest_without_a_disk_is_read_only(machines):
    channel = machines(disk=False).start(configuration(flags=READ_ONLY, writable=""))
    result = run(channel, "/bin/sh", "-c", "echo x >/tmp/x || echo kept; cat /opt/tool | wc -l")
    assert result.stdout == b"kept\n1000\n" and b"Read-only" in result.stderr


def test_images_on_pmem_are_read_from_the_hosts_memory(machines, images, tmp_path):
    size = 16 << 20
    with open(tmp_path / "pmem", "wb") as file:
        file.write(images["base"].read_bytes())
        file.truncate(size)
    memory = f"memory-backend-file,id=p,share=on,readonly=on,mem-path={tmp_path}/pmem,size={size}"
    machine = machines(machine="q35", memory="256M,slots=1,maxmem=4G",
                       devices=("-object", memory, "-device", "virtio-pmem-pci,memdev=p"))
    channel = machine.start(configuration(images=[["/dev/pmem0"], ["over", "over-data"]]))
    before = channel.figures()["memory_file"]
    assert run(channel, "/bin/sh", "-c", "cat /bin/busybox | wc -c; wc -c </opt/tool").code == 0
    # Mapped from the device, a file of it takes no page of the guest.
    assert channel.figures()["memory_file"] - before < 1 << 20


def test_what_nobody_reads_any_more_leaves_the_guests_memory(machines):
    machine = machines(arguments="dsec.reclaim=1")
    channel = machine.start()
    run(channel, "/bin/sh", "-c", "head -c 60000000 /dev/urandom > /root/file; md5sum /root/file > /root/sum; sync")
    most = channel.figures()["memory_file"]
    assert most > 50_000_000
    end = time.monotonic() + 60
    while channel.figures()["memory_file"] > most / 2:
        assert time.monotonic() < end, channel.figures()
        time.sleep(0.5)
    assert run(channel, "/bin/md5sum", "-c", "/root/sum").stdout == b"/root/file: OK\n"


@pytest.mark.parametrize("changes, reason", [
    ({"images": [["base"], ["disk"]]}, "mount the image disk"),
    ({"limits": ["no.such=1"]}, "set the limit no.such"),
])
def test_a_configuration_that_cannot_be_kept_is_refused_with_its_reason(machines, changes, reason):
    machine = machines()
    channel = machine.connect()
    channel.hello(120)
    with pytest.raises(Refused, match=reason):
        channel.configure(configuration(**changes))
    with pytest.raises(Refused, match="not there yet"):
        run(channel, "/bin/true")
