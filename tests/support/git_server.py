"""A git server on the loopback for tests: smart HTTP through git's own http-backend, with a password or without."""

import base64
import http.server
import os
import subprocess
import threading
from pathlib import Path

BACKENDS = ("/usr/lib/git-core/git-http-backend", "/usr/libexec/git-core/git-http-backend")


class GitServer:
    """Serves the bare repositories below `root`; `login` is (user, password) or None."""

    def __init__(self, root: Path, login: tuple[str, str] | None = None):
        self.asked: list[str] = []  # what came as Authorization
        backend = next(path for path in BACKENDS if os.path.exists(path))
        wanted = "Basic " + base64.b64encode(":".join(login).encode()).decode() if login else None
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                given = self.headers.get("Authorization")
                server.asked.append(given or "")
                if wanted and given != wanted:
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="test"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                path, _, query = self.path.partition("?")
                env = {"PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1",
                       "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent", "PATH_INFO": path, "QUERY_STRING": query,
                       "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                       "CONTENT_LENGTH": str(len(body)), "REMOTE_ADDR": "127.0.0.1",
                       "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
                done = subprocess.run([backend], input=body, env=env, capture_output=True, check=False)
                head, _, content = done.stdout.partition(b"\r\n\r\n")
                status = 200
                lines = [line.decode().partition(": ") for line in head.split(b"\r\n")]
                for name, _, value in lines:
                    if name == "Status":
                        status = int(value.split()[0])
                self.send_response(status)
                for name, _, value in lines:
                    if name != "Status":
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
