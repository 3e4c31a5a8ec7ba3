"""The host's Python as a layer of its own, for sandboxes that can have nothing of the host bound into them."""

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path

import rootfs

PYTHON = "/usr/bin/python3"
# Of its library; the rest is not needed here.
PACKAGES = ("collections", "ctypes", "email", "encodings", "http", "importlib", "json", "re", "urllib", "lib-dynload")
ASK = "import json, os, sys, sysconfig; print(json.dumps([sysconfig.get_path('stdlib'), os.path.realpath(sys.executable)]))"


def shared_libraries(program: Path) -> set[Path]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


def import_python(dsec, name: str = "base/python", files: dict[str, bytes | str] | None = None) -> str:
    library, program = map(Path, json.loads(subprocess.run([PYTHON, "-c", ASK], check=True, capture_output=True).stdout))
    archive = rootfs.write_tar(dsec.cwd / "python.tar", files=files)
    sources = [*library.glob("*.py"), *(path for package in PACKAGES for path in (library / package).rglob("*")
                                        if path.is_file() and "__pycache__" not in path.parts)]
    modules = [path for path in sources if path.suffix == ".so"]
    libraries = {path for user in (program, *modules) for path in shared_libraries(user)}
    with tarfile.open(archive, "a", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({*sources, *libraries, program}):
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            data = path.read_bytes()
            entry.size, entry.mode, entry.mtime = len(data), 0o755, 1700000000
            tar.addfile(entry, io.BytesIO(data))
        if str(program) != PYTHON:
            link = tarfile.TarInfo(PYTHON.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, str(program)
            tar.addfile(link)
    dsec.ok("import", name, f"tar:{archive}")
    archive.unlink()
    return name
