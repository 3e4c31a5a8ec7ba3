"""What is done to a sandbox is recorded, and what its caller named is done once, whatever is killed and when."""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import leftovers
import pytest
import rootfs
from syscall_trace import CALLS, CallLog, Tracer

LONG = bool(os.environ.get("DSEC_TEST_LONG"))


@pytest.fixture
def box(dsec, work):
    """A running sandbox with the host's `out` at /out, where commands leave what they did."""
    rootfs.import_base(dsec)
    (work / "out").mkdir()
    (work / "out").chmod(0o777)
    return lambda name="box": dsec.ok("create", "--name", name, "-v", f"{work}/out:/out", "base/box").strip()


def operations(dsec, sandbox) -> list[dict]:
    header, *rest = [json.loads(line) for line in dsec.ok("traj", "show", "-o", "json", sandbox).splitlines()]
    assert header["schema"] == 1
    return rest


def keeper_of(dsec, sandbox) -> int:
    return json.loads(dsec.ok("inspect", sandbox))[0]["keeper_pid"]


def times_run(work) -> int:
    count = work / "out" / "count"
    return len(count.read_text().splitlines()) if count.exists() else 0


COUNT = ("sh", "-c", "echo x >> /out/count; echo said; exit 7")


def test_every_command_is_recorded_with_what_it_said(dsec, work, box):
    sandbox = box()
    dsec.run("exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    dsec.ok("exec", "-i", "box", "--", "cat", input="given")
    dsec.ok("exec", "box", "--", "printf", r"\377\001")
    dsec.run("exec", "box", "--", "no-such-program")
    found = operations(dsec, "box")
    assert [entry["seq"] for entry in found] == [1, 2, 3, 4]
    assert [entry["op_id"] for entry in found] == ["#1", "#2", "#3", "#4"]
    assert {entry["origin"] for entry in found} == {"cli"}
    first = found[0]
    assert first["request"]["argv"] == ["sh", "-c", "echo out; echo err >&2; exit 3"]
    assert (first["stdout"], first["stderr"], first["result"]["exit_code"]) == ("out\n", "err\n", 3)
    assert (found[1]["stdin"], found[1]["stdout"]) == ("given", "given")
    assert found[2]["stdout"] == {"base64": "/wE="}
    assert found[3]["result"]["cause"] == "not_found"
    assert oct(os.stat(dsec.home / "trajectories" / sandbox / "log.jsonl").st_mode & 0o777) == "0o600"


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_long_output_and_input_lie_beside_the_log_and_outlive_the_sandbox(dsec, box):
    sandbox = box()
    text = "".join(f"line {i}\n" for i in range(20000))
    dsec.ok("exec", "-i", "box", "--", "cat", input=text)
    dsec.ok("rm", "-f", "box")
    entry = operations(dsec, sandbox)[0]
    assert entry["stdout"] == text
    assert entry["stdin"] == text
    names = sorted(os.listdir(dsec.home / "trajectories" / sandbox))
    assert "1.head" in names and "1.stdin" in names
    assert "line 19999" in dsec.ok("traj", "show", sandbox, "1")
    dsec.ok("traj", "rm", sandbox)
    assert not (dsec.home / "trajectories" / sandbox).exists()


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_of_output_beyond_the_limit_the_record_tells_what_is_not_kept(dsec, box):
    loud = dsec.ok("create", "--output-limit", "64k", "base/box").strip()
    dsec.ok("exec", loud, "--", "sh", "-c", "seq 1 100000; seq 1 9 >&2")
    dsec.ok("exec", loud, "--", "seq", "1", "9")
    long, short = operations(dsec, loud)
    result = long["result"]
    assert (result["stdout_bytes"], result["stderr_bytes"], result["stderr_dropped"]) == (588895, 18, 0)
    folder = dsec.home / "trajectories" / loud
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    (parts,) = [record["files"]["output"] for record in records if "files" in record]
    assert [part["name"] for part in parts if (folder / part["name"]).stat().st_size >= part["bytes"]] == [part["name"] for part in parts]
    assert len(parts) > 1 and sum(part["bytes"] for part in parts) < 2 * 65536
    assert long["stdout"].startswith("1\n2\n") and long["stdout"].endswith("99999\n100000\n")
    assert 0 < result["stdout_dropped"] == 588895 - len(long["stdout"].encode()), len(long["stdout"])
    assert (short["result"]["stdout_bytes"], short["result"].get("stdout_dropped", 0)) == (18, 0)


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_named_command_runs_once_and_its_result_comes_again(dsec, work, box):
    sandbox = box()
    for _ in range(3):
        result = dsec.run("exec", "--op-id", "step/1", "box", "--", *COUNT)
        assert (result.code, result.out) == (7, "said\n")
    assert times_run(work) == 1
    dsec.ok("stop", "-t", "0", "box")
    assert dsec.run("exec", "--op-id", "step/1", "box", "--", *COUNT).out == "said\n"
    dsec.ok("rm", "box")
    for name in (sandbox, sandbox[:12], "box"):
        result = dsec.run("exec", "--op-id", "step/1", name, "--", *COUNT)
        assert (result.code, result.out) == (7, "said\n")
    assert times_run(work) == 1
    missing = dsec.run("exec", "--op-id", "other", sandbox, "--", *COUNT)
    assert missing.code == 125 and "there is no sandbox" in missing.err


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_command_without_a_name_runs_each_time(dsec, work, box):
    box()
    for _ in range(2):
        dsec.run("exec", "box", "--", *COUNT)
    assert times_run(work) == 2


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_name_that_comes_with_another_request_is_refused_with_the_difference(dsec, work, box):
    box()
    dsec.run("exec", "--op-id", "a", "box", "--", *COUNT)
    other = dsec.run("exec", "--op-id", "a", "-e", "X=1", "box", "--", "true")
    assert other.code == 125
    assert "operation 'a' was another request" in other.err
    assert 'argv was ["sh"' in other.err and 'is ["true"]' in other.err and 'env was [], is ["X=1"]' in other.err
    copied = dsec.run("cp", "--op-id", "a", "box:/etc/passwd", "-")
    assert "it was recorded as 'exec', and is asked for as 'read'" in copied.err
    assert dsec.run("exec", "--op-id", "no blanks", "box", "--", "true").code == 125


@pytest.fixture
def once(dsec, work):
    """`dsec run --op-id NAME` of a command that leaves what it did in the host's `out`."""
    rootfs.import_base(dsec)
    (work / "out").mkdir()
    (work / "out").chmod(0o777)
    return lambda name, *command: ("run", "--op-id", name, "-v", f"{work}/out:/out", "base/box", "--", *command)


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_run_with_a_name_is_done_once_whoever_repeats_it(dsec, work, once):
    name = "suite/./step@1"
    for _ in range(3):
        result = dsec.run(*once(name, *COUNT))
        assert (result.code, result.out) == (7, "said\n"), str(result)
    assert times_run(work) == 1 and dsec.ok("ps", "-a", "-q") == ""
    other = dsec.run(*once(name, "true"))
    assert other.code == 125 and "was another request" in other.err and 'is ["true"]' in other.err
    changed = list(once(name, *COUNT))
    changed[1:1] = ["--memory", "64m", "-e", "X=1"]
    refused = dsec.run(*changed)
    assert refused.code == 125 and "limits was" in refused.err, str(refused)
    assert times_run(work) == 1 and dsec.ok("ps", "-a", "-q") == ""
    # Another name is another run; and with its trajectory a name is forgotten.
    dsec.run(*once("second", *COUNT))
    assert times_run(work) == 2 and len(os.listdir(dsec.home / "keys")) == 3
    dsec.ok("traj", "rm", "-a")
    assert dsec.run(*once(name, *COUNT)).code == 7 and times_run(work) == 3
    dsec.ok("gc")
    assert len(os.listdir(dsec.home / "keys")) == 2


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_run_that_still_goes_on_is_followed_by_all_who_repeat_it(dsec, work, once):
    command = once("long", "sh", "-c", "echo x >> /out/count; echo early; until [ -e /out/go ]; do sleep 0.02; done; echo late; exit 5")
    clients = [dsec.popen(*command, stdout=subprocess.PIPE) for _ in range(4)]
    for client in clients:
        assert client.stdout.readline() == b"early\n"
    assert len(dsec.ok("ps", "-q").split()) == 1
    (work / "out" / "go").touch()
    for client in clients:
        out, err = client.communicate(timeout=30)
        assert (out, client.returncode) == (b"late\n", 5), err
    assert times_run(work) == 1
    assert dsec.run(*command).code == 5 and dsec.ok("ps", "-a", "-q") == ""


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_run_whose_client_is_killed_at_any_moment_is_done_at_most_once(dsec, work, once):
    dice = random.Random(7)
    for i in range(60 if LONG else 8):
        (work / "out" / "count").unlink(missing_ok=True)
        client = dsec.popen(*once(f"run{i}", *COUNT), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(dice.uniform(0, 0.12))
        client.kill()
        client.wait()
        result = dsec.run(*once(f"run{i}", *COUNT))
        assert (result.code, result.out) == (7, "said\n"), str(result)
        assert times_run(work) == 1


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_run_whose_keeper_was_killed_is_of_unknown_outcome(dsec, work, once):
    command = once("lost", "sh", "-c", "echo x >> /out/count; sleep 1000")
    client = dsec.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not times_run(work):
        time.sleep(0.02)
    (sandbox,) = dsec.ok("ps", "-q").split()
    os.kill(keeper_of(dsec, sandbox), signal.SIGKILL)
    client.communicate(timeout=30)
    for _ in range(2):
        again = dsec.run(*command)
        assert again.code == 125 and "unknown" in again.err, str(again)
        dsec.ok("gc")
    assert times_run(work) == 1


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_command_that_still_runs_is_attached_to_from_its_beginning(dsec, work, box):
    box()
    command = ("sh", "-c", "echo x >> /out/count; echo early; until [ -e /out/go ]; do sleep 0.02; done; echo late; exit 5")
    clients = [dsec.popen("exec", "--op-id", "long", "box", "--", *command, stdout=subprocess.PIPE)]
    assert clients[0].stdout.readline() == b"early\n"
    clients += [dsec.popen("exec", "--op-id", "long", "box", "--", *command, stdout=subprocess.PIPE) for _ in range(2)]
    for client in clients[1:]:
        assert client.stdout.readline() == b"early\n"
    assert [entry["outcome"] for entry in operations(dsec, "box")] == ["running"]
    (work / "out" / "go").touch()
    for client in clients:
        assert client.communicate(timeout=20)[0] == b"late\n"
        assert client.returncode == 5
    assert times_run(work) == 1


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_the_death_of_a_client_changes_nothing_for_its_operation(dsec, work, box):
    box()
    dice = random.Random(5)
    for i in range(100 if LONG else 8):
        (work / "out" / "count").unlink(missing_ok=True)
        client = dsec.popen("exec", "--op-id", f"op{i}", "box", "--", *COUNT, stdout=subprocess.DEVNULL)
        time.sleep(dice.uniform(0, 0.05))
        client.kill()
        client.wait()
        result = dsec.run("exec", "--op-id", f"op{i}", "box", "--", *COUNT)
        assert (result.code, result.out) == (7, "said\n")
        assert times_run(work) == 1


def judge_after_the_keeper_died(dsec, work, name, sandbox):
    """What a caller finds who repeats the operation; never a second run, and never a result that is not true."""
    status = work / "status"
    ran = times_run(work)
    assert ran <= 1
    found = operations(dsec, sandbox)
    result = dsec.run("exec", "--op-id", "once", "--status-file", status, name, "--", *COUNT)
    reason = json.loads(status.read_text())["reason"]
    assert times_run(work) == ran, "it was run again"
    if not found:
        assert ran == 0, "it ran before its beginning was recorded"
        assert result.code == 125 and "the sandbox is" in result.err
        return "never began"
    assert [entry["op_id"] for entry in found] == ["once"]
    if found[0]["outcome"] == "unknown":
        assert result.code == 125 and reason.startswith("unknown outcome")
        return "unknown"
    assert (ran, result.code, result.out) == (1, 7, "said\n")
    return "recorded"


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_keeper_that_is_killed_at_any_step_leaves_no_double_run_and_a_readable_log(dsec, work, box):
    """The steps are those of one command, from the request to the answer."""
    outcomes = []

    def kill_at(step):
        """False: the command had ended before."""
        name = f"box{len(outcomes)}"
        sandbox = box(name)
        (work / "out" / "count").unlink(missing_ok=True)
        keeper = keeper_of(dsec, name)
        tracer = Tracer(keeper)
        client = dsec.popen("exec", "--op-id", "once", name, "--", *COUNT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killed = tracer.run(step, lambda: client.poll() is not None)
        said = client.communicate(timeout=30)[0]
        if killed:
            leftovers.await_end(sandbox)
            outcomes.append(judge_after_the_keeper_died(dsec, work, name, sandbox))
            # Whoever had the answer can rely on it.
            if client.returncode == 7:
                assert outcomes[-1] == "recorded"
        else:
            assert (client.returncode, said) == (7, b"said\n")
        dsec.ok("rm", "-f", name)
        return killed

    step, stride = 1, 1 if LONG else 13
    while kill_at(step):
        step += stride
    # Between the record and the answer lie few steps, which a stride may pass over.
    while "recorded" not in outcomes and step > 1:
        step -= 1
        kill_at(step)
    assert {"never began", "unknown", "recorded"} <= set(outcomes), outcomes


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_copies_are_recorded_and_done_once(dsec, work, box):
    sandbox = box()
    (work / "file").write_text("one")
    dsec.ok("cp", "--op-id", "in", "file", "box:/tmp/file")
    dsec.ok("exec", "box", "--", "rm", "/tmp/file")
    dsec.ok("cp", "--op-id", "in", "file", "box:/tmp/file")
    assert dsec.run("exec", "box", "--", "test", "-e", "/tmp/file").code == 1, "it was copied again"
    (work / "file").write_text("two")
    other = dsec.run("cp", "--op-id", "in", "file", "box:/tmp/file")
    assert other.code == 1 or other.code == 2, str(other)
    assert "the files are others than those of then" in other.err
    dsec.ok("exec", "box", "--", "sh", "-c", "echo first > /tmp/out")
    first = dsec.ok("cp", "--op-id", "out", "box:/tmp/out", "-")
    dsec.ok("exec", "box", "--", "sh", "-c", "echo later > /tmp/out")
    assert dsec.ok("cp", "--op-id", "out", "box:/tmp/out", "-") == first
    missing = dsec.run("cp", "--op-id", "none", "box:/missing", "-")
    again = dsec.run("cp", "--op-id", "none", "box:/missing", "-")
    assert missing.code == again.code != 0 and missing.err == again.err and "ENOENT" in again.err
    dsec.ok("stop", "-t", "0", "box")
    dsec.ok("cp", "box:/tmp/out", work / "after")
    found = operations(dsec, "box")
    assert [entry["kind"] for entry in found if entry["kind"] != "exec"] == ["write", "read", "read", "stop", "read"]
    written = next(entry for entry in found if entry["kind"] == "write")
    tar = (dsec.home / "trajectories" / sandbox / f"{written['seq']}.tar").read_bytes()
    assert written["result"] == {"bytes": len(tar), "sha256": hashlib.sha256(tar).hexdigest()}
    assert found[-1]["kind"] == "read" and found[-1]["outcome"] == "ok"


TRAPS = """trap 'echo asked > /out/asked; exit 3' TERM; echo ready; while :; do :; done"""


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_stops_and_signals_are_recorded_and_done_once(dsec, work, box):
    box()
    client = dsec.popen("exec", "box", "--", "sh", "-c", TRAPS, stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"ready\n"
    dsec.ok("kill", "--op-id", "term", "-s", "TERM", "box", "1")
    assert client.wait(timeout=20) == 3
    dsec.ok("kill", "--op-id", "term", "-s", "TERM", "box", "1")
    assert "another request" in dsec.fails(2, "kill", "--op-id", "term", "box", "1")
    assert "no command '1' runs" in dsec.fails(2, "kill", "box", "1")
    again = dsec.popen("exec", "box", "--", "sh", "-c", TRAPS, stdout=subprocess.PIPE)
    assert again.stdout.readline() == b"ready\n"
    (work / "out" / "asked").unlink()
    dsec.ok("stop", "--op-id", "end", "box")
    assert again.wait(timeout=20) == 3 and (work / "out" / "asked").exists()
    # One more is no error, and nothing that would have to be told.
    dsec.ok("stop", "box")
    dsec.ok("stop", "--op-id", "end", "box")
    found = operations(dsec, "box")
    assert [(entry["kind"], entry["outcome"]) for entry in found] == [
        ("exec", "ok"), ("signal", "ok"), ("signal", "failed"), ("exec", "ok"), ("stop", "ok")]
    assert found[1]["request"] == {"exec_id": "1", "signal": 15} and found[4]["request"] == {"grace_ms": 10_000}
    dsec.ok("rm", "box")
    dsec.ok("stop", "--op-id", "end", "box")
    dsec.fails(2, "stop", "--op-id", "other", "box")
    # In a replay the same programs are told the same, and the sandbox stays.
    (work / "out" / "asked").unlink()
    replay = dsec.run("replay", "box", "--shell", "-o", "json", input="echo here > /out/here\n")
    lines = [json.loads(line) for line in replay.out.splitlines()]
    assert [line["state"] for line in lines if "state" in line] == ["same"] * 5, str(replay)
    assert (work / "out" / "asked").exists() and (work / "out" / "here").exists(), str(replay)


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_stops_from_everywhere_at_once_are_recorded_and_end(dsec, work, box):
    box()
    dsec.popen("exec", "-d", "box", "--", "sleep", "1000").wait(timeout=20)
    clients = [dsec.popen("stop", *(("--op-id", "same") if i % 2 else ()), "-t", "300ms", "box", stderr=subprocess.PIPE) for i in range(10)]
    told = [client.communicate(timeout=60)[1].decode() for client in clients]
    assert [client.returncode for client in clients] == [0] * 10, told
    stops = [entry for entry in operations(dsec, "box") if entry["kind"] == "stop"]
    assert stops and {entry["outcome"] for entry in stops} == {"ok"}
    # Those who come when it has stopped find nothing to do.
    assert [entry["op_id"] for entry in stops].count("same") <= 1


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_copy_whose_process_dies_is_interrupted_and_never_done_again(dsec, work, box):
    box()
    client = dsec.popen("cp", "--op-id", "in", "-", "box:/tmp", stdin=subprocess.PIPE)
    client.stdin.write(b"\0" * 512)
    client.stdin.flush()
    for _ in range(200):
        if (found := operations(dsec, "box")):
            break
        time.sleep(0.02)
    client.kill()
    client.wait()
    for _ in range(200):
        if (found := operations(dsec, "box"))[0]["outcome"] == "interrupted":
            break
        time.sleep(0.02)
    assert found[0]["outcome"] == "interrupted"
    again = dsec.run("cp", "--op-id", "in", "-", "box:/tmp", input=b"\0" * 1024)
    assert again.code == 1 and "the outcome of operation 'in' is unknown" in again.err


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_secrets_are_masked_where_they_are_shown(dsec, work, box):
    box()
    dsec.ok("exec", "-e", "API_TOKEN=hunter2-hunter2", "-e", "PLAIN=visible", "box", "--", "sh", "-c",
            "echo $API_TOKEN; echo $PLAIN")
    for shown in (dsec.ok("traj", "show", "box", "1"), dsec.ok("traj", "show", "-o", "json", "box"),
                  dsec.ok("traj", "diff", "box", "box")):
        assert "hunter2" not in shown
    assert "API_TOKEN=********" in dsec.ok("traj", "show", "box", "1") and "visible" in dsec.ok("traj", "show", "box", "1")
    (work / "config.yaml").write_text("secrets: [PLAIN]\n")
    shown = dsec.ok("traj", "show", "box", "1")
    assert "visible" not in shown and "hunter2-hunter2" in shown


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_two_trajectories_are_compared_operation_by_operation(dsec, work, box):
    for name in ("a", "b"):
        box(name)
        dsec.ok("exec", name, "--", "echo", "same")
        dsec.ok("exec", name, "--", "hostname")
    assert dsec.run("traj", "diff", "a", "a").code == 0
    dsec.ok("exec", "b", "--", "true")
    result = dsec.run("traj", "diff", "a", "b")
    assert result.code == 3
    lines = result.out.splitlines()
    assert lines[0] == "= 1 1 exec echo same" and lines[1] == "! 2 2 exec hostname" and lines[-1] == "+ - 3 exec true"
    assert "    stdout:" in lines
    pairs = [json.loads(line) for line in dsec.run("traj", "diff", "-o", "json", "a", "b").out.splitlines()]
    assert [pair["same"] for pair in pairs] == [True, False, False]


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_kept_trajectories_hold_their_layers_until_a_limit_takes_them(dsec, work, box):
    sandbox, empty = box(), dsec.ok("create", "base/box").strip()
    dsec.ok("exec", "box", "--", "true")
    dsec.ok("rm", "-f", "box", empty)
    dsec.ok("layer", "rm", "base/box")
    dsec.ok("gc")
    assert [json.loads(line)["id"] for line in dsec.ok("traj", "ls", "-o", "json").splitlines()] == [sandbox]
    assert dsec.ok("layer", "ls", "-a", "-q").count("base/box") == 1
    (work / "config.yaml").write_text("trajectories: {keep: 0s}\n")
    assert f"trajectory {sandbox}" in dsec.ok("gc", "-n")
    assert f"trajectory {sandbox}" in dsec.ok("gc")
    assert dsec.ok("layer", "ls", "-a", "-q") == "" and dsec.ok("traj", "ls", "-q") == ""


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_the_trajectory_of_a_sandbox_that_is_there_stays(dsec, box):
    sandbox = box()
    refused = dsec.run("traj", "rm", "box")
    assert refused.code == 2 and "is still there" in refused.err
    dsec.ok("traj", "rm", "--all")
    assert (dsec.home / "trajectories" / sandbox / "log.jsonl").exists()


def calls_of_keeper(dsec, name: str, *args) -> list:
    """The system calls that it and what it starts make for one operation."""
    log = CallLog(keeper_of(dsec, name))
    client = dsec.popen(*args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    calls = log.follow(lambda: client.poll() is not None)
    assert client.returncode == 0
    return sorted(calls)


def flushes(calls, after: int, before: int) -> list[str]:
    """The files that were brought to the disk in between."""
    return [call.file for call in calls
            if call.number in (CALLS["fdatasync"], CALLS["fsync"]) and call.result == 0 and call.began > after and call.ended < before]


@pytest.mark.guest_slow("records say nothing of a kernel")
@pytest.mark.parametrize("verb", ["exec", "cp"])
def test_what_is_named_is_on_the_disk_before_it_begins_and_before_it_is_answered(dsec, work, box, verb):
    sandbox = box()
    (work / "file").write_text("x")
    log = str(dsec.home / "trajectories" / sandbox / "log.jsonl")
    long = ("seq", "1", "9000")
    what = {"exec": ("exec", "--op-id", "a", "box", "--", *long), "cp": ("cp", "--op-id", "a", "file", "box:/root")}[verb]
    calls = calls_of_keeper(dsec, "box", *what)
    started, done = [call for call in calls if call.file == log and call.number == CALLS["write"]]
    flushers = {call.pid for call in calls if call.number == CALLS["fdatasync"]}
    # Of a command the last process that is begun, of others that the caller hears it may begin.
    clones = [call for call in calls if call.number == CALLS["clone3"] and call.result > 0 and call.result not in flushers]
    clients = [call for call in calls if call.file.startswith("socket:") and call.number in (CALLS["write"], CALLS["sendto"], CALLS["sendmsg"])]
    # Before the first command what only commands use is mounted, which needs a process, too.
    begins = clones[-1].began if verb == "exec" else next(call.began for call in clients if call.began > started.ended)
    answered = next(call.began for call in clients if call.began > done.ended)
    assert log in flushes(calls, started.ended, begins)
    assert os.path.dirname(log) in flushes(calls, started.ended, begins), "the log itself may be new"
    last = flushes(calls, done.ended, answered)
    assert log in last
    if verb == "exec":
        assert any(file.endswith("/spool/1.head") or file.endswith("/1.head") for file in last), last
    # Without a name nobody waits, which the same look tells.
    if verb == "exec":
        calls = calls_of_keeper(dsec, "box", "exec", "box", "--", "true")
        started = next(call for call in calls if call.file == log)
        clone = next(call for call in calls if call.number == CALLS["clone3"] and call.began > started.ended)
        assert not flushes(calls, started.ended, clone.began)


@pytest.fixture
def small_disk(dsec, box):
    """A sandbox whose trajectory lies on a disk that `fill()` fills."""
    trajectories = dsec.home / "trajectories"
    trajectories.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "dsec-test", trajectories], check=True)
    yield box()
    dsec.run("rm", "-f", "box")
    subprocess.run(["umount", "-l", trajectories], check=True)


def fill(dsec, sandbox: str) -> Path:
    """All of the disk, and of the page that the log ends in."""
    filler = dsec.home / "trajectories" / sandbox / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    before = len(operations(dsec, sandbox))
    for count in range(100):
        dsec.ok("exec", "box", "--", "true")
        if len(operations(dsec, sandbox)) - before <= count:
            return filler
    raise AssertionError("the disk does not become full")


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_on_a_full_disk_what_is_named_is_refused_and_the_rest_is_counted(dsec, work, small_disk):
    filler = fill(dsec, small_disk)
    before = operations(dsec, small_disk)
    refused = dsec.run("exec", "--op-id", "named", "box", "--", *COUNT)
    assert refused.code == 125 and "ENOSPC" in refused.err and "record the operation" in refused.err, str(refused)
    assert times_run(work) == 0
    (work / "file").write_text("x")
    refused = dsec.run("cp", "--op-id", "copied", "file", "box:/root/file")
    assert refused.code != 0 and "ENOSPC" in refused.err, str(refused)
    for _ in range(3):
        assert dsec.run("exec", "box", "--", *COUNT).code == 7
    assert times_run(work) == 3 and operations(dsec, small_disk) == before
    filler.unlink()
    # The name is free: nothing was done under it.
    assert dsec.run("exec", "--op-id", "named", "box", "--", *COUNT).code == 7
    assert times_run(work) == 4
    dsec.ok("cp", "--op-id", "copied", "file", "box:/root/file")
    named, copied = operations(dsec, small_disk)[len(before):]
    # What filled the last page, the three, and the two that were refused.
    records = [json.loads(line) for line in (dsec.home / "trajectories" / small_disk / "log.jsonl").read_text().splitlines()]
    assert [record["unrecorded"] for record in records if "unrecorded" in record] == [6]
    assert (named["op_id"], named["outcome"], copied["outcome"]) == ("named", "ok", "ok")


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_what_has_no_name_is_done_although_its_contents_find_no_room(dsec, work, small_disk):
    """The record has room, what it would keep has not."""
    lines = "".join(f"{i}\n" for i in range(100_000))
    (work / "big").write_text(lines)
    (work / "out" / "big").write_text(lines)
    (work / "out" / "cgi-bin").mkdir()
    (work / "out" / "cgi-bin" / "count").write_text("#!/bin/sh\nprintf 'Content-Type: text/plain\\r\\n\\r\\n'; exec wc -c\n")
    (work / "out" / "cgi-bin" / "count").chmod(0o755)
    dsec.ok("cp", "big", "box:/root/big")
    dsec.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/out")
    for _ in range(100):
        if dsec.run("http", "box", "8080/").code == 0:
            break
    assert dsec.ok("http", "box", "8080/big") == lines
    assert dsec.ok("http", "-d", "@big", "box", "8080/cgi-bin/count") == f"{len(lines)}\n"
    assert dsec.ok("exec", "box", "--", "cat", "/root/big") == lines
    # Whoever relies on the record is told.
    assert "ENOSPC" in dsec.fails(1, "cp", "--op-id", "in", "big", "box:/root/other")
    assert "ENOSPC" in dsec.fails(1, "http", "--op-id", "get", "box", "8080/big")
    assert "ENOSPC" in dsec.fails(1, "http", "--op-id", "post", "-d", "@big", "box", "8080/cgi-bin/count")
    found = operations(dsec, small_disk)
    assert {entry["outcome"] for entry in found if entry["op_id"].startswith("#") and entry["kind"] in ("write", "http")} <= {"ok", "failed"}
    (written,) = [entry for entry in found if entry["kind"] == "write" and entry["outcome"] == "ok"]
    assert written["result"]["bytes"] > len(lines)
    got = next(entry for entry in found if entry["kind"] == "http" and entry["result"].get("bytes") == len(lines))
    assert got["result"]["stdout_dropped"] == len(lines) and "stdout" not in got
    assert sorted(name for name in os.listdir(dsec.home / "trajectories" / small_disk) if name[0].isdigit() and "head" not in name) == []
    replay = dsec.run("replay", small_disk, "--keep-going", "-o", "json")
    states = {line["seq"]: line["state"] for line in map(json.loads, replay.out.splitlines()) if "seq" in line}
    assert (states[written["seq"]], states[got["seq"]]) == ("skipped", "same"), str(replay)


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_an_end_that_finds_the_disk_full_is_told_and_unknown_afterwards(dsec, work, small_disk):
    client = dsec.popen("exec", "--op-id", "named", "box", "--", "sh", "-c", "echo x >> /out/count; until [ -e /out/go ]; do sleep 0.02; done")
    for _ in range(500):
        if times_run(work):
            break
        time.sleep(0.02)
    filler = fill(dsec, small_disk)
    (work / "out" / "go").touch()
    _, err = client.communicate(timeout=30)
    assert client.returncode == 125 and b"ENOSPC" in err and b"record the result" in err, err
    filler.unlink()
    again = dsec.run("exec", "--op-id", "named", "box", "--", "sh", "-c",
                     "echo x >> /out/count; until [ -e /out/go ]; do sleep 0.02; done")
    assert again.code == 125 and "how 'sh' ended is not known" in again.err, str(again)
    dsec.ok("stop", "-t", "0", "box")
    assert operations(dsec, small_disk)[0]["outcome"] == "unknown"
    again = dsec.run("exec", "--op-id", "named", *again.argv[4:])
    assert again.code == 125 and "unknown" in again.err and times_run(work) == 1, str(again)
