"""Many sandboxes at once: each is made, does several things while all the others do, and goes."""

import asyncio
import sys
import time

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox


async def work(sandbox: Sandbox, number: int, everybody: asyncio.Event) -> None:
    await everybody.wait()
    await sandbox.write_file("/tmp/in", f"{number}\n")
    result = await sandbox.run_shell("read n < /tmp/in; echo $(( n * n ))", timeout=300, check=True)
    assert int(result.stdout) == number * number, (sandbox, result)


async def main(count: int) -> None:
    async with DSecClient() as client:
        began = time.monotonic()
        everybody = asyncio.Event()
        tasks = []
        async for item in client.run_batch([DSecContainerRunArgs("base/python", lifetime=1800, labels={"job": "many"})] * count):
            if item.sandbox is None:
                raise SystemExit(f"sandbox {item.index} of {count}: {item.error}")
            tasks.append(asyncio.ensure_future(work(item.sandbox, item.index, everybody)))
        made = time.monotonic()
        there = len(await client.sandboxes(labels={"job": "many"}))
        everybody.set()
        await asyncio.gather(*tasks)
        print(f"{there} sandboxes at once: made in {made - began:.1f} s, worked in {time.monotonic() - made:.1f} s")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
