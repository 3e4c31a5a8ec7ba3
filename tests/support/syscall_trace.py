"""Follows system calls of a process: to end it at its Nth step (each entry to and return from a call is one), or to see
in which order it and its children make them."""

import collections
import ctypes
import errno
import os
import signal
import subprocess
import tempfile
import time

SEIZE, INTERRUPT, SYSCALL, DETACH, SET_OPTIONS, GET_EVENT, SYSCALL_INFO = 0x4206, 0x4207, 24, 17, 0x4200, 0x4201, 0x420E
TRACE_SYSGOOD, TRACE_CHILDREN, EXIT_KILL, WALL = 1, 2 | 4 | 8, 1 << 20, 0x40000000
STOPPED_IN_CALL = signal.SIGTRAP | 0x80
PTRACE_EVENT_STOP = 128

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class CallInfo(ctypes.Structure):
    """struct ptrace_syscall_info; `values` are number and arguments at an entry, the result at a return."""

    _fields_ = [("op", ctypes.c_uint8), ("pad", ctypes.c_uint8 * 3), ("arch", ctypes.c_uint32), ("ip", ctypes.c_uint64),
                ("sp", ctypes.c_uint64), ("values", ctypes.c_int64 * 8)]

    ENTRY, RETURN = 1, 2


def ptrace(request: int, pid: int, data=0, address: int = 0) -> int:
    result = libc.ptrace(request, pid, address, data)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def go_on(pid: int, status: int) -> None:
    """To the next step of `pid`, with the signal that it was stopped for, if it was for one."""
    signo = os.WSTOPSIG(status)
    passed = 0 if signo & ~0x80 == signal.SIGTRAP or status >> 16 else signo
    try:
        ptrace(SYSCALL, pid, passed)
    except OSError as error:
        if error.errno != errno.ESRCH:  # killed by somebody else
            raise


class Tracer:
    """Holds `pid` stopped from the beginning until run() is called, by the thread that made it."""

    def __init__(self, pid: int, options: int = 0):
        self.pid = pid
        ptrace(SEIZE, pid, TRACE_SYSGOOD | options)
        ptrace(INTERRUPT, pid)
        os.waitpid(pid, WALL)

    def run(self, steps: int, finished) -> bool:
        """Goes on for `steps`, then kills it: True. False: `finished()` said so before; the process lives on."""
        ptrace(SYSCALL, self.pid)
        while True:
            pid, status = self.await_step(finished)
            if pid == 0:
                self.let_go()
                return False
            if not os.WIFSTOPPED(status):
                return True
            if os.WSTOPSIG(status) == STOPPED_IN_CALL:
                steps -= 1
                if steps <= 0:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, WALL)
                    return True
            go_on(pid, status)

    def await_step(self, finished) -> tuple[int, int]:
        # The next one comes soon, or not before somebody asks for something.
        for turn in range(1 << 30):
            pid, status = os.waitpid(self.pid, WALL | os.WNOHANG)
            if pid:
                return pid, status
            if turn > 50:
                if finished():
                    return 0, 0
                time.sleep(0.0005)
        return 0, 0

    def let_go(self) -> None:
        ptrace(INTERRUPT, self.pid)
        os.waitpid(self.pid, WALL)
        try:
            ptrace(DETACH, self.pid)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise


class TracedProgram:
    """A program that is killed at its Nth step, when it has so many. Its children live on, as those of any that is killed."""

    def __init__(self, argv: list[str], cwd, env: dict):
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err,
                                        preexec_fn=lambda: libc.ptrace(0, 0, None, None))
        self.pid = self.process.pid
        os.waitpid(self.pid, WALL)  # at the exec
        ptrace(SET_OPTIONS, self.pid, TRACE_SYSGOOD | EXIT_KILL)
        self.steps = 0
        self.code: int | None = None

    def run(self, last: int | None = None, each=None) -> bool:
        """True: it was killed. `each(pid)` is called at each step."""
        ptrace(SYSCALL, self.pid)
        while True:
            _, status = os.waitpid(self.pid, WALL)
            if not os.WIFSTOPPED(status):
                self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
                return False
            if os.WSTOPSIG(status) == STOPPED_IN_CALL:
                self.steps += 1
                if each:
                    each(self.pid)
                if self.steps == last:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, WALL)
                    self.process.returncode = -signal.SIGKILL
                    return True
            go_on(self.pid, status)

    def said(self) -> str:
        text = ""
        for stream in (self.out, self.err):
            stream.seek(0)
            text += stream.read().decode(errors="replace")
        return text


# By the names of asm/unistd.h; both architectures that dsec knows.
NUMBERS = {"x86_64": {"write": 1, "writev": 20, "sendto": 44, "sendmsg": 46, "fdatasync": 75, "fsync": 74, "clone3": 435, "accept4": 288},
           "aarch64": {"write": 64, "writev": 66, "sendto": 206, "sendmsg": 211, "fdatasync": 83, "fsync": 82, "clone3": 435, "accept4": 242}}
CALLS = NUMBERS[os.uname().machine]

# `began` and `ended` number the entries and returns of all that is followed, in their order; `file` is what the first
# argument was open on.
Call = collections.namedtuple("Call", "pid began number arguments file ended result")


def open_file(pid: int, fd: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""


class CallLog:
    """The system calls of a process and of all that it starts meanwhile."""

    def __init__(self, pid: int):
        self.calls: list[Call] = []
        self.entered: dict[int, tuple] = {}
        self.pids = {pid}
        self.count = 0
        self.tracer = Tracer(pid, TRACE_CHILDREN)

    def follow(self, finished) -> list[Call]:
        """Until `finished()`; then all go on by themselves."""
        ptrace(SYSCALL, self.tracer.pid)
        while not finished():
            busy = False
            for pid in list(self.pids):
                busy |= self.look_at(pid)
            if not busy:
                time.sleep(0.0002)
        for pid in list(self.pids):
            try:
                ptrace(INTERRUPT, pid)
                os.waitpid(pid, WALL)
                ptrace(DETACH, pid)
            except OSError:
                pass  # it has ended
        # What was still going on when it was let go.
        self.calls += [Call(pid, *entry, self.count + 1, 0) for pid, entry in self.entered.items()]
        return self.calls

    def look_at(self, pid: int) -> bool:
        try:
            found, status = os.waitpid(pid, WALL | os.WNOHANG)
        except ChildProcessError:
            self.pids.discard(pid)
            return False
        if not found:
            return False
        if not os.WIFSTOPPED(status):
            self.pids.discard(pid)
            return True
        event = status >> 16
        if os.WSTOPSIG(status) == STOPPED_IN_CALL:
            self.note(pid)
        elif event and event != PTRACE_EVENT_STOP:
            child = ctypes.c_ulong()
            ptrace(GET_EVENT, pid, ctypes.addressof(child))
            self.pids.add(child.value)
        go_on(pid, status)
        return True

    def note(self, pid: int) -> None:
        info = CallInfo()
        ptrace(SYSCALL_INFO, pid, ctypes.addressof(info), ctypes.sizeof(info))
        self.count += 1
        if info.op == CallInfo.ENTRY:
            self.entered[pid] = (self.count, info.values[0], tuple(info.values[1:7]), open_file(pid, info.values[1]))
        elif info.op == CallInfo.RETURN and pid in self.entered:
            self.calls.append(Call(pid, *self.entered.pop(pid), self.count, info.values[0]))
