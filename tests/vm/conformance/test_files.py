"""Files go into a sandbox and come out of it, and what it has changed is told."""

import io
import os
import tarfile


def test_a_file_goes_in_and_comes_out_as_it_was(box, work):
    (work / "in").write_bytes(os.urandom(3_000_000))
    os.chmod(work / "in", 0o750)
    box.ok("cp", work / "in", "box:/root/copied")
    assert box.ok("exec", "box", "--", "stat", "-c", "%a %s", "/root/copied") == "750 3000000\n"
    box.ok("cp", "box:/root/copied", work / "out")
    assert (work / "out").read_bytes() == (work / "in").read_bytes()
    assert os.stat(work / "out").st_mode & 0o777 == 0o750


def test_a_tree_goes_in_and_comes_out_with_links(box, work):
    (work / "tree/below").mkdir(parents=True)
    (work / "tree/below/file").write_text("content\n")
    (work / "tree/link").symlink_to("below/file")
    box.ok("cp", work / "tree", "box:/root/tree")
    assert box.ok("exec", "box", "--", "cat", "/root/tree/link") == "content\n"
    box.ok("cp", "box:/root/tree", work / "back")
    assert os.readlink(work / "back/link") == "below/file"
    assert (work / "back/below/file").read_text() == "content\n"


def test_a_stream_is_a_tar_archive(box):
    out = box.ok("cp", "box:/etc/passwd", "-").encode("utf-8", "surrogateescape")
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        assert tar.getnames() == ["passwd"]
        assert b"root" in tar.extractfile("passwd").read()


def test_what_is_not_there_is_told(box, work):
    error = box.fails(1, "cp", "box:/no/such/file", work / "out")
    assert "No such file or directory (ENOENT)" in error
    assert not (work / "out").exists()


def test_a_link_in_the_sandbox_leads_nowhere_outside(box, work):
    secret = work / "secret"
    secret.write_text("of the host")
    box.ok("exec", "box", "--", "ln", "-s", str(secret), "/root/escape")
    error = box.fails(1, "cp", "box:/root/escape/", work / "out")
    assert "of the host" not in error
    assert not (work / "out").exists() or "of the host" not in (work / "out").read_text()


def test_what_was_changed_is_told_and_nothing_else(dsec):
    dsec.ok("create", "--name", "changed", "base/box")
    assert dsec.ok("diff", "changed") == ""
    dsec.ok("exec", "changed", "--", "sh", "-c", "echo x >> /srv/index.html; rm /srv/big; mkdir /srv/new; touch /srv/new/file")
    assert dsec.ok("diff", "changed").splitlines() == ["C /srv", "D /srv/big", "C /srv/index.html", "A /srv/new", "A /srv/new/file"]
