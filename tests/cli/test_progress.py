"""How far long work is: a line for each step that ends, and on a terminal one that is drawn over."""

import os
import pty
import re
import time

import pytest
from oci_registry import tar_of

SIZE, TIME = r"\d+(\.\d+)? ([KMG]i)?B", r"\d+(\.\d+)? ?m?s"


@pytest.fixture
def project(work):
    (work / "a").mkdir()
    (work / "a" / "f").write_text("x" * 300_000)
    (work / "dsec.yaml").write_text(
        "version: 1\nlayers:\n  base/a: {from: 'dir:a'}\n  workspace/w:\n    on: base/a\n    steps:\n"
        "      - copy: {from: a, to: /srv}\n      - copy: {from: dsec.yaml, to: /srv/}\n")


def test_each_step_that_ends_is_a_line_with_its_size_and_time(dsec, work, project):
    build = dsec.run("build")
    lines = build.err.splitlines()
    for wanted in (rf"import base/a: {SIZE} in {TIME}", rf"workspace/w:latest step 1/2 \(copy: a .*\): {SIZE} in {TIME}",
                   rf"workspace/w:latest step 2/2 \(copy: dsec.yaml .*\): {SIZE} in {TIME}"):
        assert sum(bool(re.fullmatch(wanted, line)) for line in lines) == 1, (wanted, build.err)
    assert "\r" not in build.err and "\x1b" not in build.err
    assert [line.split()[-2:] != [] for line in build.out.splitlines()][0]
    (work / "dsec.yaml").write_text((work / "dsec.yaml").read_text() + "# changed\n")
    again = dsec.run("build").err
    assert re.search(r"step 1/2 \(copy: a .*\): cached\n", again) and re.search(rf"step 2/2 .*: {SIZE} in {TIME}\n", again)

    published = dsec.run("publish", "base/a", "--to", f"file://{work}/registry").err
    assert re.search(rf"publish base/a:latest: {SIZE} in {TIME}, {SIZE}/s\n", published), published
    assert "was there already" in dsec.run("publish", "base/a", "--to", f"file://{work}/registry").err


def test_on_a_terminal_a_running_step_shows_its_size_rate_and_time(dsec, work):
    master, slave = pty.openpty()
    process = dsec.popen("import", "base/x", "tar:-", stderr=slave)
    os.close(slave)
    archive = tar_of({"big": os.urandom(8 << 20)})
    process.stdin.write(archive[:4 << 20])
    process.stdin.flush()
    time.sleep(0.7)  # a rate is told after half a second
    process.stdin.write(archive[4 << 20:])
    process.stdin.close()
    seen = b""
    try:
        while piece := os.read(master, 65536):
            seen += piece
    except OSError:
        pass  # nobody has the other end any more
    os.close(master)
    assert process.wait(60) == 0
    text = seen.decode()
    assert re.search(rf"import base/x:latest {SIZE}, {SIZE}/s {TIME}", text), text
    # Each drawing takes the one before away, and what stays is the line of the end.
    assert text.count("\x1b[K") >= 2
    assert re.fullmatch(rf"import base/x:latest: {SIZE} in {TIME}", text.split("\x1b[K")[-1].strip()), text
