"""What the README tells people to type works as it stands there."""

import os
import re
import subprocess

import pytest
import rootfs
from git_repo import GitRepo
from readme import blocks, run_script

pytestmark = pytest.mark.guest_slow("the words of the README are the same there")


def run_section(dsec, heading: str) -> str:
    """The first block of a section, as it stands."""
    return run_script(dsec, blocks(heading)[0])


# What the README takes from other hosts, and what has it here. Lines that need a server for more are left to the tests of
# the registry lane.
ELSEWHERE = {"docker://docker.io/library/python:3.11": "tar:python.tar", "oci-archive:debian.tar": "tar:python.tar",
             "git:https://host/toolz@v1.0": "git:toolz@v1.0", "file:///srv/registry": "file://$PWD/registry"}
SERVERS = ("dockerfile:", "oci://", "s3://", "https://files")


def with_what_is_here(block: str) -> str:
    for there, here in ELSEWHERE.items():
        block = block.replace(there, here)
    return "".join(line for line in block.splitlines(keepends=True) if not any(name in line for name in SERVERS))


@pytest.fixture
def at_home(dsec, work):
    """The files that "First steps" names."""
    says = {"usr/bin/pytest": "#!/bin/sh\necho \"tested $PWD $*\"\n", "src/": "", "www/health": "well\n",
            "usr/bin/make": "#!/bin/sh\nhttpd -p 127.0.0.1:8080 -h /www 2>/dev/null; echo made in $PWD\n"}
    rootfs.write_tar(work / "python.tar", files=says)
    GitRepo(work / "toolz").commit(code="x = 1\n")
    subprocess.run(["git", "-C", work / "toolz", "tag", "v1.0"], check=True)
    (work / "tools").mkdir()
    (work / "tools" / "run").write_text("tool\n")
    (work / "file").write_text("copied\n")
    (work / "dsec.yaml").write_text("""\
version: 1
layers:
  workspace/toolz: {on: base/python, steps: [{git: {url: ./toolz, rev: v1.0}}, {run: touch /workspace/built}]}
environments:
  toolz-1: {base: base/python, workspace: workspace/toolz, workdir: /workspace}
""")


def test_first_steps(dsec, work, at_home):
    layers, sandbox, project, devices = (with_what_is_here(block) for block in blocks("First steps"))
    run_script(dsec, layers)
    assert {line["name"] for line in dsec.json("layer", "ls")} == {
        "base/python", "base/debian", "workspace/toolz", "toolkit/harness"}
    # Another sandbox to compare with, which did less.
    dsec.ok("create", "--name", "box-2", "base/python")
    told = run_script(dsec, sandbox.replace("dsec traj diff box box-2", "dsec traj diff box box-2 || [ $? = 3 ]"))
    for said in ("tested /workspace -q\n", "made in /src\n", "well\n", "made in /\n", "uid=0(root)", "A /tmp/file"):
        assert said in told, (said, told)
    dsec.ok("import", "base/big", "tar:python.tar")
    dsec.ok("publish", "base/big", "--to", f"file://{work}/registry")
    dsec.ok("layer", "rm", "base/big")
    told = run_script(dsec, project)
    assert "workspace/toolz:latest" in told and told.count("tested /workspace -q\n") == 2 and "made in /\n" in told
    disk = os.urandom(100_000) + bytes(900_000) + os.urandom(48_576)
    (work / "disk.img").write_bytes(disk)
    run_script(dsec, devices)
    assert (work / "disk-2.img").read_bytes() == disk


def test_limit_the_network(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Limit the network")
    assert "example.org" in told and "10.1.0.0/16:5432" in told
    assert dsec.json("net", "show", "box")["plan"]["allow"] == []


def test_branch_a_rollout(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Branch a rollout")
    assert all(name in told for name in ("rollout-1", "rollout-2", "rollout-3"))
    fork = re.search(r"^\+by (\w{22})$", told, flags=re.M)
    assert fork, told
    assert told.endswith(f"draft\ndraft\ndraft\nby {fork.group(1)}\n")


def test_reproduce_a_rollout(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Reproduce a rollout")
    assert "42\n" in told and "write" in told and told.count("2 the same, 0 different") == 2, told
    assert "<!doctype html>" in (dsec.cwd / "report.html").read_text()


def test_judge_a_submission(dsec):
    rootfs.import_base(dsec, "base/python")
    told = run_section(dsec, "Judge a submission")
    assert told.startswith("3\n") and "2 of 2 cases accepted" in told, told
