"""A small root filesystem for tests that run something: busybox with its applets, users, and a /tmp that is 1777."""

import atexit
import functools
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

PASSWD = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
GROUP = "root:x:0:\nuser:x:1000:\nwheel:x:10:user\n"


def busybox() -> Path:
    found = shutil.which("busybox")
    assert found, "busybox-static is not installed: ./dev setup"
    return Path(found)


def write_tar(path: Path, files: dict[str, bytes | str] | None = None, links: dict[str, str] | None = None) -> Path:
    """A busybox root as a tar archive, with more files and symlinks on top. A name that ends with '/' is a folder."""
    applets = subprocess.run([busybox(), "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:

        def add(name: str, kind=tarfile.REGTYPE, data: bytes = b"", mode=0o644, uid=0, target=""):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.uid, entry.gid = kind, mode, uid, uid
            entry.size, entry.linkname, entry.mtime = len(data), target, 1700000000
            tar.addfile(entry, io.BytesIO(data))

        for folder in ("bin", "dev", "etc", "home", "proc", "sys", "usr", "usr/bin", "var", "var/log"):
            add(folder, tarfile.DIRTYPE, mode=0o755)
        add("root", tarfile.DIRTYPE, mode=0o700)
        add("tmp", tarfile.DIRTYPE, mode=0o1777)
        add("home/user", tarfile.DIRTYPE, mode=0o750, uid=1000)
        add("bin/busybox", data=busybox().read_bytes(), mode=0o755)
        for applet in applets:
            if applet != "busybox":
                add(f"bin/{applet}", tarfile.SYMTYPE, target="busybox", mode=0o777)
        add("etc/passwd", data=PASSWD.encode())
        add("etc/group", data=GROUP.encode())
        for name, content in (files or {}).items():
            if name.endswith("/"):
                add(name.rstrip("/"), tarfile.DIRTYPE, mode=0o755)
            else:
                add(name, data=content.encode() if isinstance(content, str) else content, mode=0o755)
        for name, target in (links or {}).items():
            add(name, tarfile.SYMTYPE, target=target, mode=0o777)
    return path


@functools.cache
def homes_with_bases() -> Path:
    folder = tempfile.mkdtemp(prefix="dsec-test-bases-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def import_base(dsec, name: str = "base/box", **kwargs) -> str:
    """The root as a layer of `dsec`'s store; returns its reference. A home that is still to be made becomes a copy of one
    that has it already: in the guest an import takes as long as the rest of a test."""
    kept = homes_with_bases() / hashlib.sha256(repr((name, kwargs)).encode()).hexdigest()
    if kept.exists() and not dsec.home.exists():
        shutil.copytree(kept, dsec.home, symlinks=True)
        return name
    new = not dsec.home.exists()
    archive = write_tar(dsec.cwd / f"{name.replace('/', '-').replace(':', '-')}.tar", **kwargs)
    dsec.ok("import", name, f"tar:{archive}")
    archive.unlink()
    if new:
        # Each home makes an identity of its own.
        shutil.copytree(dsec.home, kept, symlinks=True, ignore=shutil.ignore_patterns("host-id", "*.sock"))
    return name
