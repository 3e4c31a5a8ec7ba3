"""What a virtual machine is told to be: Configure of runners/protocol/guest_channel.h."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from wire_fields import text, texts, u32, u64

VERSION = 1
READ_ONLY, PRIVILEGED, GUEST_NETWORK, WHOLE_MACHINE = 1, 2, 4, 16


@dataclass
class Configuration:
    """What Configure says."""

    flags: int = 0
    id: str = "abcdefghijklmnopqrstuv"
    hostname: str = "machine"
    machine_id: str = ""
    env: list[str] = field(default_factory=list)
    workdir: str = "/"
    user: str = "root"
    stop_signal: int = 15
    capabilities: int = 0
    seccomp: bytes = b""
    masked: list[str] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    resources: list[tuple[int, int, int]] = field(default_factory=list)
    oom_score: str = "500"
    images: list[list[str]] = field(default_factory=list)
    writable: str = ""
    limits: list[str] = field(default_factory=list)
    tmpfs: list[tuple[str, int]] = field(default_factory=list)
    files: list[tuple[str, bytes]] = field(default_factory=list)
    disks: list[tuple[str, str]] = field(default_factory=list)

    def encode(self) -> bytes:
        out = u32(VERSION) + u32(self.flags) + text(self.id) + text(self.hostname) + text(self.machine_id)
        out += texts(self.env) + text(self.workdir) + text(self.user)
        out += u32(self.stop_signal) + u64(time.time_ns() // 1000) + u64(self.capabilities) + text(self.seccomp)
        out += texts(self.masked) + texts(self.read_only)
        out += u32(len(self.resources)) + b"".join(u32(r) + u64(s) + u64(h) for r, s, h in self.resources)
        out += text(self.oom_score) + u32(len(self.images)) + b"".join(texts(image) for image in self.images)
        out += text(self.writable) + texts(self.limits)
        out += u32(len(self.tmpfs)) + b"".join(text(target) + u64(size) for target, size in self.tmpfs)
        out += u32(len(self.files)) + b"".join(text(path) + text(content) for path, content in self.files)
        return out + u32(len(self.disks)) + b"".join(text(target) + text(device) for target, device in self.disks)
