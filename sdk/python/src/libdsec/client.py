"""The client: where sandboxes are made and found."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any, AsyncIterator, Iterable, Mapping, Sequence

from . import _layers, _wire
from ._edge import Address, Edge
from ._ending import or_undo, to_end
from .args import DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs
from .engine import LocalEngine
from .errors import DSecError, DSecTimeoutError, DSecUsageError
from .retries import Retries
from .sandbox import Sandbox
from .streams import head_and_content
from .values import Health, Layer, SandboxInfo, Trajectory, TrajectoryInfo

# Sandboxes that a client removes at once when it ends.
_REMOVED_AT_ONCE = 32


@dataclasses.dataclass(frozen=True)
class BatchItem:
    """What came of one of many. `index`: of its arguments. One of `sandbox` and `error` is there."""

    index: int
    sandbox: Sandbox | None
    error: DSecError | None


class DSecClient:
    """Makes sandboxes and finds them, through one edge.

    `address`: of the edge, `unix:/PATH` or `http://127.0.0.1:PORT`. None: that of the variable DSEC_EDGE, and without it a
    local engine that is started by `open()` and ends with `close()`. `engine`: that one, where it needs options.
    `token`, `token_file`: what the edge wants to hear; the file is read once, and others than its owner may not read it.
    `retries`: how often calls are made again. `connect_timeout`: seconds for a connection to come about. `call_timeout`:
    seconds without an answer, for calls that do not have a time of their own.

    Of one event loop, in which any number of tasks may use it. `async with` opens and closes it; closing removes the
    sandboxes that it made and that were not given away (`Sandbox.keep`).
    """

    def __init__(self, address: str | None = None, *, engine: LocalEngine | None = None, token: str | None = None,
                 token_file: str | os.PathLike[str] | None = None, retries: Retries | None = None, connect_timeout: float = 10.0,
                 call_timeout: float = 60.0):
        if engine and address:
            raise DSecUsageError("cannot make a client", ["it speaks either to an address or to an engine of its own"], kind="usage")
        if not engine:
            address = address or os.environ.get("DSEC_EDGE")
        self._engine = None if address else engine or LocalEngine()
        self._address = address
        self._token = token if token_file is None else _read_token(Path(token_file))
        self._retries = retries or Retries()
        self._timeouts = (connect_timeout, call_timeout)
        self._opened: Edge | None = None
        self._made: dict[str, Sandbox] = {}
        self._layers: dict[str, asyncio.Task[Layer]] = {}

    async def __aenter__(self) -> DSecClient:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> DSecClient:
        """Starts the local engine, where there is to be one, and makes sure that the edge answers."""
        if self._opened:
            return self
        if self._engine:
            await self._engine.start()
        edge = Edge(Address.parse(self._address or (self._engine.address if self._engine else "")), self._token, self._retries,
                    *self._timeouts)
        edge.open()
        self._opened = edge
        try:
            await self.health()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Removes the sandboxes that it made and still has, and ends the local engine. Raises what went wrong, at the end."""
        await to_end(self._close(), within=3600.0)

    @property
    def address(self) -> str:
        """Of the edge that it speaks to."""
        return str(self._edge.address)

    # Sandboxes

    async def run_container(self, args: DSecContainerRunArgs, *, timeout: float | None = 60.0, op_id: str | None = None) -> Sandbox:
        """Makes and starts a container that runs nothing yet. Layers that the edge does not have are an error, and named.

        `timeout`: seconds until it runs; DSecTimeoutError is raised then, and nothing is left. `op_id`: with the same one
        and the same arguments there is one sandbox, however often and by whomever it is asked for; it belongs to this
        client if this call made it. Raises DSecUsageError for what cannot be honoured.
        """
        return await self._run(args, timeout, op_id)

    async def run_microvm(self, args: DSecMicroVMRunArgs, *, timeout: float | None = 180.0, op_id: str | None = None) -> Sandbox:
        """The same, behind a kernel of its own. `timeout`: emulated processors are slow."""
        return await self._run(args, timeout, op_id)

    async def run_fullvm(self, args: DSecFullVMRunArgs, *, timeout: float | None = 180.0, op_id: str | None = None) -> Sandbox:
        """A computer that begins from a disk; it is there before its system is (see `logs`, its console, and `screenshot`)."""
        return await self._run(args, timeout, op_id)

    async def run_batch(self, args: Iterable[DSecContainerRunArgs], *, concurrency: int = 32, timeout: float | None = 180.0) -> AsyncIterator[BatchItem]:
        """Makes many, `concurrency` at a time, and gives each as soon as it runs or has failed. `timeout`: seconds for each.
        When the iteration is left early (`aclose`), those that are being made are not made; those that it gave stay."""
        limit = asyncio.Semaphore(concurrency)

        async def one(index: int, each: DSecContainerRunArgs) -> BatchItem:
            async with limit:
                try:
                    return BatchItem(index, await self._run(each, timeout, None), None)
                except DSecError as error:
                    return BatchItem(index, None, error)

        tasks = [asyncio.ensure_future(one(index, each)) for index, each in enumerate(args)]
        try:
            for next_one in asyncio.as_completed(tasks):
                yield await next_one
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def sandbox(self, name: str) -> Sandbox:
        """One that is there, by its id, a unique beginning of it, or its name. It stays when this client ends."""
        info = SandboxInfo.of_wire(await self._edge.ask(f"cannot find sandbox {name!r}", _wire.INSPECT, {"id": name}))
        return self._made.get(info.id) or Sandbox(self, info, owned=False)

    async def sandboxes(self, *, all: bool = False, labels: Mapping[str, str] | None = None) -> list[Sandbox]:
        """Those that run, of everybody who uses the edge. `all`: also those that have ended. `labels`: each must be there; an
        empty value matches any."""
        wanted = "".join(f"{key}={value}\n" if value else f"{key}\n" for key, value in (labels or {}).items())
        answer = await self._edge.ask("cannot list sandboxes", _wire.LIST, {"all": all, "labels": wanted or None})
        infos = [SandboxInfo.of_wire(one) for one in answer["sandboxes"]]
        return [self._made.get(info.id) or Sandbox(self, info, owned=False) for info in infos]

    # What the edge has

    async def layer(self, reference: str) -> Layer:
        """A layer of the edge's store: "KIND/NAME[:TAG]" or a digest. Raises DSecUsageError when there is none."""
        return Layer.of_wire(await self._edge.ask(f"cannot find layer {reference!r}", _wire.LAYER, {"ref": reference}))

    async def trajectories(self) -> list[TrajectoryInfo]:
        """What was done to sandboxes, also to those that are gone; newest first. Those that cannot be read are left out."""
        return [TrajectoryInfo.of_wire(one) for one in (await self._edge.ask("cannot list trajectories", _wire.TRAJECTORIES))["trajectories"]]

    async def trajectory(self, id: str) -> Trajectory:
        """All that was done to a sandbox, also to one that is gone, by its id, its beginning or the name that it had."""
        head, export = await head_and_content(self._edge, f"cannot read the trajectory of {id!r}", _wire.TRAJECTORY, {"id": id})
        return Trajectory.of_export(export, head["live"], head["damage"])

    async def remove_trajectory(self, id: str) -> None:
        """Forgets it for good. Refused while the sandbox is there."""
        await self._edge.ask(f"cannot remove the trajectory of {id!r}", _wire.REMOVE_TRAJECTORY, {"id": id})

    async def health(self) -> Health:
        """Whether the edge answers; needs no token."""
        answer = await self._edge.ask("cannot reach the edge", _wire.HEALTH)
        return Health(answer["name"], answer["version"])

    async def metrics(self) -> str:
        """Counters and gauges of the edge, in Prometheus' text format."""
        return str(await self._edge.ask("cannot read the edge's metrics", _wire.METRICS))

    # The rest

    @property
    def _edge(self) -> Edge:
        if not self._opened:
            raise DSecUsageError("cannot use this client", ["it is not open"], ["async with DSecClient() as client"], kind="usage")
        return self._opened

    async def _run(self, args: DSecContainerRunArgs, timeout: float | None, op_id: str | None) -> Sandbox:
        attempt = f"cannot make a sandbox of {args.container_image!r}"

        async def make() -> Sandbox:
            spec = await self._spec(args)
            answer = await self._edge.ask(attempt, _wire.CREATE, {}, {"spec": spec}, op_id=op_id, timeout=(timeout or 3600.0) + 30.0)
            info = SandboxInfo.of_wire(answer["sandbox"])
            # One that was repeated within this call was made by it, too.
            return self._adopt(info) if answer["made"] or op_id is None else self._made.get(info.id) or Sandbox(self, info, owned=False)

        async def undo(sandbox: Sandbox) -> None:
            if sandbox._owned:
                await sandbox.remove(force=True)

        try:
            return await or_undo(make(), undo, timeout)
        except DSecError:
            raise
        except asyncio.TimeoutError:
            raise DSecTimeoutError(attempt, [f"it did not run within {timeout:g} s, and was taken back"], op_id=op_id,
                                   safe_to_retry=True) from None

    async def _spec(self, args: DSecContainerRunArgs) -> dict[str, Any]:
        settings = args.settings()
        layers = await _layers.with_lowers(self._layer_once, [await self._layer_once(ref) for ref in args.references])
        stack = _layers.ordered(layers)
        config = _layers.merged_config([*(layer.manifest.get("config", {}) for layer in stack), args.config()])
        return {**settings, "layers": [layer.digest for layer in stack], "config": config}

    async def _layer_once(self, reference: str) -> Layer:
        """A thousand sandboxes that are made at once ask for their layer once."""
        asking = self._layers.get(reference)
        if not asking:
            asking = self._layers[reference] = asyncio.ensure_future(self.layer(reference))
            asking.add_done_callback(lambda _: self._layers.pop(reference, None))
        return await asyncio.shield(asking)

    def _adopt(self, info: SandboxInfo) -> Sandbox:
        sandbox = self._made[info.id] = Sandbox(self, info, owned=True)
        return sandbox

    def _disown(self, id: str) -> None:
        self._made.pop(id, None)

    async def _close(self) -> None:
        failures: list[BaseException] = []
        edge = self._opened
        if edge:
            failures = await self._remove_all(list(self._made.values()))
            self._made.clear()
            await edge.close()
            self._opened = None
        if self._engine:
            await self._engine.stop()
        if failures:
            raise failures[0]

    async def _remove_all(self, sandboxes: Sequence[Sandbox]) -> list[BaseException]:
        limit = asyncio.Semaphore(_REMOVED_AT_ONCE)

        async def remove(sandbox: Sandbox) -> None:
            async with limit:
                await sandbox.remove(force=True)

        done = await asyncio.gather(*(remove(sandbox) for sandbox in sandboxes), return_exceptions=True)
        return [failure for failure in done if isinstance(failure, BaseException)]


def _read_token(file: Path) -> str:
    try:
        with contextlib.closing(os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC))) as text:
            if os.fstat(text.fileno()).st_mode & 0o077:
                raise DSecUsageError(f"cannot take the token of {str(file)!r}", ["others than its owner can read or write it"],
                                     [f"chmod 600 {file}"], kind="usage")
            return text.read().strip()
    except OSError as error:
        raise DSecUsageError(f"cannot take the token of {str(file)!r}", [str(error)], kind="usage") from error
