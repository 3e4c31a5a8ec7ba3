"""Trajectories leave a host as one file and come back, and those of other tools come in."""

import json
import os
import re

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("files say nothing of a kernel")

SECRET = "hunter2hunter2"


@pytest.fixture
def rollout(dsec) -> str:
    """The id of a sandbox that is gone: commands, a session, copies, long output and input, a secret in each."""
    rootfs.import_base(dsec)
    sandbox = dsec.ok("create", "--name", "rollout", "-e", f"API_TOKEN={SECRET}", "base/box").strip()
    dsec.ok("exec", "rollout", "--", "sh", "-c", "mkdir /workspace; echo $API_TOKEN > /workspace/a; cat /workspace/a")
    dsec.run("exec", "--op-id", "seven", "rollout", "--", "sh", "-c", "echo err >&2; exit 7")
    dsec.ok("exec", "rollout", "--", "sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo line $i $API_TOKEN; i=$((i+1)); done")
    dsec.ok("exec", "-i", "rollout", "--", "sh", "-c", "wc -c", input=f"{SECRET}\n" * 5000)
    (dsec.cwd / "file").write_text(f"token: {SECRET}\n")
    dsec.ok("cp", "file", "rollout:/workspace/c")
    dsec.ok("cp", "--op-id", "out", "rollout:/workspace/c", "back")
    dsec.ok("session", "open", "--name", "s", "rollout")
    dsec.ok("session", "run", "rollout", "s", "--", "cd /workspace; X=1")
    dsec.ok("session", "run", "rollout", "s", "--", "ls; echo $X in $PWD")
    dsec.ok("session", "close", "rollout", "s")
    dsec.ok("rm", "-f", "rollout")
    return sandbox


def states(dsec, *args, code: int = 0) -> list[str]:
    result = dsec.run("replay", *args, "-o", "json")
    assert result.code == code, str(result)
    return [json.loads(line)["state"] for line in result.out.splitlines()]


def test_an_export_is_one_file_without_secrets_that_is_replayed_as_it_is(dsec, work, rollout):
    told = dsec.json("traj", "export", rollout, "--out", "x.jsonl")
    assert told["operations"] == 10 and told["files"] == 4, told
    assert SECRET.encode() not in (dsec.cwd / "x.jsonl").read_bytes()
    assert oct((dsec.cwd / "x.jsonl").stat().st_mode & 0o777) == "0o600"
    assert set(states(dsec, "x.jsonl")) == {"same"}
    shown = dsec.ok("traj", "show", "./x.jsonl")
    assert "seven" in shown and SECRET not in shown
    assert dsec.run("traj", "diff", "./x.jsonl", "./x.jsonl").code == 0


def test_what_was_exported_is_imported_and_is_like_any_other(dsec, rollout):
    dsec.ok("traj", "export", "rollout", "--out", "x.jsonl")
    made = dsec.ok("traj", "import", "x.jsonl", "--name", "theirs").strip()
    assert made != rollout
    listed = {line["id"]: line for line in map(json.loads, dsec.ok("traj", "ls", "-o", "json").splitlines())}
    assert listed[made]["source"] == "dsec" and listed[made]["operations"] == 10
    assert dsec.ok("replay", "theirs", "--check").startswith("10 the same, 0 different, 0 not replayed")
    assert SECRET not in dsec.ok("traj", "show", "-o", "json", "theirs")
    entries = [json.loads(line) for line in dsec.ok("traj", "show", "-o", "json", "theirs").splitlines()]
    assert entries[3]["stdout"].startswith("line 0 ********\nline 1 ")
    # Another export of it is the same but for its head.
    dsec.ok("traj", "export", "theirs", "--out", "y.jsonl")
    strip = lambda name: re.sub(r',"crc":"\w+"', "", (dsec.cwd / name).read_text()).splitlines()[1:]
    assert strip("x.jsonl") == strip("y.jsonl")
    dsec.ok("traj", "rm", made)
    assert made not in os.listdir(dsec.home / "trajectories")


def test_a_damaged_export_is_refused_and_leaves_nothing(dsec, rollout):
    dsec.ok("traj", "export", rollout, "--out", "x.jsonl")
    whole = (dsec.cwd / "x.jsonl").read_bytes()
    (dsec.cwd / "short.jsonl").write_bytes(whole[:len(whole) // 2])
    assert "ends early" in dsec.fails(2, "traj", "import", "short.jsonl")
    (dsec.cwd / "bad.jsonl").write_bytes(whole.replace(b'"exit_code":7', b'"exit_code":8', 1))
    assert "is damaged" in dsec.fails(2, "traj", "import", "bad.jsonl")
    assert os.listdir(dsec.home / "trajectories") == [rollout]
    dsec.fails(2, "traj", "import", "nosuch")
    dsec.fails(2, "traj", "import", "/dev/null")


def test_a_trajectory_goes_through_atif(dsec, rollout):
    result = dsec.run("traj", "export", rollout, "--out", "x.json", "--format", "atif")
    assert result.code == 0 and "2 archives of files" in result.err
    assert SECRET not in (dsec.cwd / "x.json").read_text()
    document = json.loads((dsec.cwd / "x.json").read_text())
    assert document["schema_version"] == "ATIF-v1.7" and [step["step_id"] for step in document["steps"]] == list(range(1, 11))
    dsec.ok("traj", "import", "x.json", "--name", "again")
    # The copy could not be carried, and so there is nothing to be read, and less to be listed.
    assert states(dsec, "again", "--keep-going", code=3)[:6] == ["same"] * 4 + ["skipped", "different"]
    dsec.ok("traj", "export", "again", "--out", "y.json", "--format", "atif")
    again = json.loads((dsec.cwd / "y.json").read_text())
    for step in document["steps"] + again["steps"]:
        step.pop("extra")
    assert document["steps"] == again["steps"]


def test_a_rollout_of_swe_agent_is_replayed_in_layers_of_ours(dsec):
    rootfs.import_base(dsec)
    turns = [
        {"response": "I make a place.", "thought": "hm", "action": "mkdir -p /src && cd /src", "observation": "", "execution_time": 0.1},
        {"response": "I look.", "thought": "I look.", "action": "pwd; echo err >&2", "observation": "/src\nerr\n"},
        {"response": "nothing", "thought": "nothing", "action": "", "observation": "say something"},
        {"response": "x", "thought": "x", "action": "echo $((6 * 7))", "observation": "43"},
    ]
    (dsec.cwd / "t.traj").write_text(json.dumps({"environment": "main", "trajectory": turns, "history": [], "info": {}}))
    without = dsec.ok("traj", "import", "t.traj").strip()
    assert "--in" in dsec.fails(1, "replay", without)
    made = dsec.ok("traj", "import", "t.traj", "--in", "base/box", "--name", "swe").strip()
    assert states(dsec, "swe", code=3) == ["same", "same", "same", "different"]
    result = dsec.run("replay", made)
    assert "-43\n" in result.out and "+42\n" in result.out
    shown = dsec.ok("traj", "show", "swe")
    assert "I look." in shown and "session" in shown


def test_an_import_is_told_what_a_file_is_and_where_its_commands_run(dsec, work):
    rootfs.import_base(dsec)
    (work / "envs").mkdir()
    (work / "envs/other.yaml").write_text("version: 1\nenvironments:\n  e: {base: base/box, env: {PLACE: of the file}}\n")
    turn = {"response": "x", "thought": "x", "action": "pwd; echo $PLACE", "observation": "/tmp\nof the file\n"}
    (work / "t.traj").write_text(json.dumps({"environment": "main", "trajectory": [turn], "history": [], "info": {}}))
    made = dsec.json("traj", "import", "t.traj", "--format", "swe-agent", "--in", "e", "-f", "envs/other.yaml", "-w", "/tmp")
    assert made["format"] == "swe-agent"
    kinds = [json.loads(line)["kind"] for line in dsec.ok("traj", "show", "-o", "json", made["id"]).splitlines()[1:]]
    assert kinds == ["document", "step", "session-open", "session"]
    assert set(states(dsec, made["id"])) == {"same"}
    # What it is not it is not taken for.
    assert "schema_version" in dsec.fails(2, "traj", "import", "t.traj", "--format", "atif")
    dsec.fails(2, "traj", "import", "t.traj", "--format", "dsec")
    imported = [line for line in map(json.loads, dsec.ok("traj", "ls", "-o", "json").splitlines()) if line["source"]]
    assert [line["id"] for line in imported] == [made["id"]]
    # An export that says what it is, and ATIF that does.
    dsec.ok("traj", "export", made["id"], "--out", "x.jsonl")
    dsec.ok("traj", "export", made["id"], "--out", "x.json", "--format", "atif")
    assert dsec.json("traj", "import", "x.jsonl", "--format", "dsec")["operations"] == 4
    assert dsec.json("traj", "import", "x.json", "--format", "atif")["format"] == "atif"


def test_a_trajectory_from_elsewhere_gets_nothing_of_the_host_unasked(dsec, work):
    rootfs.import_base(dsec)
    (work / "out").mkdir()
    dsec.ok("create", "--name", "r", "-v", f"{work}/out:/out", "base/box")
    dsec.ok("exec", "r", "--", "sh", "-c", "echo x > /out/y")
    dsec.ok("rm", "-f", "r")
    assert states(dsec, "r") == ["same"]
    dsec.ok("traj", "export", "r", "--out", "x.jsonl")
    (work / "out" / "y").unlink()
    assert "--trust" in dsec.fails(2, "replay", "./x.jsonl")
    made = dsec.ok("traj", "import", "x.jsonl").strip()
    assert str(work / "out") in dsec.fails(2, "replay", made)
    assert not (work / "out" / "y").exists() and dsec.ok("ps", "-a", "-q") == ""
    assert states(dsec, made, "--trust") == ["same"]
    assert (work / "out" / "y").exists()


def test_each_recorded_verb_takes_a_name_and_does_it_once(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "box", "base/box")
    for verb in ("pause", "resume"):
        for _ in range(2):
            dsec.ok(verb, "--op-id", f"{verb}-1", "box")
    dsec.ok("exec", "box", "--", "touch", "/first")
    snapshot = ("snapshot", "--op-id", "snap", "-o", "json", "box", "s:1")
    first = json.loads(dsec.ok(*snapshot))
    dsec.ok("exec", "box", "--", "touch", "/second")
    assert json.loads(dsec.ok(*snapshot)) == first
    assert "--op-id" in dsec.fails(2, "snapshot", "--op-id", "other", "box")
    commit = ("commit", "--op-id", "commit", "-o", "json", "box", "workspace/w:1")
    first = json.loads(dsec.ok(*commit))
    dsec.ok("exec", "box", "--", "touch", "/third")
    assert json.loads(dsec.ok(*commit)) == first
    assert "another request" in dsec.fails(2, "commit", "--op-id", "commit", "box", "workspace/w:2")
    fork = ("fork", "--op-id", "forks", "box", "--count", "2")
    assert dsec.ok(*fork) == dsec.ok(*fork)
    assert len(dsec.ok("ps", "-q").split()) == 3
    kinds = [json.loads(line)["kind"] for line in dsec.ok("traj", "show", "-o", "json", "box").splitlines()[1:]]
    assert kinds == ["pause", "resume", "exec", "snapshot", "exec", "snapshot", "exec", "fork"]
    dsec.ok("rm", "-f", "box")
    assert states(dsec, "box") == ["same"] * 8
    assert len(dsec.ok("ps", "-q").split()) == 2


def test_each_recorded_verb_tells_its_result_again_when_the_sandbox_is_gone(dsec):
    rootfs.import_base(dsec, files={"srv/page": "hello\n"})
    (dsec.cwd / "in").mkdir()
    (dsec.cwd / "in" / "file").write_text("in\n")
    sandbox = dsec.ok("create", "--name", "box", "--network", "policy", "base/box").strip()
    dsec.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv")
    for _ in range(100):
        if dsec.run("http", "box", "8080/page").code == 0:
            break
    verbs = [
        ("exec", "--op-id", "exec", "box", "--", "sh", "-c", "echo said >> /said; cat /said"),
        ("session", "open", "--op-id", "open", "--name", "s", "box"),
        ("session", "run", "--op-id", "run", "box", "s", "--", "echo ran >> /ran; cat /ran"),
        ("session", "close", "--op-id", "close", "box", "s"),
        ("http", "--op-id", "http", "box", "8080/page"),
        ("cp", "--op-id", "dir", "in", "box:/made"),
        ("cp", "--op-id", "file", "in/file", "box:/made/other"),
        ("cp", "--op-id", "out", "box:/made", "-"),
        ("cp", "--op-id", "here", "box:/made/other", "here"),
        ("update", "--op-id", "update", "--idle", "1h", "box"),
        ("net", "set", "--op-id", "net", "--allow", "good.example", "box"),
        ("snapshot", "--op-id", "snapshot", "-o", "json", "box", "s:1"),
        ("commit", "--op-id", "commit", "-o", "json", "box", "workspace/w:1"),
        ("fork", "--op-id", "fork", "--count", "2", "box"),
        ("pause", "--op-id", "pause", "box"),
        ("resume", "--op-id", "resume", "box"),
    ]
    first = {verb: dsec.ok(*verb) for verb in verbs}
    dsec.ok("net", "set", "--nothing", "box")
    # The copies have made their places, the session is closed, the policy is another: all that is of no account.
    assert {verb: dsec.ok(*verb) for verb in verbs} == first
    assert dsec.ok("exec", "box", "--", "ls", "/made") == "file\nother\n"
    assert json.loads(dsec.ok("net", "show", "-o", "json", "box"))["plan"]["allow"] == []
    forks = first[verbs[13]].split()
    dsec.ok("rm", "-f", forks[0])
    assert dsec.ok(*verbs[13]).split() == forks
    dsec.ok("rm", "-f", "box", forks[1])
    (dsec.cwd / "here").unlink()
    assert {verb: dsec.ok(*verb) for verb in verbs} == first
    assert (dsec.cwd / "here").read_text() == "in\n"
    assert dsec.ok("ps", "-a", "-q") == ""
    # Without a name, under another, or as another request there is nothing to tell.
    dsec.fails(2, "pause", "box")
    dsec.fails(2, "pause", "--op-id", "other", "box")
    assert "another request" in dsec.fails(2, "update", "--op-id", "update", "--idle", "2h", "box")
    assert "another request" in dsec.fails(2, "resume", "--op-id", "pause", sandbox)
    (dsec.cwd / "in" / "file").write_text("changed\n")
    assert "are others" in dsec.fails(2, "cp", "--op-id", "dir", "in", "box:/made")
    assert "no-such" in dsec.fails(2, "pause", "--op-id", "pause", "no-such")


def test_a_server_is_asked_again(dsec):
    rootfs.import_base(dsec, files={"srv/index.html": "hello\n"})
    dsec.ok("create", "--name", "box", "base/box")
    dsec.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv")
    for _ in range(100):
        if dsec.run("http", "box", "8080/").code == 0:
            break
    dsec.ok("http", "--op-id", "get", "-H", "X-Y: 1", "box", "8080/index.html")
    dsec.ok("rm", "-f", "box")
    result = dsec.run("replay", "box", "--keep-going", "-o", "json")
    by_name = {json.loads(line)["op_id"]: json.loads(line) for line in result.out.splitlines()}
    assert by_name["get"]["state"] == "same", result.out
