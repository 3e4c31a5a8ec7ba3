"""A real registry server for tests: Debian's docker-registry, on a loopback port and a folder of the test's own."""

import gzip
import hashlib
import http.client
import io
import json
import shutil
import socket
import ssl
import subprocess
import tarfile
import time
from pathlib import Path

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"
LAYER = PLAIN_LAYER + "+gzip"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def make_certificates(folder: Path) -> None:
    """ca.crt, and server.crt with server.key for localhost and 127.0.0.1, signed by it."""
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, cwd=folder)

    (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key",
            "-out", "ca.crt", "-days", "30", "-subj", "/CN=dsec test authority")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "server.key",
            "-out", "server.csr", "-subj", "/CN=localhost")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
            "-extfile", "ext", "-out", "server.crt")


class DockerRegistry:
    """Runs until stop(). `login` is (user, password); `certificates` a folder of make_certificates(). `within` is a command that
    runs another one in the place of the server, which listens at `address` there."""

    def __init__(self, folder: Path, login: tuple[str, str] | None = None, certificates: Path | None = None,
                 address: str = "127.0.0.1", within: list[str] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.login = folder, login
        self.port = free_port()
        self.host = f"{'localhost' if address == '127.0.0.1' else address}:{self.port}"
        tls = f"  tls:\n    certificate: {certificates}/server.crt\n    key: {certificates}/server.key\n" if certificates else ""
        auth = ""
        if login:
            htpasswd = subprocess.run(["htpasswd", "-Bbn", *login], check=True, capture_output=True, text=True).stdout
            (folder / "htpasswd").write_text(htpasswd)
            auth = f"auth:\n  htpasswd:\n    realm: test\n    path: {folder}/htpasswd\n"
        (folder / "config.yml").write_text(
            "version: 0.1\nlog:\n  level: error\n"
            f"storage:\n  filesystem:\n    rootdirectory: {folder}/data\n  delete:\n    enabled: true\n"
            f"http:\n  addr: {address}:{self.port}\n  relativeurls: true\n{tls}{auth}")
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen([*(within or []), shutil.which("docker-registry") or "docker-registry", "serve",
                                         str(folder / "config.yml")], stdout=self.log, stderr=self.log)
        self.context = ssl.create_default_context(cafile=certificates / "ca.crt") if certificates else None
        self.scheme = "https" if certificates else "http"
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((address, self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, "the registry does not start"
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict | None = None):
        """One request as it is; (status, headers, body)."""
        make = http.client.HTTPSConnection if self.context else http.client.HTTPConnection
        arguments = {"context": self.context} if self.context else {}
        connection = make("localhost", self.port, timeout=60, **arguments)
        headers = dict(headers or {})
        if self.login:
            import base64
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(self.login).encode()).decode()
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        result = answer.status, answer.headers, answer.read()
        connection.close()
        return result

    def push_blob(self, repository: str, data: bytes) -> dict:
        status, headers, _ = self.ask("POST", f"/v2/{repository}/blobs/uploads/", b"")
        assert status == 202
        place = headers["Location"]
        place += ("&" if "?" in place else "?") + "digest=" + sha256(data)
        status, _, body = self.ask("PUT", place, data, {"Content-Type": "application/octet-stream"})
        assert status == 201, body
        return {"digest": sha256(data), "size": len(data)}

    def push_manifest(self, repository: str, reference: str, manifest: dict) -> dict:
        data = json.dumps(manifest).encode()
        status, _, body = self.ask("PUT", f"/v2/{repository}/manifests/{reference}", data,
                                   {"Content-Type": manifest["mediaType"]})
        assert status == 201, body
        return {"mediaType": manifest["mediaType"], "digest": sha256(data), "size": len(data)}

    def push_image(self, repository: str, reference: str, layers: list[dict[str, bytes] | bytes],
                   architecture: str = "amd64", settings: dict | None = None, plain: bool = False) -> dict:
        """An image of these files, or tar archives, compressed unless they are to be plain; returns the descriptor of its
        manifest."""
        diff_ids, descriptors = [], []
        for files in layers:
            tar = files if isinstance(files, bytes) else tar_of(files)
            diff_ids.append(sha256(tar))
            packed = tar if plain else gzip.compress(tar, 1, mtime=0)
            descriptors.append({"mediaType": PLAIN_LAYER if plain else LAYER, **self.push_blob(repository, packed)})
        config = json.dumps({"architecture": architecture, "os": "linux", "config": settings or {"Env": ["A=b"]},
                             "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST,
                    "config": {"mediaType": CONFIG, **self.push_blob(repository, config)}, "layers": descriptors}
        return self.push_manifest(repository, reference or sha256(json.dumps(manifest).encode()), manifest)

    def manifest(self, repository: str, reference: str) -> dict:
        status, _, body = self.ask("GET", f"/v2/{repository}/manifests/{reference}", headers={"Accept": MANIFEST})
        assert status == 200, body
        return json.loads(body)

    def tags(self, repository: str) -> list[str]:
        status, _, body = self.ask("GET", f"/v2/{repository}/tags/list")
        return (json.loads(body)["tags"] or []) if status == 200 else []

    def blob_file(self, digest: str) -> Path:
        hexdigits = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / hexdigits[:2] / hexdigits / "data"

    def uploads(self) -> list[Path]:
        """What is left of uploads that were neither ended nor cancelled."""
        return [path for path in self.folder.rglob("_uploads/*/data")]


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mtime = 1_600_000_000
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


__all__ = ["DockerRegistry", "make_certificates", "sha256", "tar_of", "free_port", "INDEX", "MANIFEST"]
