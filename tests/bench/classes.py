"""A latency-sensitive step (a request to a server in a sandbox, some milliseconds of work) beside sandboxes that keep
every processor busy, half of the time and all of it: with the classes `latency` and `batch`, and without. Prints how long
an answer takes, and what the load got done. Goal: beside a full load, protected, the median takes no more than 1.5 times
what it takes alone, and the 99th percentile less than unprotected. Needs root."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(os.environ.get("DSEC_BIN_DIR", "build-release/bin")).resolve()
COUNT = int(os.environ.get("DSEC_BENCH_STEPS", "2000" if "DSEC_TEST_LONG" in os.environ else "400"))
ROUNDS = int(os.environ.get("DSEC_BENCH_ROUNDS", "3"))
GOAL = 1.5


def dsec(*args) -> str:
    return subprocess.run([BIN / "dsec", *map(str, args)], check=True, capture_output=True, text=True).stdout


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Load:
    """One sandbox for each processor, each busy for `percent` of the time."""

    def __init__(self, percent: int, cpu_class: str):
        self.ids = [dsec("run", "-d", "--class", cpu_class, "base/step", "--", "/latency_step", "load", percent).strip()
                    for _ in range(os.cpu_count() or 1)] if percent else []
        for name in self.ids:
            while "ready" not in dsec("logs", name):
                time.sleep(0.05)

    def __enter__(self):
        return self

    def used(self) -> float:
        lines = dsec("stats", "-o", "json", *self.ids).splitlines() if self.ids else []
        return sum(int(line.split('"cpu_usec":')[1].split(",")[0]) for line in lines)

    def __exit__(self, *_):
        if self.ids:
            dsec("rm", "-f", *self.ids)


def measure(percent: int, protected: bool) -> tuple[float, float, float]:
    """Median and 99th percentile in microseconds, and the load's share of all processors."""
    with Load(percent, "batch" if protected else "default") as load:
        begin, before = time.monotonic(), load.used()
        out = dsec("run", "--class", "latency" if protected else "default", "base/step", "--", "/latency_step", "step", COUNT)
        share = (load.used() - before) / 1e6 / (time.monotonic() - begin) / (os.cpu_count() or 1)
    times = [float(line) for line in out.split()]
    return percentile(times, 0.5), percentile(times, 0.99), share


def main() -> int:
    if os.geteuid() != 0:
        sys.exit("measuring sandboxes needs root")
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as name:
        work = Path(name)
        (work / "tree").mkdir()
        for folder in ("proc", "etc"):
            (work / "tree" / folder).mkdir()
        shutil.copy(BIN / "bench_latency_step", work / "tree/latency_step")
        os.environ.update(DSEC_HOME=str(work / "home"), DSEC_CONFIG=str(work / "config.yaml"))
        dsec("import", "base/step", f"dir:{work / 'tree'}")
        rows = [(0, False), (0, True), (50, False), (50, True), (100, False), (100, True)]
        found = {row: [] for row in rows}
        # In turn, so that what else the host does meets all alike.
        for _ in range(ROUNDS):
            for row in rows:
                found[row].append(measure(*row))
        print(f"{'load':>5} {'classes':>18} {'median':>10} {'99 %':>10} {'load got':>9}")
        medians = {}
        for percent, protected in rows:
            median, late, share = (statistics.median(column) for column in zip(*found[percent, protected]))
            medians[percent, protected] = (median, late)
            classes = "latency and batch" if protected else "none"
            print(f"{percent:>4}% {classes:>18} {median:>7.0f} us {late:>7.0f} us {100 * share:>7.0f} %", flush=True)
        dsec("gc")
    alone, full, unprotected = medians[0, True], medians[100, True], medians[100, False]
    met = full[0] <= GOAL * alone[0] and full[1] < unprotected[1]
    print(f"beside a full load, protected: the median is {full[0] / alone[0]:.2f} x the one alone (goal {GOAL}), the 99th"
          f" percentile {full[1] / unprotected[1]:.2f} x the unprotected one (goal below 1){'' if met else ', missed'}")
    return 0 if met else 1


sys.exit(main())
