"""Dockerfiles: what dsec makes of them is what buildah makes of them, and a second build does nothing."""

import io
import json
import os
import shutil
import subprocess
import tarfile

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("builds say nothing of a kernel that other tests do not")

# Shaped like the Dockerfiles of public sets of tasks, on a small base and without a network.
CASES = {
    "python-task": """\
# syntax=docker/dockerfile:1
FROM base/box
ENV PYTHONUNBUFFERED=1 \\
    PIP_NO_CACHE_DIR=1 \\
    PATH="/opt/venv/bin:$PATH"
WORKDIR /app
COPY requirements.txt .
RUN mkdir -p /opt/venv/bin && \\
    # what pip would leave
    while read -r name; do echo "$name" > "/opt/venv/bin/$name"; done < requirements.txt && \\
    chmod 755 /opt/venv/bin/*
COPY . .
CMD ["python", "-m", "app"]
""",
    "two-stages": """\
ARG TAG=latest
FROM base/box:${TAG} AS build
ARG VERSION=1.2
WORKDIR /src
COPY src/ ./
RUN cat main.c lib/util.c > /out.bin && echo "$VERSION" >> /out.bin && chmod 700 /out.bin
FROM base/box AS unused
RUN exit 1
FROM base/box
LABEL version="1" description="two  words"
COPY --from=build /out.bin /usr/local/bin/tool
COPY --from=0 --chown=1000:10 /src /srv/
ENTRYPOINT ["/usr/local/bin/tool"]
CMD ["--help"]
""",
    "user-and-owner": """\
FROM base/box
RUN adduser -D -u 2000 agent 2>/dev/null || { echo agent:x:2000:2000::/home/agent:/bin/sh >> /etc/passwd; echo agent:x:2000: >> /etc/group; mkdir -p /home/agent; chown 2000:2000 /home/agent; }
COPY --chown=agent:agent tests /tests
COPY --chown=user files/a.txt /home/user/
USER agent
WORKDIR /home/agent/work
RUN id -u > /tmp/who && umask 077 && echo secret > /home/agent/key
""",
    "modes-and-links": """\
FROM base/box
COPY --chmod=0750 src/main.c src/run.sh /opt/bin/
COPY links /opt/links/
COPY src/run.sh /usr/bin/run-it
RUN ln -s /opt/bin/run.sh /bin/run && ln /opt/bin/main.c /opt/hard && chmod 4755 /usr/bin/run-it
""",
    "deletions": """\
FROM base/box
COPY src /app
RUN rm -r /app/lib /var/log && mkdir /var/log && rm /etc/group && echo new > /app/new
RUN rm /app/new && mkdir /app/lib && touch /app/lib/other
""",
    "globs-and-ignore": """\
FROM base/box
COPY *.txt file?.md /docs/
COPY tests/[a-m]*.py /tests/
COPY files /files/
""",
    "archives": """\
FROM base/box
ADD data.tar.gz /data/
ADD plain.gz /data/
ADD requirements.txt /data/list
""",
    "shells": """\
FROM base/box
SHELL ["/bin/sh", "-e", "-c"]
RUN echo one > /one; echo two > /two
RUN ["/bin/sh", "-c", "echo $0 > /three", "zero"]
ENV GREETING='hello world' EMPTY=
RUN echo "$GREETING${EMPTY:-!}" > "/four"
CMD ["echo", "$GREETING"]
""",
    "settings": """\
FROM base/box
ENV A=1
ENV B=${A:+set} C="${X:-none}" D=$A$A
LABEL org.example.name=task org.example.b="$B"
EXPOSE 8080 53/udp
VOLUME /data /cache
STOPSIGNAL SIGINT
USER 1000:1000
WORKDIR /srv
WORKDIR relative/path
ENTRYPOINT ["sh", "-c"]
CMD ["env"]
""",
    "arguments": """\
ARG BASE=base/box
FROM ${BASE}
ARG NAME
ARG GREETING=hello
ENV NAME=${NAME:-nobody}
RUN echo "$GREETING $NAME" > /greeting
COPY ${GREETING}.txt /
""",
    "from-scratch": """\
FROM scratch
COPY files/a.txt /a/b/c.txt
COPY src/ /src/
WORKDIR /data
ENV ONLY=this
""",
    "shared-stage": """\
FROM base/box AS common
WORKDIR /opt/common
RUN echo common > file
FROM common AS left
RUN echo left > left
FROM common AS right
RUN echo right > right
FROM common
COPY --from=left /opt/common/left .
COPY --from=right /opt/common/right ./
COPY --from=common /opt/common /elsewhere
""",
}

# Empty mount points of its own that buildah leaves after RUN; and what it gives an image that says nothing of PATH.
LEFT_BY_BUILDAH = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "run")
DEFAULT_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ARGS = {"arguments": {"NAME": "someone"}}

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
            if entry.isdir():
                what.insert(0, "directory")
            elif entry.issym():
                what = ["symlink", entry.linkname, entry.uid, entry.gid]
            elif entry.islnk():
                what = tree[entry.linkname.removeprefix("./").strip("/")]
            else:
                what = ["file", *what, tar.extractfile(entry).read()]
            tree[path] = what
    return tree


def exported(dsec, ref: str, work) -> dict:
    out = work / "exported.tar"
    dsec.ok("layer", "export", ref, "--out", out)
    return tree_of(out)


class Buildah:
    def __init__(self, work, archive):
        self.work = work
        self.command = ["buildah", "--root", work / "buildah/root", "--runroot", work / "buildah/run", "--storage-driver", "vfs"]
        container = self.run("from", "scratch").strip()
        self.run("add", container, archive, "/")
        self.run("commit", container, "localhost/base/box")

    def run(self, *args) -> str:
        done = subprocess.run([*self.command, *args], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"buildah {args}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def build(self, folder, args: dict) -> tuple[dict, dict]:
        """The tree and the config that it makes."""
        text = (folder / "Dockerfile").read_text()
        (self.work / "as-buildah").write_text(text.replace("base/box", "localhost/base/box"))
        flags = [f"--build-arg={name}={value}" for name, value in args.items()]
        self.run("bud", "--isolation", "chroot", "--pull-never", "-t", "localhost/made", *flags, "-f",
                 self.work / "as-buildah", folder)
        container = self.run("from", "--pull-never", "localhost/made").strip()
        mount = self.run("mount", container).strip()
        out = self.work / "buildah.tar"
        subprocess.run(["tar", "-C", mount, "--numeric-owner", "-cf", out, "."], check=True)
        config = json.loads(self.run("inspect", "--type", "image", "localhost/made"))["OCIv1"]["config"]
        return {path: what for path, what in tree_of(out).items() if path not in LEFT_BY_BUILDAH}, config


def shown(config: dict) -> dict:
    """The config of an image as that of a layer."""
    labels = {name: value for name, value in (config.get("Labels") or {}).items() if not name.startswith("io.buildah.")}
    return {
        "env": sorted(set(config.get("Env") or []) - {DEFAULT_PATH}), "workdir": config.get("WorkingDir", ""), "user": config.get("User", ""),
        "stop_signal": config.get("StopSignal", ""), "entrypoint": config.get("Entrypoint") or [],
        "command": config.get("Cmd") or [], "exposed_ports": sorted(config.get("ExposedPorts") or []),
        "volumes": sorted(config.get("Volumes") or []), "labels": labels,
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


def test_dockerfiles_come_out_as_buildah_makes_them(dsec, work, folder):
    assert shutil.which("buildah"), "buildah is not installed: ./dev setup"
    archive = rootfs.write_tar(work / "box.tar")
    dsec.ok("import", "base/box", f"tar:{archive}")
    buildah = Buildah(work, archive)
    differences = []
    for name, text in CASES.items():
        args = ARGS.get(name, {})
        (folder / "Dockerfile").write_text(text)
        result = dsec.run("import", f"base/{name}", source_of(folder, args))
        if result.code != 0:
            differences.append(f"{name}: {result}")
            continue
        mine, (theirs, config) = exported(dsec, f"base/{name}", work), buildah.build(folder, args)
        for path in sorted(mine.keys() | theirs.keys()):
            if mine.get(path) != theirs.get(path):
                differences.append(f"{name}: {path}: {mine.get(path)} instead of {theirs.get(path)}")
        expected = shown(config)
        stored = dsec.json("layer", "inspect", f"base/{name}")[0]["manifest"].get("config", {})
        found = {key: stored.get(key) or type(value)() for key, value in expected.items()}
        for key in ("env", "exposed_ports", "volumes"):
            found[key] = sorted(found[key])
        if found != expected:
            differences.append(f"{name}: config {found} instead of {expected}")
    assert not differences, "\n".join(differences)


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
    assert dsec.ok("run", "base/t", "--", "sh", "-c", "cat /one /two /etc/conf/greeting /etc/conf/raw; ls /tests") == (
        "me\n$WHO\nhello me\nhello $WHO\n")


def test_errors_name_file_line_and_instruction_and_leave_nothing(dsec, folder):
    rootfs.import_base(dsec)
    for text, code, words in (
        ("FROM python:3.11\n", 2, "Dockerfile:1: FROM: there is no layer base/python:3.11, and images are not fetched"),
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
