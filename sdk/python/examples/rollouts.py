"""Best of several: one sandbox is prepared, forks try one thing each, and the best one is kept as a layer."""

import asyncio
import sys

from libdsec import DSecClient, DSecContainerRunArgs, Sandbox


async def attempt(sandbox: Sandbox, number: int) -> int:
    async with await sandbox.open_session() as session:
        await session.run("cd /workspace")
        await session.run(f"echo {number} >> tried", check=True)
        return int((await session.run("echo $(( $(cat start) * $(tail -n 1 tried) % 7 ))", check=True)).stdout)


async def main(count: int) -> None:
    async with DSecClient() as client:
        first = await client.run_container(DSecContainerRunArgs("base/python", lifetime=600, labels={"job": "rollouts"}))
        await first.run_shell("mkdir /workspace && echo 5 > /workspace/start", check=True)
        forks = await first.fork(count)
        scores = await asyncio.gather(*(attempt(fork, number) for number, fork in enumerate(forks)))
        best = max(range(count), key=scores.__getitem__)
        kept = await forks[best].snapshot("snapshot/best:1")
        print(f"fork {best} reached {scores[best]}; {kept.digest[:15]}… has")
        print((await forks[best].patch()).decode(), end="")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 4))
