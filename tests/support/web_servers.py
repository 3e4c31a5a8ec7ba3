"""Real servers of files and objects for tests: Debian's nginx over a folder, and an S3 server from npm behind a proxy that checks
every signature with botocore. Each on a loopback port and in a folder of the test's own."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from fault_proxy import Fault, FaultProxy
from oci_registry import free_port

ROOT = Path(__file__).resolve().parents[2]


def wait_for(port: int, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)


class Nginx:
    """Shows `root` until stop(); over TLS with `certificates`, a folder of oci_registry.make_certificates(); to the `login`
    (user, password) alone."""

    def __init__(self, folder: Path, root: Path, certificates: Path | None = None, login: tuple[str, str] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.host = f"localhost:{self.port}"
        self.url = f"{'https' if certificates else 'http'}://{self.host}/layers"
        tls = (f"ssl_certificate {certificates}/server.crt; ssl_certificate_key {certificates}/server.key;"
               if certificates else "")
        password = ""
        if login:
            line = subprocess.run(["htpasswd", "-bnm", *login], check=True, capture_output=True, text=True).stdout
            (folder / "htpasswd").write_text(line)
            password = f"auth_basic registry; auth_basic_user_file {folder}/htpasswd;"
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in
                             ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(f"""
            daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
            events {{ worker_connections 64; }}
            http {{
              {temporary}
              log_format told '$request_method $uri $status $http_range';
              access_log {folder}/access.log told;
              default_type application/octet-stream;
              server {{
                listen 127.0.0.1:{self.port}{' ssl' if certificates else ''}; {tls}
                location /layers/ {{ alias {root}/; {password} }}
              }}
            }}""")
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen([program, "-p", folder, "-c", folder / "nginx.conf"], stdout=output, stderr=output)
        wait_for(self.port, self.process, folder / "output")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def asked(self) -> list[list[str]]:
        """[method, path, status, range] of every request so far."""
        return [line.split(" ", 3) for line in (self.folder / "access.log").read_text().splitlines()]


class S3Server:
    """An S3 server with the buckets named, which knows no signatures: those that come to it are to be checked before."""

    key_id = "S3RVER"  # the only one that it knows

    def __init__(self, folder: Path, *buckets: str):
        self.folder = folder
        packages = subprocess.run([ROOT / "scripts/s3-server"], check=True, capture_output=True, text=True).stdout.strip()
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        made = [argument for bucket in buckets for argument in ("--configure-bucket", bucket)]
        with open(folder / "output", "wb") as output:
            self.process = subprocess.Popen(
                ["node", f"{packages}/node_modules/s3rver/bin/s3rver.js", "-d", folder / "data", "-a", "127.0.0.1",
                 "-p", str(self.port), "--silent", "--service-endpoint", "localhost", *made], stdout=output, stderr=output,
                env={"PATH": os.environ["PATH"], "HOME": str(folder)})
        wait_for(self.port, self.process, folder / "output")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class S3Proxy(FaultProxy):
    """In front of an S3Server: lets through what is signed with `secret` over exactly what came. Faults come after that."""

    def __init__(self, server: S3Server, secret: str, token: str | None = None):
        super().__init__(server.port)
        # The server shows half an object while it is written, which S3 does not.
        self.turn = threading.Lock()
        self.key_id, self.secret, self.token = server.key_id, secret, token
        self.endpoint = f"http://{self.host}"

    def gate(self, method: str, path: str, headers: dict, body: bytes) -> Fault | None:
        code = self.signature_fault(method, path, {name.lower(): value for name, value in headers.items()}, body)
        return refusal(403, code) if code else None

    def signature_fault(self, method: str, path: str, headers: dict, body: bytes) -> str | None:
        # Not on hosts where no such test runs.
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        words = headers.get("authorization", "").replace(",", "").split(" ")
        if words[0] != "AWS4-HMAC-SHA256":
            return "AccessDenied"
        said = dict(word.split("=", 1) for word in words[1:])
        key_id, _, region, service, _ = said["Credential"].split("/")
        if key_id != self.key_id:
            return "InvalidAccessKeyId"
        if headers.get("x-amz-security-token") != self.token:
            return "InvalidToken"
        if headers.get("x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch"
        signed = said["SignedHeaders"].split(";")
        if not {name for name in headers if name.startswith("x-amz-")} | {"host"} <= set(signed):
            return "HeadersNotSigned"
        request = AWSRequest(method=method, url=f"http://{headers['host']}{path}",
                             headers={name: headers[name] for name in signed if name != "host"})
        request.context["timestamp"] = headers["x-amz-date"]
        signer = S3SigV4Auth(Credentials(key_id, self.secret), service, region)
        expected = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return None if expected == said["Signature"] else "SignatureDoesNotMatch"


def refusal(status: int, code: str) -> Fault:
    return Fault(status=status, headers={"Content-Type": "application/xml"},
                 body=f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>told: {code}</Message></Error>".encode())


__all__ = ["Nginx", "S3Server", "S3Proxy", "refusal"]
