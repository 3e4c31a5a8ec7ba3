"""Tests here run an edge and speak with it, as `dsec` does and as others may."""

import os

import leftovers
import pytest
import rootfs
from dsec_tool import Dsec
from on_edge import Edge, OnEdge


@pytest.fixture(autouse=True, scope="session")
def must_be_root():
    if os.geteuid() != 0:
        pytest.exit("the tests in tests/cluster need root: sudo ./dev test cluster", returncode=3)


@pytest.fixture
def lab(work):
    """`dsec` whose sandboxes are those of an edge, with base/box. What is left of them fails the test."""
    tool = OnEdge(work / "home", work)
    rootfs.import_base(tool, files={"srv/index.html": "hello\n"})
    yield tool
    tool.clean_up()


@pytest.fixture
def host(work):
    """This host's own `dsec` with base/box; `host.edge(...)` starts edges, which end with the test."""
    tool = Dsec(work / "home", work)
    rootfs.import_base(tool, files={"srv/index.html": "hello\n"})
    edges = []

    def edge(*options: str, listen: str | None = None) -> Edge:
        place = work / f"edge{len(edges)}"
        place.mkdir()
        edges.append(Edge(tool.home, place, *options, listen=listen))
        return edges[-1]

    tool.edge = edge
    yield tool
    for sandbox in leftovers.sandboxes_of(tool.home):
        tool.run("rm", "-f", sandbox)
    for each in edges:
        each.end()
    collected = tool.run("gc")
    faults = leftovers.sweep(tool.home)
    assert not faults, "left on the host after gc:\n" + "\n".join(faults) + f"\n{collected}"
