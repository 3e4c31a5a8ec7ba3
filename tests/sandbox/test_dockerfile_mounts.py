"""RUN --mount and what else a Dockerfile brings in: seen by the command, and nowhere afterwards."""

import functools
import hashlib
import http.server
import os
import subprocess
import tarfile
import threading

import pytest
import rootfs
from git_server import GitServer

pytestmark = pytest.mark.guest_slow("builds say nothing of a kernel that other tests do not")

SECRET = "tr0ub4dor-and-3"


@pytest.fixture
def folder(dsec, work):
    rootfs.import_base(dsec)
    made = work / "context"
    (made / "src").mkdir(parents=True)
    (made / "src/main.c").write_text("int main;\n")
    (made / "src/skip.log").write_text("no\n")
    (made / ".dockerignore").write_text("**/*.log\n")
    (made / "go.mod").write_text("module x\n")
    return made


@pytest.fixture
def build(dsec, folder):
    def run(text: str, *flags, name: str = "base/t", code: int = 0):
        (folder / "Dockerfile").write_text(text)
        args = ("import", name, f"dockerfile:{folder}", *flags)
        return dsec.fails(code, *args) if code else dsec.ok(*args)
    return run


def test_binds_show_files_that_do_not_come_into_the_layer(dsec, build):
    build("FROM base/box AS tools\n"
          "RUN mkdir /out && echo tool > /out/tool && chown 5:6 /out/tool && ln -s tool /out/link\n"
          "FROM base/box\nWORKDIR /w\n"
          "RUN --mount=type=bind,target=src --mount=type=bind,source=go.mod,target=/w/go.mod "
          "--mount=from=tools,source=/out,target=/tools,rw --mount=from=base/box,source=/etc/passwd,target=/opt/p/passwd "
          "set -e; cat src/src/main.c go.mod /tools/link > /result; test ! -e src/src/skip.log; "
          "! touch src/new 2>/dev/null; echo more >> /tools/tool; stat -c %u:%g /tools/tool >> /result; "
          "head -n 1 /opt/p/passwd >> /result\n")
    assert dsec.ok("run", "base/t", "--", "cat", "/result") == (
        "int main;\nmodule x\ntool\n5:6\nroot:x:0:0:root:/root:/bin/sh\n")
    listing = dsec.ok("run", "base/t", "--", "sh", "-c", "ls -A /w; ls / | grep -E 'tools|opt|src' || true")
    assert listing == "", listing


def test_caches_are_shared_by_builds_and_locked_ones_are_waited_for(dsec, build):
    line = "RUN --mount=type=cache,target=/root/.cache/pip,id=pip,mode=0750,uid=3,sharing=locked "
    build(f"FROM base/box\n{line}stat -c '%a %u' /root/.cache/pip > /one; echo kept > /root/.cache/pip/file\n")
    assert dsec.ok("run", "base/t", "--", "cat", "/one") == "750 3\n"
    assert dsec.ok("run", "base/t", "--", "ls", "-A", "/root") == ""
    build(f"FROM base/box\n{line}cp /root/.cache/pip/file /two\n", name="base/u")
    assert dsec.ok("run", "base/u", "--", "cat", "/two") == "kept\n"
    build("FROM base/box\nRUN --mount=type=cache,target=/c,id=pip,readonly ! touch /c/x && cat /c/file > /three\n",
          name="base/v")
    # Nobody else is in a locked one: both halves see their own numbers alone.
    half = "RUN --mount=type=cache,target=/c,id=n,sharing=locked for i in $(seq 100); do echo {0} >> /c/f; done; cp /c/f /{0}\n"
    build(f"FROM base/box AS a\n{half.format('a')}FROM base/box AS b\n{half.format('b')}"
          "FROM scratch\nCOPY --from=a /a /a\nCOPY --from=b /b /b\n", name="base/w")
    dsec.ok("layer", "export", "base/w", "--out", dsec.cwd / "w.tar")
    with tarfile.open(dsec.cwd / "w.tar") as tar:
        texts = sorted((tar.extractfile(entry).read().split() for entry in tar if entry.isfile()), key=len)
    assert [len(text) for text in texts] == [100, 200]
    assert len(set(texts[0])) == 1 and texts[1][:100] == texts[0]


def test_caches_go_with_gc_when_it_is_told(dsec, build):
    build("FROM base/box\nRUN --mount=type=cache,target=/c dd if=/dev/zero of=/c/file bs=1M count=2\n")
    home = dsec.home / "cache/mounts"
    assert [path.stat().st_size for path in home.rglob("file")] == [2 << 20]
    dsec.ok("gc")
    assert list(home.rglob("file"))
    assert "cache /c" in dsec.ok("gc", "--build-cache", "-n") and list(home.rglob("file"))
    told = dsec.json("gc", "--build-cache")
    assert not list(home.iterdir())
    assert [item["name"] for item in told["removed"] if item["kind"] == "cache"] == ["/c"]
    for folder in (dsec.home / "cache/build").iterdir():
        assert not folder.is_file()
    build("FROM base/box\nRUN --mount=type=cache,target=/c ls /c | wc -l > /empty\n")
    assert dsec.ok("run", "base/t", "--", "cat", "/empty") == "0\n"
    (next(home.iterdir()) / "id").touch()
    os.utime(next(home.iterdir()) / "id", (1, 1))
    assert "cache /c" in dsec.ok("gc") and not list(home.iterdir())


def test_memory_filesystems_are_empty_and_bounded(dsec, build):
    build("FROM base/box\nRUN mkdir /t && echo below > /t/file\n"
          "RUN --mount=type=tmpfs,target=/t,size=1m --mount=type=tmpfs,target=/new/one "
          "ls -A /t | wc -l > /count; echo x > /t/x; ! dd if=/dev/zero of=/t/big bs=1M count=3 2>/dev/null; "
          "touch /new/one/y\n"
          "RUN --mount=type=tmpfs,target=/src/in --mount=type=bind,target=/src,rw touch /src/in/x && ls -A /src > /names\n")
    assert dsec.ok("run", "base/t", "--", "sh", "-c", "cat /count /t/file /names; ls -A /t; ls -d /new || true") == (
        "0\nbelow\n.dockerignore\nDockerfile\ngo.mod\nin\nsrc\nfile\n")


def test_secrets_are_seen_by_the_command_alone(dsec, build, folder, work):
    (work / "key").write_text(SECRET + "\n")
    text = ("FROM base/box\n"
            "RUN --mount=type=secret,id=key --mount=type=secret,id=token,env=TOKEN "
            "--mount=type=secret,id=key,target=/etc/app/key,uid=1000,mode=0440 --mount=type=secret,id=none "
            "set -e; cat /run/secrets/key; echo token $TOKEN; wc -c < /run/secrets/key > /size; "
            "stat -c '%a %u' /etc/app/key /run/secrets/key >> /size; test ! -e /run/secrets/none\n")
    flags = ("--secret", f"id=key,src={work}/key", "--secret", "id=token,env=TOKEN_OF_MINE")
    dsec.env["TOKEN_OF_MINE"] = "s3cr3t-t0ken"
    (folder / "Dockerfile").write_text(text)
    told = dsec.run("import", "base/t", f"dockerfile:{folder}", *flags)
    assert told.code == 0 and SECRET not in told.err and "s3cr3t" not in told.err, told.err
    assert dsec.ok("run", "base/t", "--", "cat", "/size") == f"{len(SECRET) + 1}\n440 1000\n400 0\n"
    assert dsec.ok("run", "base/t", "--", "sh", "-c", "ls -d /run/secrets /etc/app || true") == ""
    # Another value is no other step.
    (work / "key").write_text("another\n")
    before = dsec.json("layer", "inspect", "base/t")[0]["digest"]
    dsec.ok("import", "base/t", f"dockerfile:{folder}", *flags)
    assert dsec.json("layer", "inspect", "base/t")[0]["digest"] == before
    for path in dsec.home.rglob("*"):
        if path.is_file() and not path.is_symlink() and "run" not in path.relative_to(dsec.home).parts[:1]:
            content = path.read_bytes()
            assert SECRET.encode() not in content and b"s3cr3t-t0ken" not in content, path
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(".tmp-")]
    err = build(text.replace("id=none", "id=none,required"), code=2)
    assert "Dockerfile:2: RUN" in err and "the secret 'none' is required" in err and "--secret id=none,src=FILE" in err
    err = build("FROM base/box\nRUN --mount=type=secret,id=key cat /run/secrets/key; exit 3\n", "--secret",
                f"id=key,src={work}/gone", code=1)
    assert "read the secret 'key'" in err and "No such file" in err
    assert "it has no id" in build("FROM base/box\n", "--secret", "src=x", code=2)


def test_stages_that_do_not_depend_on_each_other_run_at_the_same_time(dsec, build):
    """Each waits for the other, through a folder that both see."""
    wait = "for i in $(seq 600); do test -e /c/{1} && exit 0; sleep 0.1; done; exit 1"
    run = f"RUN --mount=type=cache,target=/c touch /c/{{0}}; {wait}\n"
    build(f"FROM base/box AS a\n{run.format('a', 'b')}FROM base/box AS b\n{run.format('b', 'a')}"
          "FROM base/box\nCOPY --from=a /etc/passwd /a\nCOPY --from=b /etc/passwd /b\n")


@pytest.fixture
def web(work):
    root = work / "web"
    root.mkdir()
    (root / "file.txt").write_text("fetched\n")
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def end_headers(self):
            name = root / self.path.split("?")[0].lstrip("/")
            if name.is_file():
                self.send_header("ETag", '"' + hashlib.sha256(name.read_bytes()).hexdigest() + '"')
            super().end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=root))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    server.root, server.asked, server.url = root, asked, f"http://127.0.0.1:{server.server_address[1]}"
    yield server
    server.shutdown()
    server.server_close()


def test_urls_are_fetched_and_fetched_again_when_they_changed(dsec, build, web):
    text = f"FROM base/box\nADD {web.url}/file.txt?x=1 /d/\nADD --chown=1000 --chmod=644 {web.url}/file.txt /named\n"
    show = ("run", "base/t", "--", "sh", "-c", "stat -c '%a %u' /d/file.txt /named; cat /d/file.txt /named")
    build(text)
    assert dsec.ok(*show) == "600 0\n644 1000\nfetched\nfetched\n"
    count = len(web.asked)
    build(text)
    assert len(web.asked) == count
    (web.root / "file.txt").write_text("changed\n")
    build(text)
    assert dsec.ok(*show) == "600 0\n644 1000\nchanged\nchanged\n"
    digest = hashlib.sha256(b"changed\n").hexdigest()
    pinned = f"FROM base/box\nADD --checksum=sha256:{digest} {web.url}/file.txt /f\n"
    build(pinned)
    (web.root / "file.txt").write_text("replaced\n")
    build(pinned)
    dsec.ok("gc", "--build-cache")
    err = build(pinned, code=1)
    assert "Dockerfile:2: ADD" in err and f"not sha256:{digest}" in err
    build(f"FROM base/box\nRUN mkdir /there\nADD {web.url}/file.txt?x=1 /there\n")
    assert dsec.ok("run", "base/t", "--", "ls", "/there") == "file.txt\n"
    err = build(f"FROM base/box\nADD {web.url}/none.txt?token=x /f\n", code=1)
    assert "none.txt?…" in err
    assert "Dockerfile:2: ADD" in err and "404" in err


def test_repositories_are_added_without_their_history(dsec, build, work):
    source = work / "source"
    git = ["git", "-C", source, "-c", "user.name=x", "-c", "user.email=x@example.invalid"]
    subprocess.run(["git", "init", "-q", "-b", "main", source], check=True)
    (source / "sub").mkdir()
    for text in ("one\n", "two\n"):
        (source / "sub/file").write_text(text)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", text], check=True)
    subprocess.run([*git, "tag", "first", "HEAD~1"], check=True)
    (work / "served").mkdir()
    subprocess.run(["git", "clone", "-q", "--bare", source, work / "served/x.git"], check=True)
    with GitServer(work / "served") as server:
        url = server.url + "/x.git"
        build(f"FROM base/box\nADD {url} /head\nADD --chown=7 {url}#first /first/\n")
        show = "cat /head/sub/file /first/sub/file; stat -c %u /first/sub/file; ls -A /head /first"
        assert dsec.ok("run", "base/t", "--", "sh", "-c", show) == "two\none\n7\n/first:\nsub\n\n/head:\nsub\n"
        err = build(f"FROM base/box\nADD {url}#none /x\n", code=1)
        assert "Dockerfile:2: ADD" in err, err
