"""Tests here run sandboxes: root, this kernel, and nothing of them left on the host afterwards."""

import os

import leftovers
import pytest
from dsec_tool import Dsec


@pytest.fixture(autouse=True, scope="session")
def must_be_root():
    if os.geteuid() != 0:
        pytest.exit("the tests in tests/sandbox need root: sudo ./dev test sandbox", returncode=3)


def sandbox_ids(home) -> list[str]:
    try:
        return os.listdir(home / "sandboxes")
    except FileNotFoundError:
        return []


@pytest.fixture
def dsec(work):
    """`dsec` with a home of its own. After the test its sandboxes are removed, gc runs, and anything that is left then
    (a process, a mount, a cgroup) fails the test. A test about what is left calls gc itself first."""
    tool = Dsec(work / "home", work)
    yield tool
    ids = sandbox_ids(tool.home)
    for sandbox in ids:
        tool.run("rm", "-f", sandbox)
    collected = tool.run("gc")
    faults = leftovers.sweep(tool.home, ids)
    assert not faults, "left on the host after gc:\n" + "\n".join(faults) + f"\n{collected}"
