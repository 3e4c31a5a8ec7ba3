"""Servers of a sandbox without network are reached from outside, and what happens to its files is seen."""

import json
import socket
import time


def test_http_reaches_a_server_inside(box):
    box.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv")
    end = time.monotonic() + 30
    while box.run("http", "box", "8080/index.html").code != 0:
        assert time.monotonic() < end, "the server does not listen"
        time.sleep(0.1)
    assert box.ok("http", "box", "8080/index.html") == "hello\n"
    assert len(box.ok("http", "box", "8080/big")) == 1_000_000
    assert box.run("http", "box", "9999").code == 1


def test_what_happens_to_files_is_seen(box):
    box.ok("exec", "box", "--", "mkdir", "-p", "/root/watched")
    watch = box.popen("watch", "-o", "json", "box", "/root/watched")
    try:
        time.sleep(2)
        box.ok("exec", "box", "--", "sh", "-c", "echo x > /root/watched/file; rm /root/watched/file")
        seen = []
        end = time.monotonic() + 20
        while "deleted" not in [event["type"] for event in seen] and time.monotonic() < end:
            seen.append(json.loads(watch.stdout.readline()))
        assert ("created", "/root/watched/file") in [(event["type"], event["path"]) for event in seen]
    finally:
        watch.kill()
        watch.communicate()


def test_a_sandbox_reaches_nothing_outside(box):
    assert box.run("exec", "--timeout", "20s", "box", "--", "wget", "-q", "-T", "3", "-O", "-", "http://192.0.2.1/").code != 0


def test_a_port_of_this_host_leads_into_the_sandbox(box):
    box.ok("exec", "-d", "box", "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8090", "-h", "/srv")
    forward = box.popen("forward", "-o", "json", "box", "0:8090")
    try:
        address, port = json.loads(forward.stdout.readline())["listen"].rsplit(":", 1)
        end = time.monotonic() + 30
        while True:
            with socket.create_connection((address, int(port)), 10) as stream:
                stream.sendall(b"GET /index.html HTTP/1.0\r\n\r\n")
                answer = b"".join(iter(lambda: stream.recv(65536), b""))
            if answer or time.monotonic() > end:
                break
            time.sleep(0.1)
        assert answer.startswith(b"HTTP/1.") and answer.endswith(b"hello\n")
    finally:
        forward.terminate()
        forward.communicate()
