"""Import of an uncompressed OCI archive of 250 MB, against the same mkfs.erofs on the concatenated layers plus sha256 of
what goes in and what comes out plus sync. Both run as whole processes, in turn; the goal is a median ratio of 1.25."""

import hashlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

SIZE = 250_000_000
LAYERS = 3
PAIRS = 7
GOAL = 1.25
BLOCK = 512

BIN = Path(os.environ.get("DSEC_BIN_DIR", "build-release/bin"))
# As layers/erofs/erofs_writer.cc calls it.
MKFS = ["--quiet", "--tar=f", "-b4096", "-T0", "--mkfs-time", "-Enoinline_data", "--chunksize=1048576",
        "-U11111111-2222-8333-8444-555555555555"]


def real_files():
    """Files as systems have them: many small ones, some large, from this host's /usr."""
    for folder, below, names in os.walk("/usr"):
        below.sort()
        for name in sorted(names):
            path = Path(folder, name)
            # None so large that it alone would decide the size of a layer.
            if path.is_file() and not path.is_symlink() and path.stat().st_size < SIZE // 20:
                yield path


def make_layers() -> list[bytes]:
    files, layers = real_files(), []
    for _ in range(LAYERS):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            while out.tell() < SIZE // LAYERS:
                path = next(files, None)
                if path is None:
                    sys.exit("/usr of this host has less than 250 MB")
                tar.add(path, recursive=False)
        layers.append(out.getvalue())
    return layers


def end_of_entries(tar: bytes) -> int:
    end = len(tar)
    while tar[end - BLOCK:end] == bytes(BLOCK):
        end -= BLOCK
    return end


def make_archive(layers: list[bytes], file: Path):
    blobs = {}

    def descriptor(data: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    described = [descriptor(layer, "layer.v1.tar") for layer in layers]
    config = {"os": "linux", "architecture": "amd64",
              "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in described]}}
    manifest = {"schemaVersion": 2, "config": descriptor(json.dumps(config).encode(), "config.v1+json"), "layers": described}
    index = {"schemaVersion": 2, "manifests": [descriptor(json.dumps(manifest).encode(), "manifest.v1+json")]}
    with tarfile.open(file, "w") as tar:
        for name, data in [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), ("index.json", json.dumps(index).encode()),
                           *((f"blobs/sha256/{digest}", data) for digest, data in blobs.items())]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def timed(argv: list, env: dict) -> float:
    start = time.perf_counter()
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, check=False)
    took = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{argv} failed:\n{done.stdout.decode()}{done.stderr.decode()}")
    return took


def main():
    work = Path(tempfile.mkdtemp(prefix="dsec-bench-"))
    try:
        layers = make_layers()
        make_archive(layers, work / "image.tar")
        with open(work / "layers.tar", "wb") as file:
            for layer in layers:
                file.write(layer[:end_of_entries(layer)])
            file.write(bytes(2 * BLOCK))
        del layers
        mkfs = os.environ.get("DSEC_MKFS_EROFS") or shutil.which("mkfs.erofs")
        floor = (f"cd {work} && {mkfs} {' '.join(MKFS)} --blobdev=data meta < layers.tar"
                 " && openssl dgst -sha256 image.tar meta data && sync meta data")
        ratios, ours, floors = [], [], []
        for pair in range(PAIRS + 1):
            home = work / "home"
            subprocess.run(["sync"], check=True)
            floors.append(timed(["sh", "-c", floor], {}))
            subprocess.run(["sync"], check=True)
            ours.append(timed([BIN / "dsec", "import", "base/bench", f"oci-archive:{work / 'image.tar'}",
                               "--platform", "linux/amd64"], {"DSEC_HOME": str(home)}))
            shutil.rmtree(home)
            for name in ("meta", "data"):
                (work / name).unlink()
            if pair == 0:  # warms the page cache
                ours.clear()
                floors.clear()
                continue
            ratios.append(ours[-1] / floors[-1])
        ratio = statistics.median(ratios)
        size = (work / "image.tar").stat().st_size
        print(f"import of {size / 1e6:.0f} MB: median {statistics.median(ours):.2f} s, floor {statistics.median(floors):.2f} s, "
              f"ratio {ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f} in {PAIRS} pairs), goal {GOAL}")
        sys.exit(ratio > GOAL)
    finally:
        shutil.rmtree(work, ignore_errors=True)


main()
