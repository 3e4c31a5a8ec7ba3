"""Registries over the network: a real server, and one that fails in front of it. Neither root nor a network is needed."""

import pytest
from dsec_tool import Dsec
from fault_proxy import FaultProxy
from oci_registry import DockerRegistry
from registry_kinds import Places
from web_servers import S3Server


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


@pytest.fixture(scope="session")
def bucket(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3"), "layers")
    yield server
    server.stop()


@pytest.fixture
def places(work, server, bucket):
    """Registries of every kind that can be written to."""
    places = Places(work, server, bucket)
    yield places
    places.stop()
