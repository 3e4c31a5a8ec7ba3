"""Dockerfiles against buildah (chroot isolation), with the same small base in both stores: each file of
tests/support/dockerfiles built in turn by both, nothing cached, median of rounds (goal: not slower on any of them); and
a build of which everything is cached (goal 200 ms). buildah keeps no steps here, which is faster, while ours are all
kept. Needs root and buildah."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import rootfs
from dockerfile_cases import ARGS, CASES, Buildah, context
from support.measuring import BIN, tell

ROUNDS = int(os.environ.get("DSEC_BENCH_PAIRS", "3"))


def seconds(command: list, cwd: Path) -> float:
    began = time.monotonic()
    done = subprocess.run([str(part) for part in command], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return took


def write_project(work: Path) -> None:
    layers = "".join(
        f"  base/{name}: {{from: 'dockerfile:context?" + "&".join([f"file={name}", *(f"arg.{key}={value}" for key, value in ARGS.get(name, {}).items())]) + "'}\n"
        for name in CASES)
    (work / "dsec.yaml").write_text(f"version: 1\nlayers:\n{layers}")


def against_buildah(work: Path, folder: Path, buildah: Buildah) -> bool:
    slower = []
    ratios = []
    for name, text in CASES.items():
        (folder / "Dockerfile").write_text(text)
        (folder / name).write_text(text)
        flags = [f"--build-arg={key}={value}" for key, value in ARGS.get(name, {}).items()]
        theirs, ours = [], []
        for _ in range(ROUNDS):
            theirs.append(seconds([*buildah.command, *buildah.prepare(folder), *flags, folder], work))
            ours.append(seconds([BIN / "dsec", "build", "--no-cache", f"base/{name}"], work))
        their, our = statistics.median(theirs), statistics.median(ours)
        ratios.append(our / their)
        print(f"  {name}: buildah {their * 1000:.0f} ms, dsec {our * 1000:.0f} ms, {our / their:.2f}", flush=True)
        if our > their:
            slower.append(name)
    return tell(not slower, f"{len(CASES)} Dockerfiles: median {statistics.median(ratios):.2f} x buildah, at most {max(ratios):.2f} x", "at most 1 each")


def cached(work: Path) -> bool:
    command = [BIN / "dsec", "build", "base/many-steps"]
    seconds(command, work)
    took = statistics.median(seconds(command, work) for _ in range(10))
    return tell(took <= 0.2, f"a build of which everything is cached: {took * 1000:.0f} ms", "200 ms")


def main() -> int:
    if os.geteuid() != 0 or not shutil.which("buildah"):
        sys.exit("measuring Dockerfiles needs root and buildah")
    with tempfile.TemporaryDirectory(prefix="dsec-bench-", dir="/var/tmp") as name:
        work = Path(name)
        folder = work / "context"
        folder.mkdir()
        context(folder)
        os.environ.update(DSEC_HOME=str(work / "home"), DSEC_CONFIG=str(work / "config.yaml"))
        write_project(work)
        buildah = Buildah(work, rootfs.write_tar(work / "box.tar"))
        try:
            seconds([BIN / "dsec", "import", "base/box", f"tar:{work / 'box.tar'}"], work)
            met = [against_buildah(work, folder, buildah), cached(work)]
        finally:
            buildah.end()
            subprocess.run([BIN / "dsec", "gc"], check=True, capture_output=True)
    return 0 if all(met) else 1


sys.exit(main())
