"""dsec run as docker users expect it: exit codes, streams, settings, ends."""

import json
import signal
import socket
import threading
import time

import pytest
import rootfs


@pytest.fixture
def box(dsec) -> str:
    return rootfs.import_base(dsec)


def sh(script: str) -> list[str]:
    return ["--", "sh", "-c", script]


def test_the_exit_code_is_that_of_the_command(dsec, box):
    for code in (0, 1, 7, 124, 255):
        assert dsec.run("run", box, *sh(f"exit {code}")).code == code


def test_a_signal_is_128_and_its_number(dsec, box):
    assert dsec.run("run", box, *sh("kill -9 $$")).code == 137
    assert dsec.run("run", box, *sh("kill -15 $$")).code == 143


def test_a_missing_program_is_127_and_one_that_cannot_be_executed_126(dsec, box):
    assert "nosuch" in dsec.fails(127, "run", box, "--", "nosuch")
    assert "EACCES" in dsec.fails(126, "run", box, "--", "/etc/passwd")


def test_the_streams_stay_apart_and_are_bytes(dsec, box):
    result = dsec.run("run", box, *sh(r"printf 'o\377u'; printf 'e\0r' >&2"))
    assert (result.out, result.err) == ("o\udcffu", "e\0r")


def test_standard_input_is_streamed_when_asked_for(dsec, box):
    text = "".join(f"line {i}\n" for i in range(20000))
    assert dsec.ok("run", "-i", box, "--", "cat", input=text) == text
    assert dsec.ok("run", box, "--", "cat", input=text) == ""


def test_input_reaches_the_command_before_its_end(dsec, box):
    process = dsec.popen("run", "-i", box, *sh("read line; echo got $line; read line; echo and $line"))
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"got one\n"
    process.stdin.write(b"two\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"and two\n"
    assert process.wait(30) == 0


def test_a_foreground_sandbox_is_gone_at_the_end_and_kept_on_request(dsec, box):
    dsec.ok("run", "--rm", "--name", "gone", box, "--", "true")
    assert dsec.ok("ps", "-a", "-q") == ""
    dsec.ok("run", "--keep", "--name", "kept", box, *sh("echo hello"))
    assert dsec.json("ps", "-a")["name"] == "kept"
    assert dsec.ok("logs", "kept") == "hello\n"


def is_gone(dsec) -> bool:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if dsec.ok("ps", "-aq") == "":
            return True
        time.sleep(0.05)
    return False


def test_a_detached_sandbox_that_is_to_go_is_removed_by_its_keeper(dsec, box):
    dsec.ok("run", "-d", "--rm", "--name", "brief", box, "--", "true")
    assert is_gone(dsec) and not list((dsec.home / "sandboxes").glob("[a-z]*"))
    dsec.ok("run", "-d", "--rm", "--name", "brief", box, *sh("sleep 0.5; exit 6"))
    assert dsec.run("wait", "brief").code == 6
    assert is_gone(dsec)
    dsec.ok("run", "-d", "--rm", "--disk", "20m", "--name", "brief", box, "--", "sleep", "100")
    dsec.ok("stop", "-t", "0", "brief")
    assert is_gone(dsec)


def test_a_foreground_sandbox_goes_at_its_end_though_dsec_was_killed(dsec, box):
    process = dsec.popen("run", "--name", "left", box, *sh("echo ready; until [ -e /tmp/go ]; do sleep 0.05; done"))
    assert process.stdout.readline() == b"ready\n"
    process.kill()
    process.communicate()
    dsec.run("exec", "left", "--", "touch", "/tmp/go")  # its own end may come before it is told
    assert is_gone(dsec)


def test_a_timeout_gives_124_and_the_partial_output_and_takes_the_whole_tree(dsec, box):
    began = time.monotonic()
    result = dsec.run("run", "--timeout", "1s", "--status-file", "status", box,
                      *sh("echo partial; echo wrong >&2; (setsid sleep 300 &) ; sleep 300"))
    assert result.code == 124, str(result)
    assert result.out == "partial\n"
    assert "wrong\n" in result.err
    assert time.monotonic() - began < 30
    assert json.loads((dsec.cwd / "status").read_text())["by"] == "timeout"


def test_a_time_of_0_means_no_limit(dsec, box):
    assert dsec.ok("run", "--timeout", "0", "--lifetime", "0", "--idle", "0s", box, *sh("sleep 0.2; echo end")) == "end\n"


def test_a_host_name_that_is_none_is_refused_with_the_rule(dsec, box):
    told = dsec.fails(125, "run", "--hostname", "a b", box, "--", "true")
    assert "'a b' is no valid host name" in told and "letters, digits" in told


def test_the_status_file_tells_a_commands_125_from_dsecs(dsec, box):
    assert dsec.run("run", "--status-file", "status", box, *sh("exit 125")).code == 125
    told = json.loads((dsec.cwd / "status").read_text())
    assert (told["by"], told["exit_code"], told["reason"]) == ("command", 125, "exit code 125")


def test_variables_come_from_flags_files_and_here(dsec, box):
    (dsec.cwd / "vars").write_text("# comment\nFROM_FILE=1\nTWICE=file\nFROM_HERE\nNOT_SET\n\nEMPTY=\n")
    out = dsec.ok("run", "--env-file", "vars", "-e", "TWICE=flag", "-e", "ALSO_HERE", "-e", "SPACES=a b", box, "--", "env",
                  env={"FROM_HERE": "h", "ALSO_HERE": "x=y"})
    found = dict(line.split("=", 1) for line in out.splitlines())
    assert {name: found.get(name) for name in
            ("FROM_FILE", "TWICE", "FROM_HERE", "ALSO_HERE", "SPACES", "EMPTY", "NOT_SET")} == {
        "FROM_FILE": "1", "TWICE": "flag", "FROM_HERE": "h", "ALSO_HERE": "x=y", "SPACES": "a b", "EMPTY": "",
        "NOT_SET": None}
    assert found["PATH"]


def test_workdir_user_and_hostname_are_as_asked_for(dsec, box):
    out = dsec.ok("run", "-w", "/tmp/made", "-u", "user", "--hostname", "web", box, *sh("pwd; id -u; id -g; hostname"))
    assert out.split() == ["/tmp/made", "1000", "1000", "web"]
    assert dsec.ok("run", "-u", "4711:4712", box, *sh("id -u; id -g")).split() == ["4711", "4712"]
    assert "working directory 'made' is not absolute" in dsec.fails(125, "run", "-w", "made", box, "--", "true")


def test_the_entrypoint_goes_before_the_command_and_can_be_replaced(dsec, box):
    assert dsec.ok("run", "--entrypoint", "/bin/echo", box, "--", "a", "b") == "a b\n"
    assert dsec.ok("run", "--entrypoint", "", box, "--", "echo", "c") == "c\n"
    assert "no command is given" in dsec.fails(125, "run", box)


def test_a_path_of_the_host_is_bound_and_read_only_when_asked_for(dsec, box, work):
    (work / "shared").mkdir(mode=0o777)
    (work / "shared").chmod(0o777)
    (work / "shared" / "in").write_text("from here\n")
    assert dsec.ok("run", "-v", f"{work}/shared:/mnt", box, *sh("cat /mnt/in; echo back > /mnt/out")) == "from here\n"
    assert (work / "shared" / "out").read_text() == "back\n"
    assert dsec.run("run", "-v", "shared:/mnt:ro", box, *sh("echo no > /mnt/in")).code != 0
    assert (work / "shared" / "in").read_text() == "from here\n"


def test_what_holds_dsecs_own_home_is_not_bound(dsec, box, work):
    for path in (work, dsec.home, "/"):
        err = dsec.fails(125, "run", "-v", f"{path}:/mnt:ro", box, "--", "true")
        assert f"cannot bind '{path}': dsec's own '{dsec.home}' lies in it" in err and "DSEC_HOME" in err, err
    (work / "beside").mkdir()
    dsec.ok("run", "-v", f"{work}/beside:/mnt", box, "--", "true")


def test_a_read_only_sandbox_cannot_be_written_to(dsec, box):
    result = dsec.run("run", "--read-only", box, *sh("touch /etc/new"))
    assert result.code == 1 and "Read-only" in result.err


def test_there_is_no_network_unless_it_is_asked_for(dsec, box):
    assert dsec.ok("run", box, *sh("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1")).split() in (
        ["lo"], ["lo", "lo"])


def test_the_hosts_network_is_had_by_asking_for_it(dsec, box):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        threading.Thread(target=lambda: server.accept()[0].sendall(b"from the host\n"), daemon=True).start()
        connect = sh(f"nc -w 10 127.0.0.1 {port} < /dev/null")
        assert dsec.run("run", box, *connect).code != 0
        assert dsec.ok("run", "--network", "host", box, *connect) == "from the host\n"


def test_a_sandbox_ends_with_its_lifetime_whatever_runs(dsec, box):
    began = time.monotonic()
    result = dsec.run("run", "--keep", "--name", "short", "--lifetime", "2s", box, *sh("echo begun; sleep 300"))
    assert (result.code, result.out) == (137, "begun\n") and time.monotonic() - began < 30
    ended = dsec.json("inspect", "short")[0]
    assert (ended["state"], ended["reason"]) == ("stopped", "its lifetime ended")


def test_layers_that_contradict_each_other_are_stacked_when_that_is_accepted(dsec, box, work):
    (work / "tool").mkdir()
    (work / "tool" / "passwd").mkdir()
    (work / "tool" / "passwd" / "inside").write_text("x\n")
    dsec.ok("import", "toolkit/odd", "dir:tool", "--to", "/etc")
    told = dsec.fails(125, "run", box, "toolkit/odd", "--", "true")
    assert "toolkit/odd" in told and "base/box" in told and "etc/passwd" in told
    look = ["--", "cat", "/etc/passwd/inside"]
    assert dsec.ok("run", "--accept-conflicts", box, "toolkit/odd", *look) == "x\n"
    (work / "dsec.yaml").write_text("version: 1\nenvironments:\n"
                                    "  odd: {base: base/box, toolkits: [toolkit/odd], accept_conflicts: true}\n"
                                    "  not: {base: base/box, toolkits: [toolkit/odd]}\n")
    assert dsec.ok("run", "odd", *look) == "x\n"
    dsec.fails(125, "run", "not", *look)
    assert "conflict: not: 'etc/passwd'" in dsec.run("env", "check").out


def test_layers_may_be_given_by_flag_and_in_any_order(dsec, box, work):
    (work / "tool").mkdir()
    (work / "tool" / "greet").write_text("#!/bin/sh\necho greetings\n")
    (work / "tool" / "greet").chmod(0o755)
    dsec.ok("import", "toolkit/greet", "dir:tool", "--to", "/opt/greet")
    dsec.ok("import", "workspace/w", "dir:tool", "--to", "/workspace")
    for layers in (["toolkit/greet", "workspace/w", box], ["--base", box, "--workspace", "workspace/w", "--toolkit", "toolkit/greet"]):
        assert dsec.ok("run", *layers, *sh("/opt/greet/greet; /workspace/greet")) == "greetings\n" * 2


def test_an_environment_of_dsec_yaml_is_run_with_its_settings(dsec, box, work):
    (work / "dsec.yaml").write_text(
        "version: 1\nenvironments:\n  demo:\n    base: base/box\n    workdir: /tmp\n    env: {GREETING: '${WORD:-hello}'}\n"
        "    user: user\n    labels: {suite: demo}\n")
    assert dsec.ok("run", "demo", *sh("pwd; echo $GREETING; id -un")).split() == ["/tmp", "hello", "user"]
    assert dsec.ok("run", "--arg", "WORD=hi", "-u", "root", "demo", *sh("echo $GREETING; id -un")).split() == ["hi", "root"]
    assert "demo" in dsec.fails(125, "run", "dmeo", "--", "true")


def test_json_has_one_event_a_line_and_ends_with_the_result(dsec, box):
    events = dsec.json("run", box, *sh("echo out; sleep 0.2; echo err >&2"))
    assert [event["type"] for event in events] == ["stdout", "stderr", "exit"]
    assert events[0]["data"] == "out\n"
    assert (events[2]["cause"], events[2]["exit_code"], events[2]["stdout_bytes"]) == ("exited", 0, 4)


def test_a_signal_goes_to_the_command_and_not_to_dsec(dsec, box):
    process = dsec.popen("run", box, *sh("trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done"))
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == (b"caught\n", 9)


def test_a_command_begins_with_no_signal_blocked_or_ignored(dsec, box):
    for args in (["run", box], ["run", "-t", box]):
        status = dsec.ok(*args, "--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
        assert [line.split()[1] for line in status.splitlines()] == ["0" * 16, "0" * 16], status


def test_a_reader_that_has_gone_ends_the_command(dsec, box):
    process = dsec.popen("run", box, "--", "yes")
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) in (141, 137)


def test_a_name_can_be_used_once_and_again_after_rm(dsec, box):
    dsec.ok("run", "-d", "--name", "web", box, "--", "sleep", "100")
    assert "web" in dsec.fails(125, "run", "--name", "web", box, "--", "true")
    dsec.ok("rm", "-f", "web")
    dsec.ok("run", "--name", "web", box, "--", "true")


def test_what_cannot_be_run_leaves_nothing(dsec, box):
    dsec.fails(127, "run", box, "--", "nosuch")
    dsec.fails(125, "run", "--backend", "microvm", box, "--", "true")
    dsec.fails(125, "run", "--name", "no/name", box, "--", "true")
    assert dsec.ok("ps", "-a", "-q") == ""


def test_output_that_cannot_be_written_is_dsecs_failure_and_leaves_no_sandbox(dsec, box):
    with open("/dev/full", "wb") as full:
        process = dsec.popen("run", box, *sh("echo text; sleep 1000"), stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 125 and b"ENOSPC" in err
    assert dsec.ok("ps", "-aq") == ""
