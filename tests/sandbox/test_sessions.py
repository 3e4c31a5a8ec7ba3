"""A session keeps the state of its shell, and no command can lie about its end or take the session along."""

import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import leftovers
import pytest
import rootfs
from waiting import until


def program_with_libraries(name: str) -> dict[str, bytes]:
    """A dynamic program of this host and what it needs, by the names that they have in an image."""
    found = shutil.which(name)
    assert found, f"{name} is not installed: ./dev setup"
    listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(/\S+)", listed)
    return {path.lstrip("/"): Path(path).read_bytes() for path in [*libraries]} | {
        f"usr/bin/{name}": Path(found).read_bytes()}


class Session:
    def __init__(self, dsec, *flags):
        self.dsec = dsec
        self.id = dsec.ok("session", "open", *flags, "box").strip()

    def run(self, text: str, *flags, **kwargs):
        return self.dsec.run("session", "run", *flags, "box", self.id, "--", text, **kwargs)

    def out(self, text: str, *flags, **kwargs) -> str:
        result = self.run(text, *flags, **kwargs)
        assert result.code == 0, str(result)
        return result.out

    def open(self) -> bool:
        return self.id in [session["id"] for session in listed(self.dsec)]


def listed(dsec) -> list[dict]:
    return [json.loads(line) for line in dsec.ok("session", "ls", "-o", "json", "box").splitlines()]


def processes(dsec) -> str:
    return dsec.ok("exec", "box", "--", "/bin/busybox", "ps")


@pytest.fixture
def box(dsec):
    files = program_with_libraries("bash") | program_with_libraries("dash")
    rootfs.import_base(dsec, files=files)
    dsec.ok("create", "--name", "box", "base/box")
    return dsec


OTHER_SHELL = pytest.mark.guest_slow("one shell tells what the kernel does")


@pytest.fixture(params=["bash", pytest.param("/usr/bin/dash", marks=OTHER_SHELL), pytest.param("sh", marks=OTHER_SHELL)])
def session(request, box):
    return Session(box, "--shell", request.param)


def test_a_session_keeps_directory_variables_functions_and_jobs(session):
    session.out("cd /usr; X=5; export Y='a b'; greet() { echo hello $1; }")
    assert session.out("pwd; echo $X; env | grep ^Y=; greet you") == "/usr\n5\nY=a b\nhello you\n"
    session.out("sleep 1000 & P=$!")
    assert session.out("kill -0 $P && echo lives; kill $P; wait $P; echo $?").splitlines() == ["lives", "143"]
    session.out("exec 3>/tmp/three; umask 077; echo one >&3")
    assert session.out("echo two >&3; cat /tmp/three; umask") == "one\ntwo\n0077\n"


def test_exit_codes_and_streams_are_those_of_the_command(session):
    assert session.run("echo out; echo err >&2; false").code == 1
    assert session.out("echo $?") == "1\n"
    result = session.run("echo out; echo err >&2; (exit 42)")
    assert (result.code, result.out, result.err) == (42, "out\n", "err\n")
    assert session.out("echo $?") == "42\n"
    assert session.run("no_such_program_here").code == 127
    assert session.run("sh -c 'kill -9 $$'").code == 137
    assert session.run("return 7").code == 7


@pytest.mark.guest_slow("a shell is the same on any kernel")
@pytest.mark.parametrize("text", ["if", "echo 'open", 'echo "open', "case x in", "cat <<END\nno end", "done", "( echo", "echo $((1 +))"])
def test_a_text_that_is_no_whole_command_does_no_harm(session, text):
    session.out("X=kept")
    session.run(text, timeout=20)
    assert session.out("echo $X") == "kept\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_texts_of_any_form_come_through(session):
    assert session.out("cat <<END\none $((1 + 1))\nthree\nEND\n") == "one 2\nthree\n"
    assert session.out("echo a\necho b\n\n\n# a comment\necho c\n") == "a\nb\nc\n"
    assert session.out("") == ""
    assert session.out("# nothing") == ""
    long = "x" * 100_000
    assert session.dsec.ok("session", "run", "box", session.id, input=f"V={long}\necho {long}\n") == long + "\n"
    assert session.out("echo ${#V}") == "100000\n"
    assert session.dsec.ok("session", "run", "box", session.id, "--", "printf", "%s|", "a b", "it's", "$X") == "a b|it's|$X|"
    # Beyond the first of a text in lines, too.
    assert session.out("printf '%s\\n' \"\\\\\" 'a\\b' '`' '!!'") == "\\\na\\b\n`\n!!\n"
    assert "NUL" in session.dsec.fails(125, "session", "run", "box", session.id, input=b"echo a\0b\n")


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_a_text_of_200_kilobytes_and_one_beyond_the_limit(session):
    text = "".join(f"echo line {i:06}\n" for i in range(12_000))
    assert len(text) > 200_000
    assert session.dsec.ok("session", "run", "box", session.id, input=text) == text.replace("echo ", "")
    assert session.dsec.run("session", "run", "box", session.id, input=b"#" * (5 << 20)).code == 125
    assert session.out("echo fine") == "fine\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_standard_input_is_the_given_one_or_empty_and_never_the_shells(session):
    assert session.out("cat; read x; echo \"[$x]\"; cat; echo end") == "[]\nend\n"
    assert session.out("read a; read b; echo $b $a; cat", "-i", input="one\ntwo\nthree\n") == "two one\nthree\n"
    assert session.out("head -c 3", "-i", input="abc" + "x" * 300_000) == "abc"
    assert session.out("cat") == ""
    assert session.out("wc -c", "-i", input=b"y" * 1_000_000).strip() == "1000000"


def test_output_cannot_forge_an_end(session):
    forged = "printf 'e0 0\\ne%032d 1 0\\ns1\\nr\\n' 0"
    assert session.run(f"{forged}; {forged} >&2; exec 5>&1; {forged} >&5; sleep 0.2; echo more; (exit 3)").code == 3
    # Nor do numbers of descriptors lead to where the shell reports, or to where it reads commands.
    text = f"for fd in 3 4 6 7 8 9; do {forged} >&$fd; read x <&$fd && echo got $x; done 2>/dev/null; sleep 0.2; (exit 4)"
    result = session.run(text)
    assert result.code == 4 and "got" not in result.out
    assert session.out("echo whole") == "whole\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_commands_inherit_no_descriptors_of_the_session(box):
    # busybox leaves open what it has put aside; it is of no use without the number that nobody can know.
    for shell in "bash", "/usr/bin/dash":
        session = Session(box, "--shell", shell)
        assert session.out("ls /proc/self/fd").split() == ["0", "1", "2", "3"]


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_no_byte_of_much_output_is_lost_or_comes_later(session):
    for count in (1, 65536, 3_000_000):
        result = session.run(f"head -c {count} /dev/zero | tr '\\0' x; head -c {count} /dev/zero | tr '\\0' y >&2")
        assert result.out == "x" * count and result.err == "y" * count
        assert session.out("echo next") == "next\n"
    for turn in range(30):
        assert session.out(f"echo {turn}; echo {turn} >&2") == f"{turn}\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_output_of_a_background_job_stays_with_the_command_that_started_it(session):
    started = session.dsec.json("session", "run", "-d", "box", session.id, "--", "(sleep 0.5; echo late) & echo early")
    assert until(lambda: session.run("true").code == 0)  # the first one has ended, and its job goes on
    for _ in range(10):
        assert session.out("echo other") == "other\n"
    logs = lambda: session.dsec.ok("logs", "--exec", started["exec_id"], "box")
    assert not leftovers.settle(lambda: "late" not in logs(), 30)
    assert session.out("echo last") == "last\n"
    assert logs() == "early\nlate\n"


def test_a_command_out_of_time_goes_and_the_session_and_earlier_jobs_stay(session):
    session.out("X=kept; (while :; do echo beat >> /tmp/beat; sleep 0.05; done) & cd /usr")
    for text in ("sleep 1000", "while :; do sleep 0.05; done", "while :; do :; done", "sleep 1001 | sleep 1002 | cat",
                 "sh -c 'trap \"\" INT TERM; while :; do sleep 0.1; done'", "(sleep 1003 &) ; sleep 1004 & wait"):
        started = time.monotonic()
        result = session.run(f"echo before; {text}; echo after", "--timeout", "300ms")
        assert result.code == 124, (text, str(result))
        assert result.out.startswith("before\n"), text
        # A program that does not mind SIGINT and SIGTERM has to be killed, and bash then begins with the next words.
        assert "after" not in result.out or "trap" in text, text
        assert time.monotonic() - started < 8, text
        assert session.open(), text
        assert session.out("echo $X; pwd") == "kept\n/usr\n", text
    left = processes(session.dsec)
    for number in range(1000, 1005):
        assert f"sleep {number}" not in left
    assert session.out("rm /tmp/beat; sleep 0.3; cat /tmp/beat | head -n 1") == "beat\n"


def test_a_shell_that_cannot_be_brought_back_is_killed_and_told_so(session):
    result = session.run("trap '' INT; while :; do :; done", "-o", "json", "--timeout", "300ms", timeout=30)
    last = json.loads(result.out.splitlines()[-1])
    assert result.code == 124
    assert last["cause"] == "timed_out" and last["session_ended"] is True
    assert not session.open()
    assert "no session" in session.run("echo").err.lower() or "find session" in session.run("echo").err


@pytest.mark.guest_slow("a shell is the same on any kernel")
@pytest.mark.parametrize(("text", "code"), [("exit 5", 5), ("exec sh -c 'exit 9'", 9), ("set -e; false", 1), ("kill -9 $$", 137),
                                            ("exec no_such_program", 127)])
def test_what_ends_the_shell_ends_the_session_and_is_told(session, text, code):
    session.out("sleep 1000 &")
    result = session.run(f"echo before; {text}; echo after")
    assert result.code == code, str(result)
    assert result.out == "before\n"
    assert "has ended" in result.err
    assert not session.open()
    assert "sleep 1000" not in processes(session.dsec)


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_a_trap_at_the_end_is_heard(session):
    session.out("trap 'echo farewell' EXIT")
    result = session.run("exit 6")
    assert (result.code, result.out) == (6, "farewell\n")


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_what_does_not_end_an_interactive_shell_does_not_end_a_session(session):
    session.out("X=kept")
    session.run("kill $$; sleep 0.1")
    session.run("set -u; echo $unset_variable")
    session.run("set +u; : ${unset_variable?is unset}")
    session.run("trap 'echo trapped' USR1; kill -USR1 $$")
    session.run("break; continue")
    session.run("echo() { :; }; alias command=false; exec 0<&- 1>&- 2>&-")
    session.run("unset -f echo; unalias command")
    assert session.out("echo $X") == "kept\n"
    session.run("set -x")
    assert session.out("echo traced") == "traced\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_one_command_at_a_time_and_sessions_in_parallel(box):
    first, second = Session(box, "--name", "one"), Session(box)
    client = box.popen("session", "run", "box", "one", "--", "echo ready; until [ -e /tmp/go ]; do sleep 0.05; done")
    assert client.stdout.readline() == b"ready\n"
    refused = first.run("echo")
    assert refused.code == 125 and "EBUSY" in refused.err
    assert "File exists" in box.fails(1, "session", "open", "--name", "one", "box")
    running = next(session for session in listed(box) if session["name"] == "one")["running"]
    assert running in box.ok("commands", "box")
    second.out("touch /tmp/go")
    assert client.wait(30) == 0
    for stream in (client.stdin, client.stdout, client.stderr):
        stream.close()
    assert first.out("echo free") == "free\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_many_sessions_at_once_do_not_mix(box):
    failures = []

    def work(number: int) -> None:
        session = Session(box)
        session.out(f"V={number}")
        for turn in range(5):
            result = session.run(f"echo $V.{turn}; (exit {number})")
            if (result.out, result.code) != (f"{number}.{turn}\n", number):
                failures.append(str(result))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(listed(box)) == 6


def test_a_session_resumes_a_paused_sandbox(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "paused", "base/box")
    session = dsec.ok("session", "open", "paused").strip()
    for verb in (["session", "run", "paused", session, "--", "echo on"], ["session", "open", "paused"],
                 ["session", "close", "paused", session]):
        dsec.ok("pause", "paused")
        dsec.ok(*verb)
        assert dsec.json("inspect", "paused")[0]["state"] == "running", verb


def test_closing_kills_the_whole_tree(session):
    session.out("(setsid sleep 1111 &); sleep 1112 & nohup sleep 1113 >/dev/null 2>&1 &")
    client = session.dsec.popen("session", "run", "box", session.id, "--", "echo ready; sleep 1114")
    assert client.stdout.readline() == b"ready\n"
    session.dsec.ok("session", "close", "box", session.id)
    assert not re.search("sleep 111[1-4]", processes(session.dsec))
    assert client.wait(30) == 137
    assert b"has ended" in client.stderr.read()
    for stream in (client.stdin, client.stdout, client.stderr):
        stream.close()
    assert listed(session.dsec) == []


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_a_client_that_dies_loses_nothing(session):
    client = session.dsec.popen("session", "run", "box", session.id, "--", "echo one; until [ -e /tmp/go ]; do sleep 0.05; done; echo two; (exit 8)")
    assert client.stdout.readline() == b"one\n"
    client.kill()
    client.wait()
    for stream in (client.stdin, client.stdout, client.stderr):
        stream.close()
    running = listed(session.dsec)[0]["running"]
    follower = session.dsec.popen("attach", "--stdout-from", "4", "box", running)
    session.dsec.ok("exec", "box", "--", "touch", "/tmp/go")
    out, _ = follower.communicate(timeout=30)
    assert (out, follower.returncode) == (b"two\n", 8)
    again = session.dsec.run("attach", "box", running)
    assert (again.out, again.code) == ("one\ntwo\n", 8)


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_signals_reach_the_command_and_leave_the_session(session):
    client = session.dsec.popen("session", "run", "box", session.id, "--", "echo ready; sleep 1000; echo not reached")
    assert client.stdout.readline() == b"ready\n"
    client.send_signal(2)
    client.wait(30)
    assert client.returncode == 130
    assert client.stdout.read() == b""
    for stream in (client.stdin, client.stdout, client.stderr):
        stream.close()
    assert session.out("echo alive") == "alive\n"
    started = session.dsec.json("session", "run", "-d", "box", session.id, "--", "sleep 1000")["exec_id"]
    assert started in session.dsec.ok("commands", "box")
    session.dsec.ok("kill", "box", started)
    # What is killed is the program; the shell is interrupted.
    assert session.dsec.run("attach", "box", started).code in (130, 137)
    assert session.out("echo alive") == "alive\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_a_detached_command_waits_for_the_input_that_is_given_later(box):
    session = Session(box)
    started = box.json("session", "run", "-d", "-i", "box", session.id, "--", "read -r word; echo got $word")["exec_id"]
    assert started in [info["running"] for info in listed(box)]
    assert box.ok("attach", "-i", "box", started, input="it\n") == "got it\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_a_session_has_the_user_environment_and_directory_that_it_was_given(box):
    session = Session(box, "-u", "user", "-w", "/tmp", "-e", "A=b c", "--env-file", box.cwd / "env") if (
        (box.cwd / "env").write_text("B=d\n")) else None
    assert session.out("id -u; pwd; echo $A $B; echo $0 | tail -c 5; cat", "-i", input="in\n").startswith("1000\n/tmp\nb c d\n")
    assert session.out("echo x > /dev/stdout; echo $HOME") == "x\n/home/user\n"


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_what_is_no_shell_is_refused(box):
    assert "no shell" in box.fails(1, "session", "open", "--shell", "/bin/true", "box")
    assert "nothing_here" in box.fails(1, "session", "open", "--shell", "/bin/nothing_here", "box")
    assert "is no shell" in box.fails(2, "session", "open", "--shell", "zsh", "box")
    assert "find session" in box.fails(125, "session", "run", "box", "77", "--", "true")
    assert listed(box) == []


@pytest.mark.guest_slow("a shell is the same on any kernel")
def test_an_open_session_does_not_keep_an_idle_sandbox(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "box", "--idle", "1s", "base/box")
    session = Session(dsec)
    session.out("sleep 1.5; echo busy")
    dsec.run("wait", "box", timeout=20)
    assert "idle" in dsec.ok("ps", "-a")


def test_a_session_with_a_terminal(box):
    for shell in "bash", "sh":
        session = Session(box, "--tty", "--shell", shell)
        assert session.out("tty").startswith("/dev/pts/")
        assert session.out("printf one; printf two >&2") == "onetwo"
        assert session.out("X=4; stty -echo; stty size").strip() == "24 80"
        assert session.out("head -n 1; echo $X", "-i", input="typed\n").replace("\r", "") == "typed\n4\n"
        for count in (10, 20_000):
            assert session.out(f"head -c {count} /dev/zero | tr '\\0' x") == "x" * count
            assert session.out("echo next") == "next\r\n"
        forged = "printf 'e0 0\\ne%032d 1 0\\ns1\\nr\\n' 0"
        assert session.run(f"{forged}; {forged} > /dev/tty; {forged} >&8; {forged} >&9; sleep 0.2; echo more; (exit 3)").code == 3
        assert session.out("echo whole") == "whole\r\n"
        assert session.run("sleep 1000", "--timeout", "300ms").code == 124
        assert session.out("echo alive") == "alive\r\n"
        assert session.run("exit 3").code == 3
