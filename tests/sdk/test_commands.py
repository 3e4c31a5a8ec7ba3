"""Commands, sessions and terminals."""

import asyncio
import os
import signal
import time

import pytest
from libdsec import DSecCommandError, DSecContainerRunArgs, DSecError, DSecUsageError

BOX = DSecContainerRunArgs("base/box", lifetime=300)


async def test_a_command_tells_what_it_said_and_how_it_ended(client):
    box = await client.run_container(BOX)
    result = await box.run_shell("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.cause, result.ok, result.stdout, result.stderr) == (3, "exited", False, "out\n", "err\n")
    assert (await box.run(["cat", "/etc/passwd"])).stdout.startswith("root:x:0:0")
    killed = await box.run_shell("kill -9 $$")
    assert (killed.exit_code, killed.signal, killed.reason) == (137, 9, "it was ended by signal 9 (SIGKILL)")
    missing = await box.run(["/no/such"])
    assert (missing.exit_code, missing.cause) == (127, "not_found")
    assert [command.argv[0] for command in await box.commands()] == ["/bin/sh", "cat", "/bin/sh", "/no/such"]


async def test_where_and_as_whom_a_command_runs(client):
    box = await client.run_container(DSecContainerRunArgs("base/box", lifetime=300, env={"A": "1", "B": "2"}, workdir="/srv", init_user="user"))
    assert (await box.run_shell("echo $A $B $PWD; id -u")).stdout == "1 2 /srv\n1000\n"
    result = await box.run_shell("echo $A $B $PWD; id -u", env={"B": "two\nlines"}, workdir="/tmp", user="0")
    assert result.stdout == "1 two lines /tmp\n0\n"
    assert (await box.run(["printf", "%s", b"\xff\xfe"])).stdout_bytes == b"\xff\xfe"


async def test_a_timeout_ends_all_that_was_started_and_keeps_what_was_said(client):
    box = await client.run_container(BOX)
    result = await box.run_shell("echo begun; setsid sleep 1000 & sleep 1000", timeout=0.5)
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, "begun\n")
    await no_sleep_in(box)


async def test_check_raises_with_what_was_said(client):
    box = await client.run_container(BOX)
    assert (await box.run_shell("true", check=True)).ok
    with pytest.raises(DSecCommandError) as caught:
        await box.run_shell("echo no such luck >&2; exit 4", check=True)
    assert caught.value.result.exit_code == 4
    assert str(caught.value).endswith("because: it ended with exit code 4\n  because: it said: no such luck")


async def test_input_of_any_size_goes_in_while_output_comes_out(client):
    box = await client.run_container(BOX)
    data = os.urandom(3_000_000)
    assert (await box.run(["cat"], input=data)).stdout_bytes == data
    assert (await box.run(["cat"], input="")).stdout == ""
    # One that does not want it is no error.
    assert (await box.run(["true"], input=data)).ok


async def test_of_more_output_than_is_kept_the_middle_is_dropped_and_counted(client):
    box = await client.run_container(BOX)
    command = await box.start(["sh", "-c", "seq 1 20000; touch /tmp/done"], output_limit=4096)
    await command.detach()
    while not (await box.run_shell("test -e /tmp/done")).ok:
        await asyncio.sleep(0.05)
    result = await (await box.attach(command.exec_id)).wait()
    assert result.stdout_dropped > 50_000 and result.stdout.startswith("1\n2\n") and result.stdout.endswith("20000\n")


async def test_output_comes_as_it_is_said(client):
    box = await client.run_container(BOX)
    async with await box.start(["sh", "-c", "echo one; read line; echo $line; exit 2"], stdin=True) as command:
        said = []
        async for output in command:
            said.append((output.stream, output.text))
            if len(said) == 1:
                await command.write("two\n")
        assert said == [("stdout", "one\n"), ("stdout", "two\n")] and command.status.exit_code == 2
    with pytest.raises(DSecError, match="has ended, or was detached from"):
        await command.write("more")


async def test_a_terminal_has_a_size_and_takes_input(client):
    box = await client.run_container(BOX)
    async with await box.start(["sh", "-c", "stty size; read line; echo got $line; stty size; cat"], tty=True, rows=33, columns=77) as command:
        text = ""
        async for output in command:
            text += output.text
            if "33 77" in text and "hello" not in text:
                await command.resize(10, 20)
                await command.write("hello\n")
            if "10 20" in text and command.status is None:
                await command.write("\x04")
        assert "got hello" in text and command.status.ok


async def test_signals_and_commands_that_others_follow(client):
    box = await client.run_container(BOX)
    command = await box.start(["sh", "-c", "trap 'echo caught; exit 9' USR1; echo begun; while :; do sleep 0.05; done"])
    follower = await box.attach(command.exec_id)
    async for output in command:
        if output.text == "begun\n":
            # Whoever only follows it does not end it.
            async with follower:
                pass
            await command.signal(signal.SIGUSR1)
        else:
            assert output.text == "caught\n"
    assert command.status.exit_code == 9
    again = await (await box.attach(command.exec_id)).wait()
    assert (again.stdout, again.exit_code) == ("begun\ncaught\n", 9)


async def test_a_session_keeps_what_a_shell_keeps(client):
    box = await client.run_container(BOX)
    async with await box.open_session("work", env={"A": "1"}) as session:
        await session.run("cd /srv; B=2; f() { echo f $1; }", check=True)
        assert (await session.run("pwd; f $A$B; read x; echo $x", input="in\n")).stdout == "/srv\nf 12\nin\n"
        assert (await session.run("sleep 1000", timeout=0.3)).exit_code == 124
        assert (await session.run("echo $B")).stdout == "2\n"
        assert [one.name for one in await box.sessions()] == ["work"]
        with pytest.raises(DSecCommandError, match="session work"):
            await session.run("false", check=True)
        running = await session.start("sleep 1000")
        with pytest.raises(DSecError):
            await session.run("true")
        await running.kill()
        assert (await running.wait()).exit_code != 0
    assert await box.sessions() == []
    async with await box.open_session() as session:
        assert (await session.run("exit 5")).session_ended


async def no_sleep_in(box):
    """Others of a group that was killed take a moment to go."""
    end = time.monotonic() + 5
    while "sleep" in (said := (await box.run(["ps"])).stdout):
        assert time.monotonic() < end, said
        await asyncio.sleep(0.02)


async def test_a_cancelled_command_is_killed(client):
    box = await client.run_container(BOX)

    async def until_it_runs():
        while not any(command.running for command in await box.commands()):
            await asyncio.sleep(0.01)

    for begin in (lambda: box.run_shell("sleep 1000 & sleep 1000"), lambda: box.run(["sleep", "1000"], input=b"x" * 10_000_000)):
        task = asyncio.ensure_future(begin())
        await until_it_runs()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await no_sleep_in(box)
    async with await box.open_session() as session:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(session.run("X=1; sleep 1000"), 0.3)
        await no_sleep_in(box)
        assert (await session.run("echo $X")).stdout == "1\n"
        for stubborn in ("while :; do :; done", "trap '' INT; sleep 1000"):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.run(stubborn), 0.3)
            assert (await session.run("echo $X")).stdout == "1\n"
    with pytest.raises(ZeroDivisionError):
        async with await box.start(["sleep", "1000"]):
            1 / 0
    await no_sleep_in(box)


async def test_a_command_is_killed_whenever_the_cancellation_comes(client):
    box = await client.run_container(BOX)
    for delay in [0, 0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03]:
        task = asyncio.ensure_future(box.run(["sleep", "1000"]))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await no_sleep_in(box)


async def test_what_cannot_be_done_says_why_and_what_to_do(client):
    box = await client.run_container(DSecContainerRunArgs("base/box", lifetime=300, name="errors"))
    with pytest.raises(DSecUsageError) as caught:
        await (await client.sandbox("errors")).attach("77")
    assert caught.value.attempt == "cannot follow command 77 of sandbox errors" and caught.value.causes and not caught.value.safe_to_retry
    with pytest.raises(DSecError) as caught:
        await box.http(8080)
    assert "(ECONNREFUSED)" in caught.value.causes[-1] and caught.value.hints and caught.value.kind == "failed" and caught.value.op_id
    await box.stop(grace=0)
    with pytest.raises(DSecError, match="cannot start '/bin/sh -c true' in sandbox errors"):
        await box.run_shell("true")
