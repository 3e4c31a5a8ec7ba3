"""Ends a process at its Nth step: each entry to and return from a system call is one."""

import ctypes
import errno
import os
import signal
import time

SEIZE, INTERRUPT, SYSCALL = 0x4206, 0x4207, 24
TRACE_SYSGOOD, WALL = 1, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request: int, pid: int, data: int = 0) -> None:
    if libc.ptrace(request, pid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Tracer:
    """Holds `pid` stopped from the beginning until run() is called, by the thread that made it."""

    def __init__(self, pid: int):
        self.pid = pid
        ptrace(SEIZE, pid, TRACE_SYSGOOD)
        ptrace(INTERRUPT, pid)
        os.waitpid(pid, WALL)

    def run(self, steps: int, finished) -> bool:
        """Goes on for `steps`, then kills it: True. False: `finished()` said so before; the process lives on."""
        ptrace(SYSCALL, self.pid)
        while True:
            pid, status = os.waitpid(self.pid, WALL | os.WNOHANG)
            if pid == 0:
                if finished():
                    self.let_go()
                    return False
                time.sleep(0.0005)
                continue
            if not os.WIFSTOPPED(status):
                return True
            if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
                steps -= 1
                if steps <= 0:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, WALL)
                    return True
            ptrace(SYSCALL, self.pid)

    def let_go(self) -> None:
        ptrace(INTERRUPT, self.pid)
        os.waitpid(self.pid, WALL)
        detach = 17
        try:
            ptrace(detach, self.pid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
