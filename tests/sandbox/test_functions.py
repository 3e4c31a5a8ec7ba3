"""dsec fn: one command in a sandbox of its own, with a verdict; pools that nobody's state survives."""

import json
import os
import time
from pathlib import Path

import dsec_tool
import host
import leftovers
import pytest
import rootfs

YAML = """\
version: 1
environments:
  e: {{base: base/box, limits: {{memory: 64MiB, pids: 64}}}}
functions:
  sh:
    environment: e
    command: [sh, main.sh]
    workdir: /tmp
    limits: {{time: 2s, output: 64KiB}}
    {more}
  script:
    environment: e
    command: [sh]
    limits: {{time: 5s, memory: 32MiB}}
    {more}
  spinning:
    environment: e
    command: [sh]
    limits: {{time: 5s, cpu_time: 500ms}}
"""


@pytest.fixture
def fn(dsec, work):
    """Calls a function and gives its result."""
    rootfs.import_base(dsec, files={"bin/traces": (dsec_tool.BIN / "probe_traces").read_bytes()})

    def write(more: str = "") -> None:
        (work / "dsec.yaml").write_text(YAML.format(more=more))

    def call(name, script, *args, **kwargs):
        text = dsec.run("fn", "run", name, "--stdin", "-", "-o", "json", *args, input=script, **kwargs)
        return json.loads(text.out) if text.out else pytest.fail(str(text))

    write()
    call.write = write
    yield call
    # Calls leave a process behind that fills their pool; what it makes is not the next test's.
    for _ in range(200):
        if not fillers(dsec.home):
            break
        time.sleep(0.05)


def fillers(home) -> list[str]:
    """Processes that fill a pool of this home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.joinpath("cmdline").read_bytes().startswith(b"dsec\0fn\0pool\0") and \
                    f"DSEC_HOME={home}".encode() in process.joinpath("environ").read_bytes().split(b"\0"):
                found.append(process.name)
        except OSError:
            pass
    return found


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_call_gets_input_files_and_arguments_and_gives_both_streams_and_the_exit_code(dsec, fn, work):
    (work / "prog").write_text('cat; cat sub/data; echo "$@" >&2; exit 3')
    (work / "data").write_text("data\n")
    result = dsec.run("fn", "run", "sh", "--file", "main.sh=prog", "--file", f"sub/data={work}/data", "--stdin", "-",
                      "--", "a", "b c", input="in\n")
    assert (result.code, result.out, result.err) == (3, "in\ndata\n", "a b c\n"), str(result)
    assert dsec.ok("ps", "-a", "-q") == ""


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_each_verdict(fn):
    assert fn("script", "exit 0")["verdict"] == "ok"
    assert fn("script", "exit 1")["verdict"] == "runtime-error"
    assert fn("script", "kill -SEGV $$")["verdict"] == "runtime-error"
    slow = fn("script", "echo partial; sleep 60", env={})
    assert slow["verdict"] == "time-limit" and slow["stdout"] == {"data": "partial\n"}, slow
    assert 5.0e6 <= slow["time_us"] < 7.5e6, slow
    eater = fn("script", "tail /dev/zero")
    assert eater["verdict"] == "memory-limit" and "of a limit of 32.0 MiB the most used was " in eater["detail"], eater
    if host.counts_memory_peak():
        assert 30 << 20 <= eater["memory_peak"] <= 34 << 20
    else:
        assert eater["memory_peak"] == 0
    assert eater["result"]["memory"]["limit"] == 32 << 20


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_more_output_than_allowed_ends_the_call_and_keeps_what_is_allowed(fn, work):
    (work / "main.sh").write_text("yes")
    result = fn("sh", "", "--file", "main.sh")
    assert result["verdict"] == "output-limit"
    assert len(result["stdout"]["data"]) == 65536
    (work / "main.sh").write_text("head -c 65536 /dev/zero | tr '\\0' x")
    assert fn("sh", "", "--file", "main.sh")["verdict"] == "ok"


def test_processor_time_is_limited_over_all_processes(fn):
    spin = "for i in 1 2; do sh -c 'while :; do :; done' & done; wait"
    result = fn("spinning", spin)
    assert (result["verdict"], result["detail"]) == ("time-limit", "processor time"), result
    # The end may come late on a busy host, but well before the limit of time.
    assert 0.475e6 <= result["cpu_time_us"] <= 1.5e6, result


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_call_that_makes_no_sense_is_refused(dsec, fn, work):
    (work / "f").write_text("x")
    for name in ("../f", "/etc/f", "a/../b", "./f", "x" * 101, ""):
        assert "file" in dsec.fails(125, "fn", "run", "sh", "--file", f"{name}={work}/f"), name
    assert "did you mean" in dsec.fails(125, "fn", "run", "scrypt")
    assert dsec.ok("ps", "-a", "-q") == ""


def wait_for_pool(dsec, name: str, count: int) -> None:
    for _ in range(200):
        if dsec.json("fn", "pool", name)["ready"] >= count:
            return
        time.sleep(0.05)
    pytest.fail(f"pool of {name} is not filled: {dsec.ok('fn', 'pool', name)}")


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_pool_is_filled_used_up_and_filled_again_by_itself(dsec, fn):
    fn.write("pool: 3")
    assert not fn("script", "exit 0")["from_pool"]
    wait_for_pool(dsec, "script", 3)
    assert fn("script", "exit 0")["from_pool"]
    wait_for_pool(dsec, "script", 3)
    assert dsec.ok("fn", "pool", "script", "--drain") == "0 of 3 ready\n"
    assert dsec.ok("ps", "-a", "-q") == ""


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_no_call_sees_what_another_left(dsec, fn):
    fn.write("pool: 2")
    dsec.ok("fn", "pool", "script", "--fill")
    # What is read, run and found missing is something to take the time of, as is what is written.
    leave = """
        for d in / /tmp /dev/shm /root /var/log; do echo secret > $d/left; date > $d/left-time; done
        mkdir /tmp/dir; (sleep 100 & echo $! > /tmp/pid); ln -s /etc/passwd /tmp/link
        cat /etc/passwd /bin/busybox > /dev/null; touch /etc/passwd /bin /var
        echo x > /dev/mqueue/q 2>/dev/null
        traces leave && traces look"""
    look = """ls -A / /tmp /dev/shm /dev/mqueue /root /var/log; ps; tail -n +2 /proc/net/unix; for entry in /proc/[0-9]*; do echo $entry; done
        traces look; cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg
        stat -c '%n %X %Y' /etc/passwd /bin /bin/busybox /var"""
    clean = fn("script", look)
    times = [line for line in clean["stdout"]["data"].splitlines() if line.startswith(("/etc/passwd ", "/bin", "/var "))]
    assert len(times) == 4, clean
    for _ in range(3):
        left = fn("script", leave)
        assert left["verdict"] == "ok" and left["stdout"]["data"].splitlines() == ["socket", "segment", "semaphore", "queue"], left
        seen = fn("script", look)
        assert "left" not in seen["stdout"]["data"] and "sleep" not in seen["stdout"]["data"]
        assert not [word for word in ("socket", "segment", "semaphore", "queue") if f"{word}\n" in seen["stdout"]["data"]], seen
        count = [text["stdout"]["data"].count("\n") for text in (clean, seen)]
        assert count[0] == count[1], (clean, seen)
        assert [line for line in seen["stdout"]["data"].splitlines() if line in times] == times, (clean, seen)


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_changed_type_has_a_pool_of_its_own(dsec, fn):
    fn.write("pool: 1")
    dsec.ok("fn", "pool", "script", "--fill")
    fn.write("pool: 1\n    env_unused: 1".replace("\n    env_unused: 1", "\n    pool_idle: 9m"))
    assert dsec.json("fn", "pool", "script")["ready"] == 0
    fn.write("pool: 1")
    assert dsec.json("fn", "pool", "script")["ready"] == 1


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_sandboxes_nobody_calls_go_by_themselves(dsec, fn):
    fn.write("pool: 1\n    pool_idle: 300ms")
    dsec.ok("fn", "pool", "script", "--fill")
    assert not leftovers.settle(lambda: dsec.ok("ps", "-q"), 30)
    assert fn("script", "echo fresh")["stdout"] == {"data": "fresh\n"}


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_warm_up_leaves_its_files_and_its_failure_is_told(dsec, fn):
    fn.write("pool: 1\n    warm_up: echo warm > /tmp/warm")
    dsec.ok("fn", "pool", "script", "--fill")
    assert fn("script", "cat /tmp/warm")["stdout"] == {"data": "warm\n"}
    fn.write("pool: 1\n    warm_up: echo broken >&2; exit 9")
    result = fn("script", "exit 0")
    assert result["verdict"] == "infra" and "broken" in result["detail"] and "exit code 9" in result["detail"]


def test_a_preloaded_command_waits_for_its_input(dsec, fn):
    fn.write("pool: 1\n    preload: true")
    dsec.ok("fn", "pool", "script", "--fill")
    result = fn("script", "echo $((6*7)); exit 5")
    assert result["from_pool"] and result["stdout"] == {"data": "42\n"} and result["result"]["exit_code"] == 5
    assert fn("script", "while :; do :; done")["verdict"] == "time-limit"


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_sandbox_that_is_stopped_during_a_call_gives_the_verdict_killed(dsec, fn, work):
    call = dsec.popen("fn", "run", "script", "--stdin", "-", "-o", "json")
    call.stdin.write(b"sleep 4")
    call.stdin.close()
    for _ in range(100):
        ids = dsec.ok("ps", "-q").split()
        if ids and dsec.json("inspect", ids[0])[0]["commands"]:
            break
        time.sleep(0.02)
    dsec.ok("rm", "-f", ids[0])
    out = call.stdout.read()
    assert json.loads(out)["verdict"] == "killed", out
    call.wait()


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_judging(dsec, fn, work):
    cases = work / "cases"
    cases.mkdir()
    for number, (text, answer) in enumerate([("1 2", "3"), ("5 5", "10\n"), ("1 1", "3"), ("2 2", "4")], start=9):
        (cases / f"{number}.in").write_text(text)
        (cases / f"{number}.out").write_text(answer)
    (work / "main.sh").write_text("read a b; echo $((a+b))")
    result = dsec.run("fn", "judge", "sh", "--file", "main.sh", "--cases", "cases", "--all", "-o", "json")
    assert result.code == 3, str(result)
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [(line["case"], line["verdict"]) for line in lines] == [
        ("9", "ok"), ("10", "ok"), ("11", "wrong-answer"), ("12", "ok")]
    assert "expected '3', found '2'" in lines[2]["detail"]
    (cases / "11.out").write_text("2")
    assert "4 of 4" in dsec.ok("fn", "judge", "sh", "--file", "main.sh", "--cases", "cases")


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_outputs_are_compared_as_the_judge_is_told_to(dsec, fn, work):
    (work / "cases").mkdir()
    (work / "cases/1.in").write_text("")
    (work / "cases/1.out").write_text("1.000 two\n")

    def verdict(output: str, *flags) -> str:
        (work / "main.sh").write_text(f"printf '{output}'")
        result = dsec.run("fn", "judge", "sh", "--file", "main.sh", "--cases", "cases", *flags, "-o", "json")
        told = json.loads(result.out)["verdict"]
        assert result.code == (0 if told == "ok" else 3), str(result)
        return told

    ok, wrong = "ok", "wrong-answer"
    spaced, exact, near, far = "1.000   two", r"1.000 two\n", "1.0000001 two", "1.01 two"
    assert [verdict(text) for text in (spaced, exact, near)] == [ok, ok, wrong]
    assert [verdict(text, "--compare", "exact") for text in (spaced, exact, near)] == [wrong, ok, wrong]
    assert [verdict(text, "--compare", "floats") for text in (spaced, exact, near, far)] == [ok, ok, ok, wrong]
    assert verdict(far, "--compare", "floats", "--tolerance", "0.02") == ok
    assert verdict(near, "--compare", "floats", "--tolerance", "1e-9") == wrong


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_functions_are_listed(dsec, fn, work):
    listed = [json.loads(line) for line in dsec.ok("fn", "ls", "-o", "json").splitlines()]
    assert {spec["name"]: spec["command"] for spec in listed} == {"script": ["sh"], "sh": ["sh", "main.sh"], "spinning": ["sh"]}
    assert {spec["name"]: spec["run_limits"].get("cpu_time_ms") for spec in listed} == {"script": None, "sh": None, "spinning": 500}
    fn.write("pool: 7")
    (work / "elsewhere").mkdir()
    (work / "dsec.yaml").rename(work / "elsewhere/other.yaml")
    table = dsec.ok("fn", "ls", "-p", "elsewhere/other.yaml")
    row = next(line.split() for line in table.splitlines() if line.startswith("sh "))
    assert row == ["sh", "e", "2s", "-", "7", "sh", "main.sh"], table
    assert "dsec.yaml" in dsec.fails(1, "fn", "ls")


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_call_tells_who_decided_its_exit_code(dsec, fn, work):
    def status(script: str) -> tuple:
        (work / "status").unlink(missing_ok=True)
        result = dsec.run("fn", "run", "script", "--stdin", "-", "--status-file", "status", input=script)
        told = json.loads((work / "status").read_text())
        assert told["exit_code"] == result.code, str(result)
        return result.code, told["by"], told["reason"], told.get("memory", {}).get("limit")

    assert status("exit 3") == (3, "command", "exit code 3", None)
    assert status("exec tail /dev/zero")[::3] == (137, 32 << 20)
    (work / "main.sh").write_text("sleep 60")
    assert dsec.run("fn", "run", "sh", "--file", "main.sh", "--status-file", "status").code == 124
    assert json.loads((work / "status").read_text())["by"] == "timeout"
    assert dsec.run("fn", "run", "nosuch", "--status-file", "status").code == 125
    assert json.loads((work / "status").read_text())["by"] == "dsec"


COMPILED = """\
version: 1
environments:
  e: {base: base/box}
functions:
  built:
    environment: e
    workdir: /tmp
    compile: "grep -q good src && { date +%s%N > stamp; tr a-z A-Z < src > prog; } || { echo 'no good' >&2; exit 1; }"
    command: cat prog stamp
  check:
    environment: e
    workdir: /tmp
    command: read want < expected; read have < output; test "$have" = "$want"
"""


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_compilation_is_shared_by_the_cases_and_its_failure_is_a_verdict(dsec, fn, work):
    (work / "dsec.yaml").write_text(COMPILED)
    cases = work / "cases"
    cases.mkdir()
    for name in "abc":
        (cases / f"{name}.in").write_text("")
        (cases / f"{name}.ans").write_text("GOOD\n")
    (work / "src").write_text("good\n")
    out = dsec.ok("fn", "judge", "built", "--file", "src", "--cases", "cases", "--checker", "check", "-o", "json")
    outputs = {json.loads(line)["stdout"]["data"] for line in out.splitlines()}
    assert len(outputs) == 1, "compiled more than once"
    (work / "src").write_text("bad\n")
    result = dsec.run("fn", "judge", "built", "--file", "src", "--cases", "cases", "-o", "json")
    first = json.loads(result.out.splitlines()[0])
    assert result.code == 3 and first["verdict"] == "compile-error" and "no good" in first["detail"], str(result)
    single = json.loads(dsec.run("fn", "run", "built", "--file", "src", "-o", "json").out)
    assert (single["verdict"], single["stage"]) == ("runtime-error", "compile")


CHECKED = """\
version: 1
environments:
  e: {base: base/box, workdir: /tmp}
functions:
  say: {environment: e, command: cat}
  check:
    environment: e
    command: >-
      read said < output; read asked < input; cat expected;
      case $said/$asked in good/good) exit 0;; bad/*) echo not like that; exit 1;; *) echo broken >&2; exit 7;; esac
"""


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_a_checker_accepts_rejects_with_its_words_or_cannot_tell(dsec, fn, work):
    (work / "dsec.yaml").write_text(CHECKED)
    (work / "cases").mkdir()
    for number, said in enumerate(("good", "bad", "odd"), start=1):
        (work / f"cases/{number}.in").write_text(f"{said}\n")
        (work / f"cases/{number}.out").write_text("expected\n")
    judge = ("fn", "judge", "say", "--cases", "cases", "--checker", "check", "--all", "-o", "json")
    result = dsec.run(*judge)
    told = [json.loads(line) for line in result.out.splitlines()]
    assert [line["verdict"] for line in told] == ["ok", "wrong-answer", "infra"], str(result)
    assert told[1]["detail"] == "expected\nnot like that\n"
    assert told[2]["detail"].startswith("the checker ended with runtime-error: expected")
    # What could not be judged is told before what was found wrong.
    assert result.code == 1, str(result)
    (work / "cases/3.in").unlink()
    assert dsec.run(*judge).code == 3
    assert "did you mean" in dsec.run(*judge[:6], "chek").err
    (work / "dsec.yaml").write_text(CHECKED.replace("case $said", "sleep 60; case $said").replace(
        "check:\n    environment: e", "check:\n    environment: e\n    limits: {time: 300ms}"))
    slow = dsec.run(*judge)
    assert {json.loads(line)["verdict"] for line in slow.out.splitlines()} == {"infra"} and "time-limit" in slow.out, str(slow)


LANGUAGES = """\
version: 1
environments:
  e: {base: base/languages, workdir: /tmp}
functions:
  shell: {environment: e, language: sh}
  c: {environment: e, language: c, pool: 1}
"""
# A compiler that any host has.
CC = """#!/bin/sh
[ "$*" = "-O2 -o main main.c -lm" ] || { echo "cc $*" >&2; exit 1; }
{ echo "#!/bin/sh"; sed s/print/echo/ main.c; } > main && chmod +x main
"""


def test_a_language_stands_for_command_and_compilation(dsec, fn, work):
    rootfs.import_base(dsec, "base/languages", files={"usr/bin/cc": CC})
    (work / "dsec.yaml").write_text(LANGUAGES)
    (work / "solution").write_text("echo shell: $1 $(cat)\n")
    assert dsec.ok("fn", "run", "shell", "--stdin", "-", "--file", "main.sh=solution", "--", "arg", input="in") == "shell: arg in\n"
    (work / "solution").write_text("print compiled\n")
    assert dsec.ok("fn", "run", "c", "--file", "main.c=solution") == "compiled\n"
    (listed,) = [line for line in dsec.json("fn", "ls") if line["name"] == "c"]
    assert (listed["language"], listed["command"]) == ("c", ["./main"])
    (work / "dsec.yaml").write_text(LANGUAGES.replace("language: sh", "language: pyhton"))
    assert "did you mean 'python'?" in dsec.fails(2, "fn", "ls")


def test_many_calls_leave_nothing(dsec, fn, long_run):
    fn.write("pool: 4")
    # A plain run does a tenth, and the guest, which takes its time, a hundredth.
    calls = 10_000 if long_run else 100 if os.environ.get("DSEC_LANE") == "guest" else 1_000
    told = dsec.json("fn", "bench", "script", "--calls", str(calls), timeout=600)
    assert told["verdicts"] == {"ok": calls}
    dsec.ok("fn", "pool", "script", "--drain")
    assert dsec.ok("ps", "-a", "-q") == ""


@pytest.mark.guest_slow("what a call gives back is no matter of the kernel")
def test_every_mistake_in_a_type_is_told_with_its_place(dsec, fn, work):
    (work / "dsec.yaml").write_text("""\
version: 1
environments:
  judge: {base: base/box}
functions:
  a: {environment: juge, command: []}
  b: {environment: judge, command: x, preload: true, compile: y, pool: -1}
""")
    err = dsec.fails(125, "fn", "run", "a")
    assert "pool" in err or "above 0" in err
    (work / "dsec.yaml").write_text((work / "dsec.yaml").read_text().replace(", pool: -1", ""))
    err = dsec.fails(125, "fn", "run", "a")
    for text in (":5:20: there is no environment 'juge'; did you mean 'judge'?", ":5:35: the command is empty",
                 ":6:63: with `preload`"):
        assert text in err, err
