"""One sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import posixpath
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, IO, Any, AsyncIterator, Callable, Mapping, Sequence, TypeVar

from . import _archive, _wire
from ._edge import SILENCE, Edge, new_op_id
from ._ending import or_undo, to_end
from ._wire import Bytes, bytes_to_json, env_to_json, milliseconds
from .args import MIB, Rules, rules_to_wire
from .command import Command, Start, checked
from .errors import DSecTimeoutError, DSecUsageError
from .session import Session
from .streams import Records, content, head_and_content
from .values import (Change, CommandInfo, CommandResult, FileChange, FileEvent, HttpResponse, LogRecord, NetworkReport, Operation,
                     SandboxInfo, SessionInfo, Snapshot, Stats, Trajectory)

if TYPE_CHECKING:
    from .client import DSecClient

T = TypeVar("T")

# What packs layers reads and writes as much as the sandbox has changed.
_LONG = 600.0
# An answer about the end of a sandbox comes after so long at the latest.
_LONGEST_WAIT = 30.0
_PIECE = 256 << 10


class Sandbox:
    """A sandbox of an edge, by its id.

    One that this client made belongs to it: `async with sandbox`, or the client's end, removes it with all that it
    wrote; `keep()` gives it away. One that was looked up (`client.sandbox(...)`) belongs to somebody else and stays.

    Calls that change something take an `op_id` (made up when it is None): the same call with the same `op_id` does
    nothing again and tells the recorded result. They raise DSecError and its kinds; a cancelled one ends what it began.
    """

    def __init__(self, client: DSecClient, info: SandboxInfo, owned: bool):
        self.id = info.id
        self.name = info.name
        self.info = info
        """As it was when it was made, listed or looked at last; `inspect()` looks again."""
        self._client = client
        self._edge: Edge = client._edge
        self._owned = owned

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}{f' ({self.name})' if self.name else ''}>"

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._owned:
            await to_end(self.remove(force=True))

    # Commands

    async def run_shell(self, command: str, *, timeout: float | None = None, env: Mapping[str, Bytes] | None = None,
                        workdir: Bytes = "", user: Bytes = "", input: Bytes | None = None, check: bool = False,
                        output_limit: int | None = None, op_id: str | None = None) -> CommandResult:
        """Runs lines of /bin/sh to their end. Arguments are those of `run`; nothing stays for the next one but files
        (see `open_session`)."""
        return await self.run(["/bin/sh", "-c", command], timeout=timeout, env=env, workdir=workdir, user=user, input=input,
                              check=check, output_limit=output_limit, op_id=op_id)

    async def run(self, argv: Sequence[Bytes], *, timeout: float | None = None, env: Mapping[str, Bytes] | None = None,
                  workdir: Bytes = "", user: Bytes = "", input: Bytes | None = None, check: bool = False,
                  output_limit: int | None = None, op_id: str | None = None) -> CommandResult:
        """Runs a program to its end and returns how it ended and what it said.

        `timeout`: seconds, after which it is killed with all that it started; the result is then `timed_out` and has
        what was said until then. None: no limit. `env`: over the sandbox's. `input`: its standard input, else empty.
        `check`: raise DSecCommandError unless it ends with exit code 0. `output_limit`: bytes of each stream that are
        kept, instead of the sandbox's. Cancelled, it kills the command.
        """
        command = await self.start(argv, timeout=timeout, env=env, workdir=workdir, user=user, stdin=input is not None,
                                   output_limit=output_limit, op_id=op_id)
        async with command:
            result = await command.wait(input)
        return checked(result, check, lambda: f"{_shown(argv)} failed in sandbox {self}")

    async def start(self, argv: Sequence[Bytes], *, timeout: float | None = None, env: Mapping[str, Bytes] | None = None,
                    workdir: Bytes = "", user: Bytes = "", stdin: bool = False, tty: bool = False, rows: int = 24, columns: int = 80,
                    output_limit: int | None = None, op_id: str | None = None) -> Command:
        """Begins a program, which may be followed, given input (`stdin=True`) and a terminal (`tty=True`, of `rows` and
        `columns`). Other arguments are those of `run`. Use it within `async with`, whose end kills it."""
        body: dict[str, Any] = {"argv": [bytes_to_json(word) for word in argv], "env": env_to_json(env),
                                "workdir": bytes_to_json(workdir), "user": bytes_to_json(user), "tty": tty, "stdin": stdin}
        if tty:
            body.update(rows=rows, columns=columns)
        if timeout is not None:
            body["timeout_ms"] = milliseconds(timeout)
        if output_limit is not None:
            body["output_limit"] = output_limit
        start = Start(self._edge, self.id, _wire.EXEC, {"id": self.id}, body, f"{_shown(argv)} in sandbox {self}", stdin or tty,
                      op_id or new_op_id())
        return await start.command()

    async def attach(self, exec_id: str, *, stdin: bool = False) -> Command:
        """Follows a command from its beginning, as far as that is kept; it may have ended. `stdin`: to give it input, too."""
        start = Start(self._edge, self.id, _wire.ATTACH, {"id": self.id, "exec_id": exec_id}, None, f"command {exec_id} of sandbox {self}", stdin, None,
                      end_signals=())
        return await start.command()

    async def commands(self) -> list[CommandInfo]:
        """Those that run and those that have ended."""
        return [CommandInfo.of_wire(one) for one in (await self._ask("list the commands of", _wire.COMMANDS))["commands"]]

    async def logs(self, exec_id: str = "", *, follow: bool = False, tail: int | None = None) -> Records[LogRecord]:
        """What a command has said, with times. `exec_id`: empty for the main command. `follow`: to its end. `tail`: the last
        lines only."""
        attempt = f"cannot read the log of sandbox {self}"
        parameters = {"id": self.id, "exec_id": exec_id or None, "follow": follow, "tail": tail}
        # One that is followed may have nothing to say for any time, and then not even begins to answer.
        silence = None if follow else SILENCE
        return Records(self._edge, attempt, lambda: self._edge.listen(attempt, _wire.LOGS, parameters, silence=silence), LogRecord.of_wire)

    # Sessions

    async def open_session(self, name: str = "", *, shell: str = "", env: Mapping[str, Bytes] | None = None, workdir: Bytes = "",
                           user: Bytes = "", tty: bool = False, rows: int = 24, columns: int = 80, output_limit: int | None = None,
                           op_id: str | None = None) -> Session:
        """Opens a shell that stays; it listens when this returns. `name`: unique among the sandbox's, no number. `shell`:
        "bash", "sh" or a path; empty: bash where there is one. `tty`: its commands have a terminal."""
        body: dict[str, Any] = {"session": name, "shell": bytes_to_json(shell), "env": env_to_json(env),
                                "workdir": bytes_to_json(workdir), "user": bytes_to_json(user), "tty": tty}
        if tty:
            body.update(rows=rows, columns=columns)
        if output_limit is not None:
            body["output_limit"] = output_limit
        opening = self._ask("open a session in", _wire.OPEN_SESSION, body, op_id=op_id)
        return await or_undo(self._session(opening), Session._end, None)

    async def _session(self, opening: Any) -> Session:
        return Session(self._edge, self.id, str(self), SessionInfo.of_wire(await opening))

    async def sessions(self) -> list[Session]:
        """Those that are open."""
        listed = (await self._ask("list the sessions of", _wire.SESSIONS))["sessions"]
        return [Session(self._edge, self.id, str(self), SessionInfo.of_wire(one)) for one in listed]

    # Files

    async def read_file(self, path: str) -> bytes:
        """The content of a regular file; all of it is held in memory."""
        with tempfile.TemporaryFile() as archive:
            await self._copy_out(path, archive)
            return await _in_thread(_archive.one_file, archive, path)

    async def write_file(self, path: str, data: Bytes, *, mode: int = 0o644, uid: int = 0, gid: int = 0, op_id: str | None = None) -> None:
        """Writes a file into a directory that exists, over what was there; whole or not at all. Owner as seen inside."""
        directory, name = _archive.split(path)
        archive = _archive.of_file(name, _wire.to_bytes(data), mode, uid, gid)

        async def whole() -> AsyncIterator[bytes]:
            for start in range(0, len(archive), _PIECE):
                yield archive[start:start + _PIECE]

        await self._edge.upload(f"cannot write {path!r} in sandbox {self}", _wire.COPY_IN, {"id": self.id, "path": directory}, whole,
                                op_id=op_id)

    async def upload(self, source: str | os.PathLike[str], path: str, *, op_id: str | None = None) -> None:
        """Copies a file or directory of this host to `path` inside, whose directory exists. All belongs to root inside;
        links are copied as links. A directory goes over one that is there, whose other files stay."""
        directory, name = _archive.split(path.rstrip("/"))
        with tempfile.TemporaryFile() as archive:
            await _in_thread(_archive.pack, Path(source), name, archive)

            async def from_the_beginning() -> AsyncIterator[bytes]:
                archive.seek(0)
                while data := await _in_thread(archive.read, _PIECE):
                    yield data

            await self._edge.upload(f"cannot copy {os.fspath(source)!r} to {path!r} in sandbox {self}", _wire.COPY_IN,
                                    {"id": self.id, "path": directory}, from_the_beginning, op_id=op_id)

    async def download(self, path: str, target: str | os.PathLike[str]) -> None:
        """Copies a file or directory of the sandbox to `target` here, over what is there. All belongs to us; links are
        copied as links, and nothing outside `target` is written, whatever the sandbox did to its files."""
        with tempfile.TemporaryFile() as archive:
            await self._copy_out(path, archive)
            await _in_thread(_archive.unpack, archive, posixpath.basename(path.rstrip("/")), Path(target))

    async def watch(self, path: str, *, recursive: bool = False) -> Records[FileEvent]:
        """Changes of a file or directory, none of which is missed from the moment that this returns; with `recursive` also
        below, where what happens in a directory in the moment of its making may be told as less than it was."""
        attempt = f"cannot watch {path!r} in sandbox {self}"
        parameters = {"id": self.id, "path": path, "recursive": recursive}
        records = Records(self._edge, attempt, lambda: self._edge.listen(attempt, _wire.WATCH, parameters), FileEvent.of_wire)
        await records._skip()
        return records

    # Servers inside

    async def http(self, port: int, path: str = "/", *, method: str = "GET", headers: Mapping[str, str] | None = None, body: Bytes = b"",
                   host: str = "", timeout: float | None = None, op_id: str | None = None) -> HttpResponse:
        """One request to a server that listens on the sandbox's own loopback. `host`: for its Host header. `timeout`:
        seconds without a byte of the answer; None: 10 minutes."""
        asked: dict[str, Any] = {"method": method, "path": bytes_to_json(path), "body": bytes_to_json(body), "host": host or f"localhost:{port}",
                                 "headers": [f"{name}: {value}" for name, value in (headers or {}).items()]}
        if timeout is not None:
            asked["timeout_ms"] = milliseconds(timeout)
        head, data = await head_and_content(self._edge, f"cannot ask {method} {path} of port {port} in sandbox {self}", _wire.HTTP,
                                            {"id": self.id, "port": port}, asked, op_id=op_id,
                                            silence=(_LONG if timeout is None else timeout) + 30)
        pairs = tuple((_wire.text_from_json(name), _wire.text_from_json(value)) for name, value in head["headers"])
        return HttpResponse(head["status"], _wire.text_from_json(head["reason"]), pairs, data)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a TCP port on the sandbox's own loopback, which the caller closes."""
        connection = await self._edge.upgrade(f"cannot connect to port {port} in sandbox {self}", _wire.CONNECT,
                                              {"id": self.id, "port": port}, protocol=_wire.BYTES_PROTOCOL)
        return connection.reader, connection.writer

    @contextlib.asynccontextmanager
    async def forward(self, port: int, *, listen: str = "127.0.0.1", listen_port: int = 0) -> AsyncIterator[tuple[str, int]]:
        """Listens here while it is open; each connection goes to `port` inside. Gives address and port; 0 takes a free one."""
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                inside_reader, inside_writer = await self.connect(port)
                with contextlib.closing(inside_writer):
                    await asyncio.gather(_pass_on(reader, inside_writer), _pass_on(inside_reader, writer))

        async with await asyncio.start_server(serve, listen, listen_port) as server:
            yield server.sockets[0].getsockname()[:2]

    # The screen of a full VM. Points are pixels from the upper left corner; what lies outside is refused.

    async def screenshot(self, *, op_id: str | None = None) -> bytes:
        """What it shows, as a PNG file."""
        attempt = f"cannot look at the screen of sandbox {self}"
        return b"".join([piece async for piece in content(self._edge, attempt, _wire.SCREENSHOT, {"id": self.id}, op_id=op_id or new_op_id())])

    async def type_text(self, text: str, *, op_id: str | None = None) -> None:
        """Types on its keyboard, which is a US one: ASCII, a newline is Return."""
        await self._act("type at", "type", text=text, op_id=op_id)

    async def press(self, keys: str, *, op_id: str | None = None) -> None:
        """Presses keys together, as in "ctrl+alt+t" or "esc"; `man dsec-vm` has their names."""
        await self._act("press keys of", "key", text=keys, op_id=op_id)

    async def move(self, x: int, y: int, *, op_id: str | None = None) -> None:
        """Moves the pointer."""
        await self._act("move the pointer of", "move", at=[x, y], op_id=op_id)

    async def click(self, x: int, y: int, *, button: str = "left", count: int = 1, op_id: str | None = None) -> None:
        """Clicks there `count` times. `button`: "left", "middle" or "right"."""
        await self._act("click at", "click", at=[x, y], button=button, count=count, op_id=op_id)

    async def scroll(self, x: int, y: int, count: int, *, up: bool = False, op_id: str | None = None) -> None:
        """Turns the wheel by `count` steps there, down unless `up`."""
        await self._act("scroll at", "scroll", at=[x, y], count=count, up=up, op_id=op_id)

    async def drag(self, x: int, y: int, to_x: int, to_y: int, *, button: str = "left", op_id: str | None = None) -> None:
        """Moves the pointer from one point to another with `button` held."""
        await self._act("drag at", "drag", at=[x, y], to=[to_x, to_y], button=button, op_id=op_id)

    async def connect_screen(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that speaks RFB, as viewers of VNC do, which the caller closes."""
        connection = await self._edge.upgrade(f"cannot connect to the screen of sandbox {self}", _wire.CONNECT_SCREEN, {"id": self.id},
                                              protocol=_wire.BYTES_PROTOCOL)
        return connection.reader, connection.writer

    async def _act(self, verb: str, action: str, *, op_id: str | None, **what: Any) -> None:
        await self._ask(f"{verb} the screen of", _wire.SCREEN_INPUT, {"action": action, **what}, op_id=op_id)

    # Network

    async def network(self) -> NetworkReport:
        """What it may reach, and what it has asked for."""
        return NetworkReport.of_wire(await self._ask("look at the network of", _wire.NETWORK))

    async def set_network(self, rules: Rules | None = None, *, phase: str | None = None, strict: bool | None = None,
                          op_id: str | None = None) -> Mapping[str, Any]:
        """Replaces the rules that hold, or switches to a phase ("" is none), at once: what is open and no longer allowed is
        cut. For sandboxes that were made with `network_rules`. Returns the plan that holds then."""
        change: dict[str, Any] = dict(rules_to_wire(rules)) if rules is not None else {}
        change.update({name: value for name, value in {"phase": phase, "strict": strict}.items() if value is not None})
        plan: Mapping[str, Any] = (await self._ask("change the network of", _wire.SET_NETWORK, change, op_id=op_id))["plan"]
        return plan

    async def network_log(self) -> list[Mapping[str, Any]]:
        """Every name, connection and request that it asked for (dsec-network(7), "LOG")."""
        records: list[Mapping[str, Any]] = []
        start = 0
        while True:
            answer = await self._edge.ask(f"cannot read the network log of sandbox {self}", _wire.NETWORK_LOG, {"id": self.id, "from": start})
            lines = _wire.bytes_from_json(answer["lines"])
            if not lines:
                return records
            start += len(lines)
            records += [json.loads(line) for line in lines.splitlines()]

    # What it has become

    async def inspect(self) -> SandboxInfo:
        """Looks at it, and keeps what was seen in `info`."""
        self.info = SandboxInfo.of_wire(await self._ask("look at", _wire.INSPECT))
        return self.info

    async def stats(self) -> Stats:
        """What it uses now."""
        return Stats.of_wire(await self._ask("measure", _wire.STATS))

    async def changes(self) -> list[Change]:
        """What it has changed of the files that it began with."""
        return [Change.of_wire(one) for one in (await self._ask("compare", _wire.CHANGES, timeout=_LONG))["changes"]]

    async def change_stat(self) -> list[FileChange]:
        """The same, with how much of each file; without directories."""
        return [FileChange.of_wire(one) for one in (await self._ask("compare", _wire.CHANGE_STAT, timeout=_LONG))["changes"]]

    async def patch(self) -> bytes:
        """A unified patch of the text files that changed, for `git apply`."""
        return await self._changed("patch")

    async def changes_tar(self) -> bytes:
        """What changed, as an OCI layer: a PAX archive with whiteouts."""
        return await self._changed("tar")

    async def snapshot(self, layer: str, *, scrub: bool = False, labels: Mapping[str, str] | None = None, timeout: float = _LONG,
                       op_id: str | None = None) -> Snapshot:
        """Makes a layer of what it has changed, in the edge's store: "snapshot/NAME:TAG", which stands on all its layers, or
        "workspace/NAME:TAG", which stands on its base. The sandbox stands still meanwhile and goes on. `scrub`: without
        caches, histories, keys and the like. Use the name as `container_image`. `timeout`: seconds."""
        body = {"layer": layer, "scrub": scrub, "labels": dict(labels or {})}
        return Snapshot.of_wire(await self._ask(f"make layer {layer!r} of", _wire.SNAPSHOT, body, op_id=op_id, timeout=timeout))

    async def fork(self, count: int = 1, *, name: str = "", labels: Mapping[str, str] | None = None, timeout: float = _LONG,
                   op_id: str | None = None) -> list[Sandbox]:
        """Starts sandboxes with the same files and settings, which share what was changed until now. Processes are not
        copied. All or none; they belong to this client. `name`: theirs are NAME-1, NAME-2, … `timeout`: seconds."""
        body = {"count": count, "name": name, "labels": dict(labels or {})}

        async def forked() -> list[Sandbox]:
            answer = await self._ask("fork", _wire.FORK, body, op_id=op_id, timeout=timeout)
            return [self._client._adopt(SandboxInfo.of_wire(one)) for one in answer["sandboxes"]]

        async def undo(forks: list[Sandbox]) -> None:
            await asyncio.gather(*(fork.remove(force=True) for fork in forks))

        return await or_undo(forked(), undo, None)

    async def operation(self, op_id: str) -> Operation | None:
        """What is recorded under this name, also of a sandbox that is gone; None: nothing."""
        found = (await self._edge.ask(f"cannot look for operation {op_id!r} of sandbox {self}", _wire.RECORDED,
                                      {"id": self.id, "op_id": op_id}))["operation"]
        return Operation.of_wire(found["started"], found["done"]) if found else None

    async def trajectory(self) -> Trajectory:
        """All that was done to it, in order; as `client.trajectory(sandbox.id)`, which works when it is gone, too."""
        return await self._client.trajectory(self.id)

    # Life

    async def update(self, *, memory_limit_mb: int | None = None, cpu_cores_limit: float | None = None, pids_limit: int | None = None,
                     disk_limit_mb: int | None = None, output_limit_mb: int | None = None, cpu_class: str | None = None,
                     ttl_running_stop: float | None = None, ttl_running_pause: float | None = None, lifetime: float | None = None,
                     labels: Mapping[str, str | None] | None = None, op_id: str | None = None) -> SandboxInfo:
        """Changes limits, times and labels; None leaves one as it is, 0 takes a limit away, a label of None that label. Units
        are those of DSecContainerRunArgs. All or nothing."""
        def scaled(value: float | None, factor: float) -> int | None:
            return None if value is None else round(value * factor)

        wanted = {"memory": scaled(memory_limit_mb, MIB), "cpus": cpu_cores_limit, "pids": pids_limit, "disk": scaled(disk_limit_mb, MIB),
                  "output": scaled(output_limit_mb, MIB), "class": cpu_class, "idle_ms": scaled(ttl_running_stop, 1000),
                  "idle_pause_ms": scaled(ttl_running_pause, 1000), "lifetime_ms": scaled(lifetime, 1000)}
        body: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        if labels is not None:
            body["labels"] = dict(labels)
        self.info = SandboxInfo.of_wire(await self._ask("update", _wire.UPDATE, body, op_id=op_id))
        return self.info

    async def pause(self, *, op_id: str | None = None) -> None:
        """Freezes all its processes and gives its memory back; returns when both are done. The next operation resumes it."""
        await self._ask("pause", _wire.PAUSE, op_id=op_id)

    async def resume(self, *, op_id: str | None = None) -> None:
        """Lets it go on; no error when it is not paused."""
        await self._ask("resume", _wire.RESUME, op_id=op_id)

    async def wait(self, timeout: float | None = None) -> SandboxInfo:
        """Waits until it has ended. `timeout`: seconds, after which DSecTimeoutError is raised; the sandbox goes on."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LONGEST_WAIT if end is None else max(0.0, min(_LONGEST_WAIT, end - time.monotonic()))
            status, answer = await self._edge.ask_status(f"cannot wait for sandbox {self}", _wire.WAIT,
                                                         {"id": self.id, "timeout_ms": milliseconds(left)}, timeout=left + 30)
            if status != 202:
                self.info = SandboxInfo.of_wire(answer)
                return self.info
            if end is not None and time.monotonic() >= end:
                raise DSecTimeoutError(f"cannot wait longer for sandbox {self}", [f"it has not ended within {timeout:g} s, and goes on"],
                                       safe_to_retry=True)

    async def stop(self, grace: float = 10.0, *, op_id: str | None = None) -> None:
        """Ends it: its stop signal, and after `grace` seconds SIGKILL to all that is left. Its record and what it wrote stay
        until it is removed. No error when it has ended."""
        await self._ask("stop", _wire.STOP, {"grace_ms": milliseconds(grace)}, op_id=op_id, timeout=grace + self._edge.call_timeout)

    async def remove(self, *, force: bool = False) -> None:
        """Removes it with all that it wrote; its trajectory stays. `force`: also when it runs, which is an error else. No
        error when it is gone."""
        attempt = f"cannot remove sandbox {self}"
        try:
            await self._edge.ask(attempt, _wire.REMOVE, {"id": self.id, "force": force})
        except DSecUsageError:
            # The call has no op_id: of one that was repeated the first may have removed it.
            listed = (await self._edge.ask(attempt, _wire.LIST, {"all": True}))["sandboxes"]
            if any(one["id"] == self.id for one in listed):
                raise
        self._client._disown(self.id)

    def keep(self) -> None:
        """It does not end with this client any more."""
        self._owned = False
        self._client._disown(self.id)

    # The rest

    async def _ask(self, verb: str, call: _wire.Call, body: Mapping[str, Any] | None = None, *, op_id: str | None = None,
                   timeout: float | None = None) -> Any:
        return await self._edge.ask(f"cannot {verb} sandbox {self}", call, {"id": self.id}, body, op_id=op_id, timeout=timeout)

    async def _copy_out(self, path: str, to: IO[bytes]) -> None:
        attempt = f"cannot read {path!r} of sandbox {self}"

        async def copy() -> None:
            to.seek(0)
            to.truncate()
            async for piece in content(self._edge, attempt, _wire.COPY_OUT, {"id": self.id, "path": path}):
                to.write(piece)

        await self._edge.persist(attempt, copy, repeatable=True)
        to.seek(0)

    async def _changed(self, form: str) -> bytes:
        attempt = f"cannot compare sandbox {self}"
        return b"".join([piece async for piece in content(self._edge, attempt, _wire.CHANGE_CONTENT, {"id": self.id, "form": form})])

    def __str__(self) -> str:
        return self.name or self.id


async def _in_thread(work: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work, *args)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


def _shown(argv: Sequence[Bytes]) -> str:
    text = " ".join(_wire.to_bytes(word).decode("utf-8", "replace") for word in argv)
    return repr(text if len(text) <= 60 else text[:57] + "...")
