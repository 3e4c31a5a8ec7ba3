"""An edge: who may speak to it, what it tells, how it ends and what outlives it."""

import contextlib
import json
import os
import signal
import socket
import stat
import threading
import time

import pytest
import wire
from waiting import until


def test_a_socket_is_for_its_owner_alone(host):
    edge = host.edge()
    assert stat.S_IMODE(os.stat(edge.url.removeprefix("unix:")).st_mode) == 0o600
    assert wire.ask(edge.url, "GET", "/v1/health")[2] == {"status": "ok", "name": "lab", "version": host.json("version")["version"]}


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_an_address_that_others_reach_is_refused_by_name(host, work, address):
    token = work / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o600)
    said = host.fails(2, "edge", "--listen", address, "--name", "lab", "--token-file", token)
    assert "needs TLS" in said and "127.0.0.1:7701" in said


def test_an_address_wants_a_token_and_the_token_a_private_file(host, work):
    assert "--token-file" in host.fails(2, "edge", "--listen", "127.0.0.1:0", "--name", "lab")
    token = work / "token"
    token.write_text("0123456789abcdef0123\n")
    token.chmod(0o644)
    assert "others than its owner" in host.fails(2, "edge", "--listen", "127.0.0.1:0", "--name", "lab", "--token-file", token)
    token.chmod(0o600)
    edge = host.edge("--token-file", token, listen="127.0.0.1:0")
    assert wire.ask(edge.url, "GET", "/v1/health")[0] == 200
    for call in [("GET", "/v1/sandboxes"), ("GET", "/v1/metrics"), ("DELETE", "/v1/sandboxes/abcd"), ("PUT", "/v1/sandboxes/abcd/files?path=/")]:
        for headers in [{}, {"Authorization": "Bearer 0123456789abcdef0124"}, {"Authorization": "Basic 0123456789abcdef0123"}]:
            status, sent, body = wire.ask(edge.url, *call, headers=headers)
            assert (status, sent["WWW-Authenticate"], body["error"]["exit_code"]) == (401, "Bearer", 2), call
    assert wire.ask(edge.url, "GET", "/v1/sandboxes", headers={"Authorization": "Bearer 0123456789abcdef0123"})[0] == 200
    # And so does dsec.
    host.ok("context", "add", "lab", edge.url, "--token-file", token)
    assert host.ok("--context", "lab", "ps", "-q") == ""
    host.ok("context", "add", "other", edge.url)
    assert "wants a token" in host.fails(2, "--context", "other", "ps")


def test_contexts_are_kept_and_chosen(host, work):
    edge = host.edge()
    host.ok("context", "add", "lab", edge.url)
    host.ok("create", "--name", "here", "base/box")
    rows = host.json("context", "ls")
    assert [(row["name"], row["default"]) for row in rows] == [("lab", False), ("local", True)] or \
        [(row["name"], row["default"]) for row in rows] == [("local", True), ("lab", False)]
    host.ok("context", "use", "lab")
    away = {"DSEC_HOME": str(work / "away")}
    assert "here" in host.ok("ps", env=away)
    assert "here" not in host.ok("--context", "local", "ps", env=away)
    assert "here" not in host.ok("ps", env={**away, "DSEC_CONTEXT": "local"})
    # What is not about sandboxes works here whatever the context is, and says so when it is asked for elsewhere.
    assert host.ok("layer", "ls", env=away).count("\n") == 1
    assert "works on this host alone" in host.fails(2, "--context", "lab", "layer", "ls")
    for local in (["replay", "here"], ["vm", "save", "here", "kept"], ["vm", "restore", "kept"]):
        assert "works on sandboxes of this host alone" in host.fails(2, *local)
    assert "memory is saved of sandboxes of this host alone" in host.fails(2, "fork", "--memory", "here")
    assert "there is no context 'lap'" in host.fails(2, "--context", "lap", "ps")
    host.ok("context", "rm", "lab")
    assert host.fails(2, "context", "use", "lab").count("there is no context 'lab'") == 1
    assert "here" in host.ok("ps")


def test_an_edge_that_is_not_there_is_told_with_its_context(host, work):
    host.ok("context", "add", "lab", f"unix:{work}/nobody.sock")
    said = host.fails(1, "--context", "lab", "ps")
    assert "cannot talk to the edge of context 'lab'" in said and "(ENOENT)" in said and "dsec edge" in said
    assert host.run("--context", "lab", "exec", "x", "--", "true").code == 125


def test_what_means_this_host_is_refused_with_a_context(host, work):
    edge = host.edge()
    host.ok("context", "add", "lab", edge.url)
    assert "-v is for sandboxes of this host" in host.fails(125, "--context", "lab", "run", "-v", f"{work}:/x", "base/box", "--", "true")
    assert "base/none" in host.fails(125, "--context", "lab", "run", "base/none", "--", "true")


def test_an_operation_is_done_once_however_often_it_is_asked_for(lab):
    first = lab.run("run", "--keep", "--op-id", "once", "base/box", "--", "sh", "-c", "echo made; cat /proc/sys/kernel/random/uuid; exit 3")
    again = lab.run("run", "--keep", "--op-id", "once", "base/box", "--", "sh", "-c", "echo made; cat /proc/sys/kernel/random/uuid; exit 3")
    assert (first.code, first.out) == (again.code, again.out) == (3, first.out)
    assert len(lab.ok("ps", "-aq").split()) == 1
    lab.ok("create", "--name", "box", "base/box")
    say = ("exec", "--op-id", "say", "box", "--", "sh", "-c", "cat /proc/sys/kernel/random/uuid; echo said >> /root/said")
    assert lab.ok(*say) == lab.ok(*say)
    assert lab.ok("exec", "box", "--", "cat", "/root/said") == "said\n"
    assert "was another request" in lab.run("exec", "--op-id", "say", "box", "--", "true").err
    # Through another edge, and after the first one has died.
    lab.edge.kill()
    lab.edge.start()
    assert lab.ok(*say) == lab.ok(*say)
    assert lab.ok("exec", "box", "--", "cat", "/root/said") == "said\n"


def test_commands_outlive_their_edge_and_its_successor_finds_them(lab):
    lab.ok("create", "--name", "box", "base/box")
    client = lab.popen("exec", "box", "--", "sh", "-c", "echo begun; while [ ! -e /go ]; do sleep 0.05; done; echo done; exit 5")
    assert client.stdout.readline() == b"begun\n"
    lab.edge.kill()
    _, said = client.communicate(timeout=20)
    assert client.returncode == 125 and b"cannot be followed any more" in said, said
    lab.edge.start()
    running = lab.json("commands", "box")
    lab.ok("exec", "box", "--", "touch", "/go")
    attached = lab.run("attach", "box", running["exec_id"])
    assert (attached.code, attached.out) == (5, "begun\ndone\n")


class Tunnel:
    """Brings connections to the socket of an edge, until it cuts them; it takes new ones all the time."""

    def __init__(self, edge, path):
        self.target, self.streams, self.threads = edge.url.removeprefix("unix:"), [], []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.start(self.accept)

    def start(self, work, *args):
        self.threads.append(threading.Thread(target=work, args=args))
        self.threads[-1].start()

    def end(self):
        # Whoever waits in accept(2) is not told of a close.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.threads[0].join()
        self.cut()
        for thread in self.threads[1:]:
            thread.join()
        for each in [self.listener, *self.streams]:
            each.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self.target)
                self.streams += [client, server]
                for pair in [(client, server), (server, client)]:
                    self.start(self.pass_on, *pair)

    def pass_on(self, source, to):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def cut(self):
        for stream in self.streams:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)


def test_a_run_that_cannot_be_followed_any_more_goes_on(host, work):
    tunnel = Tunnel(host.edge(), work / "tunnel.sock")
    host.ok("context", "add", "lab", f"unix:{work}/tunnel.sock")
    client = host.popen("--context", "lab", "run", "--name", "job", "base/box", "--",
                        "sh", "-c", "echo begun; while [ ! -e /go ]; do sleep 0.05; done; echo done; exit 5")
    assert client.stdout.readline() == b"begun\n"
    tunnel.cut()
    _, said = client.communicate(timeout=20)
    assert client.returncode == 125 and b"cannot be followed any more" in said, said
    command = host.json("commands", "job")["exec_id"]
    host.ok("exec", "job", "--", "touch", "/go")
    attached = host.run("--context", "lab", "attach", "job", command)
    assert (attached.code, attached.out) == (5, "begun\ndone\n")
    tunnel.end()


def test_on_sigterm_what_was_asked_is_answered_and_streams_are_told(lab):
    lab.ok("create", "--name", "box", "base/box")
    streaming = lab.popen("exec", "box", "--", "sh", "-c", "echo begun; sleep 1000")
    assert streaming.stdout.readline() == b"begun\n"
    stopping = lab.popen("stop", "-t", "2", "box")
    waiting = lab.popen("wait", "box")
    time.sleep(0.5)
    lab.edge.process.send_signal(signal.SIGTERM)
    out, said = stopping.communicate(timeout=30)
    assert stopping.returncode == 0 and out == b"box\n", said
    _, said = streaming.communicate(timeout=30)
    assert streaming.returncode in (125, 143, 137)
    waiting.communicate(timeout=30)
    assert lab.edge.process.wait(30) == 0
    lab.edge.process.stdout.close()
    lab.edge.start()


def test_a_sandbox_that_does_not_answer_keeps_no_edge_from_its_end(host):
    edge = host.edge("--drain", "1s")
    host.ok("run", "-d", "--name", "silent", "base/box", "--", "nc", "-l", "-p", "8080", "-e", "sleep", "1000")
    request = {"method": "GET", "path": "/", "headers": [], "body": "", "host": "x"}
    assert until(lambda: host.run("exec", "silent", "--", "sh", "-c", "netstat -ltn | grep -q :8080").code == 0)
    with wire.upgrade_begun(edge.url, "POST", "/v1/sandboxes/silent/ports/8080/http", request):
        assert until(lambda: "dsec_edge_transfers 1\n" in wire.ask(edge.url, "GET", "/v1/metrics")[2])
        edge.process.send_signal(signal.SIGTERM)
        assert edge.process.wait(20) == 0


def test_waiting_takes_no_thread_and_ends_with_the_sandbox(lab):
    lab.ok("create", "--name", "box", "base/box")
    threads = len(os.listdir(f"/proc/{lab.edge.process.pid}/task"))
    sandbox = lab.ok("run", "-d", "base/box", "--", "sleep", "1000").strip()
    waits = [lab.popen("wait", sandbox) for _ in range(20)]
    time.sleep(1)
    assert len(os.listdir(f"/proc/{lab.edge.process.pid}/task")) == threads
    began = time.monotonic()
    lab.ok("stop", "-t", "0", sandbox)
    assert {wait.communicate(timeout=20)[0] for wait in waits} == {b"137\n"}
    assert time.monotonic() - began < 8


def test_a_log_and_metrics_tell_of_each_request(lab):
    lab.ok("create", "--name", "box", "base/box")
    lab.run("exec", "--op-id", "seven", "box", "--", "sh", "-c", "exit 7")
    status, headers, _ = wire.ask(lab.edge.url, "GET", "/v1/sandboxes/box", headers={"Dsec-Request-Id": "mine-1"})
    assert (status, headers["Dsec-Request-Id"]) == (200, "mine-1")
    line = lab.edge.await_line(request="mine-1")
    assert (line["call"], line["status"], line["sandbox"], line["peer"]) == ("inspect", 200, "box", "uid 0")
    line = lab.edge.await_line(call="exec", op_id="seven")
    assert line["status"] == 101 and line["sent"] > 0
    assert wire.ask(lab.edge.url, "GET", "/v1/sandboxes/none")[0] == 400
    _, _, text = wire.ask(lab.edge.url, "GET", "/v1/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['dsec_edge_requests_total{call="create",status="201"}'] == "1"
    assert values['dsec_edge_requests_total{call="inspect",status="400"}'] == "1"
    assert (values["dsec_edge_sandboxes_running"], values["dsec_edge_streams"]) == ("1", "0")
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name.partition("{")[0].removesuffix("_sum").removesuffix("_count") for name in values} <= typed


def test_clients_that_cannot_upgrade_get_the_same_frames(lab):
    lab.ok("create", "--name", "box", "base/box")
    connection = wire.Connection(lab.edge.url)
    connection.request("POST", "/v1/sandboxes/box/commands", json.dumps({"argv": ["sh", "-c", "echo out; echo err >&2; exit 4"]}))
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Type")) == (200, "application/vnd.dsec.frames")
    got = list(wire.frames(answer.read))
    assert got[0][0] == wire.RECORD and json.loads(got[0][1])["exec_id"]
    assert sorted(got[1:3]) == [(wire.STDOUT, b"out\n"), (wire.STDERR, b"err\n")]
    assert got[-1][0] == wire.EXITED and json.loads(got[-1][1])["exit_code"] == 4
    # The connection stays for the next call.
    connection.request("GET", "/v1/sandboxes/box")
    assert connection.getresponse().status == 200


def test_a_stream_that_has_nothing_to_say_yet_begins_all_the_same(lab):
    lab.ok("create", "--name", "box", "base/box")
    command = lab.ok("exec", "-d", "box", "--", "sh", "-c", "sleep 1000").strip()
    connection = wire.Connection(lab.edge.url, timeout=15)
    connection.request("GET", f"/v1/sandboxes/box/logs?exec_id={command}&follow=true")
    assert connection.getresponse().status == 200


def test_input_a_terminal_and_its_size_go_over_one_connection(lab):
    lab.ok("create", "--name", "box", "base/box")
    stream = wire.upgrade(lab.edge.url, "POST", "/v1/sandboxes/box/commands",
                          {"argv": ["sh", "-c", "read line; echo got $line; stty size; cat"], "tty": True, "stdin": True, "rows": 10, "columns": 20})
    stream.sendall(wire.frame(wire.RESIZE, b'{"rows":33,"columns":77}') + wire.frame(wire.STDIN, b"hello\n"))
    text, frames = b"", wire.frames(stream.recv)
    while b"33 77" not in text:
        kind, payload = next(frames)
        text += payload if kind == wire.STDOUT else b""
    assert b"got hello" in text
    stream.sendall(wire.frame(wire.STDIN, b"\x04"))
    assert [kind for kind, _ in frames][-1] == wire.EXITED


def test_a_watch_ends_with_its_client(lab):
    lab.ok("create", "--name", "box", "base/box")
    watch = lab.popen("watch", "-r", "box", "/root")
    assert watch.stdout.readline() == b"watching   /root\n"
    lab.ok("exec", "box", "--", "touch", "/root/new")
    assert b"/root/new" in watch.stdout.readline()
    watch.kill()
    watch.communicate()
    lab.edge.await_line(call="watch")
    assert until(lambda: "dsec_edge_transfers 0\n" in wire.ask(lab.edge.url, "GET", "/v1/metrics")[2])
