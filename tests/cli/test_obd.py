"""`dsec obd` as a person meets it, compared with tests/support/overlaybd.py, which knows the format by itself, and with
digests of what the libraries of the project containerd/overlaybd make of the same input. No root."""

import json
import os
import random
import resource
import subprocess
from pathlib import Path

import overlaybd as obd
import overlaybd_golden
import pytest

PROJECT = json.loads((Path(__file__).parent / "overlaybd_project.json").read_text())
PACKINGS = {"zfile:lz4": "lz4", "zfile:zstd": "zstd"}


def cat(dsec, *files) -> bytes:
    return subprocess.run(dsec.argv("obd", "cat", *files), capture_output=True, check=True, env=dsec.env, cwd=dsec.cwd).stdout


def image(seed: int, blocks: int = 300) -> bytes:
    rng = random.Random(seed)
    return b"".join(bytes(4096) if rng.random() < 0.5 else rng.randbytes(1024) * 4 for _ in range(blocks))


# --- byte for byte with the project ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", overlaybd_golden.CASES)
def test_a_committed_layer_is_the_one_that_the_project_writes(dsec, work, name):
    data, index = overlaybd_golden.make_writable(name, work)
    out = work / "out"
    dsec.ok("obd", "commit", data, index, out, "-m", "by " + name)
    assert overlaybd_golden.digest(out) == PROJECT[name]["none-bare"]
    if name != "long":
        assert obd.compose([obd.read_sealed(out)]) == obd.compose([obd.read_writable(data, index)])


@pytest.mark.parametrize("wrapper", ["bare", "tar"])
@pytest.mark.parametrize("algorithm", ["lz4", "zstd"])
@pytest.mark.parametrize("name", overlaybd_golden.CASES)
def test_a_compressed_layer_is_the_one_that_the_project_writes(dsec, work, name, algorithm, wrapper):
    """With liblz4 and libzstd of the distribution; the project brings its own."""
    data, index = overlaybd_golden.make_writable(name, work)
    out = work / "out"
    dsec.ok("obd", "commit", data, index, out, "-m", "by " + name, "--compress", f"zfile:{algorithm}", *["--tar"] * (wrapper == "tar"))
    assert overlaybd_golden.digest(out) == PROJECT[name][f"{algorithm}-{wrapper}"]


def test_layers_made_one_are_what_the_project_makes_of_them(dsec, work):
    for name in overlaybd_golden.STACK:
        dsec.ok("obd", "commit", *overlaybd_golden.make_writable(name, work), work / name)
    files = [work / name for name in overlaybd_golden.STACK]
    dsec.ok("obd", "commit", *files, work / "merged", "--uuid", obd.NO_UUID)
    assert overlaybd_golden.digest(work / "merged") == PROJECT["merged"]["none-bare"]
    assert obd.compose([obd.read_sealed(work / "merged")]) == obd.compose([obd.read_sealed(file) for file in files])


# --- with a reader and a writer that share no code with it ----------------------------------------------------------


@pytest.mark.parametrize("tar", [False, True])
@pytest.mark.parametrize("compression", ["none", "zfile:lz4", "zfile:zstd"])
def test_a_layer_of_an_image_is_read_by_another_program(dsec, work, compression, tar):
    blocks = 60 if compression == "zfile:zstd" else 300
    (work / "image").write_bytes(image(1, blocks))
    dsec.ok("obd", "create", "--from", "image", "base", "--compress", compression, *["--tar"] * tar,
            "--uuid", overlaybd_golden.UUID.format(1), "-m", "a message")
    layer = obd.read_sealed(work / "base")
    assert obd.compose([layer]) == image(1, blocks)
    assert (layer.uuid, layer.parent, layer.message) == (overlaybd_golden.UUID.format(1), obd.NO_UUID, b"a message")
    assert cat(dsec, "base") == image(1, blocks)


@pytest.mark.parametrize("wrap", [
    lambda layer: layer,
    obd.tar,
    obd.zfile,
    lambda layer: obd.tar(obd.zfile(layer)),
    lambda layer: obd.zfile(layer, final=False),
    lambda layer: obd.zfile(layer, verify=False),
    lambda layer: obd.zfile(layer, digest=False),
    lambda layer: obd.zfile(layer, block_size=65536),
    lambda layer: obd.zfile(layer[:0] + layer, algorithm=obd.ZSTD, block_size=32768),
], ids=["bare", "tar", "zfile", "tar-zfile", "streamed", "unverified", "undigested", "large-blocks", "zstd"])
@pytest.mark.parametrize("facts", [{}, {"fillers": 3}, {"in_place": True}], ids=["plain", "fillers", "in-place"])
def test_layers_that_another_program_made_are_read(dsec, work, wrap, facts):
    rng = random.Random(3)
    runs = [(3, rng.randbytes(5 * 512)), (8, 7), (20, rng.randbytes(512)), (100, 16383), (40000, rng.randbytes(40 * 512))]
    (work / "layer").write_bytes(wrap(obd.sealed(runs, size=32 << 20, **facts)))
    device = bytearray(32 << 20)
    for sector, what in runs:
        if not isinstance(what, int):
            device[sector * 512:sector * 512 + len(what)] = what
    assert cat(dsec, "layer") == device
    assert dsec.json("obd", "check", "layer")["problems"] == []


def test_a_stack_with_a_writable_top_is_what_painting_gives(dsec, work):
    names = overlaybd_golden.STACK
    for name in names[:-1]:
        dsec.ok("obd", "commit", *overlaybd_golden.make_writable(name, work), work / name)
    files = [work / name for name in names[:-1]]
    top = overlaybd_golden.make_writable(names[-1], work)
    expected = obd.compose([*(obd.read_sealed(file) for file in files), obd.read_writable(*top)])
    assert cat(dsec, *files, *top) == expected
    (work / "image").write_bytes(b"")
    with open(work / "image", "wb") as out:
        subprocess.run(dsec.argv("obd", "cat", *files, *top), stdout=out, check=True, env=dsec.env)
    assert (work / "image").read_bytes() == expected
    assert dsec.json("obd", "check", *files, *top)["problems"] == []


def test_a_sparse_layer_is_read(dsec, work):
    with open(work / "top", "wb") as file:
        file.write(obd.header(obd.IS_HEADER | obd.IS_DATA | obd.IS_SPARSE, size=1 << 20))
        file.truncate(4096 + (1 << 20))
        file.seek(4096 + 65536)
        file.write(b"x" * 4096)
    device = bytes(65536) + b"x" * 4096 + bytes((1 << 20) - 65536 - 4096)
    assert cat(dsec, "top") == device
    dsec.ok("obd", "commit", "top", "sealed")
    assert obd.compose([obd.read_sealed(work / "sealed")]) == device
    assert dsec.json("obd", "info", "top")[0]["kind"] == "sparse"


def test_a_change_on_top_of_an_image_is_small_and_belongs_there(dsec, work):
    before = bytearray(image(1))
    (work / "before").write_bytes(before)
    dsec.ok("obd", "create", "--from", "before", "base", "--uuid", overlaybd_golden.UUID.format(1))
    before[4096 * 7:4096 * 8] = b"y" * 4096
    (work / "after").write_bytes(before)
    written = dsec.json("obd", "create", "--from", "after", "--parent", "base", "change")
    assert (written["mappings"], written["parent"]) == (1, overlaybd_golden.UUID.format(1))
    assert cat(dsec, "base", "change") == before
    dsec.ok("obd", "create", "--parent", "base", "--parent", "change", "top.data", "top.index")
    assert cat(dsec, "base", "change", "top.data", "top.index") == before
    assert obd.read_writable(work / "top.data", work / "top.index").size == len(before)


def test_the_same_image_gives_the_same_bytes(dsec, work):
    (work / "image").write_bytes(image(1))
    for name in ("a", "b"):
        dsec.ok("obd", "create", "--from", "image", name, "--compress", "zfile:zstd", "--tar")
    assert (work / "a").read_bytes() == (work / "b").read_bytes()


# --- layers of the store ----------------------------------------------------------------------------------------------


def tree_of(dsec, ref: str) -> list:
    files = dsec.json("layer", "files", ref)
    return [{key: value for key, value in file.items() if key != "layer"} for file in files]


@pytest.fixture
def tree(dsec, work):
    """A layer with files of all sizes, holes, links and attributes."""
    root = work / "tree"
    (root / "bin").mkdir(parents=True)
    rng = random.Random(4)
    for number, size in enumerate((0, 1, 4095, 4096, 70000, 1500000)):
        (root / f"bin/file-{number}").write_bytes(rng.randbytes(size))
    with open(root / "sparse", "wb") as file:
        file.truncate(3 << 20)
        file.seek(1 << 20)
        file.write(b"x" * 5000)
    (root / "again").hardlink_to(root / "bin/file-4")
    (root / "link").symlink_to("bin/file-1")
    dsec.ok("import", "base/tree", "dir:tree")
    return root


@pytest.mark.parametrize("compression", ["none", "zfile:lz4", "zfile:zstd"])
def test_a_layer_goes_into_a_device_and_comes_back(dsec, work, tree, compression):
    written = dsec.json("layer", "export", "base/tree", "--format", "overlaybd", "--out", "tree.obd", "--compress", compression)
    assert written["size"] % 4096 == 0 and written["uuid"]
    assert dsec.json("obd", "check", "tree.obd")["problems"] == []
    dsec.ok("import", "base/back", "overlaybd:tree.obd")
    assert tree_of(dsec, "base/back") == tree_of(dsec, "base/tree")
    assert dsec.ok("layer", "diff", "base/tree", "base/back") == ""
    # A change on top of it that changes nothing.
    (work / "image").write_bytes(cat(dsec, "tree.obd"))
    dsec.ok("obd", "create", "--from", "image", "--parent", "tree.obd", "change.obd")
    first = dsec.json("import", "base/stacked", "overlaybd:tree.obd,change.obd")
    assert dsec.json("import", "base/stacked", "overlaybd:tree.obd,change.obd")["digest"] == first["digest"]
    assert tree_of(dsec, "base/stacked") == tree_of(dsec, "base/tree")


def test_devices_without_erofs_are_refused_by_name(dsec, work, golden, tree):
    with open(work / "disk", "wb") as disk:
        disk.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", work / "disk"], check=True)
    dsec.ok("obd", "create", "--from", "disk", "ext4.obd")
    (work / "noise").write_bytes(b"x" * 8192)
    dsec.ok("obd", "create", "--from", "noise", "noise.obd")
    dsec.ok("import", "base/packed", "dir:tree", "--compress", "lz4")
    dsec.ok("layer", "export", "base/packed", "--format", "overlaybd", "--out", "packed.obd")
    for name in ("ext4", "noise", "packed"):
        golden(f"obd/errors/import-{name}.txt", dsec.fails(1, "import", "base/x", f"overlaybd:{name}.obd"))


def test_an_export_that_cannot_be_says_so(dsec, golden, tree):
    golden("obd/errors/export-to-a-pipe.txt", dsec.fails(2, "layer", "export", "base/tree", "--format", "overlaybd"))
    golden("obd/errors/compressed-archive.txt", dsec.fails(2, "layer", "export", "base/tree", "--compress", "zfile:lz4"))


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def layers(dsec, work):
    """base, change, and a writable top.data with top.index, with UUIDs that are always the same."""
    (work / "base").write_bytes(obd.zfile(obd.sealed([(0, b"a" * 8192), (64, 16)], size=1 << 20, fillers=254,
                                                     uuid=overlaybd_golden.UUID.format(1), message=b"the base")))
    (work / "change").write_bytes(obd.tar(obd.sealed([(8, b"b" * 4096)], size=1 << 20, uuid=overlaybd_golden.UUID.format(2),
                                                     parent=overlaybd_golden.UUID.format(1))))
    data, index = obd.writable([(16, b"c" * 512), (0, 8)], size=1 << 20, uuid=overlaybd_golden.UUID.format(3),
                               parent=overlaybd_golden.UUID.format(2))
    (work / "top.data").write_bytes(data)
    (work / "top.index").write_bytes(index + b"torn")
    return ["base", "change", "top.data", "top.index"]


def test_info_tells_what_layers_are(dsec, golden, layers):
    golden("obd/info.txt", dsec.ok("obd", "info", *layers))
    golden("obd/info.json", dsec.ok("obd", "info", "-o", "json", *layers))


def test_commit_and_check_tell_what_they_did(dsec, work, golden, layers):
    golden("obd/commit.txt", dsec.ok("obd", "commit", *layers, "flat"))
    (work / "flat").unlink()
    golden("obd/commit.json", dsec.ok("obd", "commit", *layers, "flat", "-o", "json"))
    golden("obd/check.txt", dsec.ok("obd", "check", *layers))
    assert dsec.json("obd", "check", "flat") == {"layers": 1, "bytes": 4096 * 3 + 512 * 9, "without_checksums": 1,
                                                 "problems": []}


def test_check_finds_what_is_wrong_and_goes_on(dsec, work, golden, layers):
    base = bytearray((work / "base").read_bytes())
    base[5000] ^= 1
    (work / "base").write_bytes(base)
    result = dsec.run("obd", "check", "change", "base", "top.data", "top.index")
    assert result.code == 3, str(result)
    golden("obd/check-problems.txt", result.out)
    problems = json.loads(dsec.run("obd", "check", "-o", "json", "base").out)["problems"]
    assert [problem["file"] for problem in problems] == ["base"]


ERRORS = [
    ("no-layer", 1, ["obd", "info", "not-a-layer"]),
    ("no-file", 1, ["obd", "cat", "nowhere"]),
    ("cat-of-a-damaged-layer", 1, ["obd", "cat", "damaged"]),
    ("without-its-index", 1, ["obd", "cat", "base", "top.data"]),
    ("an-index-alone", 1, ["obd", "cat", "top.index"]),
    ("above-a-writable-layer", 2, ["obd", "cat", "top.data", "top.index", "base"]),
    ("commit-of-nothing", 2, ["obd", "commit", "base"]),
    ("sealed-without-an-image", 2, ["obd", "create", "out"]),
    ("writable-without-a-size", 2, ["obd", "create", "out.data", "out.index"]),
    ("three-names", 2, ["obd", "create", "--size", "1M", "a", "b", "c"]),
    ("an-existing-layer", 2, ["obd", "commit", "base", "change"]),
    ("an-input-as-output", 2, ["obd", "commit", "base", "change", "base"]),
    ("an-existing-image", 2, ["obd", "create", "--from", "not-a-layer", "base"]),
    ("a-fifo", 1, ["obd", "info", "fifo"]),
    ("a-fifo-in-a-stack", 1, ["obd", "cat", "base", "fifo"]),
    ("a-fifo-as-image", 1, ["obd", "create", "--from", "fifo", "out"]),
    ("a-fifo-to-import", 1, ["import", "base/x", "overlaybd:base,fifo"]),
    ("a-directory", 1, ["obd", "info", "."]),
    ("existing-files", 2, ["obd", "create", "--size", "1M", "top.data", "top.index"]),
    ("compressed-and-writable", 2, ["obd", "create", "--size", "1M", "--compress", "zfile:lz4", "a", "b"]),
    ("size-of-blocks", 2, ["obd", "commit", "base", "out", "--compress", "zfile:lz4", "--block-size", "64K"]),
    ("blocks-of-nothing", 2, ["obd", "commit", "base", "out", "--block-size", "4K"]),
    ("no-uuid", 2, ["obd", "commit", "base", "out", "--uuid", "me"]),
    ("long-message", 2, ["obd", "commit", "base", "out", "-m", "x" * 257]),
]


@pytest.mark.parametrize("name,code,args", ERRORS, ids=[case[0] for case in ERRORS])
def test_a_wrong_request_says_what_to_do_and_leaves_nothing(dsec, work, golden, layers, name, code, args):
    (work / "not-a-layer").write_bytes(b"x" * 10000)
    (work / "damaged").write_bytes((work / "base").read_bytes()[:-700])
    os.mkfifo(work / "fifo")
    state = lambda: {path.name: path.is_file() and path.read_bytes() for path in work.iterdir() if path != dsec.home}
    before = state()
    result = dsec.run(*args, timeout=20)
    assert (result.code, result.out) == (code, ""), str(result)
    golden(f"obd/errors/{name}.txt", result.err)
    assert state() == before
    assert args[0] == "import" or not dsec.home.exists()


def test_of_two_that_make_one_layer_at_once_one_wins(dsec, work, layers):
    (work / "image").write_bytes(image(1))
    makers = [dsec.popen("obd", "create", "--from", "image", "out", "-m", str(number), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE) for number in range(6)]
    results = [(maker.communicate(timeout=60)[1], maker.returncode) for maker in makers]
    winner, = [number for number, (_, code) in enumerate(results) if code == 0]
    assert all(code == 2 and b"exists" in err for number, (err, code) in enumerate(results) if number != winner)
    assert dsec.json("obd", "info", "out")[0]["message"] == str(winner)
    assert not [path for path in work.iterdir() if path.name.startswith(".tmp-")]


def test_a_device_that_is_more_than_is_allowed_is_refused_before_it_is_written(dsec, work, tree):
    """Zeros that a layer has as data: a file of layers may be hundreds of times as large as it seems."""
    dsec.ok("layer", "export", "base/tree", "--format", "overlaybd", "--out", "tree.obd")
    device = cat(dsec, "tree.obd")
    assert len(device) <= 8 << 20
    pieces = [(at // 512, device[at:at + (4 << 20)]) for at in range(0, len(device), 4 << 20)]
    zeros = [(at << 20 >> 9, bytes(4 << 20)) for at in range(8, 136, 4)]
    (work / "large").write_bytes(obd.sealed(pieces + zeros, size=256 << 20))
    dsec.ok("obd", "commit", "large", "bomb", "--compress", "zfile:lz4")
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (96 << 20, 96 << 20))

    def run(*args):
        return subprocess.run(dsec.argv("import", "base/bomb", "overlaybd:bomb", *args), capture_output=True, text=True, env=dsec.env,
                              cwd=dsec.cwd, preexec_fn=small, timeout=100)
    for args, words in ((["--max-unpacked", "100M"], "unpacks to more than 100"), (["--max-ratio", "20"], "more than 20 times its size")):
        result = run(*args)
        assert result.returncode == 1 and words in result.stderr, result.stderr
    assert not [path for path in (dsec.home / "cache").rglob("*") if path.name.startswith(".tmp-")]
    # Zeros take no room.
    small = lambda: None
    result = run()
    assert result.returncode == 0, result.stderr
    assert tree_of(dsec, "base/bomb") == tree_of(dsec, "base/tree")


def test_no_layer_is_left_when_its_disk_is_full(dsec, work, layers):
    result = dsec.run("obd", "cat", "base", timeout=20)
    assert len(result.out) == 1 << 20
    with open("/dev/full", "wb") as full:
        process = dsec.popen("obd", "cat", "base", stdout=full)
        _, err = process.communicate()
    assert process.returncode == 1
    assert b"ENOSPC" in err


def test_shells_complete_files(dsec):
    assert "'obd cat') echo '@files' ;;" in dsec.ok("completion", "bash")
