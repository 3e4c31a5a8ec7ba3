"""Dockerfiles: what dsec makes of them is what buildah makes of them, and a second build does nothing."""

import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
import rootfs
from dockerfile_cases import ARGS, CASES, Buildah, add, context

pytestmark = pytest.mark.guest_slow("builds say nothing of a kernel that other tests do not")

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


def built_by(buildah, folder, args: dict) -> tuple[dict, dict]:
    """The tree and the config that buildah makes."""
    flags = [f"--build-arg={name}={value}" for name, value in args.items()]
    out = buildah.work / "buildah.tar"
    buildah.run(*buildah.prepare(folder), "-o", f"type=tar,dest={out}", *flags, folder)
    config = json.loads(buildah.run("inspect", "--type", "image", "localhost/made"))["Docker"]["config"]
    return {path: what for path, what in tree_of(out).items() if path not in LEFT_BY_BUILDAH}, config


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
    mine, (theirs, config) = exported(dsec, f"base/{name}", buildah.work), built_by(buildah, folder, args)
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


@pytest.mark.guest_slow("the kernel does not decide it")
def test_what_a_large_step_made_is_not_written_again(dsec, folder):
    rootfs.import_base(dsec)
    base = dsec.json("layer", "inspect", "base/box")[0]["manifest"]
    (folder / "Dockerfile").write_text("""FROM base/box
RUN mkdir -m 700 /made && echo one > /made/one && echo gone > /made/gone
RUN head -c 40000000 /dev/urandom > /made/large && echo two > /made/two && rm /made/gone && rm -r /etc/group && ln /made/large /made/link
RUN echo three > /made/two && rm /made/link && chmod 711 /made
""")
    dsec.ok("import", "base/t", f"dockerfile:{folder}")
    images = dsec.json("layer", "inspect", "base/t")[0]["manifest"]["images"]
    sizes = [sum(blob["size"] for blob in image["blobs"]) for image in images]
    assert images[:len(base["images"])] == base["images"] and [size > 40_000_000 for size in sizes[-3:]] == [False, True, False]
    assert sum(sizes[len(base["images"]):]) < 41_000_000
    told = dsec.ok("run", "base/t", "--", "sh", "-c", "stat -c %a /made; cd /made; echo *; cat one two; wc -c < large; test -e /etc/group || echo gone")
    assert told == "711\nlarge one two\none\nthree\n40000000\ngone\n"


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
