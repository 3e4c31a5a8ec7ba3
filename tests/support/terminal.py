"""A terminal for the program to run in."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time


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
