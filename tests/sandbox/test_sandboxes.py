"""A detached sandbox: what looks at it, enters it and ends it."""

import os
import signal
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
