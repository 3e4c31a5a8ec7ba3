"""Servers of a sandbox without network are reached from outside, and what happens to its files is seen."""

import ctypes
import json
import os
import queue
import socket
import threading
import time

import pytest
import rootfs
from waiting import until


@pytest.fixture
def box(dsec):
    rootfs.import_base(dsec, files={"srv/index.html": "hello\n", "srv/big": b"x" * 3_000_000})
    dsec.ok("create", "--name", "box", "base/box")
    return dsec


def serve(box, command: str, port: int) -> None:
    """Starts a server inside and waits until it listens."""
    box.ok("exec", "-d", "box", "--", "sh", "-c", command)
    end = time.monotonic() + 20
    while f":{port:04X} " not in box.run("exec", "box", "--", "cat", "/proc/net/tcp", "/proc/net/tcp6").out:
        assert time.monotonic() < end, "the server does not listen"
        time.sleep(0.05)


class Server:
    """A server in the sandbox's network whose every connection `handle` serves, in threads of the test's own: busybox has
    none that serves many at once."""

    def __init__(self, box, port: int, handle):
        (sandbox,) = os.listdir(box.home / "sandboxes")
        pid = json.loads((box.home / "sandboxes" / sandbox / "state.json").read_text())["init_pid"]
        self.handle = handle
        made: queue.Queue = queue.Queue()

        def listen() -> None:
            with open(f"/proc/{pid}/ns/net", "rb") as network:
                assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0) == 0
            made.put(socket.create_server(("127.0.0.1", port), backlog=200))

        # A thread of its own, since it stays in that network.
        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        self.listener = made.get(timeout=5)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(stream,), daemon=True).start()

    def serve(self, stream: socket.socket) -> None:
        with stream:
            self.handle(stream)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def echo(stream: socket.socket) -> None:
    while part := stream.recv(1 << 16):
        stream.sendall(part)


def test_http_reaches_a_server_on_ipv4(box):
    serve(box, "busybox httpd -f -p 127.0.0.1:8080 -h /srv", 8080)
    assert box.ok("http", "box", "8080/index.html") == "hello\n"
    assert box.ok("http", "box", "8080") == "hello\n"
    assert len(box.ok("http", "box", ":8080/big")) == 3_000_000
    assert box.ok("http", "-i", "box", "8080/index.html").startswith("HTTP/1.1 200 OK\n")
    answer = box.json("http", "box", "8080/nothing")
    assert answer["status"] == 404 and ["Connection", "close"] in answer["headers"]
    assert "answered 404" in box.fails(1, "http", "--fail", "box", "8080/nothing")
    assert box.run("http", "box", "8080/nothing").code == 0


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_http_reaches_a_server_on_ipv6_alone(box):
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this kernel has no IPv6")
    serve(box, "busybox httpd -f -p '[::1]:8080' -h /srv", 8080)
    assert box.ok("http", "box", "8080/index.html") == "hello\n"


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_http_sends_method_headers_and_body(box):
    asked: queue.Queue = queue.Queue()

    def answer(stream: socket.socket) -> None:
        text = b""
        while not text.endswith(b"the body"):
            text += stream.recv(1 << 16)
        asked.put(text.decode())
        stream.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")

    server = Server(box, 8080, answer)
    assert box.ok("http", "box", "-X", "PUT", "-H", "X-Key: value", "-d", "@-", "8080/items/1?a=b", input="the body") == "ok"
    text = asked.get(timeout=5)
    assert text.startswith("PUT /items/1?a=b HTTP/1.1\r\nHost: localhost:8080\r\n")
    assert "X-Key: value\r\n" in text and text.endswith("\r\n\r\nthe body")
    assert box.json("http", "box", "-d", "the body", "8080/")["status"] == 201
    assert asked.get(timeout=5).startswith("POST / ")
    server.close()


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_http_tells_what_is_wrong(box):
    assert "ECONNREFUSED" in box.fails(1, "http", "box", "8080/")
    assert "does not begin with a port" in box.fails(2, "http", "box", "http://x/")
    server = Server(box, 8080, lambda stream: stream.recv(1 << 16) and time.sleep(5))
    assert "in time" in box.fails(1, "http", "--timeout", "300ms", "box", "8080/")
    server.close()
    box.ok("stop", "-t", "0", "box")
    assert "not run" in box.fails(2, "http", "box", "8080/")


class Forward:
    def __init__(self, box, spec: str):
        self.process = box.popen("forward", "-o", "json", "box", spec)
        self.first = json.loads(self.process.stdout.readline())
        address, _, port = self.first["listen"].rpartition(":")
        self.address = (address.strip("[]"), int(port))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def end(self) -> str:
        self.process.terminate()
        _, err = self.process.communicate(timeout=20)
        return err.decode()


def read_to_end(stream: socket.socket) -> bytes:
    parts = []
    while part := stream.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_forward_carries_both_ways_and_either_half_may_end_first(box):
    server = Server(box, 7000, echo)
    forward = Forward(box, "0:7000")
    assert forward.address[0] == "127.0.0.1"
    with forward.connect() as stream:
        stream.sendall(b"ping")
        assert stream.recv(4) == b"ping"
        stream.sendall(b"x" * 100_000)
        stream.shutdown(socket.SHUT_WR)
        assert read_to_end(stream) == b"x" * 100_000
    assert forward.end() == ""
    server.close()


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_forward_passes_on_that_the_server_is_done_while_the_client_still_writes(box):
    received: queue.Queue = queue.Queue()

    def greet(stream: socket.socket) -> None:
        stream.sendall(b"hello")
        stream.shutdown(socket.SHUT_WR)
        received.put(read_to_end(stream))

    server = Server(box, 7000, greet)
    forward = Forward(box, "0:7000")
    with forward.connect() as stream:
        assert read_to_end(stream) == b"hello"
        stream.sendall(b"y" * 100_000)
        stream.shutdown(socket.SHUT_WR)
        assert received.get(timeout=10) == b"y" * 100_000
    assert forward.end() == ""
    server.close()


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_forward_carries_many_connections_at_once(box):
    server = Server(box, 7000, echo)
    forward = Forward(box, "127.0.0.1:0:7000")
    streams = [forward.connect() for _ in range(100)]
    for number, stream in enumerate(streams):
        stream.sendall(f"{number}:".encode() * 1000)
        stream.shutdown(socket.SHUT_WR)
    for number, stream in reversed(list(enumerate(streams))):
        assert read_to_end(stream) == f"{number}:".encode() * 1000
        stream.close()
    assert forward.end() == ""
    server.close()


@pytest.mark.guest_slow("sockets are alike on any kernel")
def state_of(box) -> str:
    return box.json("inspect", "box")[0]["state"]


def test_http_forward_and_watch_resume_a_paused_sandbox(box):
    serve(box, "busybox httpd -f -p 127.0.0.1:8080 -h /srv", 8080)
    box.ok("pause", "box")
    assert box.ok("http", "box", "8080/index.html") == "hello\n"
    assert state_of(box) == "running"
    box.ok("pause", "box")
    forward = Forward(box, "0:8080")
    assert state_of(box) == "paused", "nobody has connected yet"
    for _ in range(2):
        with forward.connect() as stream:
            stream.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
            assert read_to_end(stream).endswith(b"\r\nhello\n")
        assert state_of(box) == "running"
        box.ok("pause", "box")
    assert forward.end() == ""
    watch = box.popen("watch", "box", "/srv")
    assert watch.stdout.readline() == b"watching   /srv\n"
    assert state_of(box) == "running"
    watch.kill()
    watch.communicate()


@pytest.mark.guest_slow("the keeper tells the time alike on any kernel")
def test_an_open_connection_keeps_a_sandbox_awake_and_wakes_it(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "box", "--idle-pause", "300ms", "base/box")
    # A server that no command of dsec's stands for.
    dsec.ok("exec", "box", "--", "sh", "-c", "busybox nc -ll -p 7000 -e cat > /dev/null 2>&1 &")
    forward = Forward(dsec, "0:7000")
    assert until(lambda: state_of(dsec) == "paused")
    with forward.connect() as stream:
        for turn in range(3):
            stream.sendall(b"ping")
            assert stream.recv(4) == b"ping"
            time.sleep(0.7)
            assert state_of(dsec) == "running"
        # A pause that was asked for lasts until something comes.
        dsec.ok("pause", "box")
        time.sleep(0.7)
        assert state_of(dsec) == "paused"
        stream.sendall(b"pong")
        assert stream.recv(4) == b"pong"
        assert state_of(dsec) == "running"
    assert until(lambda: state_of(dsec) == "paused")
    assert forward.end() == ""
    kinds = [json.loads(line).get("kind") for line in dsec.ok("traj", "show", "-o", "json", "box").splitlines()[1:]]
    assert "resume" not in kinds, kinds


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_a_sandbox_with_an_open_connection_is_not_idle(dsec):
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "box", "--idle", "600ms", "base/box")
    dsec.ok("exec", "box", "--", "sh", "-c", "busybox nc -ll -p 7000 -e cat > /dev/null 2>&1 &")
    forward = Forward(dsec, "0:7000")
    with forward.connect() as stream:
        time.sleep(1.5)
        stream.sendall(b"ping")
        assert stream.recv(4) == b"ping"
    assert until(lambda: state_of(dsec) == "stopped")
    assert forward.process.wait(20) == 0


def test_forward_tells_of_refused_connections_and_ends_with_the_sandbox(box):
    forward = Forward(box, "0:7000")
    with forward.connect() as stream:
        assert read_to_end(stream) == b""
    server = Server(box, 7000, echo)
    with forward.connect() as stream:
        stream.sendall(b"on")
        assert stream.recv(2) == b"on"
        box.ok("stop", "-t", "0", "box")
        assert read_to_end(stream) == b""
    server.close()
    _, err = forward.process.communicate(timeout=20)
    assert forward.process.returncode == 0
    assert b"ECONNREFUSED" in err


@pytest.mark.guest_slow("sockets are alike on any kernel")
def test_forward_refuses_addresses_that_make_no_sense(box):
    assert "no address" in box.fails(2, "forward", "box", "example.org:80:80")
    assert "does not end with a port" in box.fails(2, "forward", "box", "80:x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "EADDRINUSE" in box.fails(1, "forward", "box", f"{taken.getsockname()[1]}:80")


class Watch:
    def __init__(self, box, *args):
        self.box = box
        self.process = box.popen("watch", "-o", "json", "box", *args)
        self.events: queue.Queue = queue.Queue()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        assert self.next()["type"] == "watching"

    def read(self) -> None:
        for line in self.process.stdout:
            self.events.put(json.loads(line))

    def next(self) -> dict:
        return self.events.get(timeout=20)

    def until(self, kind: str, path: str) -> list[dict]:
        seen = [self.next()]
        while (seen[-1]["type"], seen[-1]["path"]) != (kind, path):
            seen.append(self.next())
        return seen

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.thread.join()
        self.process.stdin.close(), self.process.stdout.close(), self.process.stderr.close()


def test_watch_shows_what_happens_to_files(box):
    box.ok("exec", "box", "--", "mkdir", "-p", "/w/sub")
    watch = Watch(box, "/w")
    box.ok("exec", "box", "--", "sh", "-c", "echo a > /w/f; chmod 600 /w/f; mv /w/f /w/g; rm /w/g; echo x > /w/sub/deep; mkdir /w/d")
    kinds = [(event["type"], event["path"], event.get("from")) for event in watch.until("created", "/w/d")]
    assert kinds == [("created", "/w/f", None), ("modified", "/w/f", None), ("closed", "/w/f", None), ("attributes", "/w/f", None),
                     ("moved", "/w/g", "/w/f"), ("deleted", "/w/g", None), ("created", "/w/d", None)]
    box.ok("exec", "box", "--", "rm", "-r", "/w")
    watch.until("ended", "/w")
    assert watch.process.wait(20) == 0
    watch.end()


def test_watch_follows_new_and_renamed_directories(box):
    box.ok("exec", "box", "--", "mkdir", "-p", "/w/a/b", "/out")
    watch = Watch(box, "-r", "/w")
    run = lambda text: box.ok("exec", "box", "--", "sh", "-c", text)  # noqa: E731
    run("echo x > /w/a/b/f")
    watch.until("closed", "/w/a/b/f")
    run("mkdir -p /w/n/e/w; echo x > /w/n/e/w/f; echo y > /w/n/e/w/f")
    seen = watch.until("created", "/w/n/e/w/f")
    assert ("created", "/w/n/e/w") in [(event["type"], event["path"]) for event in seen]
    run("mv /w/a /w/z; echo x > /w/z/b/late")
    seen = watch.until("closed", "/w/z/b/late")
    assert ("moved", "/w/z", "/w/a") in [(event["type"], event["path"], event.get("from")) for event in seen]
    run("mv /w/z /out/z; sleep 0.2; echo x > /out/z/b/unseen; mkdir /w/last")
    seen = watch.until("created", "/w/last")
    assert ("deleted", "/w/z") in [(event["type"], event["path"]) for event in seen]
    assert not [event for event in seen if "unseen" in event["path"]]
    watch.end()


def test_watch_never_follows_a_link_out_of_the_sandbox(box, work):
    (work / "secret").mkdir()
    box.ok("exec", "box", "--", "sh", "-c", f"mkdir /w; ln -s {work}/secret /w/link; ln -s ../../../../../{work}/secret /up; ln -s / /w/root")
    assert "ENOENT" in box.fails(1, "watch", "box", "/up")
    assert "ENOENT" in box.fails(1, "watch", "box", f"/..{work}/secret")
    watch = Watch(box, "-r", "/w")
    (work / "secret" / "file").write_text("x")
    box.ok("exec", "box", "--", "sh", "-c", "touch /elsewhere /w/here")
    assert {event["path"] for event in watch.until("closed", "/w/here")} == {"/w/here"}
    watch.end()


def test_watch_tells_when_events_were_lost(box):
    box.ok("exec", "box", "--", "mkdir", "/w")
    watch = Watch(box, "/w")
    os.kill(watch.process.pid, 19)
    count = int(open("/proc/sys/fs/inotify/max_queued_events").read()) // 2 + 1000
    box.ok("exec", "box", "--", "sh", "-c", f"i=0; while [ $i -lt {count} ]; do : > /w/$i; i=$((i+1)); done")
    os.kill(watch.process.pid, 18)
    watch.until("overflow", "/w")
    watch.end()


def test_watch_ends_with_the_sandbox(box):
    watch = Watch(box, "/tmp")
    box.ok("rm", "-f", "box")
    watch.until("ended", "/tmp")
    assert watch.process.wait(20) == 0
    watch.end()
