"""MicroVMs through the Python SDK, with an engine of its own."""

import asyncio

import python_sdk  # noqa: F401 - where libdsec is
from dsec_tool import BIN

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
