"""A reverse proxy in front of a registry that does to its answers what networks and servers do, and hands out tokens."""

import base64
import contextlib
import dataclasses
import http.client
import http.server
import json
import secrets
import socket
import struct
import threading
import time
import urllib.parse
from typing import Callable


@dataclasses.dataclass
class Fault:
    """What happens to an answer instead of nothing."""
    status: int | None = None              # answered by the proxy itself, with these headers
    headers: dict = dataclasses.field(default_factory=dict)
    body: bytes = b""
    cut: int | None = None                 # bytes of the body after which the connection ends
    reset: bool = False                    # it ends by a reset
    delay: float = 0.0                     # before the answer
    rate: int | None = None                # bytes a second
    alter: bool = False                    # the first byte of the body is another
    length: int | None = None              # what Content-Length says


@dataclasses.dataclass
class Asked:
    method: str
    path: str
    headers: dict
    status: int = 0


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # clients may go away


class FaultProxy:
    """Forwards to `port` of this host. `faults` is asked for each request: (method, path, how often before) -> Fault."""

    def __init__(self, port: int, faults: Callable[[str, str, int], Fault | None] = lambda *_: None):
        self.faults = faults
        self.turn = contextlib.nullcontext()   # held while the server behind works on a request
        self.asked: list[Asked] = []
        self.login: tuple[str, str] | None = None
        self.token_seconds: int | None = None  # tokens are wanted, and good for so long
        self.tokens: dict[str, tuple[float, list[str]]] = {}
        self.token_requests: list[dict] = []
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.command, self.path, dict(self.headers))
                with proxy._lock:
                    proxy.asked.append(asked)
                    count = proxy._counts.get((self.command, self.path), 0)
                    proxy._counts[self.command, self.path] = count + 1
                if self.path.startswith("/token"):
                    return self.plain(*proxy.token(self.path, self.headers, body))
                if proxy.token_seconds is not None and not proxy.allows(self.headers.get("Authorization"), self.command,
                                                                         self.path):
                    asked.status = 401
                    return self.plain(401, {"WWW-Authenticate": f'Bearer realm="http://{proxy.host}/token",'
                                                                f'service="test",scope="{scope_of(self.command, self.path)}"'},
                                      b'{"errors":[{"code":"UNAUTHORIZED","message":"no token"}]}')
                fault = (proxy.gate(self.command, self.path, asked.headers, body) or
                         proxy.faults(self.command, self.path, count) or Fault())
                time.sleep(fault.delay)
                if fault.status is not None:
                    asked.status = fault.status
                    return self.plain(fault.status, fault.headers, fault.body)
                upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
                if proxy.token_seconds is not None:
                    headers.pop("Authorization", None)
                with proxy.turn:
                    upstream.request(self.command, self.path, body=body, headers=headers)
                    answer = upstream.getresponse()
                    content = answer.read()
                asked.status = answer.status
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("content-length", "connection", "date", "server"):
                        self.send_header(name, value)
                length = answer.headers.get("Content-Length", str(len(content)))
                self.send_header("Content-Length", str(fault.length if fault.length is not None else length))
                self.end_headers()
                if self.command != "HEAD":
                    self.give(content, fault)
                upstream.close()

            def give(self, content: bytes, fault: Fault):
                if fault.alter and content:
                    content = bytes([content[0] ^ 1]) + content[1:]
                stop = fault.cut is not None or fault.reset or fault.length is not None
                content = content[:fault.cut]
                step = max(fault.rate // 20, 1) if fault.rate else len(content) or 1
                for at in range(0, len(content), step):
                    self.wfile.write(content[at:at + step])
                    if fault.rate:
                        time.sleep(0.05)
                if stop:
                    self.close_connection = True
                    self.wfile.flush()
                    if fault.reset:
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

            def plain(self, status: int, headers: dict, body: bytes):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.host = f"localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def gate(self, method: str, path: str, headers: dict, body: bytes) -> Fault | None:
        """What the server in front lets nobody through for; before all other faults."""
        return None

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        """Counting begins anew."""
        with self._lock:
            self._counts.clear()
            self.asked.clear()
            self.token_requests.clear()

    def times(self, method: str, part: str) -> int:
        return sum(1 for asked in self.asked if asked.method == method and part in asked.path)

    def token(self, path: str, headers, body: bytes):
        """The authorization server: a token for the scopes that were asked for."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        form = urllib.parse.parse_qs(body.decode())
        given = headers.get("Authorization") or ""
        login = tuple(base64.b64decode(given[6:]).decode().split(":", 1)) if given.startswith("Basic ") else None
        with self._lock:
            self.token_requests.append({"query": query, "form": form, "login": login})
        if self.login and login != self.login and form.get("refresh_token") != [self.login[1]]:
            return 401, {}, b'{"errors":[{"code":"UNAUTHORIZED","message":"wrong login"}]}'
        text = secrets.token_urlsafe(24)
        scopes = query.get("scope", []) + " ".join(form.get("scope", [])).split()
        with self._lock:
            self.tokens[text] = (time.monotonic() + self.token_seconds, scopes)
        return 200, {"Content-Type": "application/json"}, json.dumps({"token": text, "expires_in": self.token_seconds}).encode()

    def allows(self, given: str | None, method: str, path: str) -> bool:
        until, scopes = self.tokens.get((given or "").removeprefix("Bearer "), (0.0, []))
        if time.monotonic() >= until:
            return False
        wanted = scope_of(method, path)
        if not wanted:
            return True
        name, actions = wanted.rsplit(":", 1)
        granted = {action for scope in scopes if scope.rsplit(":", 1)[0] == name
                   for action in scope.rsplit(":", 1)[1].split(",")}
        return set(actions.split(",")) <= granted


def scope_of(method: str, path: str) -> str:
    parts = urllib.parse.urlsplit(path).path.split("/")
    for word in ("manifests", "blobs", "tags"):
        if word in parts[2:]:
            repository = "/".join(parts[2:parts.index(word, 2)])
            return f"repository:{repository}:" + ("pull" if method in ("GET", "HEAD") else "pull,push")
    return ""
