"""A local engine, which ends with whoever started it; and the client without asyncio."""

import asyncio
import inspect
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import leftovers
import libdsec
import libdsec.sync
import pytest
from python_sdk import SDK
from libdsec import DSecClient, DSecContainerRunArgs, DSecError, DSecUsageError, LocalEngine, NO_RETRIES
from waiting import until

BOX = DSecContainerRunArgs("base/box", lifetime=300)


def edges_of(tool) -> list[int]:
    return [pid for pid, words in leftovers.processes_of(tool.home).items() if " edge --listen" in words]


async def test_a_client_without_an_address_has_an_engine_of_its_own(own, engine):
    async with DSecClient(engine=engine) as client:
        assert (await client.health()).name == "local" and "/dsec-sdk-" in client.address
        socket = client.address.removeprefix("unix:")
        box = await client.run_container(BOX)
        assert (await box.run_shell("echo there")).stdout == "there\n" and len(edges_of(own)) == 1
        assert "dsec_edge_requests_total" in await client.metrics()
    assert edges_of(own) == [] and leftovers.sandboxes_of(own.home) == [] and not os.path.exists(socket)
    with pytest.raises(DSecUsageError, match="it is not open"):
        await client.health()
    # And once more.
    async with client:
        await client.health()


async def test_an_engine_that_cannot_be_started_says_why(own, work):
    with pytest.raises(DSecError, match="there is no program '/no/dsec'"):
        await DSecClient(engine=LocalEngine("/no/dsec")).open()
    with pytest.raises(DSecError, match="cannot start a local engine") as caught:
        await DSecClient(engine=LocalEngine(own.argv()[0], home=own.home, options=["--wrong"])).open()
    assert "--wrong" in str(caught.value)
    with pytest.raises(DSecUsageError, match="either to an address or to an engine"):
        DSecClient("unix:/x", engine=LocalEngine())


async def test_an_engine_that_has_died_is_told_and_ended(own, engine):
    client = DSecClient(engine=engine, retries=NO_RETRIES)
    await client.open()
    box = await client.run_container(BOX)
    os.kill(edges_of(own)[0], signal.SIGKILL)
    with pytest.raises(DSecError, match="cannot talk to the edge"):
        await box.run_shell("true")
    with pytest.raises(DSecError, match="cannot remove sandbox"):
        await client.close()
    assert not os.path.exists(client._engine.address or "/none")


def script(own, text: str, **kwargs) -> subprocess.Popen:
    """A program of somebody who uses the SDK."""
    begin = f"""\
        import asyncio, sys, time
        from libdsec import *
        from libdsec import sync
        ENGINE = LocalEngine({own.argv()[0]!r}, home={str(own.home)!r})
        BOX = DSecContainerRunArgs("base/box", lifetime=300)
        """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(text)], stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": str(SDK / "src"), "DSEC_CONFIG": own.env["DSEC_CONFIG"], "TMPDIR": str(own.cwd)},
                            **kwargs)


def test_a_program_that_is_killed_takes_its_engine_with_it(own):
    program = script(own, """
        with sync.DSecClient(engine=ENGINE) as client:
            client.run_container(BOX)
            print("made", flush=True)
            time.sleep(1000)
        """)
    assert program.stdout.readline() == "made\n" and len(edges_of(own)) == 1
    program.kill()
    program.communicate()
    assert until(lambda: edges_of(own) == [])
    # The sandbox is its keeper's, and has a lifetime.
    assert len(leftovers.sandboxes_of(own.home)) == 1
    place, = own.cwd.glob("dsec-sdk-*")
    shutil.rmtree(place)


@pytest.mark.parametrize("how", ["sync", "asyncio"])
def test_an_interrupted_program_leaves_nothing(own, how):
    program = script(own, """
        try:
            with sync.DSecClient(engine=ENGINE) as client:
                box = client.run_container(BOX)
                print("made", flush=True)
                box.run_shell("sleep 1000")
        except KeyboardInterrupt:
            print("interrupted")
        """ if how == "sync" else """
        async def main():
            async with DSecClient(engine=ENGINE) as client:
                box = await client.run_container(BOX)
                print("made", flush=True)
                await box.run_shell("sleep 1000")
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
        """, start_new_session=True)
    assert program.stdout.readline() == "made\n"
    time.sleep(0.2)
    os.killpg(program.pid, signal.SIGINT)
    try:
        out, _ = program.communicate(timeout=60)
    finally:
        program.kill()
    assert out == "interrupted\n"
    assert edges_of(own) == [] and leftovers.sandboxes_of(own.home) == []


def test_without_asyncio_it_is_the_same(edge, work):
    with libdsec.sync.DSecClient(edge) as client:
        with client.run_container(BOX) as box:
            assert box.run_shell("echo $((6 * 7))").stdout == "42\n"
            with box.open_session() as session:
                session.run("cd /srv")
                assert session.run("pwd").stdout == "/srv\n"
            with box.start(["sh", "-c", "read x; echo got $x"], stdin=True) as command:
                command.write("it\n")
                assert [output.text for output in command] == ["got it\n"] and command.status.ok
            with box.watch("/root") as events:
                box.write_file("/root/new", "x")
                assert "new" in next(iter(events)).path
            assert [record.data for record in box.logs(command.exec_id)] == [b"got it\n"]
            said = []
            threads = [threading.Thread(target=lambda n=n: said.append(box.run_shell(f"sleep 0.2; echo {n}").stdout)) for n in range(5)]
            began = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(said) == [f"{n}\n" for n in range(5)] and time.monotonic() - began < 1
            fork, = box.fork()
            assert fork.read_file("/root/new") == b"x"
            with pytest.raises(DSecError, match="ENOENT"):
                box.read_file("/none")
        items = list(client.run_batch([BOX] * 3))
        assert sorted(item.index for item in items) == [0, 1, 2] and all(item.sandbox for item in items)
        assert client.sandbox(items[0].sandbox.id).run(["true"]).ok and len(client.sandboxes()) == 4


ASYNCIO_ONLY = {"connect", "connect_screen", "forward"}


@pytest.mark.parametrize("name", ["DSecClient", "Sandbox", "Session", "Command", "Records"])
def test_all_of_it_is_there_without_asyncio(name):
    theirs, ours = getattr(libdsec, name), getattr(libdsec.sync, name)
    for member, value in vars(theirs).items():
        if member.startswith("_") or member in ASYNCIO_ONLY or not callable(value):
            continue
        assert callable(getattr(ours, member, None)), f"{name}.{member}"
        assert list(inspect.signature(getattr(ours, member)).parameters) == list(inspect.signature(value).parameters), f"{name}.{member}"
