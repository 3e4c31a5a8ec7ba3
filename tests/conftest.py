"""Fixtures and rules of all tests that drive the real program."""

import collections
import os
import shutil
import tempfile
from pathlib import Path

import host
import pytest
from dsec_tool import Dsec

LANE = os.environ.get("DSEC_LANE", "")


def reason_to_leave_out(item) -> str | None:
    for marker in item.iter_markers("needs"):
        for feature in marker.args:
            if not host.has(feature):
                return f"needs {feature}, which the lane '{host.lane_of(feature)}' has"
    if os.environ.get("DSEC_TEST_LONG"):
        return None
    slow = item.get_closest_marker("guest_slow")
    if slow and LANE == "guest":
        return f"runs in the guest with --long: {slow.args[0]}"
    if item.get_closest_marker("long"):
        return "runs with --long"
    return None


LEFT_OUT = pytest.StashKey[collections.Counter]()


def pytest_collection_modifyitems(config, items):
    """Tests for another host are deselected, not skipped: a skip is a failure in the lane that exists for the test."""
    left_out = {item: reason for item in items if (reason := reason_to_leave_out(item))}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    config.stash[LEFT_OUT] = collections.Counter((item.path.name, reason) for item, reason in left_out.items())


def pytest_sessionfinish(session):
    # A worker has no terminal: the one that started it tells, and each of them left out the same.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = [[*key, count] for key, count in
                                                   session.config.stash.get(LEFT_OUT, {}).items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    if told := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = collections.Counter({(file, reason): count for file, reason, count in told})


def pytest_terminal_summary(terminalreporter, config):
    if listed := os.environ.get("DSEC_FAILED_TESTS"):
        reports = terminalreporter.stats.get("failed", []) + terminalreporter.stats.get("error", [])
        Path(listed).write_text("".join(f"{name}\n" for name in sorted({report.nodeid for report in reports})))
    if config.option.markexpr == "alone":
        return  # told by the run of the others
    for (file, reason), count in sorted(config.stash.get(LEFT_OUT, {}).items()):
        terminalreporter.write_line(f"left out: {count} of {file}: {reason}")


@pytest.fixture
def work():
    """A folder of the test's own on a real disk, with a short path: sockets in it must fit into 108 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="dsec-test-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def dsec(work) -> Dsec:
    """The program with a home of its own below `work`. Lanes that run sandboxes override it with one that cleans up."""
    return Dsec(work / "home", work)


@pytest.fixture
def long_run() -> bool:
    """True with --long: soaks and full numbers of rounds, of which a plain run does a tenth."""
    return bool(os.environ.get("DSEC_TEST_LONG"))
