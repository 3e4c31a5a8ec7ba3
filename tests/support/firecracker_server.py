#!/usr/bin/env python3
"""firecracker_server.py SOCKET LOG [FAULT]: answers as Firecracker's API does, from the rules of firecracker_api, and as
its vsock socket does beside it (SOCKET.vsock: port 7702 is an echo, nobody listens at the others). Each request and what
was wrong with it becomes a line of JSON in LOG.

FAULT is how every answer fails: silent, slow (3 s), garbage, huge, endless, hangup, refuse, wrong-json, not-json.
"""
import json
import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import firecracker_api  # noqa: E402


class Machine:
    def __init__(self):
        self.state = "Not started"
        self.balloon = 0
        self.devices = {}

    def carry_out(self, method, path, body):
        if method == "GET":
            return {
                "/": {"app_name": "Firecracker", "id": "test", "state": self.state, "vmm_version": "1.16.1"},
                "/version": {"firecracker_version": "1.16.1"},
                "/balloon": {"amount_mib": self.balloon, "deflate_on_oom": True},
                "/balloon/statistics": {
                    "target_pages": self.balloon * 256, "actual_pages": self.balloon * 256, "target_mib": self.balloon,
                    "actual_mib": self.balloon, "free_memory": 100 << 20, "total_memory": 500 << 20,
                    "available_memory": 300 << 20, "disk_caches": 50 << 20},
            }[path]
        if path.startswith(("/drives/", "/pmem/")):
            known = path in self.devices
            if method == "PATCH" and not known:
                raise ValueError("Invalid block device ID!")
            self.devices[path] = body
        if path == "/actions" and body["action_type"] == "InstanceStart":
            if self.state != "Not started":
                raise ValueError("The microVM is already running.")
            self.state = "Running"
        if path == "/vm":
            self.state = {"Paused": "Paused", "Resumed": "Running"}[body["state"]]
        if path == "/snapshot/load":
            if not os.path.exists(body["snapshot_path"]):
                raise ValueError("Load snapshot error: No such file or directory (os error 2)")
            self.state = "Running" if body.get("resume_vm") else "Paused"
        if path == "/snapshot/create":
            for key in ("snapshot_path", "mem_file_path"):
                with open(body[key], "w") as file:
                    file.write(body.get("snapshot_type", "Full"))
        if path == "/balloon":
            self.balloon = body["amount_mib"]
        return None


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    method, path, _ = lines[0].split(" ")
    return method, path, body


def answer(connection, status, body):
    text = b"" if body is None else json.dumps(body).encode()
    words = {200: "OK", 204: "No Content", 400: "Bad Request"}[status]
    head = f"HTTP/1.1 {status} {words}\r\nServer: Firecracker API\r\nConnection: keep-alive\r\n"
    if text:
        head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n"
    connection.sendall(head.encode() + b"\r\n" + text)


def fail(connection, fault):
    """True when there is nothing left to be answered."""
    if fault == "silent":
        time.sleep(3600)
    elif fault == "slow":
        time.sleep(3)
        return False
    elif fault == "garbage":
        connection.sendall(os.urandom(4096))
    elif fault == "huge":
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8000000000\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)
    elif fault == "endless":
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"X-More: " + b"y" * 1000 + b"\r\n")
    elif fault == "refuse":
        answer(connection, 400, {"fault_message": "The kernel file cannot be opened:\nNo such file"})
    elif fault == "wrong-json":
        answer(connection, 200, [1, 2, 3])
    elif fault == "not-json":
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\n<p>no")
    return True


def serve(connection, machine, log, fault):
    try:
        while request := read_request(connection):
            method, path, text = request
            try:
                body = json.loads(text) if text else None
                problem = firecracker_api.judge(method, path, body, machine.state)
            except ValueError as error:
                body, problem = None, f"body is no JSON: {error}"
            log.write(json.dumps({"method": method, "path": path, "body": body, "problem": problem}) + "\n")
            log.flush()
            if fault and fail(connection, fault):
                break
            if problem:
                answer(connection, 400, {"fault_message": problem})
                continue
            try:
                result = machine.carry_out(method, path, body)
            except ValueError as error:
                answer(connection, 400, {"fault_message": str(error)})
                continue
            answer(connection, 204 if result is None else 200, result)
    except OSError:
        pass
    connection.close()


def serve_vsock(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection):
    line = b""
    while not line.endswith(b"\n") and len(line) < 32:
        line += connection.recv(1)
    words = line.split()
    if len(words) == 2 and words[0].upper() == b"CONNECT":
        if words[1] == b"7702":
            connection.sendall(b"OK 1073741824\n")
            while data := connection.recv(65536):
                connection.sendall(data)
        elif words[1] == b"7703":
            connection.sendall(b"z" * 1000)
    connection.close()


def listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    return listener


def main(path, log_path, fault=""):
    log = open(log_path, "a")
    machine = Machine()
    threading.Thread(target=serve_vsock, args=(listen(path + ".vsock"),), daemon=True).start()
    listener = listen(path)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, machine, log, fault), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
