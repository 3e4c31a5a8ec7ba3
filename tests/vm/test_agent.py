"""The agent of a virtual machine, spoken to as dsec does: one machine for all that leaves it as it was."""

import io
import os
import tarfile
import time

import guest_keeper as keeper
import pytest
from guest_channel import CONNECT, DIFF, WATCH, WRITTEN, Refused
from guest_keeper import TIED, TTY, WITH_STDIN, Command, run
from waiting import until
from wire_fields import Fields, text, u16, u32


@pytest.fixture(scope="module")
def channel(machines):
    return machines().start()


def shell(channel, script: str, **options):
    return run(channel, "/bin/sh", "-c", script, **options)


def tar_of(name: str, content: bytes, **fields) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        for key, value in fields.items():
            setattr(entry, key, value)
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def processes(channel) -> str:
    return shell(channel, "ps").stdout.decode()


def test_streams_and_exit_code_come_apart(channel):
    result = shell(channel, "echo out; echo err >&2; exit 7")
    assert (result.cause, result.code) == ("exited", 7)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


def test_a_program_that_is_not_there_is_told_apart(channel):
    assert run(channel, "no-such-program").cause == "not_found"


def test_input_and_output_pass_unchanged(channel):
    data = os.urandom(2_000_000)
    assert run(channel, "/bin/cat", input=data).stdout == data


def test_layers_are_stacked_in_their_order(channel):
    said = shell(channel, "wc -c </opt/tool; tail -n 1 /etc/group; cat /etc/passwd | wc -l; cat /etc/hosts").stdout
    assert said == b"20000\nfrom:x:7:\n2\n127.0.0.1 localhost\n"


def test_the_sandbox_has_what_a_container_has(channel):
    said = shell(channel, "hostname; id -u; cat /etc/machine-id; ls /dev; ls /sys; grep -c . /proc/mounts").stdout.decode()
    assert said.split("\n")[:3] == ["machine", "0", "0123456789abcdef" * 2]
    assert "console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero".split() == \
        said.split("\n")[3:19]


def test_a_flood_does_not_hold_up_control(channel):
    flood = Command(channel, ["/bin/sh", "-c", "yes flood"], window=256 << 10)
    taken = 0
    try:
        slowest = 0.0
        for _ in range(10):
            for _ in range(20):
                taken += len(flood.event()[1])
            begin = time.monotonic()
            assert channel.figures()["pids"] > 1
            slowest = max(slowest, time.monotonic() - begin)
        assert slowest < 1, f"statistics took {slowest:.2f} s beside a flood"
        assert run(channel, "/bin/echo", "through").stdout == b"through\n"
        assert taken > 100_000
    finally:
        flood.signal(9)
    while flood.event()[0] != "exited":
        pass


def test_output_that_nobody_reads_waits_in_its_program(channel):
    flood = Command(channel, ["/bin/sh", "-c", "yes unread"], window=64 << 10)
    time.sleep(0.5)
    before = channel.figures()["guest_memory_free"]
    time.sleep(0.5)
    assert before - channel.figures()["guest_memory_free"] < 4 << 20
    assert flood.stream.arrived.qsize() * (32 << 10) < 4 << 20
    assert run(channel, "/bin/echo", "beside").stdout == b"beside\n"
    flood.stream.abandon()
    flood.stream.wait_closed()
    shell(channel, "kill -9 $(ps | sed -n 's/^ *\\([0-9]*\\) .*yes unread$/\\1/p')")


def test_nothing_of_the_output_stays_in_the_guest(channel):
    run(channel, "/bin/true")
    before = channel.figures()["guest_memory_available"]
    for _ in range(2):
        assert len(shell(channel, "head -c 4000000 /dev/zero").stdout) == 4_000_000
    assert before - channel.figures()["guest_memory_available"] < 2_000_000


def test_small_pieces_of_output_travel_together(channel):
    writer = Command(channel, ["dd", "if=/dev/zero", "bs=1024", "count=4000"])
    pieces = []
    while (event := writer.event())[0] != "exited":
        if event[0] == "stdout":
            pieces.append(len(event[1]))
    assert sum(pieces) == 4000 * 1024
    assert sum(pieces) / len(pieces) > 8 << 10, f"{len(pieces)} pieces"
    # But none waits for another that may never come.
    quick = Command(channel, ["/bin/sh", "-c", "echo one; sleep 0.3; echo two; sleep 30"])
    begin = time.monotonic()
    assert [quick.event() for _ in range(2)] == [("stdout", b"one\n"), ("stdout", b"two\n")]
    assert time.monotonic() - begin < 20
    quick.signal(9)


def test_a_timeout_kills_the_whole_tree(channel):
    result = shell(channel, "echo before; (setsid sleep 901 &) ; sleep 902", timeout_ms=400)
    assert (result.cause, result.stdout) == ("timed_out", b"before\n")
    assert "sleep 90" not in processes(channel)


def test_a_tied_command_ends_with_its_connection(channel):
    command = Command(channel, ["/bin/sh", "-c", "(setsid sleep 903 &) ; sleep 904"], flags=TIED)
    assert until(lambda: "sleep 903" in processes(channel))
    command.stream.abandon()
    command.stream.wait_closed()
    assert until(lambda: "sleep 90" not in processes(channel))


def test_a_terminal_has_its_size_and_hears_of_another(channel):
    terminal = Command(channel, ["/bin/sh", "-c", "stty size; read line; stty size"], flags=TTY | WITH_STDIN, rows=33,
                       columns=99)
    said = b""
    while b"33 99" not in said:
        said += terminal.event()[1]
    terminal.resize(44, 111)
    terminal.write(b"\n")
    assert b"44 111" in terminal.wait().stdout


def test_a_signal_reaches_its_command(channel):
    command = Command(channel, ["/bin/sh", "-c", "trap 'echo caught; exit 9' USR1; echo ready; while :; do sleep 0.1; done"])
    assert command.event() == ("stdout", b"ready\n")
    command.signal(10)
    result = command.wait()
    assert (result.code, result.stdout) == (9, b"caught\n")


def test_a_session_keeps_its_state(channel):
    opened = keeper.Connection(channel)
    opened.send(keeper.SESSION_OPEN, text("work") + keeper.command_fields(["/bin/sh"]))
    kind, _ = opened.frame()
    assert kind == keeper.SESSION

    def say(line: str) -> keeper.Result:
        asked = keeper.Connection(channel)
        asked.send(keeper.SESSION_RUN, text("work") + u32(0) + u16(0) + u16(0) + bytes(16) + text(line) + text("") + u32(0) +
                   text("{}"))
        said = b""
        while True:
            kind, data = asked.frame()
            if kind == keeper.STDOUT:
                said += data[8:]
            if kind == keeper.EXITED:
                result = keeper.result_of(data)
                result.stdout = said
                return result

    assert say("cd /tmp; NAME=kept").code == 0
    assert say("echo $NAME in $PWD").stdout == b"kept in /tmp\n"
    closed = keeper.Connection(channel)
    closed.send(keeper.SESSION_CLOSE, text("work"))
    assert closed.frame()[0] == keeper.DONE


def test_files_are_copied_both_ways(channel):
    content = os.urandom(3_000_000)
    channel.copy_in("/tmp", tar_of("sub/file", content, uid=1000, gid=1000, mode=0o640, mtime=1_700_000_000))
    assert shell(channel, "stat -c '%u:%g %a %Y' /tmp/sub/file").stdout == b"1000:1000 640 1700000000\n"
    with tarfile.open(fileobj=io.BytesIO(channel.copy_out("/tmp/sub"))) as tar:
        assert tar.getnames() == ["sub", "sub/file"]
        assert tar.extractfile("sub/file").read() == content
    shell(channel, "rm -r /tmp/sub")


@pytest.mark.parametrize("archive, reason", [
    (tar_of("../escaped", b"x"), "leads out"),
    (tar_of("/escaped", b"x"), "absolute"),
    (tar_of("device", b"", type=tarfile.CHRTYPE), "device"),
    (os.urandom(20_000), "tar stream"),
], ids=["above", "absolute", "device", "noise"])
def test_a_hostile_archive_is_refused_with_its_reason(channel, archive, reason):
    with pytest.raises(Refused, match=reason):
        channel.copy_in("/tmp", archive)


def test_links_of_the_sandbox_do_not_lead_a_copy_out_of_it(channel):
    shell(channel, "ln -s /../../../../init /tmp/out; ln -s /proc/1/root /tmp/root")
    with pytest.raises(Refused, match="No such file"):
        channel.copy_out("/tmp/out/.")
    with pytest.raises(Refused):
        channel.copy_out("/tmp/root/bin/busybox")
    shell(channel, "rm /tmp/out /tmp/root")


def test_a_copy_that_is_given_up_ends_in_the_guest(channel):
    shell(channel, "head -c 20000000 /dev/zero >/tmp/big")
    stream = channel.open(2, text("/tmp/big") + text("") + b"\xff" * 8, window=64 << 10)
    assert stream.read()
    stream.abandon()
    stream.wait_closed()
    shell(channel, "rm /tmp/big")


def test_changes_are_told_as_in_a_container(channel):
    shell(channel, "echo 1 >/opt/new; rm /opt/tool")
    stream = channel.open(DIFF)
    fields, changes = Fields(stream.read_all()), []
    stream.wait_closed()
    while fields.rest():
        changes.append((chr(fields.u32()), fields.str()))
    assert ("A", "/opt/new") in changes and ("D", "/opt/tool") in changes and ("C", "/opt") in changes
    assert not [change for change in changes if change[1].startswith(("/etc", "/dev", "/proc", "/sys"))]


@pytest.mark.parametrize("below", [0, 1])
def test_what_was_written_is_sent_with_deletions_and_what_they_hide(channel, below):
    shell(channel, "mkdir -p /opt/made; echo 1 >/opt/made/new; rm -f /opt/tool; touch /opt/passed; rm /opt/passed")
    stream = channel.open(WRITTEN, u32(below))
    data = stream.read_all()
    stream.wait_closed()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {entry.name: entry for entry in tar}
        assert tar.extractfile("upper/opt/made/new").read() == b"1\n"
        if below:
            assert tar.extractfile("lower/opt/tool").read().startswith(b"of the second layer\n")
    assert found["upper/opt/tool"].ischr() and found["upper/opt/tool"].devmajor == found["upper/opt/tool"].devminor == 0
    assert "upper/opt/passed" not in found and "lower/opt/made" not in found and "lower/bin" not in found
    assert any(name.startswith("lower") for name in found) == bool(below)


def test_changes_of_files_are_told_while_they_happen(channel):
    shell(channel, "mkdir -p /tmp/watched")
    stream = channel.open(WATCH, u32(1) + text("/tmp/watched"))
    assert Fields(stream.read()).u32() == 0xFFFF
    shell(channel, "echo 1 >/tmp/watched/file")
    seen = b""
    while b"/tmp/watched/file" not in seen:
        seen += stream.read()
    stream.abandon()
    stream.wait_closed()


def test_a_port_of_the_sandbox_is_reached(channel):
    server = Command(channel, ["/bin/nc", "-l", "-p", "8080", "-e", "/bin/cat"], flags=TIED)
    for _ in range(100):
        stream = channel.open(CONNECT, u16(8080))
        stream.write(b"ping")
        if stream.read() == b"ping":
            break
        time.sleep(0.05)
    stream.eof()
    assert stream.read() == b""
    stream.wait_closed()
    server.stream.abandon()
    with pytest.raises(Refused, match="Connection refused"):
        channel.open(CONNECT, u16(81)).wait_closed()


def test_figures_are_those_of_the_sandbox(channel):
    before = channel.figures()
    holder = Command(channel, ["/bin/sh", "-c", "head -c 20000000 /dev/zero | tail -c 20000000 | (sleep 1; cat >/dev/null)"])
    assert until(lambda: channel.figures()["memory_anonymous"] > before["memory_anonymous"] + 10_000_000, 20)
    holder.wait()
    after = channel.figures()
    assert after["cpu_usec"] > before["cpu_usec"] and after["memory_peak"] > 10_000_000
    assert 200 << 20 < after["guest_memory_total"] < 256 << 20 and 0 < after["disk_bytes"] < after["disk_limit"]
