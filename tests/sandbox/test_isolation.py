"""What stands between a sandbox and the host, as a host's other users and a sandbox's own processes meet it."""

import os
import re
import resource
import socket
import subprocess
import sys

import leftovers
import pytest
import rootfs

UNTOUCHED = 1 << 62  # RLIM_INFINITY, whatever sign Python gives it


@pytest.fixture
def box(dsec) -> str:
    """A sandbox that runs, by name."""
    rootfs.import_base(dsec)
    dsec.ok("create", "--name", "box", "base/box")
    return "box"


def sh(dsec, script: str, *flags: str) -> str:
    return dsec.ok("exec", *flags, "box", "--", "sh", "-c", script)


def directory_of(dsec):
    [sandbox] = [entry for entry in (dsec.home / "sandboxes").iterdir() if not entry.name.startswith(".")]
    return sandbox


def open_up(*folders) -> None:
    """Others may go through: what closes the sandbox then is its own directory alone."""
    for folder in folders:
        folder.chmod(0o755)


def as_user(*argv) -> subprocess.CompletedProcess:
    return subprocess.run(["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", *map(str, argv)],
                          capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.guest_slow("modes of directories are alike on any kernel")
def test_what_a_sandbox_wrote_keeps_its_ids_on_disk_where_nobody_but_root_gets_at_it(dsec, work, box):
    sh(dsec, "echo mine > /made; chmod 666 /made; chown user /made; cp /bin/busybox /tool; chmod 4755 /tool")
    sandbox = directory_of(dsec)
    made, tool = os.stat(sandbox / "upper/made"), os.stat(sandbox / "upper/tool")
    assert made.st_uid == 1000 and tool.st_uid == 0 and tool.st_mode & 0o4000
    assert sandbox.stat().st_mode & 0o777 == 0o700 and dsec.home.stat().st_mode & 0o777 == 0o700
    open_up(work, dsec.home, dsec.home / "sandboxes")
    assert sandbox.name in as_user("ls", dsec.home / "sandboxes").stdout
    # Neither what is open to all, nor its owner's own, nor what root lends.
    for argv in (["cat", sandbox / "upper/made"], ["sh", "-c", f"exec {sandbox}/upper/tool"], ["ls", sandbox]):
        done = as_user(*argv)
        assert done.returncode != 0 and "Permission denied" in done.stderr, (argv, done)


def peer(path) -> subprocess.CompletedProcess:
    """Connects as another user, and says whether anybody talked to it."""
    talk = ("import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(20)\ns.connect(sys.argv[1])\n"
            "print('closed' if s.recv(1) == b'' else 'answered')")
    return as_user(sys.executable, "-c", talk, path)


def test_the_keepers_socket_is_roots_alone_and_never_seen_inside(dsec, work, box):
    path = directory_of(dsec) / "control.sock"
    assert path.is_socket() and path.stat().st_mode & 0o777 == 0o600
    open_up(work, dsec.home, dsec.home / "sandboxes", path.parent)
    assert "PermissionError" in peer(path).stderr
    # Where somebody has changed that: a peer that is not root is hung up on, and root is not.
    path.chmod(0o666)
    assert peer(path).stdout == "closed\n"
    with socket.socket(socket.AF_UNIX) as mine:
        mine.connect(str(path))
        mine.settimeout(0.3)
        with pytest.raises(TimeoutError):
            mine.recv(1)
    seen = sh(dsec, "find / -name '*.sock' 2>/dev/null; find / -type s 2>/dev/null; cat /proc/net/unix; ls -l /proc/[0-9]*/fd 2>&1; true")
    assert ".sock" not in seen and "socket:" not in seen, seen


def test_resource_limits_are_those_of_the_manual(dsec, box):
    wanted = {"open files": (1024, 1048576, resource.RLIMIT_NOFILE), "core file size": (1, 1, resource.RLIMIT_CORE),
              "stack size": (8 << 20, UNTOUCHED, resource.RLIMIT_STACK),
              "locked memory": (8 << 20, 8 << 20, resource.RLIMIT_MEMLOCK),
              "msgqueue size": (819200, 819200, resource.RLIMIT_MSGQUEUE),
              "realtime priority": (0, 0, resource.RLIMIT_RTPRIO), "nice priority": (0, 0, resource.RLIMIT_NICE)}
    found = {}
    for line in sh(dsec, "cat /proc/self/limits").splitlines():
        name, *values = re.split(r"\s{2,}", line.strip())
        found[name.removeprefix("Max ")] = values
    for name, (soft, hard, number) in wanted.items():
        of_host = resource.getrlimit(number)[1]
        most = min(hard, of_host if of_host >= 0 else UNTOUCHED)
        got = [UNTOUCHED if value == "unlimited" else int(value) for value in found[name][:2]]
        assert got == [min(soft, most), most], (name, found[name])
    # A crash starts no program of the host, and leaves no file.
    assert dsec.run("exec", "-w", "/tmp", "box", "--", "sh", "-c", "kill -SEGV $$").code == 139
    assert sh(dsec, "ls -A /tmp") == ""


def test_who_loses_its_parent_is_reaped_by_pid_1(dsec, box):
    orphan = sh(dsec, "sleep 1000 & echo $!").strip()
    assert "PPid:\t1\n" in sh(dsec, f"cat /proc/{orphan}/status")
    sh(dsec, f"kill {orphan}")
    assert not leftovers.settle(lambda: sh(dsec, f"test -e /proc/{orphan} && echo there || true"))
    # Many at once, of which some end before their parent.
    sh(dsec, "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.0$i &) ; done")
    assert not leftovers.settle(lambda: "sleep" in sh(dsec, "grep -hs ^Name: /proc/[0-9]*/status || true"))
    assert "zombie" not in sh(dsec, "cat /proc/[0-9]*/status 2>/dev/null || true")


DEVICES = "console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"


@pytest.mark.guest_slow("what dsec writes there is the same on any kernel")
def test_a_sandbox_finds_what_the_manual_lists_and_it_is_recorded(dsec, box):
    assert " ".join(sh(dsec, "ls -A /dev").split()) == DEVICES
    spec = dsec.json("inspect", "box")[0]["spec"]
    name = spec["hostname"]
    assert re.fullmatch("[a-z2-7]{22}", name)
    assert sh(dsec, "cat /etc/hostname; hostname; echo $HOSTNAME") == f"{name}\n" * 3
    assert sh(dsec, "cat /etc/hosts") == f"127.0.0.1\tlocalhost {name}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    assert sh(dsec, "cat /etc/resolv.conf") == ""
    assert {"TZ=UTC", "LANG=C.UTF-8"} <= set(spec["config"]["env"])
    assert sh(dsec, "echo $TZ $LANG; date +%Z") == "UTC C.UTF-8\nUTC\n"
    # As asked for, and again the same when it is done again.
    dsec.ok("create", "--name", "other", "-e", "TZ=EST5EDT", "--hostname", "web", "base/box")
    dsec.ok("exec", "--op-id", "one", "other", "--", "sh", "-c", "echo $TZ $LANG; hostname")
    dsec.ok("exec", "--op-id", "one", "box", "--", "sh", "-c", "echo $TZ $LANG; hostname")
    for sandbox in ("other", "box"):
        dsec.ok("rm", "-f", sandbox)
        assert "the same, 0 different, 0 not replayed" in dsec.ok("replay", sandbox)


@pytest.mark.guest_slow("no kernel decides which program dsec starts")
def test_dsec_runs_no_program_of_a_sandbox_but_what_it_is_told_to(dsec, work, box):
    sh(dsec, "cat > /bin/forger <<'END'\n#!/bin/busybox ash\necho ran >> /forged\necho forged\nexit 0\nEND\nchmod 755 /bin/forger; "
             "for name in sh ash bash env id cat tar getent ls stat; do rm -f /bin/$name; cp /bin/forger /bin/$name; done")
    result = dsec.run("exec", "-u", "user", "-w", "/home/user", "box", "--", "/bin/false")
    assert (result.code, result.out) == (1, "")
    assert dsec.ok("exec", "-u", "user", "box", "--", "/bin/busybox", "id", "-u") == "1000\n"
    (work / "file").write_text("x")
    dsec.ok("cp", "file", "box:/tmp/")
    dsec.ok("cp", "box:/tmp/file", "back")
    dsec.ok("diff", "box")
    dsec.ok("stats", "box")
    dsec.ok("snapshot", "box", "kept:1")
    dsec.ok("stop", "-t", "0", "box")
    assert not (directory_of(dsec) / "upper/forged").exists()
