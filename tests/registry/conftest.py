"""Registries over the network: a real server, and one that fails in front of it. Neither root nor a network is needed."""

import pytest
from dsec_tool import Dsec
from fault_proxy import FaultProxy
from oci_registry import DockerRegistry


@pytest.fixture
def server(work):
    registry = DockerRegistry(work / "server")
    yield registry
    registry.stop()


@pytest.fixture
def proxy(server):
    faults = FaultProxy(server.port)
    yield faults
    faults.stop()


@pytest.fixture
def other(work):
    """A second home, as another host has it."""
    return Dsec(work / "other-home", work)


@pytest.fixture
def nothing_left():
    """nothing_left(DSEC): no temporary file is left of what was brought in."""

    def check(dsec: Dsec) -> None:
        left = [path for path in dsec.home.rglob("*") if ".tmp-" in path.name]
        assert left == []
        dsec.ok("layer", "verify")

    return check
