"""Clients that mean harm, or are broken: each is refused or cut off, the edge stays small, and nobody else notices."""

import contextlib
import io
import json
import os
import resource
import socket
import tarfile
import time

import pytest
import wire
from waiting import until


def memory_of(edge) -> int:
    """What it holds itself, in bytes."""
    with open(f"/proc/{edge.process.pid}/status") as status:
        return sum(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def answers(edge) -> bool:
    began = time.monotonic()
    return wire.ask(edge.url, "GET", "/v1/sandboxes")[0] == 200 and time.monotonic() - began < 5


@pytest.fixture
def edge(host):
    made = host.edge("--quiet")
    host.ok("create", "--name", "box", "base/box")
    return made


@pytest.mark.parametrize("text, status", [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    (b"GET /v1/sandboxes\r\n\r\n", b"400"),
    (b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n", b"400"),
    (b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
    (b"GET /v1/sandboxes HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(60)) + b"\r\n", b"431"),
    (b"GET /v1/" + b"a" * 60_000 + b" HTTP/1.1\r\n\r\n", b"431"),
    (b"GET /v2/none HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
    (b"PUT /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b"405"),
    (b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
], ids=["TLS", "no version", "length", "two lengths", "headers", "target", "path", "method", "body"])
def test_what_is_no_request_is_answered_and_closed(edge, text, status):
    with wire.raw(edge.url) as stream:
        stream.sendall(text)
        if status in (b"404", b"405"):
            said = stream.recv(1 << 16)
        else:
            said = wire.until_closed(stream)
    assert said.startswith(b"HTTP/1.1 " + status), said[:200]
    body = said.partition(b"\r\n\r\n")[2]
    assert json.loads(body)["error"]["chain"], said
    assert answers(edge)


@pytest.mark.parametrize("body", [
    "", "{", "[]", "null", '{"spec": 7}', '{"spec": {"layers": [1]}}', '{"spec": {"layers": ["sha256:00"]}}', '{"spec": {}, "spec": {}}', "[" * 100_000,
    '{"spec": {"layers": [], "lifetime_ms": -1}}', '{"spec": {"layers": [], "limits": {"cpus": "many"}}}'], ids=range(11))
def test_bodies_that_mean_nothing_are_told_so(edge, body):
    status, _, said = wire.ask(edge.url, "POST", "/v1/sandboxes", body)
    assert status in (400, 409) and said["error"]["kind"] in ("usage", "failed") and said["error"]["chain"], said
    assert answers(edge)


@pytest.mark.parametrize("method, target, body, headers", [
    ("POST", "/v1/sandboxes/box/commands", {"argv": []}, {}),
    ("POST", "/v1/sandboxes/box/commands", {"argv": [7]}, {}),
    ("POST", "/v1/sandboxes/box/commands", {"argv": ["true"], "rows": 1 << 40}, {}),
    ("POST", "/v1/sandboxes/box/commands", {"argv": ["true"]}, {"Dsec-Op-Id": "no blanks here"}),
    ("POST", "/v1/sandboxes/box/commands", {"argv": ["true"]}, {"Dsec-Origin": "nobody"}),
    ("POST", "/v1/sandboxes/box/stop", {}, {}),
    ("POST", "/v1/sandboxes/box/stop", {"grace_ms": -5}, {}),
    ("POST", "/v1/sandboxes/box/stop", {"grace_ms": 1 << 63}, {}),
    ("POST", "/v1/sandboxes/box/commands/1/signal", {"signal": (1 << 32) + 9}, {}),
    ("GET", "/v1/sandboxes/box/logs?tail=x", None, {}),
    ("GET", "/v1/sandboxes/box/ports/0/stream", None, {}),
    ("GET", "/v1/sandboxes/box/ports/99999/stream", None, {}),
    ("GET", "/v1/sandboxes/box/files?path=", None, {}),
    ("GET", "/v1/sandboxes/..%2f..%2fetc", None, {}),
    ("GET", "/v1/layers/%00%ff", None, {}),
    ("PATCH", "/v1/sandboxes/box", {"memory": "all"}, {}),
    ("PATCH", "/v1/sandboxes/box", {"labels": {"a": 7}}, {}),
    ("GET", "/v1/sandboxes/box/changes/content?form=zip", None, {})])
def test_values_that_cannot_be_are_refused(edge, method, target, body, headers):
    status, _, said = wire.ask(edge.url, method, target, body, headers)
    assert status in (400, 409) and said["error"]["chain"], said
    assert answers(edge)


def test_frames_that_mean_nothing_end_the_stream_with_a_reason(edge):
    for sent in [wire.frame(99, b"x"), wire.frame(wire.STDIN)[:1] + b"\xff\xff\xff\xff", wire.frame(wire.RESIZE, b"[]"), wire.frame(wire.STDOUT, b"x")]:
        with wire.upgrade(edge.url, "POST", "/v1/sandboxes/box/commands", {"argv": ["sleep", "1000"], "stdin": True}) as stream:
            stream.sendall(sent)
            assert [kind for kind, _ in wire.frames(stream.recv)][-1] == wire.FAILED
    assert answers(edge)


def test_a_head_that_comes_slowly_is_given_up(edge):
    with wire.raw(edge.url) as stream:
        began = time.monotonic()
        stream.settimeout(0.2)
        stream.sendall(b"GET /v1/sandboxes HTTP/1.1\r\nX: ")
        ended = False
        while not ended and time.monotonic() - began < 20:
            with contextlib.suppress(TimeoutError):
                ended = stream.recv(1) == b""
            with contextlib.suppress(OSError):
                stream.sendall(b"y")
        assert ended and 5 < time.monotonic() - began < 15


def test_large_bodies_are_bounded_all_together(edge):
    before, streams = memory_of(edge), []
    # Each may be this large, but not all at once.
    for _ in range(40):
        stream = wire.raw(edge.url)
        stream.settimeout(10)
        stream.sendall(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
        with contextlib.suppress(OSError):
            stream.sendall(b"x" * 7_900_000)
        streams.append(stream)
    assert answers(edge)
    assert memory_of(edge) - before < 160 << 20
    for stream in streams:
        stream.close()
    assert until(lambda: answers(edge))


def test_bodies_of_commands_that_run_take_no_room_of_others(edge):
    large = {"argv": ["sleep", "1000"], "of no meaning": "x" * 7_900_000}
    streams = [wire.upgrade(edge.url, "POST", "/v1/sandboxes/box/commands", large) for _ in range(10)]
    assert wire.ask(edge.url, "POST", "/v1/sandboxes/box/commands", large | {"argv": ["true"]})[0] == 200
    for stream in streams:
        stream.close()


def test_thousands_of_idle_connections_cost_little_and_stop_nobody(edge):
    count = 3000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        before, streams = memory_of(edge), [wire.raw(edge.url) for _ in range(count)]
        assert until(lambda: answers(edge))
        assert (memory_of(edge) - before) / count < 16 << 10
        for stream in streams:
            stream.close()
        connections = "dsec_edge_connections 1\n"
        assert until(lambda: connections in wire.ask(edge.url, "GET", "/v1/metrics")[2])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_open_streams_take_no_threads(edge):
    count = 150
    before = memory_of(edge), len(os.listdir(f"/proc/{edge.process.pid}/task"))
    streams = [wire.upgrade(edge.url, "POST", "/v1/sandboxes/box/commands", {"argv": ["sleep", "1000"]}) for _ in range(count)]
    assert f"dsec_edge_streams {count}\n" in wire.ask(edge.url, "GET", "/v1/metrics")[2]
    assert len(os.listdir(f"/proc/{edge.process.pid}/task")) == before[1]
    assert (memory_of(edge) - before[0]) / count < 64 << 10
    for stream in streams:
        stream.close()
    assert until(lambda: "dsec_edge_streams 0\n" in wire.ask(edge.url, "GET", "/v1/metrics")[2])


def test_who_does_not_read_stops_only_its_own_stream(host, edge):
    flood = {"argv": ["sh", "-c", "head -c 50000000 /dev/zero; echo end >&2"]}
    before = memory_of(edge)
    slow = [wire.upgrade(edge.url, "POST", "/v1/sandboxes/box/commands", flood) for _ in range(10)]
    files = [wire.raw(edge.url) for _ in range(10)]
    for stream in files:
        stream.sendall(b"GET /v1/sandboxes/box/files?path=/bin HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(1)
    assert memory_of(edge) - before < 64 << 20
    host.ok("context", "add", "lab", edge.url)
    assert host.ok("--context", "lab", "exec", "box", "--", "echo", "quick", timeout=20) == "quick\n"
    assert host.ok("--context", "lab", "cp", "box:/srv/index.html", "-", timeout=20)
    for stream in slow + files:
        stream.close()
    assert until(lambda: "dsec_edge_transfers 0\n" in wire.ask(edge.url, "GET", "/v1/metrics")[2])


def test_who_sends_what_the_command_does_not_read_stops_only_itself(edge):
    with wire.upgrade(edge.url, "POST", "/v1/sandboxes/box/commands", {"argv": ["sleep", "1000"], "stdin": True}) as stream:
        before = memory_of(edge)
        stream.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError):
            for _ in range(2000):
                stream.sendall(wire.frame(wire.STDIN, b"x" * 60_000))
                sent += 60_000
        assert sent < 60_000 * 2000
        assert answers(edge)
        assert memory_of(edge) - before < 8 << 20
        # Signals do not wait behind it.
        (command,) = [one for one in wire.ask(edge.url, "GET", "/v1/sandboxes/box/commands")[2]["commands"] if one["running"]]
        assert wire.ask(edge.url, "POST", f"/v1/sandboxes/box/commands/{command['exec_id']}/signal", {"signal": 9})[0] == 200
        assert [kind for kind, _ in wire.frames(stream.recv)][-1] == wire.EXITED


def tar_of(files: dict) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.mark.parametrize("part", [0.3, 0.999])
def test_an_upload_that_is_cut_is_no_end_of_it(host, edge, part):
    data = tar_of({"a": b"a" * 100_000, "b": b"b" * 100_000})
    # Also where what came is a whole archive by itself.
    end = data.index(b"b" * 1000) - 512 if part == 0.3 else int(len(data) * part)
    with wire.raw(edge.url) as stream:
        stream.sendall(b"PUT /v1/sandboxes/box/files?path=/root HTTP/1.1\r\nHost: x\r\nDsec-Op-Id: cut\r\nContent-Length: %d\r\n\r\n" % len(data) + data[:end])
        time.sleep(0.3)
    assert until(lambda: wire.ask(edge.url, "GET", "/v1/sandboxes/box/operations/cut")[2]["operation"]["done"])
    done = wire.ask(edge.url, "GET", "/v1/sandboxes/box/operations/cut")[2]["operation"]["done"]
    assert done["outcome"] != "ok", done
    assert answers(edge)


def test_an_upload_that_is_refused_is_answered_before_its_end(edge):
    with wire.raw(edge.url) as stream:
        stream.settimeout(20)
        stream.sendall(b"PUT /v1/sandboxes/box/files?path=/none/such HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(2000):
                stream.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        said = wire.until_closed(stream)
    assert said.startswith(b"HTTP/1.1 4"), said[:300]
    assert answers(edge)


def test_more_transfers_than_there_may_be_are_told_to_come_again(host, edge):
    followers = []

    def heads_of(sandbox: str, count: int) -> list:
        streams = [wire.raw(edge.url) for _ in range(count)]
        followers.extend(streams)
        for stream in streams:
            stream.settimeout(20)
            stream.sendall(b"GET /v1/sandboxes/%s/logs?follow=true HTTP/1.1\r\nHost: x\r\n\r\n" % sandbox.encode())
        return sorted(stream.recv(12) for stream in streams)

    for name in ["talker", "other", "third"]:
        host.ok("run", "-d", "--name", name, "base/box", "--", "sh", "-c", "echo begun; sleep 1000")
    # One sandbox may not have them all.
    assert heads_of("talker", 70) == [b"HTTP/1.1 200"] * 64 + [b"HTTP/1.1 503"] * 6
    assert heads_of("other", 64) == [b"HTTP/1.1 200"] * 64
    assert heads_of("third", 2) == [b"HTTP/1.1 503"] * 2
    assert answers(edge)
    # Also of a command that says nothing more, those who are gone give their places back.
    for stream in followers:
        stream.close()
    assert until(lambda: "dsec_edge_transfers 0\n" in wire.ask(edge.url, "GET", "/v1/metrics")[2])


def test_clients_that_come_and_go_at_any_moment_leave_nothing(edge):
    request = b"POST /v1/sandboxes/box/commands HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: dsec-frames\r\nContent-Length: 16\r\n\r\n{\"argv\":[\"true\"]}"
    # What the first command opens for all stays.
    assert wire.ask(edge.url, "POST", "/v1/sandboxes/box/commands", {"argv": ["true"]})[0] == 200
    files = len(os.listdir(f"/proc/{edge.process.pid}/fd"))
    for round_ in range(300):
        with wire.raw(edge.url) as stream:
            stream.sendall(request[:round_ % len(request)] if round_ % 3 else request)
            if round_ % 2:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert answers(edge)
    assert until(lambda: len(os.listdir(f"/proc/{edge.process.pid}/fd")) <= files + 2, 20)
