"""Dockerfiles: what dsec makes of them is what buildah makes of them, and a second build does nothing."""

import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("builds say nothing of a kernel that other tests do not")

FOLDER = Path(__file__).resolve().parents[1] / "support" / "dockerfiles"
# Shaped like the Dockerfiles of public sets of tasks, on a small base and without a network.
CASES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.Dockerfile"))}
# A run without --long compares these alone: each has what no other of them has.
SHORT = (
    ("python-task", "deletions"),
    ("two-stages", "settings"),
    ("triggers-run", "health-check"),
    ("mount-bind", "archive-with-owners"),
    ("users", "into-folders"),
)
REST = sorted(CASES.keys() - {name for group in SHORT for name in group})
LONG = [tuple(REST[at:at + 3]) for at in range(0, len(REST), 3)]

# Empty mount points of its own that buildah leaves after RUN; and what it gives an image that says nothing of PATH.
LEFT_BY_BUILDAH = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "run")
# What it leaves of mounts, where docker leaves nothing.
LEFT_OF_MOUNTS = {"mount-bind": ("mnt", "opt"), "mount-cache": ("root/.cache",), "mount-tmpfs": ("scratch",)}
XATTR = "SCHILY.xattr."
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ARGS = {"arguments": {"NAME": "someone"}, "arguments-of-all": {"OTHER": "given"}}

# What only dsec or a newer buildah takes.
HEREDOCS = """\
FROM base/box
ENV WHO=me
RUN <<EOF
echo "$WHO" > /one
cat > /two <<'INNER'
$WHO
INNER
EOF
COPY <<greeting <<'raw' /etc/conf/
hello $WHO
greeting
hello $WHO
raw
RUN <<EOF
#!/bin/awk -f
BEGIN { print "from awk" > "/three" }
EOF
COPY --exclude=*.py --exclude=sub tests /tests/
"""


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


def tree_of(archive) -> dict:
    """path -> what it is, but for times."""
    tree = {}
    with tarfile.open(archive) as tar:
        for entry in tar:
            path = entry.name.removeprefix("./").strip("/")
            # An export tells deletions in lower images of the same layer, too; nothing of the kind is in the tree.
            if path in ("", ".") or os.path.basename(path).startswith(".wh."):
                continue
            what = [oct(entry.mode), entry.uid, entry.gid]
            what += sorted((name.removeprefix(XATTR), value) for name, value in entry.pax_headers.items()
                           if name.startswith(XATTR))
            if entry.isdir():
                what.insert(0, "directory")
            elif entry.issym():
                what = ["symlink", entry.linkname, entry.uid, entry.gid]
            elif entry.islnk():
                what = tree[entry.linkname.removeprefix("./").strip("/")]
            elif entry.isfile():
                what = ["file", *what, tar.extractfile(entry).read()]
            else:
                what.insert(0, entry.type)
            tree[path] = what
    return tree


def exported(dsec, ref: str, work) -> dict:
    out = work / "exported.tar"
    dsec.ok("layer", "export", ref, "--out", out)
    return tree_of(out)


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

    def build(self, folder, args: dict) -> tuple[dict, dict]:
        """The tree and the config that it makes."""
        text = (folder / "Dockerfile").read_text()
        (self.work / "as-buildah").write_text(text.replace("base/box", "localhost/base/box"))
        flags = [f"--build-arg={name}={value}" for name, value in args.items()]
        out = self.work / "buildah.tar"
        self.run("bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "-t", "localhost/made",
                 "-o", f"type=tar,dest={out}", *flags, "-f", self.work / "as-buildah", folder)
        config = json.loads(self.run("inspect", "--type", "image", "localhost/made"))["Docker"]["config"]
        return {path: what for path, what in tree_of(out).items() if path not in LEFT_BY_BUILDAH}, config

    def end(self):
        self.run("rm", "--all")
        for driver in ("overlay", "vfs"):
            subprocess.run(["umount", self.work / driver / "root" / driver], capture_output=True, check=False)


HEALTH = {"Test": "test", "Interval": "interval", "Timeout": "timeout", "StartPeriod": "start_period", "Retries": "retries"}


def shown(config: dict) -> dict:
    """The config of an image as that of a layer."""
    labels = {name: value for name, value in (config.get("Labels") or {}).items() if not name.startswith("io.buildah.")}
    return {
        "env": sorted(set(config.get("Env") or []) - {DEFAULT_PATH}), "workdir": config.get("WorkingDir", ""), "user": config.get("User", ""),
        "stop_signal": config.get("StopSignal", ""), "entrypoint": config.get("Entrypoint") or [],
        "command": config.get("Cmd") or [], "exposed_ports": sorted(config.get("ExposedPorts") or []),
        "volumes": sorted(config.get("Volumes") or []), "labels": labels,
        "shell": config.get("Shell") or [], "onbuild": config.get("OnBuild") or [],
        "healthcheck": {HEALTH[name]: value for name, value in (config.get("Healthcheck") or {}).items() if value},
    }


@pytest.fixture
def folder(work):
    made = work / "context"
    made.mkdir()
    context(made)
    return made


def source_of(folder, args: dict) -> str:
    query = "&".join(f"arg.{name}={value}" for name, value in args.items())
    return f"dockerfile:{folder}" + (f"?{query}" if query else "")


@pytest.fixture(scope="module")
def buildah():
    assert shutil.which("buildah"), "buildah is not installed: ./dev setup"
    work = Path(tempfile.mkdtemp(prefix="dsec-buildah-"))
    made = Buildah(work, rootfs.write_tar(work / "box.tar"))
    yield made
    made.end()
    shutil.rmtree(work, ignore_errors=True)


def differences(dsec, buildah, folder, name: str) -> list[str]:
    args = ARGS.get(name, {})
    (folder / "Dockerfile").write_text(CASES[name])
    result = dsec.run("import", f"base/{name}", source_of(folder, args))
    if result.code != 0:
        return [f"{name}: {result}"]
    mine, (theirs, config) = exported(dsec, f"base/{name}", buildah.work), buildah.build(folder, args)
    for path in LEFT_OF_MOUNTS.get(name, ()):
        theirs.pop(path, None)
    found = [f"{name}: {path}: {mine.get(path)} instead of {theirs.get(path)}"
             for path in sorted(mine.keys() | theirs.keys()) if mine.get(path) != theirs.get(path)]
    expected = shown(config)
    stored = dsec.json("layer", "inspect", f"base/{name}")[0]["manifest"].get("config", {})
    here = {key: stored.get(key) or type(value)() for key, value in expected.items()}
    for key in ("env", "exposed_ports", "volumes"):
        here[key] = sorted(here[key])
    return found + [f"{name}: {key} {here[key]} instead of {expected[key]}" for key in expected if here[key] != expected[key]]


def compare(dsec, buildah, folder, names):
    dsec.ok("import", "base/box", f"tar:{buildah.work / 'box.tar'}")
    found = [line for name in names for line in differences(dsec, buildah, folder, name)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("names", SHORT, ids=lambda names: names[0])
def test_dockerfiles_come_out_as_buildah_makes_them(dsec, buildah, folder, names):
    compare(dsec, buildah, folder, names)


@pytest.mark.long
@pytest.mark.parametrize("names", LONG, ids=lambda names: names[0])
def test_the_others_come_out_as_buildah_makes_them(dsec, buildah, folder, names):
    compare(dsec, buildah, folder, names)


def test_a_second_build_does_nothing_and_a_changed_file_only_what_follows(dsec, work, folder):
    rootfs.import_base(dsec)
    (folder / "Dockerfile").write_text(CASES["python-task"])
    (work / "dsec.yaml").write_text("version: 1\nlayers:\n  base/task: {from: 'dockerfile:context'}\n"
                                    "environments:\n  e: {base: base/task}\n")
    first = dsec.json("build")
    assert (first["result"], first["cached_steps"]) == ("built", 0)
    second = dsec.json("build")
    assert (second["result"], second["digest"]) == ("cached", first["digest"])
    for path in folder.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert dsec.json("build")["result"] == "cached"
    dsec.ok("build", "--locked")
    add(folder, "hello.txt", "changed\n")
    assert "not those that were locked" in dsec.fails(2, "build", "--locked")
    third = dsec.json("build")
    assert third["result"] == "built" and third["cached_steps"] == third["steps"] - 1
    assert dsec.ok("run", "e", "--", "sh", "-c", "cat hello.txt; echo $PYTHONUNBUFFERED; pwd") == "changed\n1\n/app\n"


def test_layers_of_the_same_file_are_made_first_and_share_what_they_are_from(dsec, work, folder):
    archive = rootfs.write_tar(work / "box.tar")
    (folder / "Dockerfile").write_text("FROM base/mine\nRUN echo built > /built\n")
    (work / "dsec.yaml").write_text("version: 1\nlayers:\n  base/task: {from: 'dockerfile:context'}\n"
                                    f"  base/mine: {{from: 'tar:{archive.name}'}}\n")
    dsec.ok("build", "base/task")
    mine, task = (dsec.json("layer", "inspect", ref)[0]["manifest"] for ref in ("base/mine", "base/task"))
    assert task["images"][:-1] == mine["images"]
    assert dsec.ok("run", "base/task", "--", "cat", "/built") == "built\n"
    (folder / "Dockerfile").write_text("FROM base/task\n")
    assert "'base/task' stands on itself" in dsec.fails(2, "build")


def test_here_documents_and_exclusions(dsec, folder):
    rootfs.import_base(dsec)
    (folder / "Dockerfile").write_text(HEREDOCS)
    dsec.ok("import", "base/t", f"dockerfile:{folder}")
    assert dsec.ok("run", "base/t", "--", "sh", "-c", "cat /one /two /three /etc/conf/greeting /etc/conf/raw; ls /tests; test ! -e /run && echo none") == (
        "me\n$WHO\nfrom awk\nhello me\nhello $WHO\nnone\n")


def test_errors_name_file_line_and_instruction_and_leave_nothing(dsec, folder):
    rootfs.import_base(dsec)
    for text, code, words in (
        ("FROM base/none\n", 2, "there is no layer base/none:latest"),
        ("FROM base/box\nRUN echo about to fail; exit 3\n", 1, "exit code 3"),
        ("FROM base/box\nCOPY missing /\n", 2, "there is no 'missing'"),
        ("FROM base/box\nCOPY files/skip.log /\n", 2, "left out by line 2 of .dockerignore"),
        ("FROM base/box\nCOPY hello.txt /etc/passwd/\n", 2, "no directory"),
        ("FROM base/box\nCOPY --chown=nobody-here hello.txt /\n", 2, "/etc/passwd has no 'nobody-here'"),
        ("FROM base/box\nCOPY ../../../../etc/shadow /\n", 2, "there is no"),
        ("FROM scratch\nRUN true\n", 2, "nothing to run in"),
    ):
        (folder / "Dockerfile").write_text(text)
        err = dsec.fails(code, "import", "base/t", f"dockerfile:{folder}")
        assert words in err and f"Dockerfile:{len(text.splitlines())}: " in err, err
    assert dsec.ok("ps", "-a", "-q") == ""
    assert "base/t" not in dsec.ok("layer", "ls")
