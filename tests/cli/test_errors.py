"""Wrong requests: exit codes, and words that help."""

import json

import pytest

# Name of the golden file, exit code, arguments.
CASES = [
    ("unknown-command", 2, ["rnu"]),
    ("unknown-verb-of-a-group", 2, ["layer", "lss"]),
    ("unknown-option", 2, ["ps", "--al"]),
    ("unknown-option-of-run", 125, ["run", "--memroy", "1g", "base/x"]),
    ("unexpected-argument", 2, ["ps", "web"]),
    ("missing-argument", 2, ["layer", "tag", "base/x"]),
    ("missing-value", 2, ["ps", "--label"]),
    ("bad-choice", 2, ["ps", "-o", "yaml"]),
    ("bad-size", 125, ["run", "--memory", "much", "base/x"]),
    ("bad-number", 125, ["run", "--pids", "-3", "base/x"]),
    ("bad-duration", 125, ["run", "--timeout", "soon", "base/x"]),
    ("bad-reference", 2, ["layer", "inspect", "Base/X"]),
    ("nothing-to-run", 125, ["run"]),
    ("no-such-layer", 125, ["run", "base/x", "--", "true"]),
    ("no-environment-file", 125, ["run", "toolz-1", "--", "true"]),
    ("command-without-dashes", 125, ["run", "base/x", "ls", "-la"]),
    ("exec-without-command", 125, ["exec", "web"]),
    ("exec-in-unknown-sandbox", 125, ["exec", "web", "--", "true"]),
    ("wait-for-unknown-sandbox", 125, ["wait", "web"]),
    ("inspect-of-unknown-sandbox", 2, ["inspect", "web"]),
    ("names-and-labels", 2, ["rm", "web", "--label", "a"]),
    ("rm-of-nothing", 2, ["rm"]),
    ("bind-of-nothing", 125, ["run", "-v", "nowhere:/x", "base/x"]),
    ("bind-to-a-relative-path", 125, ["run", "-v", "/tmp:x", "base/x"]),
    ("unknown-shell", 2, ["completion", "csh"]),
]


@pytest.mark.parametrize("name,code,args", CASES, ids=[case[0] for case in CASES])
def test_a_wrong_request_says_what_to_do(dsec, golden, name, code, args):
    result = dsec.run(*args)
    assert result.code == code, str(result)
    assert result.out == "", str(result)
    golden(f"errors/{name}.txt", result.err)


def test_errors_come_as_json_where_json_was_asked_for(dsec):
    for args in (["ps", "--al", "-o", "json"], ["inspect", "web", "-o", "json"], ["ps", "-ojson", "x"],
                 ["layer", "rm", "--output=json"]):
        error = json.loads(dsec.fails(2, *args))["error"]
        assert error["kind"] == "usage"
        assert error["chain"] and all(error["chain"])
        assert error["try"]


def test_json_after_the_dashes_belongs_to_the_command(dsec):
    assert dsec.fails(125, "exec", "web", "--", "x", "-o", "json").startswith("error: ")


def test_the_status_file_tells_that_dsec_failed(dsec, work):
    for args in (["exec", "web"], ["run", "--memory", "much"], ["run", "base/x", "--", "true"], ["wait", "web"]):
        status = work / "status.json"
        status.unlink(missing_ok=True)
        dsec.fails(125, args[0], "--status-file", status, *args[1:])
        told = json.loads(status.read_text())
        assert (told["by"], told["exit_code"]) == ("dsec", 125)
        assert told["reason"]


def test_a_status_file_that_is_a_device_is_written_to_and_not_replaced(dsec):
    dsec.fails(125, "exec", "--status-file", "/dev/null", "web", "true")
    with open("/dev/null", "rb") as null:
        assert null.read() == b""


def test_arguments_with_any_bytes_are_quoted_and_never_crash(dsec):
    for word in ("\udcff\udcfe", "a\x1b[31mb", "x" * 5000, "%s%n", "'", "\n"):
        for args in (["layer", "inspect", word], ["run", word], [word], ["ps", "-o", word], ["exec", word, "--", word]):
            result = dsec.run(*args)
            assert result.code in (2, 125), str(result)
            assert "\x1b" not in result.err
            assert "made a mistake" not in result.err, str(result)


def test_a_full_disk_behind_standard_output_is_a_failure(dsec):
    with open("/dev/full", "wb") as full:
        process = dsec.popen("version", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 1
    assert b"standard output" in err and b"ENOSPC" in err
