"""What a microVM has written is copied out of its guest: what becomes of it when that is cut short."""

import os
import signal
import time

import pytest
from waiting import until


@pytest.fixture
def box(microvms):
    microvms.ok("create", "--name", "box", "--disk", "1GiB", "-m", "256MiB", "base/box")
    microvms.ok("exec", "box", "--", "dd", "if=/dev/urandom", "of=/root/blob", "bs=1M", "count=60", timeout=240)
    microvms.ok("exec", "-d", "box", "--", "sh", "-c", "while :; do echo x >> /root/ticks; sleep 0.05; done")
    assert until(lambda: microvms.run("exec", "box", "--", "test", "-s", "/root/ticks").code == 0)
    return microvms


def ticks(dsec) -> int:
    return int(dsec.ok("exec", "box", "--", "wc", "-c", "/root/ticks").split()[0])


def copies(dsec) -> list[str]:
    (sandbox,) = [entry for entry in (dsec.home / "sandboxes").iterdir() if not entry.name.startswith(".")]
    return [name for name in os.listdir(sandbox) if name.startswith(".tmp-") and name != ".tmp-state"]


def test_a_copy_that_is_killed_leaves_a_guest_that_goes_on_and_nothing_after_gc(box):
    seen = False
    for delay in (0.3, 1.0, 2.0):
        making = box.popen("snapshot", "box", "cut:1")
        time.sleep(delay)
        seen = seen or bool(copies(box))
        making.send_signal(signal.SIGKILL)
        making.communicate()
        before = ticks(box)
        time.sleep(0.5)
        assert ticks(box) > before, "it stands still"
    assert seen, "none was killed while it copied"
    box.ok("gc")
    assert copies(box) == []
    assert box.ok("snapshot", "box", "whole:1", timeout=240).strip() == "snapshot/whole:1"
    assert copies(box) == []


def test_a_guest_that_is_killed_meanwhile_is_told(box):
    making = box.popen("snapshot", "box", "lost:1")
    time.sleep(0.5)
    box.ok("rm", "-f", "box")
    out, err = making.communicate(timeout=60)
    assert making.returncode != 0 and b"error:" in err, (out, err)
    box.ok("gc")
    assert box.run("layer", "inspect", "snapshot/lost:1").code != 0
