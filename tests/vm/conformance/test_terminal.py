"""A terminal on our side becomes one inside."""

import time

from terminal import Terminal


def test_a_terminal_has_its_size_and_name(box):
    terminal = Terminal(box, "exec", "-it", "box", "--", "sh", "-c",
                        "tty; stty size; echo term $TERM; read line; echo got $line; exit 4")
    terminal.expect(b"/dev/pts/0")
    terminal.expect(b"30 100")
    terminal.expect(b"term ")
    terminal.type(b"words\r")
    terminal.expect(b"got words")
    assert terminal.close() == 4


def test_control_c_goes_to_the_command_and_the_window_follows(box):
    terminal = Terminal(box, "exec", "-it", "box", "--", "sh", "-c",
                        "trap 'echo interrupted; stty size; exit 5' INT; echo ready; while :; do sleep 0.1; done")
    terminal.expect(b"ready")
    terminal.resize(40, 120)
    time.sleep(1)
    terminal.type(b"\x03")
    terminal.expect(b"interrupted")
    terminal.expect(b"40 120")
    assert terminal.close() == 5
