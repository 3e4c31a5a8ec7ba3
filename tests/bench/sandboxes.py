"""Sandboxes against bare system calls, in turn, medians of pairs:
- create, run /bin/true, gone, through the engine in one process, against a C program that only clones into namespaces,
  mounts overlay and proc, pivots, executes and waits (goal 1.5);
- /bin/true in a live sandbox with its streams captured, against fork and exec of the same by the same process (goal
  1.3), and by a tiny C program, to which a fork costs least;
- the same as the first through the command line, against the same floor (goal 3), and what bwrap and podman with runc
  take where they are installed;
- idle sandboxes: memory of each by MemAvailable, keeper included (goal 700 KiB), and how many can be made in a second,
  at the beginning and at the end (goal 150).
Needs root."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import leftovers
from support.measuring import BIN, LONG, PAIRS, compare, home_with_layer, number, numbers

IDLE = [1000, 5000] if LONG else [int(os.environ.get("DSEC_BENCH_IDLE", "1000"))]


def command_time(command: list, rounds: int) -> float:
    """Microseconds of one run of a command that must succeed."""
    began = time.monotonic()
    for _ in range(rounds):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    return (time.monotonic() - began) / rounds * 1e6


def why_not(error: subprocess.CalledProcessError) -> str:
    lines = [line for line in (error.stderr or b"").decode(errors="replace").splitlines() if line.strip()]
    return f"exit code {error.returncode}" + (f": {lines[-1]}" if lines else "")


def others(tree: Path, floor) -> None:
    """What others take for the same command, each once with a tree of files. podman's full isolation is the nearest."""
    commands = {
        "bwrap": ["bwrap", "--unshare-all", "--bind", str(tree), "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"],
        # The limits that podman asks for by itself need CAP_SYS_RESOURCE, which root inside a container may lack.
        "podman with runc": ["podman", "--runtime", "runc", "run", "--rm", "--network", "none",
                             "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000",
                             "--rootfs", str(tree), "/bin/true"],
    }
    for name, command in commands.items():
        if not shutil.which(command[0]):
            print(f"  {name}: not installed, so not compared")
            continue
        try:
            took = statistics.median(command_time(command, 5) for _ in range(PAIRS))
            print(f"  {name}: {took:.0f} us, {took / floor():.2f} x the floor", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"  {name}: does not run here: {why_not(error)}", flush=True)


def recording(tree: Path, name: str) -> bool:
    """On a disk: elsewhere a flush costs nothing."""
    count = 1000 if LONG else 100
    with tempfile.TemporaryDirectory(prefix="dsec-bench-", dir="/var/tmp") as place:
        env = {**os.environ, "DSEC_HOME": place + "/home"}
        subprocess.run([BIN / "dsec", "import", "base/true", f"dir:{tree}"], check=True, capture_output=True, env=env)
        out = subprocess.run([str(BIN / "bench_sandboxes"), "fleet", "base/true", str(count)], capture_output=True,
                             text=True, check=True, env=env).stdout
        subprocess.run([BIN / "dsec", "gc"], check=True, capture_output=True, env=env)
    alone, together = map(float, out.split())
    met = together <= alone
    print(f"{name}: {count} of them {together:.0f} us each at a time, {alone:.0f} us each one after the other,"
          f" {together / alone:.2f} (goal 1{'' if met else ', missed'})", flush=True)
    return met


def left_on_host(home: Path) -> list[str]:
    """Records, processes, control groups and mounts of this home's sandboxes."""

    def look() -> list[str]:
        return [*(path.name for path in (home / "sandboxes").iterdir()), *leftovers.processes_of(home).values(),
                *map(str, leftovers.cgroups_of(leftovers.host_id_of(home))), *leftovers.mounts_below(home / "sandboxes")]

    return leftovers.settle(look)


def density(home: Path, count: int) -> bool:
    each, first, last = numbers(BIN / "bench_sandboxes", "idle", "base/true", count)
    left = left_on_host(home)
    met = each <= 700 and last >= 150 and not left
    print(f"{count} idle sandboxes: {each:.0f} KiB each (goal 700), {first:.0f}/s first and {last:.0f}/s last (goal 150),"
          f" {len(left)} left afterwards{'' if met else ', missed'}", flush=True)
    return met


def main() -> int:
    dsec, ours, floor = BIN / "dsec", BIN / "bench_sandboxes", BIN / "bench_floor_sandbox"
    with home_with_layer() as (home, tree):
        floor_create = lambda: number(floor, "create", tree, 50)
        met = [
            compare("create, true, gone", 1.5, floor_create, lambda: number(ours, "create", "base/true", 50)),
            # At no less than 70 % of the rate of a sandbox without.
            compare("create with a network policy", 1 / 0.7, lambda: number(ours, "create", "base/true", 50),
                    lambda: number(ours, "create-network", "base/true", 50)),
            compare("exec of true", 1.3, lambda: number(ours, "fork", "base/true", 200),
                    lambda: number(ours, "exec", "base/true", 200)),
        ]
        create, command, remove = numbers(ours, "stages", "base/true", 50)
        print(f"  of which create {create:.0f} us, the command {command:.0f} us, remove {remove:.0f} us", flush=True)
        # For the record: a caller that is no larger than this does not exist.
        compare("exec of true against a tiny caller's", 2.0, lambda: number(floor, "exec", 200),
                lambda: number(ours, "exec", "base/true", 200))
        met.append(recording(tree, "recorded exec of true"))
        met.append(compare("dsec run of true", 3, floor_create,
                           lambda: command_time([dsec, "run", "base/true", "--", "/bin/true"], 20)))
        others(tree, floor_create)
        for count in IDLE:
            met.append(density(home, count))
    return 0 if all(met) else 1


sys.exit(main())
