"""What was done to a sandbox is recorded, and can be done again."""

import json


def operations(dsec, sandbox: str) -> list[dict]:
    _, *rest = [json.loads(line) for line in dsec.ok("traj", "show", "-o", "json", sandbox).splitlines()]
    return rest


def test_every_command_is_recorded_with_what_it_said(dsec, work):
    sandbox = dsec.ok("create", "base/box").strip()
    dsec.run("exec", sandbox, "--", "sh", "-c", "echo said; echo complained >&2; exit 3")
    dsec.ok("exec", "-i", sandbox, "--", "cat", input="given\n")
    (work / "file").write_text("content")
    dsec.ok("cp", work / "file", f"{sandbox}:/root/file")
    told = operations(dsec, sandbox)
    assert [operation["kind"] for operation in told] == ["exec", "exec", "write"], told
    first, second, third = told
    assert first["result"]["exit_code"] == 3
    assert (first["stdout"], first["stderr"]) == ("said\n", "complained\n")
    assert second["stdin"] == "given\n" and second["stdout"] == "given\n"
    assert third["outcome"] == "ok"


def test_a_trajectory_outlives_its_sandbox_and_is_replayed(dsec):
    sandbox = dsec.ok("create", "base/box").strip()
    dsec.ok("exec", sandbox, "--", "sh", "-c", "echo 1 > /root/file")
    dsec.ok("exec", sandbox, "--", "cat", "/root/file")
    dsec.ok("rm", "-f", sandbox)
    assert len(operations(dsec, sandbox)) == 2
    assert dsec.run("replay", sandbox, "--check").code == 0
