"""What is done in sessions and over HTTP is recorded, and a name that is repeated does nothing again."""

import json

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("records say nothing of a kernel")


@pytest.fixture
def box(dsec):
    rootfs.import_base(dsec, files={"srv/index.html": "hello\n", "srv/big": b"x" * 100_000})
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


def test_http_requests_are_recorded_with_short_answers(box):
    box.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv")
    for _ in range(100):
        if box.run("http", "box", "8080/").code == 0:
            break
    assert box.ok("http", "--op-id", "get-1", "box", "8080/index.html") == "hello\n"
    box.ok("exec", "box", "--", "rm", "/srv/index.html")
    assert box.ok("http", "--op-id", "get-1", "box", "8080/index.html") == "hello\n"
    assert len(box.ok("http", "--op-id", "get-2", "box", "8080/big")) == 100_000
    assert "are not kept" in box.fails(1, "http", "--op-id", "get-2", "box", "8080/big")
