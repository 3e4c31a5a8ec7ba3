"""Commands of a sandbox: streams, exit codes, times, signals."""

import json
import threading
import time

import pytest


def test_streams_are_separate_and_the_exit_code_is_the_commands(box):
    result = box.run("exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.code, result.out, result.err) == (7, "out\n", "err\n")


@pytest.mark.parametrize("command, code", [
    (["true"], 0), (["false"], 1), (["sh", "-c", "kill -9 $$"], 137), (["sh", "-c", "kill -TERM $$"], 143),
    (["no_such_program"], 127), (["/etc/passwd"], 126), (["/root"], 126)])
def test_every_end_has_its_exit_code(box, command, code):
    assert box.run("exec", "box", "--", *command).code == code


def test_what_cannot_be_executed_is_told_with_the_reason(box):
    assert "there is no program 'no_such_program' in the sandbox" in box.fails(127, "exec", "box", "--", "no_such_program")
    assert "Permission denied (EACCES)" in box.fails(126, "exec", "box", "--", "/etc/passwd")


def test_standard_input_arrives_whole_and_ends(box):
    text = "".join(f"line {number}\n" for number in range(50_000))
    assert box.ok("exec", "-i", "box", "--", "cat", input=text) == text
    assert box.ok("exec", "box", "--", "wc", "-c").strip() == "0"


def test_a_command_that_reads_nothing_does_not_stop_its_writer(box):
    assert box.run("exec", "-i", "box", "--", "true", input="x" * 2_000_000).code == 0


def test_bytes_of_all_kinds_pass(box):
    data = bytes(range(256)) * 64
    out = box.ok("exec", "-i", "box", "--", "cat", input=data)
    assert out.encode("utf-8", "surrogateescape") == data


def test_ten_megabytes_of_output_are_intact(box):
    command = "i=0; while [ $i -lt 10 ]; do head -c 1048576 /dev/zero | tr '\\0' $i; i=$((i+1)); done"
    out = box.ok("exec", "box", "--", "sh", "-c", command, timeout=200)
    assert out == "".join(str(digit) * 1048576 for digit in range(10))


def test_a_flood_that_nobody_reads_holds_up_no_other_command(box):
    flood = box.popen("exec", "box", "--", "sh", "-c", "echo begun >&2; exec yes")
    try:
        assert flood.stderr.readline() == b"begun\n"
        time.sleep(1)
        begin = time.monotonic()
        assert box.ok("exec", "box", "--", "echo", "quick") == "quick\n"
        assert time.monotonic() - begin < 10
    finally:
        flood.kill()
        flood.communicate()
        for command in [json.loads(line) for line in box.ok("commands", "-o", "json", "box").splitlines()]:
            box.run("kill", "box", command["exec_id"])


def test_commands_run_at_the_same_time(box):
    results = []
    threads = [threading.Thread(target=lambda n=n: results.append(
        box.ok("exec", "box", "--", "sh", "-c", f"sleep 1; echo {n}"))) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [f"{n}\n" for n in range(5)]


def test_environment_directory_and_user(box):
    assert box.ok("exec", "-e", "X=a b", "box", "--", "sh", "-c", "echo $X").strip() == "a b"
    assert box.ok("exec", "-w", "/usr", "box", "--", "pwd").strip() == "/usr"
    assert box.ok("exec", "-u", "user", "box", "--", "sh", "-c", "id -un; id -u; echo $HOME").split() == ["user", "1000", "/home/user"]
    assert box.ok("exec", "-u", "1000:10", "box", "--", "sh", "-c", "id -u; id -g").split() == ["1000", "10"]
    assert "nobody_here" in box.fails(126, "exec", "-u", "nobody_here", "box", "--", "true")
    assert "No such file or directory" in box.fails(126, "exec", "-w", "/nowhere", "box", "--", "true")


def test_a_sandbox_finds_what_all_find(box):
    variables = dict(line.split("=", 1) for line in box.ok("exec", "box", "--", "env").splitlines())
    assert variables["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert variables["TZ"] == "UTC" and variables["LANG"] == "C.UTF-8" and variables["HOME"] == "/root"
    assert variables["HOSTNAME"] == box.ok("exec", "box", "--", "hostname").strip()
    before = time.time()
    inside = int(box.ok("exec", "box", "--", "date", "+%s"))
    assert before - 10 < inside < time.time() + 3


def test_a_timeout_ends_all_that_was_started_and_keeps_what_was_said(box):
    result = box.run("exec", "--timeout", "2s", "box", "--", "sh", "-c",
                     "echo begun; setsid sleep 4711 & sleep 4712")
    assert (result.code, result.out) == (124, "begun\n")
    assert "ran out of time" in result.err
    assert "471" not in box.ok("exec", "box", "--", "ps", "-o", "args")


def test_a_detached_command_is_listed_signalled_and_its_output_kept(box):
    exec_id = box.ok("exec", "-d", "box", "--", "sh", "-c",
                     "trap 'echo ended; exit 9' TERM; echo begun; while :; do sleep 0.1; done").strip()
    (listed,) = [json.loads(line) for line in box.ok("commands", "-o", "json", "box").splitlines()
                 if json.loads(line)["exec_id"] == exec_id]
    assert listed["running"]
    end = time.monotonic() + 20
    while "begun" not in box.ok("logs", "--exec", exec_id, "box"):
        assert time.monotonic() < end
        time.sleep(0.1)
    box.ok("kill", "-s", "TERM", "box", exec_id)
    attached = box.run("attach", "box", exec_id)
    assert (attached.code, attached.out) == (9, "begun\nended\n")
    assert box.ok("logs", "--exec", exec_id, "box") == "begun\nended\n"


def test_who_attaches_sees_what_was_said_and_what_comes(box):
    exec_id = box.ok("exec", "-d", "box", "--", "sh", "-c", "echo one; sleep 2; echo two; exit 3").strip()
    attached = box.run("attach", "box", exec_id)
    assert (attached.code, attached.out) == (3, "one\ntwo\n")


def test_a_named_command_runs_once(box):
    name = f"append-{time.time()}"
    command = ["exec", "--op-id", name, "box", "--", "sh", "-c", "echo x >> /tmp/times; wc -l < /tmp/times"]
    first = box.ok(*command)
    assert box.ok(*command) == first
    assert "x" in box.ok("exec", "box", "--", "cat", "/tmp/times")


def test_of_a_long_output_the_middle_is_dropped_and_counted(dsec):
    dsec.ok("create", "--name", "short", "--output-limit", "64KiB", "base/box")
    exec_id = dsec.ok("exec", "-d", "short", "--", "sh", "-c", "seq 1 100000; echo last").strip()
    result = dsec.run("attach", "short", exec_id)
    assert result.code == 0
    kept = dsec.ok("logs", "--exec", exec_id, "short")
    assert kept.startswith("1\n2\n") and kept.endswith("100000\nlast\n") and len(kept) < 100_000
