"""What goes over the wire: the calls of the contract (core/remote/openapi.yaml), frames, and bytes in JSON."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import os
import struct
import urllib.parse
from typing import Any, Iterator, Mapping, Union

Bytes = Union[str, bytes]

FRAMES_TYPE = "application/vnd.dsec.frames"
FRAMES_PROTOCOL = "dsec-frames"
BYTES_PROTOCOL = "dsec-bytes"

OP_ID_HEADER = "Dsec-Op-Id"
ORIGIN_HEADER = "Dsec-Origin"
RECORDED_HEADER = "Dsec-Recorded"
REQUEST_ID_HEADER = "Dsec-Request-Id"


@dataclasses.dataclass(frozen=True)
class Call:
    """One operation of the contract. `changes`: it takes an op_id, and repeated with it nothing is done again."""

    name: str
    method: str
    path: str
    changes: bool = False

    def target(self, parameters: Mapping[str, str | bytes | int | bool | None]) -> str:
        """Path and query; parameters that are None are left out."""
        path, query = self.path, []
        for name, value in parameters.items():
            if value is None:
                continue
            text = {True: "true", False: "false"}[value] if isinstance(value, bool) else value
            quoted = urllib.parse.quote(os.fsencode(str(text) if isinstance(text, int) else text), safe="")
            place = "{" + name + "}"
            if place in path:
                path = path.replace(place, quoted)
            else:
                query.append(f"{name}={quoted}")
        return path + ("?" + "&".join(query) if query else "")


HEALTH = Call("health", "GET", "/v1/health")
METRICS = Call("metrics", "GET", "/v1/metrics")
CREATE = Call("create", "POST", "/v1/sandboxes", changes=True)
LIST = Call("list", "GET", "/v1/sandboxes")
INSPECT = Call("inspect", "GET", "/v1/sandboxes/{id}")
REMOVE = Call("remove", "DELETE", "/v1/sandboxes/{id}")
UPDATE = Call("update", "PATCH", "/v1/sandboxes/{id}", changes=True)
WAIT = Call("wait", "GET", "/v1/sandboxes/{id}/end")
STOP = Call("stop", "POST", "/v1/sandboxes/{id}/stop", changes=True)
PAUSE = Call("pause", "POST", "/v1/sandboxes/{id}/pause", changes=True)
RESUME = Call("resume", "POST", "/v1/sandboxes/{id}/resume", changes=True)
EXEC = Call("exec", "POST", "/v1/sandboxes/{id}/commands", changes=True)
COMMANDS = Call("commands", "GET", "/v1/sandboxes/{id}/commands")
ATTACH = Call("attach", "GET", "/v1/sandboxes/{id}/commands/{exec_id}/output")
SIGNAL = Call("signal", "POST", "/v1/sandboxes/{id}/commands/{exec_id}/signal", changes=True)
OPEN_SESSION = Call("openSession", "POST", "/v1/sandboxes/{id}/sessions", changes=True)
SESSIONS = Call("sessions", "GET", "/v1/sandboxes/{id}/sessions")
CLOSE_SESSION = Call("closeSession", "DELETE", "/v1/sandboxes/{id}/sessions/{session}", changes=True)
RUN_IN_SESSION = Call("runInSession", "POST", "/v1/sandboxes/{id}/sessions/{session}/commands", changes=True)
LOGS = Call("logs", "GET", "/v1/sandboxes/{id}/logs")
STATS = Call("stats", "GET", "/v1/sandboxes/{id}/stats")
CHANGES = Call("changes", "GET", "/v1/sandboxes/{id}/changes")
CHANGE_STAT = Call("changeStat", "GET", "/v1/sandboxes/{id}/changes/stat")
CHANGE_CONTENT = Call("changeContent", "GET", "/v1/sandboxes/{id}/changes/content")
SNAPSHOT = Call("snapshot", "POST", "/v1/sandboxes/{id}/snapshot", changes=True)
FORK = Call("fork", "POST", "/v1/sandboxes/{id}/fork", changes=True)
COPY_OUT = Call("copyOut", "GET", "/v1/sandboxes/{id}/files")
COPY_IN = Call("copyIn", "PUT", "/v1/sandboxes/{id}/files", changes=True)
WATCH = Call("watch", "GET", "/v1/sandboxes/{id}/events")
HTTP = Call("http", "POST", "/v1/sandboxes/{id}/ports/{port}/http", changes=True)
CONNECT = Call("connect", "GET", "/v1/sandboxes/{id}/ports/{port}/stream")
SCREENSHOT = Call("screenshot", "POST", "/v1/sandboxes/{id}/screen/picture", changes=True)
SCREEN_INPUT = Call("screenInput", "POST", "/v1/sandboxes/{id}/screen/input", changes=True)
CONNECT_SCREEN = Call("connectScreen", "GET", "/v1/sandboxes/{id}/screen/stream")
NETWORK = Call("network", "GET", "/v1/sandboxes/{id}/network")
SET_NETWORK = Call("setNetwork", "PATCH", "/v1/sandboxes/{id}/network", changes=True)
NETWORK_LOG = Call("networkLog", "GET", "/v1/sandboxes/{id}/network/log")
RECORDED = Call("recorded", "GET", "/v1/sandboxes/{id}/operations/{op_id}")
TRAJECTORIES = Call("trajectories", "GET", "/v1/trajectories")
TRAJECTORY = Call("trajectory", "GET", "/v1/trajectories/{id}")
REMOVE_TRAJECTORY = Call("removeTrajectory", "DELETE", "/v1/trajectories/{id}")
LAYER = Call("layer", "GET", "/v1/layers/{ref}")

CALLS = tuple(value for value in list(globals().values()) if isinstance(value, Call))


class FrameKind(enum.IntEnum):
    """Of dsec-wire(7), "STREAMS". Readers pass over kinds that they do not know."""

    STDOUT = 1
    STDERR = 2
    EXITED = 3
    KEEP_ALIVE = 4
    FAILED = 5
    RECORD = 6
    DATA = 7
    END = 8
    STDIN = 16
    STDIN_END = 17
    RESIZE = 18


LAST_FRAMES = (FrameKind.EXITED, FrameKind.FAILED, FrameKind.END)
_HEAD = struct.Struct(">BI")
_LONGEST_FRAME = 8 << 20
LONGEST_INPUT = 64 << 10


@dataclasses.dataclass(frozen=True)
class Frame:
    kind: int
    payload: bytes

    def json(self) -> Any:
        return json.loads(self.payload)


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


class FrameReader:
    """Takes bytes as they come and gives frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._bytes += data
        while len(self._bytes) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._bytes)
            if size > _LONGEST_FRAME:
                raise ValueError(f"a frame of {size} bytes is too long")
            end = _HEAD.size + size
            if len(self._bytes) < end:
                return
            payload = bytes(memoryview(self._bytes)[_HEAD.size:end])
            del self._bytes[:end]
            yield Frame(kind, payload)


def to_bytes(text: Bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def bytes_to_json(text: Bytes) -> str | dict[str, str]:
    """Any bytes: a string where they are UTF-8."""
    data = to_bytes(text)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def bytes_from_json(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return base64.b64decode(value["base64"])
    return str(value).encode("utf-8")


def text_from_json(value: Any) -> str:
    """As Python has names of files: bytes that are no UTF-8 are surrogates."""
    return bytes_from_json(value).decode("utf-8", "surrogateescape")


def env_to_json(env: Mapping[str, Bytes] | None) -> list[str | dict[str, str]]:
    return [bytes_to_json(to_bytes(name) + b"=" + to_bytes(value)) for name, value in (env or {}).items()]


def milliseconds(seconds: float) -> int:
    """A time that is not 0 stays one."""
    return max(1, round(seconds * 1000)) if seconds > 0 else 0
