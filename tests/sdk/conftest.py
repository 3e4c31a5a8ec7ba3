"""Tests of the Python SDK, each against real sandboxes of one edge that all of a worker share. What a test leaves there fails
it; what it sends is compared with the contract."""

import asyncio
import inspect
import json
import os
import shutil
import tempfile
from pathlib import Path

import leftovers
import pytest
from dsec_tool import BIN
from on_edge import Edge
from python_sdk import CONTRACT, PRESETS, end_home, home_with_box

import libdsec
from libdsec import _edge


@pytest.fixture(autouse=True, scope="session")
def must_be_root():
    if os.geteuid() != 0:
        pytest.exit("the tests in tests/sdk need root: sudo ./dev test cluster", returncode=3)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that is a coroutine has a loop of its own, in which its client is open."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        if "client" not in arguments:
            return await pyfuncitem.obj(**arguments)
        async with arguments["client"]:
            return await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(scope="session")
def shared():
    """An edge with base/box, as `tool` and `edge`."""
    place = Path(tempfile.mkdtemp(prefix="dsec-test-"))
    tool = home_with_box(place)
    tool.edge = Edge(tool.home, place)
    yield tool
    code = tool.edge.end()
    end_home(tool)
    log = tool.edge.log.read_text()
    shutil.rmtree(place, ignore_errors=True)
    assert code == 0, log


@pytest.fixture
def edge(shared):
    """Its address. No sandbox may be there before a test, and none after it."""
    yield shared.edge.url
    left = leftovers.sandboxes_of(shared.home)
    for sandbox in left:
        shared.run("rm", "-f", sandbox)
    assert not left, "the test has left sandboxes"


@pytest.fixture
def client(edge):
    """Open in tests that are coroutines."""
    return libdsec.DSecClient(edge)


@pytest.fixture
def own(work, monkeypatch):
    """A home of the test's own with base/box, and `edge()`, which starts one; they end with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    tool = home_with_box(work)
    edges = []

    def edge(*options: str, listen: str | None = None) -> Edge:
        place = work / f"edge{len(edges)}"
        place.mkdir()
        (place / "config.yaml").write_text(PRESETS)
        edges.append(Edge(tool.home, place, *options, listen=listen))
        return edges[-1]

    tool.edge = edge
    yield tool
    for each in edges:
        each.end()
    end_home(tool)
    assert not list(work.glob("dsec-sdk-*")), "an engine has left its place"


@pytest.fixture
def engine(own):
    """A local engine of that home, which a client starts."""
    return libdsec.LocalEngine(BIN / "dsec", home=own.home, environment={"DSEC_CONFIG": own.env["DSEC_CONFIG"]})


@pytest.fixture(autouse=True)
def as_the_contract_has_it(monkeypatch):
    faults = []

    def checked(method):
        def call(self, attempt, call, parameters=None, body=None, **options):
            text = None if body is None or callable(body) else json.dumps(body).encode()
            faults.extend(CONTRACT.request_faults(call.method, call.target(parameters or {}), {}, text or b""))
            return method(self, attempt, call, parameters or {}, body, **options)
        return call

    for name in ("ask_status", "upload", "listen", "upgrade"):
        monkeypatch.setattr(_edge.Edge, name, checked(getattr(_edge.Edge, name)))
    yield
    assert not faults, "\n".join(faults[:10])
