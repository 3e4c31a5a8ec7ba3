"""Sandboxes begin, stop, pause, end and go; their limits hold."""

import json
import os
import time

import leftovers
import pytest
from waiting import until


def state_of(dsec, name: str) -> tuple[str, str]:
    (found,) = json.loads(dsec.ok("inspect", name))
    return found["state"], found.get("reason", "")


def test_a_run_ends_with_its_command_and_leaves_nothing(dsec):
    before = leftovers.sandboxes_of(dsec.home)
    result = dsec.run("run", "base/box", "--", "sh", "-c", "echo said; exit 5")
    assert (result.code, result.out) == (5, "said\n")
    assert leftovers.sandboxes_of(dsec.home) == before


def test_a_run_in_the_background_is_waited_for_and_its_output_kept(dsec):
    dsec.ok("run", "-d", "--name", "back", "base/box", "--", "sh", "-c", "echo one; echo two >&2; exit 6")
    assert dsec.run("wait", "back").code == 6
    assert state_of(dsec, "back") == ("stopped", "its command ended")
    result = dsec.run("logs", "back")
    assert (result.out, result.err) == ("one\n", "two\n")


def test_a_stop_sends_the_signal_and_waits(dsec):
    dsec.ok("run", "-d", "--name", "stopped", "base/box", "--", "sh", "-c",
            "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    end = time.monotonic() + 20
    while "ready" not in dsec.ok("logs", "stopped"):
        assert time.monotonic() < end
        time.sleep(0.1)
    dsec.ok("stop", "stopped")
    assert state_of(dsec, "stopped") == ("stopped", "it was stopped")
    assert dsec.ok("logs", "stopped") == "ready\nasked\n"


def test_a_stop_ends_what_does_not_listen(dsec):
    dsec.ok("run", "-d", "--name", "deaf", "base/box", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    time.sleep(1)
    begin = time.monotonic()
    dsec.ok("stop", "--time", "1", "deaf")
    assert time.monotonic() - begin < 20
    assert state_of(dsec, "deaf")[0] == "stopped"


def test_one_that_runs_is_removed_only_by_force(dsec):
    dsec.ok("create", "--name", "alive", "base/box")
    assert "it is running" in dsec.fails(2, "rm", "alive")
    dsec.ok("rm", "-f", "alive")
    assert dsec.run("inspect", "alive").code != 0


def test_a_lifetime_ends_it(dsec):
    dsec.ok("create", "--name", "short", "--lifetime", "3s", "base/box")
    assert dsec.run("wait", "short").code == 125
    assert state_of(dsec, "short") == ("stopped", "its lifetime ended")


def test_idleness_ends_it_and_a_command_keeps_it(dsec):
    dsec.ok("create", "--name", "idle", "--idle", "2s", "base/box")
    assert dsec.run("exec", "idle", "--", "sleep", "4").code == 0
    dsec.run("wait", "idle")
    assert state_of(dsec, "idle") == ("stopped", "it was idle")


def test_labels_select(dsec):
    sandbox = dsec.ok("create", "-l", "suite=demo", "base/box").strip()
    assert sandbox in dsec.ok("ps", "-l", "suite=demo", "-q")
    assert sandbox not in dsec.ok("ps", "-l", "suite=other", "-q")


def test_what_is_paused_stands_still_until_it_is_wanted(dsec):
    dsec.ok("create", "--name", "paused", "base/box")
    dsec.ok("exec", "-d", "paused", "--", "sh", "-c", "while :; do echo x >> /tmp/ticks; sleep 0.1; done")
    time.sleep(1)
    dsec.ok("pause", "paused")
    assert state_of(dsec, "paused")[0] == "paused"
    first = dsec.ok("exec", "paused", "--", "wc", "-l", "/tmp/ticks")
    assert state_of(dsec, "paused")[0] == "running"
    time.sleep(1)
    assert dsec.ok("exec", "paused", "--", "wc", "-l", "/tmp/ticks") != first
    dsec.ok("pause", "paused")
    dsec.ok("resume", "paused")
    assert state_of(dsec, "paused")[0] == "running"


def test_time_goes_on_in_a_pause(dsec):
    dsec.ok("create", "--name", "late", "base/box")
    dsec.ok("pause", "late")
    time.sleep(4)
    assert abs(int(dsec.ok("exec", "late", "--", "date", "+%s")) - time.time()) < 3


def test_an_idle_one_pauses_by_itself_with_its_figures_and_is_woken_by_whatever_asks(dsec):
    dsec.ok("create", "--name", "drowsy", "--idle-pause", "1s", "-m", "256MiB", "base/box")
    dsec.ok("exec", "drowsy", "--", "sh", "-c", "echo kept > /root/file")

    def paused() -> bool:
        return state_of(dsec, "drowsy")[0] == "paused"

    for wake in (["exec", "drowsy", "--", "true"], ["cp", "drowsy:/root/file", "-"], ["diff", "drowsy"], ["diff", "--stat", "drowsy"]):
        assert until(paused, 20), "it does not pause"
        (told,) = [json.loads(line) for line in dsec.ok("stats", "-o", "json", "drowsy").splitlines()]
        assert told["memory_limit"] == 256 << 20 and told["memory_bytes"] > 0 and paused(), told
        dsec.ok(*wake)
    assert dsec.ok("exec", "drowsy", "--", "cat", "/root/file") == "kept\n"


def test_pauses_snapshots_and_forks_are_recorded(dsec):
    dsec.ok("create", "--name", "told", "base/box")
    dsec.ok("pause", "told")
    dsec.ok("resume", "told")
    dsec.ok("snapshot", "told", "recorded:1")
    (fork,) = dsec.ok("fork", "told", timeout=240).split()
    text = dsec.ok("traj", "show", "told", "-o", "json")
    assert [kind for kind in ("pause", "resume", "snapshot", "fork") if f'"{kind}"' not in text] == []
    assert fork in text


def test_figures_are_told(dsec):
    dsec.ok("create", "--name", "figures", "-m", "256MiB", "--pids", "100", "--disk", "64MiB", "base/box")
    dsec.ok("exec", "figures", "--", "sh", "-c", "head -c 5000000 /dev/zero > /root/file; sync")
    (told,) = [json.loads(line) for line in dsec.ok("stats", "-o", "json", "figures").splitlines()]
    assert told["memory_limit"] == 256 << 20 and told["pids_limit"] == 100 and told["disk_limit"] == 64 << 20
    assert told["memory_bytes"] > 0 and told["cpu_usec"] > 0 and told["disk_bytes"] >= 5_000_000


def test_memory_tasks_and_disk_are_limited(dsec):
    dsec.ok("create", "--name", "limited", "-m", "256MiB", "--pids", "60", "--disk", "32MiB", "base/box")
    full = dsec.run("exec", "limited", "--", "dd", "if=/dev/zero", "of=/root/file", "bs=1M", "count=100")
    assert full.code != 0 and "No space left on device" in full.err, full
    forks = dsec.run("exec", "limited", "--", "sh", "-c",
                     "i=0; while [ $i -lt 100 ]; do sleep 5 & i=$((i+1)); done; echo all", timeout=60)
    assert "Resource temporarily unavailable" in forks.err or "fork" in forks.err, forks
    dsec.ok("create", "--name", "hungry", "-m", "256MiB", "base/box")
    # Each of them alone may have so much.
    two = "eat() { dd if=/dev/zero of=/dev/null bs=180M count=4; }; eat & eat; first=$?; wait $!; echo $first $?"
    hungry = dsec.run("exec", "hungry", "--", "sh", "-c", two, timeout=120)
    assert "137" in hungry.out.split(), hungry
    assert dsec.ok("exec", "hungry", "--", "echo", "lives") == "lives\n"


def test_one_without_a_writable_layer_keeps_what_it_has(dsec):
    dsec.ok("create", "--name", "fixed", "--read-only", "base/box")
    assert "Read-only file system" in dsec.run("exec", "fixed", "--", "touch", "/root/x").err
    assert dsec.ok("exec", "fixed", "--", "cat", "/srv/index.html") == "hello\n"


def test_a_killed_keeper_takes_all_along_and_gc_finds_the_rest(dsec):
    dsec.ok("create", "--name", "orphan", "base/box")
    (told,) = json.loads(dsec.ok("inspect", "orphan"))
    os.kill(told["keeper_pid"], 9)
    leftovers.await_end(told["id"])
    assert state_of(dsec, "orphan")[0] == "orphaned"
    dsec.ok("gc")
    assert told["id"] not in leftovers.sandboxes_of(dsec.home)


def test_a_killed_first_process_is_the_end(dsec):
    dsec.ok("create", "--name", "killed", "base/box")
    (told,) = json.loads(dsec.ok("inspect", "killed"))
    record = json.loads((dsec.home / "sandboxes" / told["id"] / "state.json").read_text())
    os.kill(record["init_pid"], 9)
    dsec.run("wait", "killed")
    assert state_of(dsec, "killed")[0] == "failed"


@pytest.mark.parametrize("root", ["poweroff -f", "reboot -f", "kill -9 1", "kill -9 -1"])
def test_root_inside_reaches_no_more_than_the_sandbox(dsec, root):
    dsec.ok("create", "--name", "root", "base/box")
    dsec.run("exec", "--timeout", "20s", "root", "--", "sh", "-c", root)
    assert state_of(dsec, "root")[0] == "running"
    assert dsec.ok("exec", "root", "--", "echo", "lives") == "lives\n"
