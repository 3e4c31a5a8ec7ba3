"""Machines through the Python SDK, with an engine of its own."""

import asyncio

import pytest
import python_sdk  # noqa: F401 - where libdsec is
from dsec_tool import BIN
from png import Picture

import libdsec


def test_a_microvm_is_driven_as_a_container_is(microvms):
    async def drive() -> None:
        async with libdsec.DSecClient(engine=libdsec.LocalEngine(BIN / "dsec", home=microvms.home)) as client:
            args = libdsec.DSecMicroVMRunArgs("base/box", memory_limit_mb=256, lifetime=600, pmem="off", labels={"kind": "vm"})
            machine = await client.run_microvm(args, timeout=240)
            assert machine.info.backend == "microvm" and machine.info.spec["pmem"] == "off"
            result = await machine.run_shell("uname -r; cat >&2; exit 3", input="in\n", timeout=120)
            assert (result.exit_code, result.stderr) == (3, "in\n") and "cloud" in result.stdout
            await machine.write_file("/root/file", b"\xff" * 100_000)
            assert await machine.read_file("/root/file") == b"\xff" * 100_000
            async with await machine.open_session() as session:
                await session.run("cd /tmp")
                assert (await session.run("pwd")).stdout == "/tmp\n"

    asyncio.run(drive())


def test_the_screen_of_a_full_vm_is_seen_and_acted_on(fullvms):
    async def drive() -> None:
        async with libdsec.DSecClient(engine=libdsec.LocalEngine(BIN / "dsec", home=fullvms.home)) as client:
            machine = await client.run_fullvm(libdsec.DSecFullVMRunArgs("base/tiny", lifetime=600))
            assert machine.info.backend == "fullvm"
            console, before = b"", None
            async for record in await machine.logs(follow=True):
                console += record.data
                if b"here is the disk" in console and not before:
                    before = Picture(await machine.screenshot(op_id="before"))
                    await machine.type_text("typed")
                    await machine.press("shift+q")
                if b"typedQ" in console:
                    break
            after = Picture(await machine.screenshot())
            assert (after.width, after.height) == (720, 400) and after.rows != before.rows
            # Repeated, it is the picture of then.
            assert Picture(await machine.screenshot(op_id="before")).rows == before.rows
            await machine.click(10, 20, button="right")
            await machine.drag(10, 20, 30, 40)
            await machine.scroll(10, 20, 3, up=True)
            with pytest.raises(libdsec.DSecUsageError, match="720 by 400"):
                await machine.move(720, 10)
            reader, writer = await machine.connect_screen()
            assert (await reader.readexactly(4)) == b"RFB "
            writer.close()
            asked = [operation.request for operation in (await machine.trajectory()).operations if operation.kind == "screen-input"]
            assert [request["action"] for request in asked] == ["type", "key", "click", "drag", "scroll", "move"]
            assert asked[3] == {"action": "drag", "at": [10, 20], "to": [30, 40], "button": "left"}

    asyncio.run(drive())
