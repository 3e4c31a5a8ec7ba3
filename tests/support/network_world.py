"""An internet of one network namespace, for sandboxes with network policies: run as a program it is that internet, with
`World` a test starts it and runs dsec in it.

Addresses of 11.0.0.0/8 and 2a00::/16 are local without belonging to a device, so that they look like somebody else's to
the gateway. Every server answers at each of them and writes what it saw as a line of JSON."""

import http.server
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from dsec_tool import Dsec

IPV6_FREEBIND = 78
ZONE = {
    "good.example": ["11.0.0.10"],
    "other.example": ["11.0.0.11"],
    "evil.example": ["11.0.0.66"],
    "dual.example": ["11.0.0.12", "2a00:1::12"],
    "six.example": ["2a00:1::6"],
    "metadata.example": ["169.254.169.254"],
    "local.example": ["127.0.0.1"],
    "private.example": ["10.1.2.3"],
    "empty.example": [],
    "half.example": ["11.0.0.18"],  # of which nobody answers for IPv6
    "other-half.example": ["2a00:1::18"],  # nor for IPv4
    "large.example": ["11.0.0.13"],  # too large for UDP, it says
    "a.wild.example": ["11.0.0.14"],
    "mapped.example": ["::ffff:7f00:1"],
    "nat64.example": ["64:ff9b::a01:203"],
    "zero.example": ["0.0.0.0"],
    "sixtofour.example": ["2002:a01:203::1"],
    "unspecified.example": ["::"],
    "mixed.example": ["10.1.2.3", "11.0.0.17", "127.0.0.1"],
    "huge.example": ["11.0.0.16"] * 3000,
}
ALIASES = {"cname.example": "private.example", "alias.example": "evil.example"}


class World:
    """Started for one test; `dsec` is the program in it."""

    def __init__(self, work: Path, home: Path):
        self.seen_file = work / "seen.jsonl"
        self.seen_file.touch()
        (work / "config.yaml").write_text("resolver: ['127.0.0.1:5353']\npresets: {pypi: [good.example]}\n")
        environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
        self.process = subprocess.Popen(["unshare", "--net", sys.executable, __file__, str(self.seen_file), str(work)],
                                        stdout=subprocess.PIPE, env=environment)
        assert self.process.stdout.readline() == b"ready\n"
        self.dsec = DsecIn(self.process.pid, home, work)

    def seen(self, protocol: str) -> list[dict]:
        records = [json.loads(line) for line in self.seen_file.read_text().splitlines()]
        return [record for record in records if record["protocol"] == protocol]

    def close(self):
        self.process.kill()
        self.process.wait()


class DsecIn(Dsec):
    def __init__(self, pid: int, home: Path, work: Path):
        super().__init__(home, work)
        self.net = f"--net=/proc/{pid}/ns/net"

    def argv(self, *args) -> list[str]:
        return ["nsenter", self.net, *super().argv(*args)]


def gateway_of(home: Path) -> int | None:
    """The pid of the egress gateway of a home."""
    return process_of(home, "dsec-egress")


def guard_of(home: Path) -> int | None:
    """The pid of its guard."""
    return process_of(home, "dsec-egress-grd")


def process_of(home: Path, name: str) -> int | None:
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            comm = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if len(words) > 1 and words[0].endswith(b"/dsec-egress") and words[1] == str(home).encode() and comm == name:
            return int(entry.name)
    return None


# ---- the program ----


class Seen:
    def __init__(self, path: str):
        self.file = open(path, "a", buffering=1)
        self.lock = threading.Lock()

    def add(self, **record):
        with self.lock:
            self.file.write(json.dumps(record) + "\n")


SEEN: Seen
REBOUND: list[str] = []


def local_address(connection) -> str:
    return connection.getsockname()[0].removeprefix("::ffff:")


def ancillary_listener(kind, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6, kind)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)  # to answer from where it was asked
    listener.bind(("::", port))
    return listener


class Http(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        at = local_address(self.connection)
        SEEN.add(protocol="http", at=at, host=self.headers["Host"], path=self.path, headers=dict(self.headers))
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", query["to"])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif url.path == "/drip":
            self.drip(float(query["seconds"]))
        else:
            body = (f"{at} {self.headers['Host']}\n" if url.path != "/big" else "x" * int(query["bytes"])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        body = self.rfile.read(size)
        SEEN.add(protocol="http", at=local_address(self.connection), host=self.headers["Host"], body=len(body))
        self.send_response(200)
        self.send_header("Content-Length", str(len(str(len(body)))))
        self.end_headers()
        self.wfile.write(str(len(body)).encode())

    def drip(self, seconds: float):
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self.wfile.write(b"drop\n")
                time.sleep(0.02)
        except OSError:
            SEEN.add(protocol="broken", path=self.path)
        self.close_connection = True

    def log_message(self, *args):
        pass


class ThreadingServer(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 2048

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request, client_address):
        pass  # clients break off, which is what is tested


class Hello(socketserver.BaseRequestHandler):
    """Takes whatever comes first, and says where it arrived."""

    def handle(self):
        data = self.request.recv(65536)
        SEEN.add(protocol="hello", at=local_address(self.request), port=self.request.getsockname()[1], bytes=len(data))
        self.request.sendall(f"at {local_address(self.request)}\n".encode())


class SpeaksFirst(socketserver.BaseRequestHandler):
    def handle(self):
        SEEN.add(protocol="first", at=local_address(self.request))
        self.request.sendall(f"SSH-2.0-{local_address(self.request)}\r\n".encode())
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Quiet(socketserver.BaseRequestHandler):
    def handle(self):
        SEEN.add(protocol="quiet", at=local_address(self.request))
        while data := self.request.recv(65536):
            self.request.sendall(data)


def serve(port: int, handler):
    server = ThreadingServer(("::", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def serve_tls(port: int, certificate: Path):
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ThreadingServer(("::", port), Http)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def serve_udp(port: int):
    listener = ancillary_listener(socket.SOCK_DGRAM, port)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    while True:
        data, info, _, sender = listener.recvmsg(65536, 256)
        address = socket.inet_ntop(socket.AF_INET6, info[0][2][:16]).removeprefix("::ffff:")
        SEEN.add(protocol="udp", at=address, data=data[:100].decode(errors="replace"))
        listener.sendmsg([f"{address} ".encode() + data], info, 0, sender)


def read_name(message: bytes, at: int) -> tuple[str, int]:
    labels = []
    while length := message[at]:
        labels.append(message[at + 1:at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels).lower(), at + 1


def dns_reply(message: bytes, stream: bool) -> bytes:
    name, at = read_name(message, 12)
    kind = int.from_bytes(message[at:at + 2], "big")
    question = message[12:at + 4]
    SEEN.add(protocol="dns", name=name, kind=kind, stream=stream)
    if name.endswith(".silent.example") or (name, kind) in (("half.example", 28), ("other-half.example", 1)):
        return b""
    if name == "large.example" and not stream:
        return message[:2] + b"\x83\x80\0\1\0\0\0\0\0\0" + question
    if name == "garbage.example":
        return message[:2] + b"\x81\x80\0\1\xff\xff\0\0\0\0" + question + b"\xc0" * 200
    if name == "huge.example" and not stream:
        return message[:2] + b"\x83\x80\0\1\0\0\0\0\0\0" + question
    if name == "rebind.example":  # another address each time, valid for no time at all
        REBOUND.append(name)
        known, ttl, texts = True, 0, ["11.0.0.15"] if len(REBOUND) <= 2 else ["127.0.0.1"]
    else:
        known, ttl, texts = name in ZONE or name in ALIASES, 60, ZONE.get(ALIASES.get(name, name), [])
    family, wanted = {1: (socket.AF_INET, "."), 28: (socket.AF_INET6, ":")}.get(kind, (0, "?"))
    records = [socket.inet_pton(family, text) for text in texts if wanted in text]
    alias = b"".join(bytes([len(label)]) + label.encode() for label in ALIASES[name].split(".")) + b"\0" if name in ALIASES else b""
    count = len(records) + bool(alias)
    head = message[:2] + (b"\x81\x80" if known else b"\x81\x83") + b"\0\1" + count.to_bytes(2, "big") + b"\0\0\0\0"
    owner = b"\xc0\x0c" if not alias else (0xC000 + 12 + len(question) + 12).to_bytes(2, "big")
    answers = [b"\xc0\x0c\0\5\0\1\0\0\0\x3c" + len(alias).to_bytes(2, "big") + alias] if alias else []
    answers += [owner + kind.to_bytes(2, "big") + b"\0\1" + ttl.to_bytes(4, "big") + len(data).to_bytes(2, "big") + data for data in records]
    return head + question + b"".join(answers)


def serve_dns(port: int):
    listener = ancillary_listener(socket.SOCK_DGRAM, port)
    while True:
        data, sender = listener.recvfrom(65536)
        if reply := dns_reply(data, stream=False):
            listener.sendto(reply, sender)


class DnsStream(socketserver.BaseRequestHandler):
    def handle(self):
        size = int.from_bytes(self.request.recv(2), "big")
        answer = dns_reply(self.request.recv(size), stream=True)
        self.request.sendall(len(answer).to_bytes(2, "big") + answer)


def main(seen: str, work: str):
    global SEEN
    SEEN = Seen(seen)
    for command in ("link set lo up", "route add local 11.0.0.0/8 dev lo", "route add local 10.1.0.0/16 dev lo",
                    "route add local 169.254.0.0/16 dev lo", "-6 route add local 2a00::/16 dev lo"):
        subprocess.run(["ip", *command.split()], check=True)
    serve(80, Http)
    serve(8080, Http)
    serve(443, Hello)
    serve(2222, SpeaksFirst)
    serve(9000, Quiet)
    serve(5353, DnsStream)
    if (certificate := Path(work, "server.pem")).exists():
        serve_tls(8443, certificate)
    for target, port in ((serve_udp, 7777), (serve_dns, 5353)):
        threading.Thread(target=target, args=(port,), daemon=True).start()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
