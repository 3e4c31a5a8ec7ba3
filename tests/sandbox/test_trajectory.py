"""What is done to a sandbox is recorded, and what its caller named is done once, whatever is killed and when."""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import rootfs
from syscall_kill import Tracer

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


@pytest.mark.guest_slow("records say nothing of a kernel")
def test_a_command_that_still_runs_is_attached_to_from_its_beginning(dsec, work, box):
    box()
    command = ("sh", "-c", "echo x >> /out/count; echo early; until [ -e /out/go ]; do sleep 0.02; done; echo late; exit 5")
    clients = [dsec.popen("exec", "--op-id", "long", "box", "--", *command, stdout=subprocess.PIPE)]
    assert clients[0].stdout.readline() == b"early\n"
    clients += [dsec.popen("exec", "--op-id", "long", "box", "--", *command, stdout=subprocess.PIPE) for _ in range(2)]
    for client in clients[1:]:
        assert client.stdout.readline() == b"early\n"
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


def await_end(pid: int):
    """Of a sandbox's PID 1, which the kernel ends after everything inside."""
    end = time.monotonic() + 30
    stat = Path(f"/proc/{pid}/stat")
    while time.monotonic() < end:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except OSError:
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} lives on after its keeper")


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
        inside = [int(pid) for pid in Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()]
        tracer = Tracer(keeper)
        client = dsec.popen("exec", "--op-id", "once", name, "--", *COUNT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        killed = tracer.run(step, lambda: client.poll() is not None)
        said = client.communicate(timeout=30)[0]
        if killed:
            # A command may go on for a moment.
            for pid in inside:
                await_end(pid)
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
    assert [entry["kind"] for entry in found if entry["kind"] != "exec"] == ["write", "read", "read", "read"]
    written = next(entry for entry in found if entry["kind"] == "write")
    tar = (dsec.home / "trajectories" / sandbox / f"{written['seq']}.tar").read_bytes()
    assert written["result"] == {"bytes": len(tar), "sha256": hashlib.sha256(tar).hexdigest()}
    assert found[-1]["kind"] == "read" and found[-1]["outcome"] == "ok"


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
