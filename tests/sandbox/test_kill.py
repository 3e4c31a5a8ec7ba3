"""SIGKILL at random moments of import, build, publish and run, to each process: the store verifies, and gc finds all."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import leftovers
import pytest
import rootfs

ROUNDS = 100 if os.environ.get("DSEC_TEST_LONG") else 10
LONGEST = 0.4  # seconds until the kill; a whole run takes about a fifth of that on a quiet machine


@pytest.fixture
def dice(request):
    seed = int(os.environ.get("DSEC_TEST_SEED", random.randrange(1 << 32)))
    print(f"DSEC_TEST_SEED={seed}")  # shown when the test fails
    return random.Random(seed)


def victims(dsec, client) -> list[int]:
    """The client and everything that works for it: helpers, keepers and what runs inside."""
    found = set(leftovers.processes_of(dsec.home)) | {client.pid}
    for pid in list(found):
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        found |= {int(child) for child in children}
    return sorted(found)


def kill_at_random(dsec, dice, *args):
    client = dsec.popen(*args, stdin=subprocess.DEVNULL)
    time.sleep(dice.uniform(0, LONGEST))
    for pid in dice.sample(pids := victims(dsec, client), dice.randint(1, len(pids))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if dice.random() < 0.5:
        client.kill()
    try:
        client.communicate(timeout=30)
    except Exception:
        client.kill()
        client.communicate()


def left_after_gc(dsec) -> list[str]:
    """What not even gc takes away, once what was not killed has had its time to end."""

    def look() -> list[str]:
        dsec.ok("gc")
        return [*dsec.ok("ps", "-aq").split(), *map(str, leftovers.records_below(dsec.home)),
                *map(str, dsec.home.rglob(".tmp-*")), *leftovers.processes_of(dsec.home).values(),
                *leftovers.mounts_below(dsec.home), *map(str, leftovers.cgroups_of(leftovers.host_id_of(dsec.home)))]

    return leftovers.settle(look, seconds=20)


def assert_clean(dsec):
    assert not (left := left_after_gc(dsec)), left
    dsec.ok("layer", "verify")


def test_run_killed_at_any_moment_leaves_nothing_that_gc_does_not_find(dsec, work, dice):
    rootfs.import_base(dsec)
    for _ in range(ROUNDS):
        kill_at_random(dsec, dice, "run", "base/box", "--", "sh", "-c", "sleep 0.1 & sleep 0.2; echo done > /file")
        assert_clean(dsec)
    assert dsec.ok("run", "base/box", "--", "echo", "works") == "works\n"


@pytest.mark.guest_slow("files are alike on any kernel")
def test_import_and_publish_killed_at_any_moment_leave_a_store_that_verifies(dsec, work, dice):
    archive = rootfs.write_tar(work / "a.tar", files={f"f{i}": os.urandom(1 << 20) for i in range(16)})
    rootfs.import_base(dsec)
    for i in range(ROUNDS):
        kill_at_random(dsec, dice, "import", f"base/x{i % 3}", f"tar:{archive}")
        kill_at_random(dsec, dice, "publish", "base/box", "--to", f"file://{work}/registry")
        assert_clean(dsec)
    dsec.ok("import", "base/x", f"tar:{archive}")
    dsec.ok("publish", "base/x", "base/box", "--to", f"file://{work}/registry")
    dsec.run("registry", "check", "--repair", f"file://{work}/registry")
    dsec.ok("registry", "check", f"file://{work}/registry")


@pytest.mark.guest_slow("files are alike on any kernel")
def test_build_killed_at_any_moment_can_be_finished(dsec, work, dice):
    rootfs.import_base(dsec)
    (work / "dsec.yaml").write_text(
        "version: 1\nlayers:\n  workspace/w:\n    on: base/box\n    steps:\n"
        "      - run: sleep 0.05; echo one > /one\n      - run: echo two > /two\n")
    for _ in range(ROUNDS):
        kill_at_random(dsec, dice, "build", "--no-cache")
        assert_clean(dsec)
    dsec.ok("build")
    assert "two" in dsec.ok("layer", "files", "workspace/w")
