"""Tests here run sandboxes: root, this kernel, and nothing of them left on the host afterwards."""

import os

import leftovers
import pytest
from dsec_tool import Dsec
from on_edge import OnEdge


@pytest.fixture(autouse=True, scope="session")
def must_be_root():
    if os.geteuid() != 0:
        pytest.exit("the tests in tests/sandbox need root: sudo ./dev test sandbox", returncode=3)


@pytest.fixture
def dsec(work):
    """`dsec` with a home of its own. After the test its sandboxes are removed, gc runs, and anything that is left then
    of them or of earlier ones (a process, a mount, a cgroup, a file) fails the test. A test about what is left calls gc
    itself first. With DSEC_THROUGH=edge its sandboxes are those of an edge, which the test need not know."""
    through_edge = os.environ.get("DSEC_THROUGH") == "edge"
    tool = OnEdge(work / "home", work) if through_edge else Dsec(work / "home", work)
    yield tool
    for sandbox in leftovers.sandboxes_of(tool.home):
        tool.run("rm", "-f", sandbox)
    if through_edge:
        tool.end()
    collected = tool.run("gc")
    faults = leftovers.sweep(tool.home)
    assert not faults, "left on the host after gc:\n" + "\n".join(faults) + f"\n{collected}"
