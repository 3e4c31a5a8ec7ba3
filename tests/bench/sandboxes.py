"""Sandboxes against bare system calls, in turn, medians of pairs:
- create, run /bin/true, gone, against a C program that only clones into namespaces, mounts overlay and proc, pivots,
  executes and waits (goal 1.5);
- /bin/true in a live sandbox with its streams captured, against fork and exec of the same by the same process (goal
  1.3), and by a tiny C program, to which a fork costs least;
- the same as the first through the command line, against the same floor (goal 3), and what bwrap and podman with runc
  take where they are installed;
- idle sandboxes: memory of each by MemAvailable, keeper included (goal 700 KiB), and how many can be made in a second,
  at the beginning and at the end (goal 150).
Needs root."""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(os.environ.get("DSEC_BIN_DIR", "build-release/bin")).resolve()
PAIRS = int(os.environ.get("DSEC_BENCH_PAIRS", "7"))
LONG = "DSEC_TEST_LONG" in os.environ
IDLE = [1000, 5000] if LONG else [int(os.environ.get("DSEC_BENCH_IDLE", "1000"))]


def make_tree(tree: Path) -> None:
    """What /bin/true needs, and no more."""
    libraries = re.findall(r"/\S+", subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout)
    for name in ["/bin/true", *libraries]:
        target = tree / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
    for name in ["proc", "etc"]:
        (tree / name).mkdir()
    # As on the host: else the dynamic linker searches in the sandbox only.
    subprocess.run(["ldconfig", "-r", str(tree)], check=True)


def number(*command) -> float:
    return float(subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout)


def compare(what: str, goal: float, floor, ours) -> bool:
    pairs = []
    for _ in range(PAIRS):
        pairs.append((floor(), ours()))
        print(f"  {what}: floor {pairs[-1][0]:.0f} us, dsec {pairs[-1][1]:.0f} us", flush=True)
    ratio = statistics.median(ours / floor for floor, ours in pairs)
    met = ratio <= goal
    print(f"{what}: {ratio:.2f} x the floor of {statistics.median(floor for floor, _ in pairs):.0f} us"
          f" (goal {goal}{'' if met else ', missed'})", flush=True)
    return met


def command_time(command: list, rounds: int, env: dict | None = None) -> float:
    """Microseconds of one run of a command that must succeed."""
    began = time.monotonic()
    for _ in range(rounds):
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began) / rounds * 1e6


def through_the_command_line(tree: Path, work: Path, floor) -> bool:
    dsec = str(BIN / "dsec")
    env = {**os.environ, "DSEC_HOME": str(work / "cli"), "DSEC_CONFIG": str(work / "config.yaml")}
    subprocess.run([dsec, "import", "base/true", f"dir:{tree}"], env=env, check=True, capture_output=True)
    met = compare("dsec run of true", 3, floor, lambda: command_time([dsec, "run", "base/true", "--", "/bin/true"], 20, env))
    subprocess.run([dsec, "gc"], env=env, check=True, capture_output=True)
    others = {
        "bwrap": ["bwrap", "--unshare-all", "--bind", str(tree), "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"],
        "podman": ["podman", "--runtime", "runc", "run", "--rm", "--network", "none", "--rootfs", str(tree), "/bin/true"],
    }
    for name, command in others.items():
        if not shutil.which(name):
            print(f"  {name}: not installed, so not compared")
            continue
        try:
            took = statistics.median(command_time(command, 5) for _ in range(PAIRS))
            print(f"  {name}: {took:.0f} us, {took / floor():.2f} x the floor", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"  {name}: does not run here: exit code {error.returncode}", flush=True)
    return met


def density(tree: Path, home: Path, count: int) -> bool:
    out = subprocess.run([str(BIN / "bench_sandboxes"), "idle", str(tree), str(home), str(count)],
                         capture_output=True, text=True, check=True).stdout
    each, first, last = map(float, out.split())
    left = sorted(path.name for path in (home / "sandboxes").iterdir())
    met = each <= 700 and last >= 150 and not left
    print(f"{count} idle sandboxes: {each:.0f} KiB each (goal 700), {first:.0f}/s first and {last:.0f}/s last (goal 150),"
          f" {len(left)} left afterwards{'' if met else ', missed'}", flush=True)
    return met


def main() -> int:
    if os.geteuid() != 0:
        sys.exit("measuring sandboxes needs root")
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as name:
        work = Path(name)
        tree, home = work / "tree", work / "home"
        make_tree(tree)
        os.chdir(work)
        ours, floor = BIN / "bench_sandboxes", BIN / "bench_floor_sandbox"
        met = [
            compare("create, true, gone", 1.5, lambda: number(floor, "create", tree, 50),
                    lambda: number(ours, "create", tree, home, 50)),
            # At no less than 70 % of the rate of a sandbox without.
            compare("create with a network policy", 1 / 0.7, lambda: number(ours, "create", tree, home, 50),
                    lambda: number(ours, "create-network", tree, home, 50)),
            compare("exec of true", 1.3, lambda: number(ours, "fork", tree, home, 200),
                    lambda: number(ours, "exec", tree, home, 200)),
        ]
        # For the record: a caller that is no larger than this does not exist.
        compare("exec of true against a tiny caller's", 2.0, lambda: number(floor, "exec", 200),
                lambda: number(ours, "exec", tree, home, 200))
        met.append(through_the_command_line(tree, work, lambda: number(floor, "create", tree, 50)))
        for count in IDLE:
            met.append(density(tree, home, count))
    return 0 if all(met) else 1


sys.exit(main())
