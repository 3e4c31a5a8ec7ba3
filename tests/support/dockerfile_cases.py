"""Dockerfiles shaped like those of public sets of tasks, on a small base and without a network; the folder that they are
built in; and buildah beside us."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "dockerfiles"
CASES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.Dockerfile"))}
ARGS = {"arguments": {"NAME": "someone"}, "arguments-of-all": {"OTHER": "given"}}


def add(folder, name: str, content: str, mode: int = 0o644):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)


def context(folder):
    add(folder, "requirements.txt", "alpha\nbeta\n")
    add(folder, "hello.txt", "hi\n")
    add(folder, "file1.md", "1\n", 0o600)
    add(folder, "file22.md", "22\n")
    add(folder, "src/main.c", "int main;\n")
    add(folder, "src/run.sh", "#!/bin/sh\n", 0o755)
    add(folder, "src/lib/util.c", "int util;\n", 0o640)
    (folder / "src/lib").chmod(0o750)
    add(folder, "tests/alpha_test.py", "a\n")
    add(folder, "tests/zeta_test.py", "z\n")
    add(folder, "tests/sub/deep.txt", "deep\n")
    add(folder, "files/a.txt", "a\n")
    add(folder, "files/skip.log", "no\n")
    add(folder, "files/cache/x", "no\n")
    add(folder, "files/cache/keep", "yes\n")
    add(folder, "links/target", "t\n")
    os.symlink("target", folder / "links/relative")
    os.symlink("/etc/passwd", folder / "links/absolute")
    add(folder, ".dockerignore", "# not these\n**/*.log\nfiles/cache/*\n!files/cache/keep\nplain\n")
    with tarfile.open(folder / "data.tar.gz", "w:gz") as tar:
        for name, mode, uid in (("d", 0o711, 5), ("d/file", 0o4755, 1000), ("top", 0o600, 0)):
            entry = tarfile.TarInfo(name)
            entry.mode, entry.uid, entry.gid, entry.mtime = mode, uid, uid, 1600000000
            entry.type = tarfile.DIRTYPE if name == "d" else tarfile.REGTYPE
            entry.size = 0 if name == "d" else 3
            tar.addfile(entry, io.BytesIO(b"abc") if entry.size else None)
    with tarfile.open(folder / "plain.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo("with/attributes")
        entry.mode, entry.uid, entry.gid, entry.mtime, entry.size = 0o755, 7, 8, 1600000000, 3
        entry.pax_headers = {"SCHILY.xattr.user.note": "here"}
        tar.addfile(entry, io.BytesIO(b"abc"))
    add(folder, "plain", "plain text\n")
    subprocess.run(["gzip", "-nk", "plain"], cwd=folder, check=True)
    for path in [folder, *(inside for inside in folder.rglob("*") if inside.is_dir() and inside.name != "lib")]:
        path.chmod(0o755)


class Buildah:
    def __init__(self, work, archive):
        self.work = work
        # Its overlay takes a third of the time, where the folder lies on a file system that can be an upper.
        for driver in ("overlay", "vfs"):
            self.command = ["buildah", "--root", work / driver / "root", "--runroot", work / driver / "run",
                            "--storage-driver", driver]
            if subprocess.run([*self.command, "from", "--name", "base", "scratch"], capture_output=True,
                              check=False, timeout=60).returncode == 0:
                break
        self.run("add", "base", archive, "/")
        self.run("commit", "base", "localhost/base/box")

    def run(self, *args) -> str:
        done = subprocess.run([*self.command, *args], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"buildah {args}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def prepare(self, folder) -> list:
        """Arguments of a build of the folder's Dockerfile, with the base under the name that it has here."""
        text = (folder / "Dockerfile").read_text()
        (self.work / "as-buildah").write_text(text.replace("base/box", "localhost/base/box"))
        return ["bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "-t", "localhost/made",
                "-f", self.work / "as-buildah"]

    def end(self):
        self.run("rm", "--all")
        for driver in ("overlay", "vfs"):
            subprocess.run(["umount", self.work / driver / "root" / driver], capture_output=True, check=False)
