"""Cases are run by the real program as root: they are mounted and compared."""

import os

import leftovers
import pytest
from dsec_tool import Dsec


@pytest.fixture(autouse=True, scope="session")
def must_be_root():
    if os.geteuid() != 0:
        pytest.exit("the cases are mounted, which needs root: sudo ./dev test cases", returncode=3)


@pytest.fixture
def dsec(work):
    """`dsec` with a home of its own; whatever is left on the host after gc fails the test."""
    tool = Dsec(work / "home", work)
    yield tool
    collected = tool.run("gc")
    faults = leftovers.sweep(tool.home)
    assert not faults, "left on the host after gc:\n" + "\n".join(faults) + f"\n{collected}"
