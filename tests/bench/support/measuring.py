"""What the measurements of sandboxes share: a home of their own with a layer that has /bin/true and /bin/consumer, and
how a figure is told beside its floor and its goal."""

import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

BIN = Path(os.environ.get("DSEC_BIN_DIR", "build-release/bin")).resolve()
PAIRS = int(os.environ.get("DSEC_BENCH_PAIRS", "7"))
LONG = "DSEC_TEST_LONG" in os.environ


def make_tree(tree: Path) -> None:
    """What /bin/true and /bin/consumer need, and no more."""
    libraries = re.findall(r"/\S+", subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout)
    for name in ["/bin/true", *libraries]:
        target = tree / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
    shutil.copy(BIN / "bench_consumer", tree / "bin/consumer")
    for name in ["proc", "etc"]:
        (tree / name).mkdir()
    # As on the host: else the dynamic linker searches in the sandbox only.
    subprocess.run(["ldconfig", "-r", str(tree)], check=True)


@contextlib.contextmanager
def home_with_layer() -> Iterator[tuple[Path, Path]]:
    """A new home, which the environment names, with layer base/true; and the tree that the layer was made of."""
    if os.geteuid() != 0:
        sys.exit("measuring sandboxes needs root")
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as name:
        work = Path(name)
        tree, home = work / "tree", work / "home"
        make_tree(tree)
        os.chdir(work)
        os.environ.update(DSEC_HOME=str(home), DSEC_CONFIG=str(work / "config.yaml"))
        subprocess.run([BIN / "dsec", "import", "base/true", f"dir:{tree}"], check=True, capture_output=True)
        try:
            yield home, tree
        finally:
            subprocess.run([BIN / "dsec", "gc"], check=True, capture_output=True)


def numbers(*command) -> list[float]:
    out = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [float(word) for word in out.split()]


def number(*command) -> float:
    return numbers(*command)[0]


def compare(what: str, goal: float, floor: Callable[[], float], ours: Callable[[], float]) -> bool:
    """In turn, so that what else the machine does meets both."""
    pairs = []
    for _ in range(PAIRS):
        pairs.append((floor(), ours()))
        print(f"  {what}: floor {pairs[-1][0]:.0f} us, dsec {pairs[-1][1]:.0f} us", flush=True)
    ratio = statistics.median(ours / floor for floor, ours in pairs)
    met = ratio <= goal
    print(f"{what}: {ratio:.2f} x the floor of {statistics.median(floor for floor, _ in pairs):.0f} us"
          f" (goal {goal:.2f}{'' if met else ', missed'})", flush=True)
    return met


def tell(met: bool, text: str, goal: str) -> bool:
    print(f"{text} (goal {goal}{'' if met else ', missed'})", flush=True)
    return met
