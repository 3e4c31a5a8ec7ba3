"""Layers whose contents come while they are read, from a registry server behind a link of 100 MB/s with a round trip of
2 ms, in a network namespace of its own:
- the first command of Debian with Python (250 MB and more), from `dsec run` to its end, without and with a prefetch list:
  against an eager `dsec pull` of the same layer (goal with the list: 1/5), and against `skopeo copy` with `umoci unpack` of
  the same image (goal: 1/8);
- a test-suite of a Debian source package, run to its end: bytes fetched, against the bytes that a local run touches in
  pages of 4 KiB (goal: 2); and how long it takes with the list, against a run with everything here (goal: 1.15);
- reading a layer that has come wholly, against one that was pulled: its next mount (goal: 0.95 of the bandwidth), the
  mount that still goes through the loader, with nothing in the page cache (goal: 0.60) and with everything there (0.95),
  and how much memory that takes.
Needs root and mmdebstrap."""

import contextlib
import ctypes
import gzip
import hashlib
import io
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from support.far_registry import FarRegistry, round_trip
from support.measuring import BIN, LONG, tell

ROOT = Path(__file__).resolve().parents[2]
RATE, DELAY_US = 100_000_000, 1000
PACKAGES = "python3,python3-pytest,python3-pip,git,ca-certificates"
SMALLEST = 250_000_000
FIRST_COMMAND = ["python3", "-c", "import ssl, sqlite3, json"]
SUITE = ["sh", "-c", "cd /workspace && python3 -m pytest -q -p no:cacheprovider toolz"]
ROUNDS = 7 if LONG else 5
PAGE = 4096
MIB = 1 << 20


class Host:
    """A machine of its own, as far as dsec goes: a new home."""

    def __init__(self, work: Path):
        self.folder = Path(tempfile.mkdtemp(prefix="home-", dir=work))
        self.env = {**os.environ, "DSEC_HOME": str(self.folder / "home"), "DSEC_CONFIG": str(work / "config.yaml")}

    def run(self, *args, check: bool = True) -> str:
        done = subprocess.run([str(BIN / "dsec"), *map(str, args)], env=self.env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            sys.exit(f"dsec {' '.join(map(str, args))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *args):
        dash = args.index("--") if "--" in args else len(args)
        return json.loads(self.run(*args[:dash], "-o", "json", *args[dash:]))

    def timed(self, *args) -> float:
        began = time.monotonic()
        self.run(*args)
        return time.monotonic() - began

    def remove(self) -> None:
        self.run("gc", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def host(work: Path):
    made = Host(work)
    try:
        yield made
    finally:
        made.remove()


def make_base(file: Path) -> None:
    suite = subprocess.run([". /etc/os-release && echo $VERSION_CODENAME"], shell=True, capture_output=True, text=True,
                           check=True).stdout.strip()
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io",
                    "--skip=output/dev,output/mknod", f"--include={PACKAGES}", suite, file], check=True)


def make_suite(folder: Path) -> None:
    """The source package of toolz, as the demo takes it."""
    script = f"""set -e; . {ROOT}/scripts/private_apt.sh
        write_private_apt {folder}/apt deb-src "$(. /etc/os-release && echo "$VERSION_CODENAME")"
        export APT_CONFIG={folder}/apt/apt.conf; apt-get -q update; cd {folder}/apt
        apt-get -q source --only-source --download-only toolz
        mkdir {folder}/toolz; tar -xf toolz_*.orig.tar.* -C {folder}/toolz --strip-components=1"""
    folder.mkdir()
    subprocess.run(["bash", "-c", script], check=True, capture_output=True)


def push_image(base: Path, work: Path, far: FarRegistry) -> None:
    """As an image like any other: one compressed layer."""
    layout, blobs = work / "image", work / "image/blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    plain = base.read_bytes()
    layer = put(gzip.compress(plain, 6, mtime=0), "layer.v1.tar+gzip")
    config = {"os": "linux", "architecture": "amd64", "config": {},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]}}
    manifest = put(json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                               "config": put(json.dumps(config).encode(), "config.v1+json"), "layers": [layer]}).encode(),
                   "manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "python"}
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    subprocess.run([*far.within, "skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false",
                    f"oci:{layout}:python", f"docker://{far.host}/image:python"], check=True)
    shutil.rmtree(layout)


def skopeo_and_umoci(work: Path, far: FarRegistry) -> float:
    folder = Path(tempfile.mkdtemp(prefix="image-", dir=work))
    began = time.monotonic()
    subprocess.run(["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false",
                    f"docker://{far.host}/image:python", f"oci:{folder}/layout:python"], check=True)
    subprocess.run(["umoci", "unpack", "--image", f"{folder}/layout:python", f"{folder}/bundle"], check=True,
                   capture_output=True)
    took = time.monotonic() - began
    shutil.rmtree(folder)
    return took


def first_command(work: Path, far: FarRegistry, size: int) -> list[bool]:
    plain, listed = f"oci://{far.host}/plain", f"oci://{far.host}/listed"
    with host(work) as tracer:
        told = tracer.json("registry", "trace", "--registry", listed, "base/python", "--", *FIRST_COMMAND)
        print(f"  the first command reads {told['layers'][0]['read'] / 1e6:.1f} MB in {told['layers'][0]['runs']} pieces,"
              f" {told['layers'][0]['read'] / size * 100:.1f} % of the image", flush=True)
    times = {"eager": [], "on demand": [], "with list": [], "skopeo": []}
    for _ in range(ROUNDS):
        with host(work) as one:
            times["eager"].append(one.timed("pull", "base/python", "--from", plain))
        for name, url in [("on demand", plain), ("with list", listed)]:
            with host(work) as one:
                times[name].append(one.timed("run", "--on-demand", "--registry", url, "base/python", "--", *FIRST_COMMAND))
        times["skopeo"].append(skopeo_and_umoci(work, far))
        print("  " + ", ".join(f"{name} {each[-1]:.2f} s" for name, each in times.items()), flush=True)
    eager, lazy, quick, other = (statistics.median(each) for each in times.values())
    print(f"first command without a list: {lazy / eager:.3f} of an eager pull", flush=True)
    return [tell(quick / eager <= 0.2, f"first command with the list: {quick / eager:.3f} of an eager pull of {eager:.2f} s",
                 "0.200"),
            tell(quick / other <= 0.125, f"first command with the list: {quick / other:.3f} of skopeo and umoci,"
                 f" which take {other:.2f} s", "0.125")]


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def cached_pages(file: Path) -> int:
    size = file.stat().st_size
    if size == 0:
        return 0
    pages = (size + PAGE - 1) // PAGE
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        at = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        there = ctypes.create_string_buffer(pages)
        if LIBC.mincore(at, size, there) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        LIBC.munmap(at, size)
        return sum(byte & 1 for byte in there.raw)
    finally:
        os.close(fd)


def without_read_ahead() -> None:
    """Of all EROFS mounts: what is in the page cache is then what was touched, page by page."""
    for entry in Path("/sys/class/bdi").iterdir():
        if entry.name.startswith("erofs-"):
            (entry / "read_ahead_kb").write_text("0")


def drop_caches() -> None:
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


@contextlib.contextmanager
def mounted(on: Host, *layers: str):
    """The layers at a path of this host."""
    place = Path(tempfile.mkdtemp(prefix="mount-", dir=on.folder))
    on.run("layer", "mount", *layers, place)
    try:
        yield place
    finally:
        on.run("layer", "umount", place)


def touched(local: Host) -> int:
    """Bytes of the layers' files that the test-suite touches, in pages."""
    with mounted(local, "base/python") as base, mounted(local, "toolkit/toolz") as suite:
        drop_caches()
        without_read_ahead()
        local.run("run", "base/python", "toolkit/toolz", "--", *SUITE)
        return PAGE * sum(cached_pages(Path(folder, name))
                          for place in (base, suite) for folder, _, names in os.walk(place) for name in names
                          if not (Path(folder, name)).is_symlink() and Path(folder, name).is_file())


def fetched(on: Host) -> tuple[int, int]:
    """Bytes that came of the layers' contents, and bytes that these have."""
    sandbox = on.run("create", "base/python", "toolkit/toolz").strip()
    use = on.json("inspect", sandbox)[0]["on_demand"]
    on.run("rm", "-f", sandbox)
    return use["fetched"], use["bytes"]


def suite(work: Path, far: FarRegistry) -> list[bool]:
    plain, listed = f"oci://{far.host}/plain", f"oci://{far.host}/suite"
    run = ["run", "base/python", "toolkit/toolz", "--", *SUITE]
    with host(work) as local:
        local.run("pull", "base/python", "toolkit/toolz", "--from", plain)
        pages = touched(local)
        local.run("gc")
        with host(work) as lazy:
            lazy.run("pull", "--on-demand", "base/python", "toolkit/toolz", "--from", plain)
            without = lazy.timed(*run)
            came, size = fetched(lazy)
        with host(work) as tracer:
            tracer.run("registry", "trace", "--registry", listed, "base/python", "toolkit/toolz", "--", *SUITE)
        times = {"here": [], "with list": []}
        for _ in range(ROUNDS):
            drop_caches()
            times["here"].append(local.timed(*run))
            local.run("gc")
            with host(work) as lazy:
                lazy.run("pull", "--on-demand", "base/python", "toolkit/toolz", "--from", listed)
                drop_caches()
                times["with list"].append(lazy.timed(*run))
            print("  " + ", ".join(f"{name} {each[-1]:.2f} s" for name, each in times.items()), flush=True)
    here, quick = (statistics.median(each) for each in times.values())
    print(f"test-suite on demand without a list: {without:.2f} s, {came / 1e6:.1f} MB fetched, {came / size * 100:.1f} %"
          " of the image", flush=True)
    return [tell(came <= 2 * pages, f"test-suite on demand: {came / pages:.2f} x the {pages / 1e6:.1f} MB that it touches", "2"),
            tell(quick <= 1.15 * here, f"test-suite with the list: {quick / here:.2f} x the {here:.2f} s with everything here",
                 "1.15")]


def read_all(place: Path) -> float:
    """MB a second."""
    buffer, size, began = bytearray(MIB), 0, time.monotonic()
    for file in sorted(place.iterdir()):
        with open(file, "rb", buffering=0) as stream:
            while got := stream.readinto(buffer):
                size += got
    return size / 1e6 / (time.monotonic() - began)


def cold(place: Path) -> float:
    drop_caches()
    return read_all(place)


def in_turn(number: int, plain, loaded) -> tuple[float, float]:
    """What both give. Each is first every other time: what comes second finds the disk as the first has left it."""
    if number % 2:
        return plain(), loaded()
    later = loaded()
    return plain(), later


def cached_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Cached:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Cached in /proc/meminfo")


def wait_until_whole(on: Host) -> None:
    for _ in range(600):
        if not on.json("layer", "inspect", "base/big")[0]["on_demand"]:
            return
        time.sleep(0.1)
    sys.exit("the layer does not become one of the store")


def steady(work: Path) -> list[bool]:
    files, url = work / "big", f"file://{work}/registry"
    files.mkdir()
    for number in range(8):
        (files / str(number)).write_bytes(os.urandom(32 * MIB))
    with host(work) as author:
        author.run("import", "base/big", f"dir:{files}")
        author.run("publish", "base/big", "--to", url)
    with host(work) as local, host(work) as lazy:
        local.run("pull", "base/big", "--from", url)
        lazy.run("pull", "--on-demand", "base/big", "--from", url)
        ratios = {"through": [], "warm": [], "next": [], "memory": []}
        with mounted(local, "base/big") as plain, mounted(lazy, "base/big") as loaded:
            read_all(loaded)
            wait_until_whole(lazy)

            def counted() -> float:
                drop_caches()
                before = cached_memory()
                rate = read_all(loaded)
                ratios["memory"].append((cached_memory() - before) / (8 * 32 * MIB))
                return rate

            # Once unmeasured: what lies below the disk of a virtual machine remembers, too.
            cold(plain), cold(loaded)
            for number in range(ROUNDS):
                floor, ours = in_turn(number, lambda: cold(plain), counted)
                ratios["through"].append(ours / floor)
                for place in (plain, loaded):
                    read_all(place)
                warm_floor, again = in_turn(number, lambda: read_all(plain), lambda: read_all(loaded))
                ratios["warm"].append(again / warm_floor)
                print(f"  nothing cached: local {floor:.0f} MB/s, through the loader {ours:.0f} MB/s,"
                      f" {ratios['memory'][-1]:.2f} x its size cached; then {again:.0f} MB/s", flush=True)
        lazy.run("gc")
        with mounted(local, "base/big") as plain, mounted(lazy, "base/big") as loaded:
            for number in range(ROUNDS):
                floor, ours = in_turn(number, lambda: cold(plain), lambda: cold(loaded))
                ratios["next"].append(ours / floor)
    through, warm, later, memory = (statistics.median(each) for each in ratios.values())
    return [tell(later >= 0.95, f"the next mount of a layer that has come: {later:.2f} of the bandwidth of a local one", "0.95"),
            tell(through >= 0.6, f"the mount through the loader, nothing in the page cache: {through:.2f}", "0.60"),
            tell(warm >= 0.95, f"the same with everything in the page cache: {warm:.2f}", "0.95"),
            tell(memory <= 1.2, f"memory that it takes: {memory:.2f} x what was read", "1.20")]


def main() -> int:
    if os.geteuid() != 0:
        sys.exit("measuring sandboxes needs root")
    if not shutil.which("mmdebstrap"):
        sys.exit("mmdebstrap is not installed: ./dev setup")
    # On a disk: a tmpfs would hide what reading and writing costs.
    work = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir="/var/tmp"))
    far = None
    try:
        met = steady(work)
        # One that was made before saves minutes.
        if given := os.environ.get("DSEC_BENCH_BASE"):
            shutil.copy(given, work / "base.tar")
        else:
            make_base(work / "base.tar")
        make_suite(work / "suite")
        far = FarRegistry(work / "server", RATE, DELAY_US)
        (work / "config.yaml").write_text(f"hosts: {{'{far.host}': {{plain_http: true}}}}\n")
        with host(work) as author:
            author.run("import", "base/python", f"tar:{work}/base.tar")
            author.run("import", "toolkit/toolz", f"dir:{work}/suite/toolz", "--to", "/workspace")
            size = sum(blob["size"] for image in author.json("layer", "inspect", "base/python")[0]["manifest"]["images"]
                       for blob in image["blobs"])
            for name in ("plain", "listed", "suite"):
                author.run("publish", "base/python", "toolkit/toolz", "--to", f"oci://{far.host}/{name}")
        if size < SMALLEST:
            sys.exit(f"the base has only {size / 1e6:.0f} MB")
        push_image(work / "base.tar", work, far)
        print(f"{size / 1e6:.0f} MB behind {RATE / 1e6:.0f} MB/s and {round_trip(far.host):.1f} ms", flush=True)
        met += first_command(work, far, size)
        met += suite(work, far)
    finally:
        if far:
            far.stop()
        shutil.rmtree(work, ignore_errors=True)
    return 0 if all(met) else 1


sys.exit(main())
