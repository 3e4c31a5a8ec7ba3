"""A terminal on our side becomes a terminal inside."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
import rootfs


class Terminal:
    """dsec in a terminal of 30 rows and 100 columns."""

    def __init__(self, dsec, *args):
        self.master, slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(slave)
        self.slave = os.dup(slave)
        self.process = subprocess.Popen(dsec.argv(*args), stdin=slave, stdout=slave, stderr=slave, cwd=dsec.cwd,
                                        env={**dsec.env, "TERM": "vt220"}, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def expect(self, text: bytes, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096)

    def close(self) -> int:
        code = self.process.wait(30)
        assert termios.tcgetattr(self.slave) == self.before, "the terminal was not put back"
        os.close(self.slave)
        os.close(self.master)
        return code


@pytest.fixture
def box(dsec) -> str:
    return rootfs.import_base(dsec)


def test_a_terminal_is_used_where_there_is_one(dsec, box):
    terminal = Terminal(dsec, "run", box, "--", "sh", "-c", "tty; stty size; echo term $TERM; read line; echo got $line; exit 4")
    terminal.expect(b"/dev/pts/0")
    terminal.expect(b"30 100")
    terminal.expect(b"term vt220")
    terminal.type(b"words\r")
    terminal.expect(b"got words")
    assert terminal.close() == 4


def test_control_c_goes_to_the_command_and_the_window_follows(dsec, box):
    terminal = Terminal(dsec, "run", "-it", "--rm", box, "--", "sh", "-c",
                        "trap 'echo interrupted; stty size; exit 5' INT; echo ready; while :; do sleep 0.1; done")
    terminal.expect(b"ready")
    terminal.resize(40, 120)
    time.sleep(0.5)
    terminal.type(b"\x03")
    terminal.expect(b"interrupted")
    terminal.expect(b"40 120")
    assert terminal.close() == 5


def test_a_terminal_can_be_declined(dsec, box):
    terminal = Terminal(dsec, "run", "--tty=false", box, "--", "sh", "-c", "tty; exit 0")
    terminal.expect(b"not a tty")
    assert terminal.close() == 0


def test_a_tty_can_be_had_without_a_terminal(dsec, box):
    assert dsec.ok("run", "-t", box, "--", "tty").strip() == "/dev/pts/0"
    assert "not a tty" in dsec.run("run", box, "--", "tty").out


def test_a_shell_in_a_running_sandbox_has_the_terminal(dsec, box):
    dsec.ok("create", "--name", "dev", box)
    terminal = Terminal(dsec, "shell", "dev")
    terminal.type(b"echo $((6 * 7)) here\r")
    terminal.expect(b"42 here")
    terminal.type(b"exit 3\r")
    assert terminal.close() == 3


def test_a_terminal_that_is_closed_ends_the_command(dsec, box):
    terminal = Terminal(dsec, "run", "--name", "held", box, "--", "sleep", "1000")
    end = time.monotonic() + 20
    while dsec.ok("ps", "-q") == "" and time.monotonic() < end:
        time.sleep(0.05)
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(30) == 129
    os.close(terminal.master)
    os.close(terminal.slave)
