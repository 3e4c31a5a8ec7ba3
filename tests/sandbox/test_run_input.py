"""What goes into a command and what it does not read: the client never waits for a reader that is gone."""

import signal
import subprocess
import time

import pytest
import rootfs

pytestmark = pytest.mark.guest_slow("pipes are alike on any kernel")


@pytest.fixture
def box(dsec):
    rootfs.import_base(dsec)
    dsec.ok("run", "-d", "--name", "box", "base/box", "--", "sleep", "1000")
    return dsec


def test_a_command_that_ends_before_it_has_read_its_input_ends_the_client(box):
    started = time.monotonic()
    done = subprocess.run(["sh", "-c", 'yes | head -c 50000000 | "$@"', "sh", *box.argv("exec", "-i", "box", "--", "head", "-c", "3")],
                          env=box.env, capture_output=True, timeout=60, check=False)
    assert done.stdout == b"y\ny"
    assert time.monotonic() - started < 30
    assert box.run("exec", "-i", "box", "--", "true", input=b"x" * 5_000_000, timeout=60).code == 0


def test_a_signal_reaches_a_command_that_does_not_read_its_input(box):
    client = box.popen("exec", "-i", "box", "--", "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
    assert client.stdout.readline() == b"ready\n"
    feeder = subprocess.Popen(["sh", "-c", "head -c 5000000 /dev/zero"], stdout=client.stdin)
    time.sleep(0.5)
    client.send_signal(signal.SIGTERM)
    assert client.wait(timeout=30) == 9
    feeder.kill()
    feeder.wait()
    for stream in (client.stdin, client.stdout, client.stderr):
        stream.close()


def test_cp_into_a_folder_or_over_a_file_that_is_large(box, work):
    box.ok("exec", "box", "--", "sh", "-c", "mkdir /t; dd if=/dev/zero of=/t/f bs=1M count=3; i=0; "
           "while [ $i -lt 300 ]; do echo x > /t/file$i; i=$((i+1)); done")
    (work / "one").write_text("one\n")
    box.ok("cp", work / "one", "box:/t")
    box.ok("cp", work / "one", "box:/t/f")
    assert box.ok("exec", "box", "--", "cat", "/t/one", "/t/f") == "one\none\n"
