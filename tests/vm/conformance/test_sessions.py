"""A session keeps the state of its shell."""

import json


def test_a_session_keeps_directory_and_variables(box):
    session = box.ok("session", "open", "--name", "work", "box").strip()
    run = lambda text, **kwargs: box.run("session", "run", "box", "work", "--", text, **kwargs)
    assert run("cd /usr; X=5").code == 0
    assert run("pwd; echo $X").out == "/usr\n5\n"
    result = run("echo out; echo err >&2; (exit 42)")
    assert (result.code, result.out, result.err) == (42, "out\n", "err\n")
    assert run("no_such_program_here").code == 127
    listed = [json.loads(line) for line in box.ok("session", "ls", "-o", "json", "box").splitlines()]
    assert [(entry["id"], entry["name"]) for entry in listed] == [(session, "work")]
    box.ok("session", "close", "box", "work")
    assert box.ok("session", "ls", "-o", "json", "box") == ""


def test_input_goes_to_a_command_of_a_session(box):
    session = box.ok("session", "open", "box").strip()
    assert box.ok("session", "run", "-i", "box", session, "--", "cat", input="given\n") == "given\n"
    box.ok("session", "close", "box", session)


def test_a_timeout_ends_the_command_and_keeps_the_session(box):
    session = box.ok("session", "open", "box").strip()
    result = box.run("session", "run", "--timeout", "2s", "box", session, "--", "Y=7; echo begun; sleep 100")
    assert (result.code, result.out) == (124, "begun\n")
    assert box.ok("session", "run", "box", session, "--", "echo $Y") == "7\n"
    box.ok("session", "close", "box", session)


def test_what_is_no_session_is_told(box):
    assert "no_such" in box.run("session", "run", "box", "no_such", "--", "true").err
