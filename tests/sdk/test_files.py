"""Files that go in and come out, and what is watched, logged, served and connected to."""

import asyncio
import io
import os
import stat
import tarfile

import pytest
from libdsec import DSecContainerRunArgs, DSecError, DSecUsageError, _archive

BOX = DSecContainerRunArgs("base/box", lifetime=300)


async def test_files_are_written_and_read_as_they_are(client):
    box = await client.run_container(BOX)
    data = os.urandom(1_000_000)
    await box.write_file("/tmp/data", data, mode=0o640, uid=1000, gid=1000)
    assert await box.read_file("/tmp/data") == data
    assert (await box.run_shell("stat -c '%a %u %g' /tmp/data")).stdout == "640 1000 1000\n"
    await box.write_file("/tmp/data", "short")
    assert await box.read_file("/tmp/data") == b"short"
    await box.write_file("/tmp/täst \n", b"\xff")
    assert await box.read_file("/tmp/täst \n") == b"\xff"
    with pytest.raises(DSecError, match="ENOENT") as caught:
        await box.read_file("/tmp/none")
    assert caught.value.attempt == f"cannot read '/tmp/none' of sandbox {box}"
    with pytest.raises(DSecUsageError, match="no regular file"):
        await box.read_file("/tmp")
    with pytest.raises(DSecUsageError, match="not absolute"):
        await box.write_file("data", b"")
    with pytest.raises(DSecError, match="ENOENT"):
        await box.write_file("/none/data", b"")


async def test_trees_go_in_and_come_out(client, work):
    box = await client.run_container(BOX)
    tree = work / "tree"
    (tree / "below/deep").mkdir(parents=True)
    (tree / "below/file").write_bytes(os.urandom(500_000))
    (tree / "below/run").write_text("#!/bin/sh\n")
    (tree / "below/run").chmod(0o755)
    (tree / "link").symlink_to("below/file")
    (tree / "out").symlink_to("/etc/passwd")
    await box.upload(tree, "/srv/in")
    assert (await box.run_shell("cd /srv/in; readlink link; readlink out; stat -c '%a %u' below/run")).stdout == "below/file\n/etc/passwd\n755 0\n"
    await box.upload(tree / "below/file", "/srv/file")
    (work / "out/below").mkdir(parents=True)
    (work / "out/below/run").write_text("old")
    (work / "out/mine").write_text("stays")
    await box.download("/srv/in", work / "out")
    assert (work / "out/below/file").read_bytes() == (tree / "below/file").read_bytes()
    assert stat.S_IMODE((work / "out/below/run").stat().st_mode) == 0o755 and (work / "out/below/run").read_text() == "#!/bin/sh\n"
    assert os.readlink(work / "out/out") == "/etc/passwd" and (work / "out/mine").read_text() == "stays"
    await box.download("/srv/file", work / "file")
    assert (work / "file").read_bytes() == (tree / "below/file").read_bytes()
    await box.download("/", work / "root")
    assert (work / "root/etc/group").is_file()


def archive(*entries) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"evil"))
    file.seek(0)
    return file


@pytest.mark.parametrize("entries", [
    [("top/../../escaped", tarfile.REGTYPE, "")],
    [("/escaped", tarfile.REGTYPE, "")],
    [("other", tarfile.REGTYPE, "")],
    [("top", tarfile.DIRTYPE, ""), ("top/a", tarfile.LNKTYPE, "../secret")],
    [("top", tarfile.DIRTYPE, ""), ("top/d", tarfile.CHRTYPE, "")],
])
def test_an_archive_that_leads_out_is_refused(work, entries):
    (work / "secret").write_text("secret")
    with pytest.raises(DSecUsageError):
        _archive.unpack(archive(*entries), "top", work / "into/target")
    assert not list(work.rglob("escaped")) and (work / "secret").read_text() == "secret"


def test_nothing_is_written_through_links_of_an_archive(work):
    (work / "victim").mkdir()
    (work / "into").mkdir()
    try:
        _archive.unpack(archive(("top", tarfile.DIRTYPE, ""), ("top/l", tarfile.SYMTYPE, str(work / "victim")),
                                ("top/l/file", tarfile.REGTYPE, "")), "top", work / "into/target")
    except OSError:
        pass  # the link and what lies below it cannot both be there
    assert list((work / "victim").iterdir()) == []


async def test_changes_of_files_are_told_as_they_come(client):
    box = await client.run_container(BOX)
    # What moves within a directory before that is watched, too, is not seen to move.
    await box.run_shell("mkdir /root/d")
    async with await box.watch("/root", recursive=True) as events:
        await box.run_shell("echo x > /root/d/f; mv /root/d/f /root/d/g")
        seen = {}
        async for event in events:
            seen[event.kind] = event
            if event.kind == "moved":
                break
    assert (seen["moved"].from_path, seen["moved"].path) == ("/root/d/f", "/root/d/g") and seen["created"].path.startswith("/root/d")
    with pytest.raises(DSecError, match="ENOENT"):
        await box.watch("/none")


async def test_a_log_has_what_was_said_and_when(client):
    box = await client.run_container(BOX)
    command = await box.start(["sh", "-c", "for i in 1 2 3; do echo $i; done; echo err >&2; read x; echo last"], stdin=True)
    follower = await box.logs(command.exec_id, follow=True)
    said = b""
    async for record in follower:
        said += record.data
        if b"err" in said and b"last" not in said:
            await command.write("\n")
    assert said.endswith(b"last\n") and record.stream == "stdout" and record.time.tzinfo
    async with await box.logs(command.exec_id, tail=1) as log:
        assert [record.data async for record in log] == [b"last\n"]
    await command.wait()


async def test_servers_inside_are_asked_and_connected_to(client):
    box = await client.run_container(BOX)
    await box.run_shell("httpd -p 127.0.0.1:8080 -h /srv")
    answer = await box.http(8080, "/index.html", headers={"X-A": "b"})
    assert (answer.status, answer.text, answer.header("CONTENT-length")) == (200, "hello\n", "6")
    assert (await box.http(8080, "/none")).status == 404
    async with box.forward(8080) as (address, port):
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(b"GET /index.html HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nhello\n")
        writer.close()
    silent = await box.start(["nc", "-l", "-p", "8081", "-e", "sleep", "1000"])
    while not (await box.run_shell("netstat -ln | grep -q :8081")).ok:
        await asyncio.sleep(0.02)
    with pytest.raises(DSecError, match="cannot ask GET / of port 8081"):
        await box.http(8081, timeout=0.5)
    await silent.kill()
    server = await box.start(["nc", "-l", "-p", "9000", "-e", "cat"])
    while not (await box.run_shell("netstat -ln | grep -q :9000")).ok:
        await asyncio.sleep(0.02)
    reader, writer = await box.connect(9000)
    writer.write(b"x" * 300_000)
    writer.write_eof()
    assert await reader.read() == b"x" * 300_000
    writer.close()
    assert (await server.wait()).ok
    with pytest.raises(DSecError, match="ECONNREFUSED"):
        await box.connect(9)
