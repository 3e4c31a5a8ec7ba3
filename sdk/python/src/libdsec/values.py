"""What edges tell: plain values, whose times are seconds and sizes bytes unless a name says otherwise."""

from __future__ import annotations

import dataclasses
import datetime
import json
import signal as _signal
from typing import Any, Mapping

from ._wire import bytes_from_json, text_from_json


def _time(value: Any) -> datetime.datetime | None:
    return datetime.datetime.fromisoformat(value.replace("Z", "+00:00")) if value else None


def _micros(value: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(value / 1e6, datetime.timezone.utc)


@dataclasses.dataclass(frozen=True)
class ExitStatus:
    """How a command ended.

    `cause`: "exited", "signalled", "timed_out", "out_of_memory", "cannot_execute", "not_found", "lost" (with its keeper)
    or "unknown" (it may have been carried out or not). `exit_code`: as a shell tells it: the command's own, 128 + signal,
    124 after a timeout, 126 and 127 when it could not run, 125 when nobody knows. `duration`: seconds. `stdout_dropped`,
    `stderr_dropped`: bytes that were left out in the middle, beyond the output limit. `oom_kills`: processes of the
    sandbox that were killed for lack of memory meanwhile. `detail`: why it could not run. `session_ended`: the session
    that it ran in ended with it.
    """

    cause: str
    exit_code: int
    signal: int
    duration: float
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    oom_kills: int = 0
    detail: str = ""
    session_ended: bool = False

    @property
    def ok(self) -> bool:
        return self.cause == "exited" and self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.cause == "timed_out"

    @property
    def reason(self) -> str:
        """In words."""
        if self.cause == "exited":
            return f"it ended with exit code {self.exit_code}"
        words = {"signalled": f"it was ended by signal {self.signal} ({_signal_name(self.signal)})",
                 "timed_out": "its time was over", "out_of_memory": "it was killed for lack of memory",
                 "cannot_execute": "it cannot be executed", "not_found": "there is no such program",
                 "lost": "the sandbox ended with it", "unknown": "whether it was carried out is not known"}
        said = words.get(self.cause, self.cause)
        return f"{said}: {self.detail}" if self.detail else said

    @classmethod
    def members(cls, json: Mapping[str, Any]) -> dict[str, Any]:
        cause, signal = json["cause"], json["signal"]
        codes = {"exited": json["exit_code"], "signalled": 128 + signal, "out_of_memory": 128 + signal, "timed_out": 124,
                 "cannot_execute": 126, "not_found": 127}
        return {"cause": cause, "exit_code": codes.get(cause, 125), "signal": signal, "duration": json["duration_us"] / 1e6,
                "stdout_dropped": json["stdout_dropped"], "stderr_dropped": json["stderr_dropped"],
                "oom_kills": json.get("oom_kills", 0), "detail": json.get("detail", ""),
                "session_ended": bool(json.get("session_ended", False))}

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> ExitStatus:
        return cls(**ExitStatus.members(json))


def _signal_name(number: int) -> str:
    try:
        return _signal.Signals(number).name
    except ValueError:
        return "unknown"


@dataclasses.dataclass(frozen=True)
class CommandResult(ExitStatus):
    """How a command ended and what it said. With a TTY all is standard output."""

    exec_id: str = ""
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""

    @property
    def stdout(self) -> str:
        """As text; bytes that are no UTF-8 are replaced, which `stdout_bytes` has as they are."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclasses.dataclass(frozen=True)
class SandboxInfo:
    """`state`: "creating", "running", "paused", "stopped", "failed" or "orphaned" (its keeper is gone). `reason`: why it
    ended, empty while it runs. `spec`: all that it was made from, as `dsec inspect` shows it. `result`: how its main
    command ended, if it had one."""

    id: str
    name: str
    backend: str
    state: str
    reason: str
    created: datetime.datetime | None
    ended: datetime.datetime | None
    labels: Mapping[str, str]
    result: ExitStatus | None
    spec: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def running(self) -> bool:
        return self.state in ("running", "paused")

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> SandboxInfo:
        spec = json["spec"]
        return cls(json["id"], spec.get("name", ""), spec.get("backend", "container"), json["state"], json["reason"],
                   _time(json["created"]), _time(json["ended"]), spec.get("labels", {}),
                   ExitStatus.of_wire(json["result"]) if json["result"] else None, spec)


@dataclasses.dataclass(frozen=True)
class CommandInfo:
    """A command of a sandbox, also one that has ended. `session`: the id of the one that it ran in, or empty."""

    exec_id: str
    argv: tuple[str, ...]
    session: str
    running: bool
    result: ExitStatus | None

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> CommandInfo:
        return cls(json["exec_id"], tuple(text_from_json(word) for word in json["argv"]), json["session"], json["running"],
                   ExitStatus.of_wire(json["result"]) if json["result"] else None)


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    """A shell that stays. `commands`: how many it was given. `running`: the exec id of the one that runs, or empty."""

    id: str
    name: str
    shell: tuple[str, ...]
    tty: bool
    opened: datetime.datetime | None
    commands: int
    running: str

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> SessionInfo:
        return cls(json["id"], json["name"], tuple(text_from_json(word) for word in json["shell"]), json["tty"],
                   _time(json["opened"]), json["commands"], json["running"])


@dataclasses.dataclass(frozen=True)
class Stats:
    """What a sandbox uses. `cpu_time`: seconds. A limit of 0: none. None: nothing counts it there."""

    memory_bytes: int
    memory_limit: int
    memory_peak: int | None
    cpu_time: float
    pids: int
    pids_limit: int
    disk_bytes: int
    disk_limit: int
    oom_kills: int | None

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> Stats:
        return cls(json["memory_bytes"], json["memory_limit"], json.get("memory_peak"), json["cpu_usec"] / 1e6, json["pids"],
                   json["pids_limit"], json["disk_bytes"], json["disk_limit"], json.get("oom_kills"))


@dataclasses.dataclass(frozen=True)
class Change:
    """`kind`: "added", "modified" or "deleted", against the layers that the sandbox began with."""

    kind: str
    path: str

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> Change:
        return cls(json["kind"], text_from_json(json["path"]))


@dataclasses.dataclass(frozen=True)
class FileChange(Change):
    """How much of one file has changed; lines of binary files are not counted."""

    binary: bool = False
    added_lines: int = 0
    deleted_lines: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> FileChange:
        return cls(json["kind"], text_from_json(json["path"]), json["binary"], json["added_lines"], json["deleted_lines"],
                   json["bytes_before"], json["bytes_after"])


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A layer of what a sandbox had changed. `digest`: name it by this or by the name it was given. `layers`: what a
    sandbox of it is made of, bottom to top. `bytes`: its size in the store."""

    digest: str
    layers: tuple[str, ...]
    bytes: int
    warnings: tuple[str, ...]

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> Snapshot:
        return cls(json["digest"], tuple(json["layers"]), json["bytes"], tuple(json["warnings"]))


@dataclasses.dataclass(frozen=True)
class FileEvent:
    """`kind`: "created", "modified", "closed" (what was written is whole), "attributes", "deleted", "moved" (from
    `from_path`), "overflow" (events were lost: look at the files themselves) or "ended"."""

    kind: str
    path: str
    from_path: str
    directory: bool

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> FileEvent:
        return cls(json["kind"], text_from_json(json["path"]), text_from_json(json["from"]), json["directory"])


@dataclasses.dataclass(frozen=True)
class LogRecord:
    """A piece of a command's output. `stream`: "stdout" or "stderr"."""

    stream: str
    time: datetime.datetime
    data: bytes

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> LogRecord:
        return cls(json["stream"], _micros(json["time_us"]), bytes_from_json(json["data"]))


@dataclasses.dataclass(frozen=True)
class HttpResponse:
    """Of a server in a sandbox. `headers`: as they came, in order."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = dataclasses.field(repr=False)

    def header(self, name: str) -> str | None:
        """The first of that name, in any case of letters."""
        return next((value for known, value in self.headers if known.lower() == name.lower()), None)

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)


@dataclasses.dataclass(frozen=True)
class NetworkReport:
    """What a sandbox may reach and what it has asked for. `plan`: the policy, as dsec-network(7) has it; None without
    one. `connections`: open now; `sent`, `received`: bytes; `allowed`, `denied`: how often; `names`: looked up."""

    plan: Mapping[str, Any] | None
    attached: bool
    connections: int
    sent: int
    received: int
    allowed: int
    denied: int
    names: int

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> NetworkReport:
        return cls(**{field.name: json[field.name] for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class Operation:
    """One recorded request on a sandbox (dsec-trajectory(5)). `outcome`: "ok", "failed" or "interrupted"; empty while it
    runs, or when nobody lived to record it. `stdout`, `stderr`: what the log itself has of its output."""

    seq: int
    op_id: str
    kind: str
    origin: str
    started: datetime.datetime
    request: Mapping[str, Any]
    outcome: str = ""
    duration: float | None = None
    result: Mapping[str, Any] | None = None
    stdout: bytes = dataclasses.field(default=b"", repr=False)
    stderr: bytes = dataclasses.field(default=b"", repr=False)

    @classmethod
    def of_wire(cls, started: Mapping[str, Any], done: Mapping[str, Any] | None) -> Operation:
        begun = cls(started["seq"], started["op_id"], started["kind"], started["origin"], _micros(started["time_us"]),
                    started["request"])
        if done is None:
            return begun
        return dataclasses.replace(
            begun, outcome=done["outcome"], duration=done["duration_us"] / 1e6, result=done["result"],
            stdout=bytes_from_json(done.get("stdout", "")), stderr=bytes_from_json(done.get("stderr", "")))


@dataclasses.dataclass(frozen=True)
class TrajectoryInfo:
    """What was done to a sandbox, also to one that is gone. `live`: it runs still."""

    id: str
    environment: str
    source: str
    created: datetime.datetime | None
    last: datetime.datetime | None
    operations: int
    bytes: int
    live: bool
    layers: tuple[str, ...]

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> TrajectoryInfo:
        return cls(json["id"], json["environment"], json["source"], _time(json["created"]), _time(json["last"]),
                   json["operations"], json["bytes"], json["live"], tuple(json["layers"]))


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """The ordered log of a sandbox. `header`: of dsec-trajectory(5). `damage`: what of it cannot be read; empty: nothing.
    `export`: the whole of it, which `dsec traj import` and `dsec replay` take; with its secrets."""

    header: Mapping[str, Any]
    operations: tuple[Operation, ...]
    live: bool
    damage: str
    export: bytes = dataclasses.field(repr=False)

    @classmethod
    def of_export(cls, export: bytes, live: bool, damage: str) -> Trajectory:
        header: Mapping[str, Any] = {}
        started: dict[int, Mapping[str, Any]] = {}
        done: dict[int, Mapping[str, Any]] = {}
        for line in export.splitlines():
            record = json.loads(line)
            if "schema" in record:
                header = header or record
            elif record.get("record") == "started":
                started[record["seq"]] = record
            elif record.get("record") == "done":
                done[record["seq"]] = record
        operations = tuple(Operation.of_wire(record, done.get(seq)) for seq, record in sorted(started.items()))
        return cls(header, operations, live, damage, export)


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of the edge's store. `manifest`: of dsec-layer-manifest(5)."""

    digest: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    manifest: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def kind(self) -> str:
        return str(self.manifest["kind"])

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.manifest['name']}"

    @classmethod
    def of_wire(cls, json: Mapping[str, Any]) -> Layer:
        return cls(json["digest"], tuple(json["tags"]), json["labels"], json["manifest"])


@dataclasses.dataclass(frozen=True)
class Health:
    """Of an edge that answers. `version`: of its dsec."""

    name: str
    version: str
