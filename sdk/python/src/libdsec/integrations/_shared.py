"""One client for all who need one in the same loop: a harness makes hundreds of environments, and each would start an edge."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ..args import DSecContainerRunArgs, DSecMicroVMRunArgs
from ..client import DSecClient
from ..errors import DSecUsageError


class _Shared:
    def __init__(self, address: str | None):
        self.client = DSecClient(address)
        self.users = 0
        self.changing = asyncio.Lock()


_clients: dict[tuple[asyncio.AbstractEventLoop, str | None], _Shared] = {}


async def take(address: str | None) -> DSecClient:
    """An open client, until it is given back."""
    key = (asyncio.get_running_loop(), address)
    shared = _clients.get(key)
    if shared is None:
        shared = _clients[key] = _Shared(address)
    shared.users += 1
    try:
        async with shared.changing:
            await shared.client.open()
    except BaseException:
        await give_back(address)
        raise
    return shared.client


async def give_back(address: str | None) -> None:
    """The last one to do so closes it."""
    key = (asyncio.get_running_loop(), address)
    shared = _clients[key]
    shared.users -= 1
    async with shared.changing:
        if shared.users == 0 and _clients.get(key) is shared:
            del _clients[key]
            await shared.client.close()


def args_of(text: str, backend: str = "container", **more: Any) -> DSecContainerRunArgs:
    """Of layers separated by spaces, the base or snapshot first; or of a JSON object with the names of DSecContainerRunArgs and
    `backend`. `more` is for what the text does not say."""
    said: dict[str, Any] = {"backend": backend, **more}
    try:
        if text.lstrip().startswith("{"):
            said.update(json.loads(text))
        else:
            image, *layers = text.split()
            said.update(container_image=image, layers=layers)
        kinds: dict[str, type[DSecContainerRunArgs]] = {"container": DSecContainerRunArgs, "microvm": DSecMicroVMRunArgs}
        return kinds[said.pop("backend")](**said)
    except (ValueError, TypeError, KeyError) as error:
        raise DSecUsageError(f"cannot make a sandbox of {text!r}", [f"it names no layers and is no object of settings: {error}"],
                             ["base/python workspace/toolz", '{"container_image": "base/python", "memory_limit_mb": 2048}'],
                             kind="usage") from error
