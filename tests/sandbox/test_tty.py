"""A terminal on our side becomes a terminal inside."""

import os
import signal
import time

import pytest
import rootfs
from terminal import Terminal
from waiting import until


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


@pytest.mark.guest_slow("the terminal of an exec tells what the kernel does")
def test_a_terminal_of_a_session_has_the_window_of_its_client_and_interrupts_its_command_alone(dsec, box):
    dsec.ok("create", "--name", "dev", box)
    session = dsec.ok("session", "open", "--tty", "dev").strip()
    dsec.ok("session", "run", "dev", session, "--", "X=kept; sleep 1001 &")
    terminal = Terminal(dsec, "session", "run", "dev", session, "--", "stty size; echo rea''dy; read line; stty size; echo wai''ting; sleep 1002; echo not reached")
    terminal.expect(b"30 100")
    terminal.expect(b"ready")
    terminal.resize(40, 120)
    time.sleep(0.3)
    terminal.type(b"go\r")
    terminal.expect(b"40 120")
    terminal.expect(b"waiting")
    # As in any terminal: until the command has the foreground, the key is its shell's, which goes on.
    assert until(lambda: "sleep 1002" in dsec.ok("exec", "dev", "--", "ps"))
    terminal.type(b"\x03")
    assert terminal.close() == 130, terminal.seen
    assert b"not reached" not in terminal.seen
    # The session and its jobs are not what was interrupted.
    assert dsec.ok("session", "run", "dev", session, "--", "echo $X").strip() == "kept"
    processes = dsec.ok("exec", "dev", "--", "ps")
    assert "sleep 1001" in processes and "sleep 1002" not in processes


def test_a_terminal_that_is_closed_ends_the_command(dsec, box):
    terminal = Terminal(dsec, "run", "--name", "held", box, "--", "sleep", "1000")
    assert until(lambda: dsec.ok("ps", "-q") != "")
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(30) == 129
    os.close(terminal.master)
    os.close(terminal.slave)
