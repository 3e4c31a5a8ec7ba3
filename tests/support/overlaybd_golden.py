#!/usr/bin/env python3
"""overlaybd_golden.py PEER: makes the layers of CASES with the project's own library and prints their digests, which
tests/cli/overlaybd_project.json keeps. PEER is what tests/support/overlaybd_peer/build makes."""

import hashlib
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import overlaybd

SIZE = 2 << 20
UUID = "3F2C9D1E-0000-4000-8000-{:012d}"


def noise(rng: random.Random, sectors: int) -> bytes:
    """Half of it repeats, so that it compresses a little."""
    return b"".join(rng.randbytes(8) + b"xxxxxxxx" for _ in range(sectors * 32))


def some_operations(seed: int, count: int, sectors: int = SIZE // 512) -> list:
    rng = random.Random(seed)
    operations = []
    for _ in range(count):
        sector = rng.randrange(sectors)
        length = min(sectors - sector, rng.randrange(1, 300))
        operations.append((sector, length if rng.random() < 0.25 else noise(rng, length)))
    return operations


def whole_blocks(seed: int) -> list:
    """More than a mapping can tell of, in one piece."""
    rng = random.Random(seed)
    return [(at, noise(rng, 8192)) for at in range(0, 40000, 8192)] + [(50000, 16383), (66383, 16383), (82766, 100)]


# Size of the device and what is done to a layer, in order. The layers of "stack" come on top of each other.
CASES = {
    "nothing": (SIZE, []),
    "one-sector": (SIZE, [(77, noise(random.Random(1), 1))]),
    "many": (SIZE, some_operations(2, 60)),
    "overwritten": (SIZE, some_operations(3, 400)),
    "long": (64 << 20, whole_blocks(4)),
    **{f"stack-{number}": (SIZE, some_operations(10 + number, 12)) for number in range(5)},
}
STACK = [name for name in CASES if name.startswith("stack-")]


def facts_of(name: str) -> dict:
    number = list(CASES).index(name) + 1
    return {"size": CASES[name][0], "uuid": UUID.format(number), "parent": UUID.format(number - 1)}


def make_writable(name: str, folder: Path) -> tuple[Path, Path]:
    data, index = overlaybd.writable(CASES[name][1], **facts_of(name))
    paths = folder / f"{name}.data", folder / f"{name}.index"
    paths[0].write_bytes(data)
    paths[1].write_bytes(index)
    return paths


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(peer: str) -> None:
    def run(*args) -> None:
        subprocess.run([peer, *map(str, args)], check=True)

    digests = {}
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        for name, (size, operations) in CASES.items():
            facts = facts_of(name)
            mine = make_writable(name, folder)
            theirs = folder / "data", folder / "index"
            # What the project's library writes to the two files is what overlaybd.py says.
            run("create", *theirs, size, facts["uuid"], facts["parent"])
            lines = []
            for number, (sector, what) in enumerate(operations):
                if isinstance(what, int):
                    lines.append(f"d {sector} {what}")
                else:
                    (folder / f"piece-{number}").write_bytes(what)
                    lines.append(f"w {sector} {folder}/piece-{number}")
            (folder / "operations").write_text("\n".join(lines))
            run("apply", *theirs, folder / "operations")
            assert [digest(path) for path in theirs] == [digest(path) for path in mine], name
            digests[name] = {}
            for algorithm in ("none", "lz4", "zstd"):
                for wrapper in ("bare", "tar"):
                    if algorithm == "none" and wrapper == "tar":
                        continue  # their tool does not wrap what it does not compress
                    out = folder / "out"
                    out.unlink(missing_ok=True)
                    run("commit", *mine, out, facts["uuid"], "by " + name, algorithm, 4096, wrapper)
                    digests[name][f"{algorithm}-{wrapper}"] = digest(out)
                    if (algorithm, wrapper) == ("none", "bare"):
                        out.rename(folder / name)
            run("seal", *theirs)
            digests[name]["in-place"] = digest(theirs[0])
            for path in theirs:
                path.unlink()
        run("merge", folder / "merged", *(folder / name for name in STACK))
        digests["merged"] = {"none-bare": digest(folder / "merged")}
    json.dump(digests, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(sys.argv[1])
