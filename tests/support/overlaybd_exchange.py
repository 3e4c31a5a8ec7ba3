#!/usr/bin/env python3
"""overlaybd_exchange.py PEER DSEC: layers go back and forth between dsec and the project's own library (PEER, of
tests/support/overlaybd_peer/build), and both must show the same device."""

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import overlaybd
import overlaybd_golden


def main(peer: str, dsec: str) -> None:
    def theirs(*args) -> None:
        subprocess.run([peer, *map(str, args)], check=True)

    def ours(*args) -> bytes:
        return subprocess.run([dsec, "obd", *map(str, args)], check=True, capture_output=True).stdout

    packings = [["--tar"] * tar + (["--compress", f"zfile:{algorithm}", "--block-size", str(size)] if algorithm else [])
                for algorithm, sizes in ((None, [0]), ("lz4", [4096, 32768]), ("zstd", [4096, 8192, 16384]))
                for size in sizes for tar in (0, 1)]
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image, files = bytearray(4 << 20), []
        for number, packing in enumerate(packings):
            for _ in range(30):
                at = rng.randrange(len(image))
                size = min(len(image) - at, rng.randrange(50000))
                image[at:at + size] = bytes(size) if rng.random() < 0.3 else rng.randbytes(size)
            (folder / "image").write_bytes(image)
            layer = folder / f"layer-{number}"
            ours("create", "--from", folder / "image", *(word for file in files for word in ("--parent", file)), layer, *packing)
            files.append(layer)
            theirs("cat", folder / "device", *files)
            assert (folder / "device").read_bytes() == image, f"they read {packing} otherwise"
            merged = folder / f"merged-{number}"
            theirs("merge", merged, *files)
            assert ours("cat", merged) == image, "what they merged is read otherwise"
            ours("commit", *files, folder / "mine", "--uuid", overlaybd.NO_UUID)
            assert (folder / "mine").read_bytes() == merged.read_bytes(), "merged layers differ"
            print("layer", number + 1, " ".join(packing) or "bare")
        data, index = overlaybd_golden.make_writable("many", folder)
        expected = overlaybd.compose([overlaybd.read_writable(data, index)])
        theirs("cat", folder / "device", "--", data, index)
        assert (folder / "device").read_bytes() == expected == ours("cat", data, index)
        theirs("seal", data, index)
        assert ours("cat", data) == expected
        print("a writable layer, and the same sealed in place")


if __name__ == "__main__":
    main(*sys.argv[1:])
