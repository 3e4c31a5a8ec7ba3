"""The published example of libdsec: what a sandbox is asked to be, a command in it, its end."""

import asyncio

from libdsec import DSecClient, DSecContainerRunArgs


async def main() -> None:
    client = DSecClient()
    await client.open()
    args = DSecContainerRunArgs(container_image="base/python", memory_limit_mb=4096, cpu_cores_limit=4, ttl_running_stop=300,
                                network_rules={"npm": False, "pypi": True}, init_user="root")
    sandbox = await client.run_container(args, timeout=60)
    result = await sandbox.run_shell("echo hello from $(hostname)")
    print(result.stdout, end="")
    await sandbox.stop()
    await client.close()


asyncio.run(main())
