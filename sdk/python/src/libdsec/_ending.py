"""What was begun is ended, whoever gives up waiting for it."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Coroutine, Set, TypeVar

T = TypeVar("T")

# Who is cancelled waits no longer than this for what it began to be ended; that goes on without it.
LONGEST_ENDING = 10.0

_going_on: Set[asyncio.Future[Any]] = set()


async def to_end(work: Coroutine[Any, Any, None], within: float = LONGEST_ENDING) -> None:
    """Waits for work that a cancellation of the caller must not stop; the cancellation is told when it is done."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    _going_on.add(task)
    task.add_done_callback(_going_on.discard)
    cancelled = False
    deadline = loop.time() + within
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    if task.done():
        task.result()


async def or_undo(start: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]], timeout: float | None) -> T:
    """What `start` gives. When the caller is cancelled meanwhile, or `timeout` seconds pass (asyncio.TimeoutError),
    whatever `start` still brings about is undone first."""
    task = asyncio.get_running_loop().create_task(start)

    async def take_back() -> None:
        try:
            made = await task
        except Exception:
            return  # nothing was made, and nobody waits for the reason
        await undo(made)

    try:
        await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        await to_end(take_back())
        raise
    if task.done():
        return task.result()
    await to_end(take_back())
    raise asyncio.TimeoutError
