"""Sandboxes with network policies in the internet of network_world."""

import json
import os
import time

import leftovers
import network_world
import rootfs

# In every script of a test that runs inside.
PRELUDE = r"""
import errno, json, os, socket, struct, sys, time
socket.setdefaulttimeout(8)
def tcp(address, port, data=b"", family=None):
    try:
        c = socket.create_connection((address, port), 8)
        if data: c.sendall(data)
        got = b""
        while part := c.recv(65536):
            got += part
            if len(got) > 1 << 20: break
        return got.decode("latin1")
    except ConnectionResetError: return "reset"
    except OSError as e: return errno.errorcode.get(e.errno, type(e).__name__)
def http(address, host, path="/", port=80):
    return tcp(address, port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
def status(answer): return answer.split("\r\n")[0].split(" ", 1)[-1] if answer.startswith("HTTP") else answer
def body(answer): return answer.partition("\r\n\r\n")[2]
def udp(address, port, data, wait=1.0):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(wait)
    s.sendto(data, (address, port))
    try: return s.recvfrom(65536)[0].decode("latin1")
    except OSError: return "nothing"
def look_up(name):
    try: return sorted({x[4][0] for x in socket.getaddrinfo(name, 80)})
    except socket.gaierror as e: return "no"
def vec(b, n): return len(b).to_bytes(n, "big") + b
def ext(t, b): return t.to_bytes(2, "big") + vec(b, 2)
def hello(name=None, more=b""):
    e = (ext(0, vec(b"\0" + vec(name.encode(), 2), 2)) if name else b"") + ext(43, b"\2\3\4") + more
    m = b"\3\3" + b"r" * 32 + b"\0" + vec(b"\x13\1", 2) + b"\1\0" + vec(e, 2)
    return b"\x16\3\1" + vec(b"\1" + vec(m, 3), 2)
def query(name, kind=1):
    q = b"".join(vec(l.encode(), 1) for l in name.split(".")) + b"\0" + struct.pack("!HH", kind, 1)
    return b"\0\7\1\0\0\1\0\0\0\0\0\0" + q
"""
TLS_DENIED = r"\x15\x03\x03\x00\x02\x02\x31"
# The host's Python with what it needs, over an empty folder of the sandbox.
PYTHON = ["-v", "/usr:/usr:ro", "-v", "/usr/lib:/lib:ro", *(["-v", "/usr/lib64:/lib64:ro"] if os.path.isdir("/usr/lib64") else [])]


class Box:
    """One sandbox of a test."""

    def __init__(self, dsec, *flags, what: str = "base/box"):
        self.dsec = dsec
        self.id = dsec.ok("create", what, *PYTHON, *flags).strip()

    def py(self, script: str, **kwargs):
        """What a script prints inside, as Python reads it."""
        return self.dsec.ok("exec", self.id, "--", "/usr/bin/python3", "-c", PRELUDE + script, **kwargs).strip()

    def popen(self, script: str, *flags):
        return self.dsec.popen("exec", *flags, self.id, "--", "/usr/bin/python3", "-uc", PRELUDE + script)

    def log(self, *flags) -> list[dict]:
        out = self.dsec.ok("net", "log", self.id, "-o", "json", *flags)
        return [json.loads(line) for line in out.splitlines()]

    def show(self) -> dict:
        return self.dsec.json("net", "show", self.id)


def world(work):
    """For a fixture: the internet of one test."""
    world = network_world.World(work, work / "home")
    yield world
    world.close()


def dsec_in(world):
    """For a fixture: dsec there, with a base. After the test nothing of it may be left."""
    tool = world.dsec
    rootfs.import_base(tool)
    yield tool
    for sandbox in leftovers.sandboxes_of(tool.home):
        tool.run("rm", "-f", sandbox)
    tool.ok("gc")
    faults = leftovers.sweep(tool.home)
    assert not faults, "left on the host after gc:\n" + "\n".join(faults)


def eventually(check, seconds: float = 5.0):
    end = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.02)
    return found
