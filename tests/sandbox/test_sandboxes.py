"""A detached sandbox: what looks at it, enters it and ends it."""

import json
import os
import signal
import subprocess
import time

import pytest
import rootfs


def wait_until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_for_output(dsec, text: str, *args) -> None:
    wait_until(lambda: text in dsec.ok("logs", *args))


@pytest.fixture
def web(dsec) -> str:
    """A sandbox that runs until it is told to end, called web."""
    rootfs.import_base(dsec)
    sandbox = dsec.ok("run", "-d", "--name", "web", "--label", "suite=demo", "base/box", "--", "sh", "-c",
                   "trap 'exit 3' TERM; echo started; echo trouble >&2; while :; do sleep 0.1; done").strip()
    wait_for_output(dsec, "started", "web")
    return sandbox


def test_a_detached_sandbox_prints_its_id_and_is_found_by_id_beginning_and_name(dsec, web):
    assert len(web) == 22
    for name in (web, web[:10], "web"):
        assert dsec.json("inspect", name)[0]["id"] == web


def test_ps_selects_by_state_and_label(dsec, web):
    assert dsec.ok("ps", "-q").split() == [web]
    assert dsec.ok("ps", "-q", "--label", "suite=demo").split() == [web]
    assert dsec.ok("ps", "-q", "--label", "suite").split() == [web]
    assert dsec.ok("ps", "-q", "--label", "suite=other") == ""
    dsec.ok("stop", "-t", "5", "web")
    assert dsec.ok("ps", "-q") == ""
    assert dsec.ok("ps", "-aq").split() == [web]
    assert "exit code 3" in dsec.ok("ps", "-a")


def test_stop_sends_the_stop_signal_and_wait_gives_the_exit_code(dsec, web):
    dsec.ok("stop", "web")
    result = dsec.run("wait", "web")
    assert (result.code, result.out) == (3, "3\n")
    dsec.ok("stop", "web")


def test_stop_kills_what_does_not_listen(dsec):
    rootfs.import_base(dsec)
    dsec.ok("run", "-d", "--name", "deaf", "base/box", "--", "sh", "-c", "trap '' TERM; echo started; while :; do sleep 0.1; done")
    wait_for_output(dsec, "started", "deaf")
    dsec.ok("stop", "-t", "1", "deaf")
    assert dsec.run("wait", "deaf").code == 137


def test_a_running_sandbox_is_not_removed_unless_forced(dsec, web):
    assert "dsec stop" in dsec.fails(2, "rm", "web")
    dsec.ok("rm", "-f", "--label", "suite=demo")
    assert dsec.ok("ps", "-aq") == ""


def test_logs_keep_the_streams_apart_and_follow_to_the_end(dsec, web):
    result = dsec.run("logs", "web")
    assert (result.out, result.err) == ("started\n", "trouble\n")
    follower = dsec.popen("logs", "-f", "web")
    assert follower.stdout.readline() == b"started\n"
    dsec.ok("stop", "web")
    assert follower.wait(30) == 0
    assert {line["stream"] for line in dsec.json("logs", "web")} == {"stdout", "stderr"}


def test_the_logs_of_an_orphan_are_what_was_written(dsec, web):
    exec_id = dsec.ok("exec", "-d", "web", "--", "sh", "-c", "echo other; sleep 1000").strip()
    wait_for_output(dsec, "other", "web", "--exec", exec_id)
    os.kill(dsec.json("inspect", "web")[0]["keeper_pid"], signal.SIGKILL)
    wait_until(lambda: dsec.json("inspect", "web")[0]["state"] == "orphaned")
    [line] = [line for line in dsec.ok("ps").splitlines() if "web" in line.split()]
    assert "orphaned" in line
    result = dsec.run("logs", "web")
    assert (result.code, result.out, result.err) == (0, "started\n", "trouble\n")
    assert dsec.ok("logs", "-f", "--exec", exec_id, "web") == "other\n"
    assert "no command '77'" in dsec.fails(2, "logs", "--exec", "77", "web")


def test_the_tail_of_the_logs_is_the_last_lines(dsec):
    rootfs.import_base(dsec)
    dsec.ok("run", "--keep", "--name", "count", "base/box", "--", "seq", "1000")
    assert dsec.ok("logs", "--tail", "3", "count") == "998\n999\n1000\n"
    assert dsec.ok("logs", "-t", "-n", "1", "count").endswith("Z 1000\n")


def test_exec_has_its_own_exit_codes_streams_and_settings(dsec, web):
    assert dsec.run("exec", "web", "--", "sh", "-c", "exit 5").code == 5
    assert dsec.run("exec", "web", "--", "nosuch").code == 127
    result = dsec.run("exec", "-w", "/etc", "-u", "user", "-e", "A=b", "web", "--", "sh", "-c", "pwd; id -un; echo $A >&2")
    assert (result.out, result.err) == ("/etc\nuser\n", "b\n")
    assert dsec.ok("exec", "web", "ls", "-d", "/etc") == "/etc\n"
    assert dsec.ok("exec", "-i", "web", "--", "cat", input="text") == "text"


def test_a_command_that_times_out_leaves_the_sandbox_running(dsec, web):
    assert dsec.run("exec", "--timeout", "500ms", "web", "--", "sh", "-c", "echo begun; sleep 100").out == "begun\n"
    assert dsec.ok("ps", "-q").split() == [web]


def test_a_detached_command_is_attached_to_again_from_its_beginning(dsec, web):
    exec_id = dsec.ok("exec", "-d", "web", "--", "sh", "-c", "echo first; sleep 1; echo last; exit 6").strip()
    result = dsec.run("attach", "web", exec_id)
    assert (result.code, result.out) == (6, "first\nlast\n")
    assert dsec.ok("logs", "--exec", exec_id, "web") == "first\nlast\n"
    commands = dsec.json("inspect", "web")[0]["commands"]
    assert {command["exec_id"]: command["running"] for command in commands}[exec_id] is False


@pytest.mark.guest_slow("what is passed over is no matter of the kernel")
def test_attaching_passes_over_what_was_seen_of_each_stream(dsec, web):
    exec_id = dsec.ok("exec", "-d", "web", "--", "sh", "-c", "echo first; echo trouble >&2; echo last; exit 6").strip()
    for flags, out, err in (((), "first\nlast\n", "trouble\n"), (("--stderr-from", "3"), "first\nlast\n", "uble\n"),
                            (("--stdout-from", "6", "--stderr-from", "8"), "last\n", "")):
        result = dsec.run("attach", *flags, "web", exec_id)
        assert (result.code, result.out, result.err) == (6, out, err), flags


@pytest.mark.guest_slow("what is passed on is no matter of the kernel")
def test_attaching_interactively_gives_a_command_its_input(dsec, web):
    exec_id = dsec.ok("exec", "-d", "-i", "web", "--", "sh", "-c", "echo ready; while read line; do echo got $line; done; exit 4").strip()
    # Without --interactive it waits on.
    looker = dsec.popen("attach", "web", exec_id, stdin=subprocess.PIPE)
    looker.stdin.write(b"unheard\n")
    looker.stdin.close()
    assert looker.stdout.readline() == b"ready\n"
    result = dsec.run("attach", "-i", "web", exec_id, input="one\ntwo\n")
    assert (result.code, result.out) == (4, "ready\ngot one\ngot two\n")
    assert looker.wait(10) == 4 and looker.stdout.read() == b"got one\ngot two\n"


@pytest.mark.guest_slow("lists are no matter of the kernel")
def test_commands_are_listed_while_they_run_and_afterwards_when_asked_for(dsec, web):
    dsec.run("exec", "web", "--", "sh", "-c", "exit 9")
    running = dsec.ok("exec", "-d", "web", "--", "sleep", "1000").strip()

    def listed(*flags) -> dict[str, dict]:
        return {command["exec_id"]: command for command in map(json.loads, dsec.ok("commands", *flags, "-o", "json", "web").splitlines())}

    assert sorted(listed()) == ["1", running] and all(command["running"] for command in listed().values())
    every = listed("-a")
    assert sorted(every) == ["1", "2", running] == ["1", "2", "3"]
    assert (every["2"]["running"], every["2"]["argv"], every["2"]["result"]["exit_code"]) == (False, ["sh", "-c", "exit 9"], 9)
    assert "exit code 9" in dsec.ok("commands", "--all", "web") and "exit 9" not in dsec.ok("commands", "web")


@pytest.mark.guest_slow("a signal is the same on any kernel")
def test_commands_get_the_signal_that_is_named(dsec, web):
    trapping = "trap 'echo one' USR1; trap 'echo two; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    client = dsec.popen("exec", "web", "--", "sh", "-c", trapping)
    assert client.stdout.readline() == b"ready\n"
    (exec_id,) = [command["exec_id"] for command in map(json.loads, dsec.ok("commands", "-o", "json", "web").splitlines())
                  if "USR1" in command["argv"][-1]]
    for name in ("USR1", "SIGUSR1", "10"):
        dsec.ok("kill", "-s", name, "web", exec_id)
        assert client.stdout.readline() == b"one\n"
    dsec.ok("kill", "--signal", "TERM", "web", exec_id)
    assert client.wait(10) == 7 and client.stdout.read() == b"two\n"
    assert "unknown signal 'NOSUCH'" in dsec.fails(2, "kill", "-s", "NOSUCH", "web", "1")
    assert "no command" in dsec.fails(2, "kill", "web", exec_id)
    # KILL where none is named, and to the whole group of processes.
    many = dsec.popen("exec", "web", "--", "sh", "-c", "sleep 1001 & echo ready; sleep 1001; echo not reached")
    assert many.stdout.readline() == b"ready\n"
    (exec_id,) = [command["exec_id"] for command in map(json.loads, dsec.ok("commands", "-o", "json", "web").splitlines())
                  if "1001" in command["argv"][-1]]
    dsec.ok("kill", "web", exec_id)
    assert many.wait(10) == 137 and many.stdout.read() == b""
    wait_until(lambda: "sleep 1001" not in dsec.ok("exec", "web", "--", "ps"))
    assert dsec.ok("ps", "-q").split() == [web]


def test_a_shell_reads_commands_from_standard_input(dsec, web):
    assert dsec.ok("shell", "web", input="cd /tmp\npwd\n") == "/tmp\n"


def test_diff_tells_what_was_added_changed_and_deleted(dsec, web):
    dsec.ok("exec", "web", "--", "sh", "-c", "mkdir /new && echo x > /new/file && echo y >> /etc/passwd && rm /etc/group")
    found = set(dsec.ok("diff", "web").splitlines())
    assert {"A /new", "A /new/file", "C /etc/passwd", "D /etc/group"} <= found
    assert {"path": "/etc/group", "kind": "deleted"} in dsec.json("diff", "web")


def test_stats_are_shown_for_what_runs(dsec, web):
    stats = dsec.json("stats", "web")
    assert stats["id"] == web and stats["pids"] >= 1
    assert web in dsec.ok("stats")


def test_created_sandboxes_run_nothing_until_something_is_executed(dsec):
    rootfs.import_base(dsec)
    created = dsec.ok("create", "--name", "idle", "base/box").strip()
    assert dsec.json("inspect", "idle")[0]["commands"] == []
    assert dsec.ok("exec", "idle", "--", "echo", "here") == "here\n"
    assert dsec.ok("ps", "-q").split() == [created]
