"""One suite for all backends, and for sandboxes of an edge: a test here knows nothing of the one that it runs on.
DSEC_BACKENDS names others; "edge" is containers through a context."""

import os
import shutil
import tempfile
from pathlib import Path

import leftovers
import pytest
import rootfs
from on_backend import OnBackend
from on_edge import OnEdge

BACKENDS = os.environ.get("DSEC_BACKENDS", "container microvm").split()


@pytest.fixture(scope="session", params=BACKENDS)
def world(request):
    """A home with the base layer base/box, for all tests of one backend: what they leave fails the last of them."""
    folder = Path(tempfile.mkdtemp(prefix="dsec-test-"))
    through_edge = request.param == "edge"
    dsec = OnEdge(folder / "home", folder) if through_edge else OnBackend(folder / "home", folder, request.param)
    rootfs.import_base(dsec, files={
        "srv/index.html": "hello\n", "srv/big": b"x" * 1_000_000, "whole/a": "a\n", "whole/b/c": "c\n", "renewed/old": "o\n",
        "script": "#!/bin/sh\n", "etc/machine-id": "0123456789abcdef0123456789abcdef\n"})
    if request.param == "microvm":
        dsec.give_kernel(request.getfixturevalue("kernel_home"))
    yield dsec
    try:
        dsec.clean_up()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def dsec(world):
    """Sandboxes that a test makes are gone after it; `box` stays for the others of its file."""
    before = set(leftovers.sandboxes_of(world.home))
    yield world
    for sandbox in set(leftovers.sandboxes_of(world.home)) - before:
        world.run("rm", "-f", sandbox)


@pytest.fixture(scope="module")
def shared(world):
    world.ok("create", "--name", "box", "-m", "256MiB", "base/box")
    yield world
    world.run("rm", "-f", "box")


@pytest.fixture
def box(shared, dsec):
    """`dsec` with a sandbox named box that runs."""
    return dsec
