"""What is done in sessions and over HTTP is recorded, and a name that is repeated does nothing again."""

import json

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("records say nothing of a kernel")


@pytest.fixture
def box(dsec):
    rootfs.import_base(dsec, files={"srv/index.html": "hello\n", "srv/big": b"x" * 100_000, "srv/cgi-bin/count": CGI})
    dsec.ok("create", "--name", "box", "base/box")
    return dsec



def test_sessions_are_recorded_with_their_commands(box):
    session = box.ok("session", "open", "--name", "work", "box").strip()
    box.ok("session", "run", "-i", "box", "work", "--", "read x; echo got $x; echo err >&2", input="line\n")
    assert box.run("session", "run", "box", session, "--", "exit 5").code == 5
    box.ok("session", "open", "--name", "other", "box")
    box.ok("session", "close", "box", "other")
    log = (next((box.home / "trajectories").iterdir()) / "log.jsonl").read_text()
    records = [json.loads(line) for line in log.splitlines()[1:]]
    started = {record["seq"]: record for record in records if record["record"] == "started"}
    done = {record["seq"]: record for record in records if record["record"] == "done"}
    assert [started[seq]["kind"] for seq in sorted(started)] == ["session-open", "session", "session", "session-open", "session-close"]
    assert done[1]["result"] == {"session": session}
    assert started[2]["request"]["command"] == "read x; echo got $x; echo err >&2"
    assert (done[2]["stdout"], done[2]["stderr"], done[2]["stdin"]) == ("got line\n", "err\n", "line\n")
    assert done[3]["result"]["exit_code"] == 5 and done[3]["result"]["session_ended"] is True
    assert all(record["outcome"] == "ok" for record in done.values())


def test_a_name_runs_once_in_a_session_too(box):
    first = box.ok("session", "open", "--op-id", "open-1", "box")
    assert box.ok("session", "open", "--op-id", "open-1", "box") == first
    session = first.strip()
    run = ("session", "run", "--op-id", "step-1", "box", session, "--", "echo once >> /tmp/f; cat /tmp/f; (exit 3)")
    assert [box.run(*run).out for _ in range(3)] == ["once\n"] * 3
    assert box.run(*run).code == 3
    assert "step-1" in box.fails(125, "session", "run", "--op-id", "step-1", "box", session, "--", "another")
    assert box.ok("session", "run", "box", session, "--", "cat /tmp/f") == "once\n"
    box.ok("rm", "-f", "box")
    assert box.run(*run).out == "once\n"


def test_a_session_is_closed_once_under_a_name(box):
    session = box.ok("session", "open", "--name", "work", "box").strip()
    close = ("session", "close", "--op-id", "close-1", "box", "work")
    box.ok(*close)
    # Another of the same name stays.
    box.ok("session", "open", "--name", "work", "box")
    box.ok(*close)
    assert box.ok("session", "run", "box", "work", "--", "echo there") == "there\n"
    assert "another request" in box.fails(2, "session", "close", "--op-id", "close-1", "box", session)
    missing = ("session", "close", "--op-id", "close-2", "box", "nosuch")
    assert box.fails(1, *missing) == box.fails(1, *missing)
    kinds = [json.loads(line).get("kind") for line in box.ok("traj", "show", "-o", "json", "box").splitlines()[1:]]
    assert kinds == ["session-open", "session-close", "session-open", "session", "session-close"]


CGI = """#!/bin/sh
echo Content-Type: text/plain
echo
exec wc -c
"""


def serve(box):
    box.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv")
    for _ in range(100):
        if box.run("http", "box", "8080/").code == 0:
            break


def test_http_requests_are_recorded_with_their_contents(box):
    serve(box)
    assert box.ok("http", "--op-id", "get-1", "box", "8080/index.html") == "hello\n"
    box.ok("exec", "box", "--", "rm", "/srv/index.html")
    assert box.ok("http", "--op-id", "get-1", "box", "8080/index.html") == "hello\n"
    # Longer ones lie in files beside the log, as the output of commands does.
    big = box.ok("http", "--op-id", "get-2", "box", "8080/big")
    assert len(big) == 100_000
    (box.cwd / "body").write_bytes(b"y" * 50_000)
    post = ("http", "--op-id", "post", "-d", "@body", "box", "8080/cgi-bin/count")
    assert box.ok(*post) == "50000\n"
    assert "another request" in box.fails(2, *post[:3], "-d", "other", *post[5:])
    place = next((box.home / "trajectories").iterdir())
    assert sorted(path.suffix for path in place.iterdir() if path.name[0].isdigit()) == [".head", ".stdin"]
    box.ok("traj", "export", "box", "--out", "x.jsonl")
    box.ok("rm", "-f", "box")
    assert box.ok("http", "--op-id", "get-2", "box", "8080/big") == big
    assert box.ok(*post) == "50000\n"
    states = {}
    for trajectory in ("box", "./x.jsonl"):
        replay = box.run("replay", trajectory, "--keep-going", "-o", "json")
        states[trajectory] = {line["op_id"]: line["state"] for line in map(json.loads, replay.out.splitlines())}
        assert (states[trajectory]["get-2"], states[trajectory]["post"]) == ("same", "same"), str(replay)


def test_of_an_answer_beyond_the_output_limit_the_beginning_is_kept(dsec):
    rootfs.import_base(dsec, files={"srv/big": b"x" * 100_000})
    dsec.ok("create", "--name", "box", "--output-limit", "32KiB", "base/box")
    serve(dsec)
    get = ("http", "--op-id", "get", "box", "8080/big")
    assert len(dsec.ok(*get)) == 100_000
    assert "of an answer of 97.7 KiB only 32.0 KiB were kept" in dsec.fails(1, *get)
    shown = dsec.json("traj", "show", "box", "get")
    assert shown["result"] == {"status": 200, "bytes": 100_000, "stdout_dropped": 100_000 - 32_768}
    assert shown["stdout"] == "x" * 32_768
