"""dsec replay: what was done to a sandbox is done again in a fresh one, and the first difference is named."""

import json
import time

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("records say nothing of a kernel")


@pytest.fixture
def rollout(dsec) -> str:
    """The name of a sandbox with a few operations; it is gone."""
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "rollout", "-e", "TOKEN=s3cr3t-value", "base/box")
    dsec.ok("exec", "rollout", "--", "sh", "-c", "mkdir /workspace; echo one > /workspace/a; date; echo pid $$")
    dsec.run("exec", "rollout", "--", "sh", "-c", "cat /workspace/a; hostname; exit 7")
    dsec.ok("exec", "-i", "rollout", "--", "sh", "-c", "cat > /workspace/b; wc -c < /workspace/b", input="input\n" * 5000)
    (dsec.cwd / "file").write_text("from outside\n")
    dsec.ok("cp", "file", "rollout:/workspace/c")
    dsec.ok("exec", "rollout", "--", "cat", "/workspace/c")
    dsec.ok("rm", "-f", "rollout")
    return "rollout"


def states(dsec, *args, code: int = 0) -> list[str]:
    result = dsec.run("replay", *args, "-o", "json")
    assert result.code == code, str(result)
    return [json.loads(line)["state"] for line in result.out.splitlines()]


def test_a_rollout_is_the_same_again(dsec, rollout):
    assert set(states(dsec, rollout)) == {"same"}
    assert dsec.ok("replay", rollout, "--check").startswith("5 the same, 0 different")
    assert dsec.ok("ps", "-a", "-q") == ""


def test_a_replay_has_the_layers_of_then_whatever_their_names_mean_now(dsec):
    rootfs.import_base(dsec, "base/r:1", files={"version": "then\n"})
    dsec.ok("create", "--name", "r", "base/r:1")
    dsec.ok("exec", "r", "--", "cat", "/version")
    dsec.ok("rm", "-f", "r")
    then = dsec.json("layer", "inspect", "base/r:1")[0]["digest"]
    rootfs.import_base(dsec, "base/r:1", files={"version": "now\n"})
    dsec.ok("gc")
    assert dsec.json("layer", "inspect", "base/r:1")[0]["digest"] != then
    assert dsec.ok("run", "base/r:1", "--", "cat", "/version") == "now\n"
    assert states(dsec, "r") == ["same"]


def test_a_kept_replay_is_a_sandbox_whose_operations_say_so(dsec, rollout):
    result = dsec.run("replay", rollout, "--keep", "--until", "3")
    assert result.code == 0, str(result)
    kept = result.err.split("kept as sandbox ")[1].strip()
    assert dsec.ok("ps", "-q").split() == [kept]
    assert dsec.ok("exec", kept, "--", "ls", "/workspace") == "a\nb\n"
    operations = [json.loads(line) for line in dsec.ok("traj", "show", "-o", "json", kept).splitlines()][1:]
    assert [operation["origin"] for operation in operations] == ["replay"] * 3 + ["cli"]
    dsec.ok("gc")
    assert dsec.ok("ps", "-q").split() == [kept]


def test_a_log_elsewhere_is_replayed_as_well(dsec, rollout):
    log = next((dsec.home / "trajectories").glob("*/log.jsonl"))
    assert set(states(dsec, log)) == {"same"}
    assert set(states(dsec, log.parent)) == {"same"}


def test_the_first_difference_is_named_with_a_diff(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "r", "base/box")
    dsec.ok("exec", "r", "--", "sh", "-c", "echo same")
    dsec.ok("exec", "r", "--", "sh", "-c", "echo begin; head -c 8 /dev/urandom | od -An -tx1; echo end")
    dsec.ok("exec", "r", "--", "sh", "-c", "echo after")
    dsec.ok("rm", "-f", "r")
    result = dsec.run("replay", "r")
    assert result.code == 3, str(result)
    assert "--- stdout, recorded\n+++ stdout, replayed\n@@" in result.out and " begin\n-" in result.out, result.out
    assert states(dsec, "r", code=3) == ["same", "different"]
    assert states(dsec, "r", "--keep-going", code=3) == ["same", "different", "same"]
    (dsec.cwd / "rules").write_text("( [0-9a-f]{2}){8}\tBYTES\n")
    assert states(dsec, "r", "--normalise", "rules") == ["same"] * 3


def test_until_stops_there_and_a_shell_sees_the_state(dsec, rollout):
    assert len(states(dsec, rollout, "--until", "2")) == 2
    out = dsec.ok("replay", rollout, "--until", "1", "--shell", "--check", input="ls /workspace; exit\n")
    assert "a\n" in out and "b\n" not in out


def test_what_ran_at_the_same_time_does_so_again(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "r", "base/box")
    server = dsec.popen("exec", "r", "--", "sh", "-c", "mkfifo /tmp/f; read x < /tmp/f; echo got $x")
    time.sleep(0.5)
    dsec.ok("exec", "r", "--", "sh", "-c", "echo hello > /tmp/f")
    assert server.wait(10) == 0
    dsec.ok("rm", "-f", "r")
    assert states(dsec, "r") == ["same", "same"]


def test_limits_change_again_where_they_were_changed(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "r", "--pids", "100", "base/box")
    many = ("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.3 & done 2> /dev/null; wait; echo all")
    assert dsec.ok("exec", "r", "--", *many) == "all\n"
    dsec.ok("update", "r", "--pids", "6")
    assert dsec.run("exec", "r", "--", *many).code == 2
    dsec.ok("update", "r", "--pids", "100")
    assert dsec.ok("exec", "r", "--", *many) == "all\n"
    assert states(dsec, "r") == ["same"] * 5


def test_secrets_do_not_show_and_are_there_all_the_same(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "r", "base/box")
    dsec.ok("exec", "-e", "API_TOKEN=hunter2hunter2", "r", "--", "sh", "-c", "echo $API_TOKEN $$ | md5sum; date +%N")
    dsec.ok("rm", "-f", "r")
    result = dsec.run("replay", "r")
    assert "hunter2" not in result.out + result.err


def test_a_replay_of_nothing_or_of_garbage_is_refused(dsec, work):
    rootfs.import_base(dsec)
    dsec.fails(2, "replay", "nosuch")
    (work / "garbage").write_text("{}\n")
    dsec.fails(1, "replay", "./garbage")
    assert dsec.ok("ps", "-a", "-q") == ""
