"""The same without asyncio: every call waits until it is done. A loop in a thread of its own does the work, so any number
of threads may use a client. ^C ends what the interrupted call had begun.

    with DSecClient() as client:
        with client.run_container(DSecContainerRunArgs("base/python")) as sandbox:
            print(sandbox.run_shell("python3 -V").stdout)

What is not here is for asyncio alone: `Sandbox.connect`, `Sandbox.connect_screen` and `Sandbox.forward`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Generic, Iterable, Iterator, TypeVar

import libdsec as _aio

from .args import DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs
from .client import BatchItem as _AioBatchItem
from .command import Output
from .errors import DSecError
from .streams import Record
from .values import FileEvent, LogRecord

if TYPE_CHECKING:
    import os
    from typing_extensions import Concatenate, ParamSpec

    from ._wire import Bytes

    P = ParamSpec("P")
R = TypeVar("R")


class _Portal:
    """Runs coroutines in the loop of a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="libdsec", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        outcome: concurrent.futures.Future[R] = concurrent.futures.Future()
        begun: list[asyncio.Task[R]] = []

        def begin() -> None:
            begun.append(self._loop.create_task(work))
            begun[0].add_done_callback(tell)

        def tell(task: asyncio.Task[R]) -> None:
            if task.cancelled():
                outcome.cancel()
                outcome.set_running_or_notify_cancel()
            elif failure := task.exception():
                outcome.set_exception(failure)
            else:
                outcome.set_result(task.result())

        self._loop.call_soon_threadsafe(begin)
        try:
            return outcome.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(lambda: begun[0].cancel())
            concurrent.futures.wait([outcome])
            raise

    def each(self, items: AsyncIterator[R]) -> Iterator[R]:
        async def following() -> R:
            return await items.__anext__()

        try:
            while True:
                try:
                    item = self.run(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            close = getattr(items, "aclose", None)
            if close and not self._loop.is_closed():
                self.run(close())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.run(method(self._it, *args, **kwargs))  # type: ignore[no-any-return]

    return call


def _making(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]], make: Callable[[_Portal, Any], R]) -> Callable[Concatenate[Any, P], R]:
    """Of what belongs to the loop."""
    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return make(self._portal, self._portal.run(method(self._it, *args, **kwargs)))

    return call


class _Facade:
    def __init__(self, portal: _Portal, it: Any):
        self._portal = portal
        self._it = it

    def __repr__(self) -> str:
        return repr(self._it)


class _Entered(_Facade):
    def __exit__(self, *exc: object) -> None:
        self._portal.run(self._it.__aexit__(*exc))


class Command(_Entered):
    __doc__ = _aio.Command.__doc__

    def __enter__(self) -> Command:
        return self

    def __iter__(self) -> Iterator[Output]:
        """Its output as it comes, to its end."""
        return self._portal.each(self._it.__aiter__())

    @property
    def exec_id(self) -> str:
        """Names the command; unique in its sandbox."""
        return str(self._it.exec_id)

    @property
    def status(self) -> _aio.ExitStatus | None:
        """How it ended; None until that was read."""
        status: _aio.ExitStatus | None = self._it.status
        return status

    wait = _blocking(_aio.Command.wait)
    write = _blocking(_aio.Command.write)
    close_stdin = _blocking(_aio.Command.close_stdin)
    resize = _blocking(_aio.Command.resize)
    signal = _blocking(_aio.Command.signal)
    kill = _blocking(_aio.Command.kill)
    detach = _blocking(_aio.Command.detach)


class Records(_Entered, Generic[Record]):
    __doc__ = _aio.Records.__doc__

    def __enter__(self) -> Records[Record]:
        return self

    def __iter__(self) -> Iterator[Record]:
        """As they come."""
        return self._portal.each(self._it.__aiter__())

    close = _blocking(_aio.Records.close)


class Session(_Entered):
    __doc__ = _aio.Session.__doc__

    def __enter__(self) -> Session:
        return self

    @property
    def id(self) -> str:
        return str(self._it.id)

    @property
    def name(self) -> str:
        return str(self._it.name)

    @property
    def info(self) -> _aio.SessionInfo:
        """As it was when it was opened or listed."""
        info: _aio.SessionInfo = self._it.info
        return info

    run = _blocking(_aio.Session.run)
    start = _making(_aio.Session.start, Command)
    close = _blocking(_aio.Session.close)


def _sandboxes(portal: _Portal, them: list[_aio.Sandbox]) -> list[Sandbox]:
    return [Sandbox(portal, one) for one in them]


def _sessions(portal: _Portal, them: list[_aio.Session]) -> list[Session]:
    return [Session(portal, one) for one in them]


def _log(portal: _Portal, it: Any) -> Records[LogRecord]:
    return Records(portal, it)


def _events(portal: _Portal, it: Any) -> Records[FileEvent]:
    return Records(portal, it)


class Sandbox(_Entered):
    __doc__ = _aio.Sandbox.__doc__

    def __enter__(self) -> Sandbox:
        return self

    @property
    def id(self) -> str:
        return str(self._it.id)

    @property
    def name(self) -> str:
        return str(self._it.name)

    @property
    def info(self) -> _aio.SandboxInfo:
        """As it was when it was made, listed or looked at last."""
        info: _aio.SandboxInfo = self._it.info
        return info

    run_shell = _blocking(_aio.Sandbox.run_shell)
    run = _blocking(_aio.Sandbox.run)
    start = _making(_aio.Sandbox.start, Command)
    attach = _making(_aio.Sandbox.attach, Command)
    commands = _blocking(_aio.Sandbox.commands)
    logs = _making(_aio.Sandbox.logs, _log)
    open_session = _making(_aio.Sandbox.open_session, Session)
    sessions = _making(_aio.Sandbox.sessions, _sessions)
    read_file = _blocking(_aio.Sandbox.read_file)
    write_file = _blocking(_aio.Sandbox.write_file)
    upload = _blocking(_aio.Sandbox.upload)
    download = _blocking(_aio.Sandbox.download)
    watch = _making(_aio.Sandbox.watch, _events)
    http = _blocking(_aio.Sandbox.http)
    screenshot = _blocking(_aio.Sandbox.screenshot)
    type_text = _blocking(_aio.Sandbox.type_text)
    press = _blocking(_aio.Sandbox.press)
    move = _blocking(_aio.Sandbox.move)
    click = _blocking(_aio.Sandbox.click)
    scroll = _blocking(_aio.Sandbox.scroll)
    drag = _blocking(_aio.Sandbox.drag)
    network = _blocking(_aio.Sandbox.network)
    set_network = _blocking(_aio.Sandbox.set_network)
    network_log = _blocking(_aio.Sandbox.network_log)
    inspect = _blocking(_aio.Sandbox.inspect)
    stats = _blocking(_aio.Sandbox.stats)
    changes = _blocking(_aio.Sandbox.changes)
    change_stat = _blocking(_aio.Sandbox.change_stat)
    patch = _blocking(_aio.Sandbox.patch)
    changes_tar = _blocking(_aio.Sandbox.changes_tar)
    snapshot = _blocking(_aio.Sandbox.snapshot)
    fork = _making(_aio.Sandbox.fork, _sandboxes)
    operation = _blocking(_aio.Sandbox.operation)
    trajectory = _blocking(_aio.Sandbox.trajectory)
    update = _blocking(_aio.Sandbox.update)
    pause = _blocking(_aio.Sandbox.pause)
    resume = _blocking(_aio.Sandbox.resume)
    wait = _blocking(_aio.Sandbox.wait)
    stop = _blocking(_aio.Sandbox.stop)
    remove = _blocking(_aio.Sandbox.remove)

    def keep(self) -> None:
        """It does not end with this client any more."""
        self._it.keep()


class BatchItem:
    """What came of one of many. `index`: of its arguments. One of `sandbox` and `error` is there."""

    def __init__(self, portal: _Portal, item: _AioBatchItem):
        self.index = item.index
        self.sandbox: Sandbox | None = Sandbox(portal, item.sandbox) if item.sandbox else None
        self.error: DSecError | None = item.error


class DSecClient(_Entered):
    """`libdsec.DSecClient`, whose arguments it takes, without asyncio."""

    def __init__(self, address: str | None = None, *, engine: _aio.LocalEngine | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, retries: _aio.Retries | None = None, connect_timeout: float = 10.0,
                 call_timeout: float = 60.0):
        it = _aio.DSecClient(address, engine=engine, token=token, token_file=token_file, retries=retries,
                             connect_timeout=connect_timeout, call_timeout=call_timeout)
        super().__init__(_Portal(), it)

    def __enter__(self) -> DSecClient:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self) -> DSecClient:
        """Starts the local engine, where there is to be one, and makes sure that the edge answers."""
        try:
            self._portal.run(self._it.open())
        except BaseException:
            self._portal.end()
            raise
        return self

    def close(self) -> None:
        """Removes the sandboxes that it made and still has, and ends the local engine; it cannot be opened again."""
        try:
            self._portal.run(self._it.close())
        finally:
            self._portal.end()

    @property
    def address(self) -> str:
        """Of the edge that it speaks to."""
        return str(self._it.address)

    def run_batch(self, args: Iterable[DSecContainerRunArgs], *, concurrency: int = 32, timeout: float | None = 180.0) -> Iterator[BatchItem]:
        """Makes many, `concurrency` at a time, and gives each as soon as it runs or has failed. `timeout`: seconds for each."""
        for item in self._portal.each(self._it.run_batch(args, concurrency=concurrency, timeout=timeout)):
            yield BatchItem(self._portal, item)

    run_container = _making(_aio.DSecClient.run_container, Sandbox)
    run_microvm = _making(_aio.DSecClient.run_microvm, Sandbox)
    run_fullvm = _making(_aio.DSecClient.run_fullvm, Sandbox)
    sandbox = _making(_aio.DSecClient.sandbox, Sandbox)
    sandboxes = _making(_aio.DSecClient.sandboxes, _sandboxes)
    layer = _blocking(_aio.DSecClient.layer)
    trajectories = _blocking(_aio.DSecClient.trajectories)
    trajectory = _blocking(_aio.DSecClient.trajectory)
    remove_trajectory = _blocking(_aio.DSecClient.remove_trajectory)
    health = _blocking(_aio.DSecClient.health)
    metrics = _blocking(_aio.DSecClient.metrics)


__all__ = ["BatchItem", "Command", "DSecClient", "DSecContainerRunArgs", "DSecFullVMRunArgs", "DSecMicroVMRunArgs", "Records", "Sandbox", "Session"]
