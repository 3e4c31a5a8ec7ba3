"""What `dsec import` makes of an image is what another tool unpacks from it: umoci, whose known limits are left out (it knows
neither zstd nor some types of tar entries)."""

import gzip
import hashlib
import io
import json
import os
import random
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

# What an import makes of an image does not depend on the kernel.
pytestmark = pytest.mark.guest_slow("many images")


class Layer:
    def __init__(self):
        self.out = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.out, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name: str, data: bytes = b"", **fields):
        member = tarfile.TarInfo(name)
        member.size = len(data)
        member.mtime = fields.pop("mtime", 1_600_000_000.25)
        for field, value in fields.items():
            setattr(member, field, value)
        self.tar.addfile(member, io.BytesIO(data))
        return self

    def dir(self, name: str, mode: int = 0o755, **fields):
        return self.add(name, type=tarfile.DIRTYPE, mode=mode, **fields)

    def sym(self, name: str, target: str):
        return self.add(name, type=tarfile.SYMTYPE, linkname=target)

    def hard(self, name: str, target: str):
        return self.add(name, type=tarfile.LNKTYPE, linkname=target)

    def bytes(self) -> bytes:
        self.tar.close()
        return self.out.getvalue()


def write_layout(root: Path, layers: list[bytes], pack) -> None:
    blobs = root / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def descriptor(data: bytes, kind: str) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    kind = "layer.v1.tar" if pack is bytes else "layer.v1.tar+gzip"
    config = {"os": "linux", "architecture": "amd64", "config": {},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
              "history": [{"created_by": "test"} for _ in layers]}
    manifest = {"schemaVersion": 2, "config": descriptor(json.dumps(config).encode(), "config.v1+json"),
                "layers": [descriptor(pack(layer), kind) for layer in layers]}
    described = descriptor(json.dumps(manifest).encode(), "manifest.v1+json")
    described["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (root / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))


def describe(tree: Path) -> dict[str, tuple]:
    """Everything that a program inside could see, and which names are one file."""
    found, first = {}, {}
    for folder, below, names in os.walk(tree):
        for name in [*below, *names]:
            path = Path(folder, name)
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            entry = [oct(status.st_mode), status.st_uid, status.st_gid]
            if kind != stat.S_IFDIR:
                # umoci gives directories the time of the last entry in them.
                entry.append(status.st_mtime_ns)
            if kind == stat.S_IFREG:
                entry.append(hashlib.sha256(path.read_bytes()).hexdigest())
            elif kind == stat.S_IFLNK:
                entry.append(os.readlink(path))
            elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                entry.append(status.st_rdev)
            entry.append(sorted((key, os.getxattr(path, key, follow_symlinks=False))
                                for key in os.listxattr(path, follow_symlinks=False)))
            relative = str(path.relative_to(tree))
            found[relative] = tuple(map(str, entry))
            if kind != stat.S_IFDIR and status.st_nlink > 1:
                first.setdefault((status.st_dev, status.st_ino), []).append(relative)
    for names in first.values():
        for name in names:
            found[name] += (f"one with {sorted(names)}",)
    return found


def odd_layers() -> list[bytes]:
    caps = {"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00 \x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
            "SCHILY.xattr.user.note": "value = with\nnewline"}
    low = (Layer().dir("etc", 0o700, uid=3).dir("usr").dir("usr/bin").dir("usr/lib", 0o2755, gid=50).dir("tmp", 0o1777)
           .add("etc/passwd", b"root:x:0:0::/:/bin/sh\n").add("etc/shadow", b"secret", mode=0).dir("opt/a/b/c")
           .add("usr/bin/su", b"#!su" * 5000, mode=0o4755, uid=12, pax_headers=caps).hard("usr/bin/sudo", "usr/bin/su")
           .sym("lib", "usr/lib").add("usr/lib/libx", b"x").add("opt/a/b/c/deep", b"deep").add("opt/a/gone", b"")
           .add("dev-null", type=tarfile.CHRTYPE, devmajor=1, devminor=3).add("pipe", type=tarfile.FIFOTYPE)
           .add("n" * 200, b"long").add("grüße", b"utf-8").dir("var/cache").add("var/cache/one", b"1").add("var/cache/two", b"2"))
    middle = (Layer().add("etc/.wh.shadow").dir("var/cache").add("var/cache/.wh..wh..opq").add("var/cache/three", b"3")
              .add("opt/.wh.a").add("pipe", b"a file now").add("lib/liby", b"behind the link").hard("usr/bin/su2", "usr/bin/su"))
    top = (Layer().dir("etc", 0o755, uid=4).add("etc/shadow", b"new").add("usr/bin/.wh.sudo").dir("opt/a").add("opt/a/again", b"a")
           .sym("usr/bin/x", "su2").add("late", b"l", mtime=3_000_000_000))
    return [layer.bytes() for layer in (low, middle, top)]


def real_layers() -> list[bytes]:
    """Files of this host as packages leave them, in two layers, and a third that deletes some."""
    folders = [Path("/usr/share/perl5"), Path("/usr/lib/python3/dist-packages"), Path("/etc/ssl")]
    folders = [folder for folder in folders if folder.is_dir()]
    layers = []
    for folder in folders:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(folder)
        layers.append(out.getvalue())
    last = Layer()
    for folder in folders:
        for child in sorted(folder.iterdir())[::3]:
            last.add(f"{str(folder)[1:]}/.wh.{child.name}")
    return [*layers, last.bytes()]


def random_layers(seed: int) -> list[bytes]:
    """Few names, so that entries meet: layers that replace, delete, link and repeat what is there already."""
    chance = random.Random(seed)
    names, layers, linkable, links = ["a", "b", "c", "é"], [], [], set()
    for number in range(chance.randint(2, 4)):
        layer, made = Layer(), {}

        def parents(path: str) -> list[str]:
            parts = path.split("/")
            return ["/".join(parts[:end]) for end in range(1, len(parts))]

        def some_path() -> str:
            return "/".join(chance.choice(names) for _ in range(chance.randint(1, 3)))

        # Deletions come first and lead through no symlink: umoci follows also those that the same layer makes or replaces.
        for _ in range(chance.randint(0, 4) if number else 0):
            folder, _, name = some_path().rpartition("/")
            if any(parent in links for parent in [folder, *parents(folder)]):
                continue
            layer.add(f"{folder}/.wh.{chance.choice([name, '.wh..opq'])}".lstrip("/"))
        for _ in range(chance.randint(3, 12)):
            path = some_path()
            if any(made.get(parent, "dir") != "dir" for parent in parents(path)):
                continue
            if chance.random() < 0.9:
                for parent in parents(path):
                    if parent not in made:
                        made[parent] = "dir"
                        layer.dir(parent)
            spelled = chance.choice(["", "./", "/"]) + path
            fields = {"mode": chance.choice([0o755, 0o700, 0o1777]), "uid": chance.choice([0, 5, 70000]),
                      "mtime": 1_600_000_000 + chance.choice([0, 0.25, 7])}
            kind = chance.choices(["dir", "file", "link", "fifo", "symlink"], [5, 6, 2, 1, 2])[0]
            if kind == "link":
                targets = [target for target in [*linkable, *(name for name in made if made[name] != "dir")] if target != path]
                if not targets:
                    continue
                layer.hard(spelled, chance.choice(targets))
            elif kind == "dir":
                layer.dir(spelled, **fields)
            elif kind == "fifo":
                layer.add(spelled, type=tarfile.FIFOTYPE, **fields)
            elif kind == "symlink":
                layer.sym(spelled, chance.choice(["a", "/b/c", "../é", "nowhere"]))
            else:
                layer.add(spelled, bytes(chance.choice([0, 1, 600, 5000])), **fields)
            if kind != "dir":
                made = {name: what for name, what in made.items() if not name.startswith(path + "/")}
            made[path] = kind
            if kind in ("symlink", "link"):
                links.add(path)
        linkable = [name for name, what in made.items() if what != "dir"] or linkable
        layers.append(layer.bytes())
    return layers


def test_random_images_look_as_umoci_unpacks_them(dsec, work, long_run):
    compared = 0
    for seed in range(300 if long_run else 8):
        image, bundle = work / f"image{seed}", work / f"bundle{seed}"
        write_layout(image, random_layers(seed), bytes)
        unpacked = subprocess.run(["umoci", "unpack", "--image", f"{image}:latest", bundle], check=False, capture_output=True)
        if unpacked.returncode:
            continue  # it takes no link before its target and no path below what was a file
        for limit in ("3GB", "1"):
            imported = dsec.run("import", "base/x", f"oci-layout:{image}:latest", "--platform", "linux/amd64", "--collapse-limit",
                                limit)
            if imported.code and "path-escapes-root" in imported.err:
                break  # umoci writes through symlinks of the same layer, and ends those that lead out at the root
            assert imported.code == 0, f"seed {seed}: {imported}"
            tree = work / f"tree{seed}-{limit}"
            tree.mkdir()
            dsec.ok("layer", "mount", "base/x", tree)
            try:
                ours, theirs = describe(tree), describe(bundle / "rootfs")
            finally:
                dsec.ok("layer", "umount", tree)
            if limit == "1":
                # A link to a file of an image below is a copy there.
                ours, theirs = ({name: tuple(part for part in entry if not part.startswith("one with"))
                                 for name, entry in found.items()} for found in (ours, theirs))
            assert ours == theirs, f"seed {seed}, collapse limit {limit}"
            compared += 1
    assert compared >= (200 if long_run else 4)


@pytest.mark.parametrize("limit", ["3GB", "1"], ids=["collapsed", "every-layer-an-image"])
@pytest.mark.parametrize("layers", [odd_layers, real_layers], ids=["odd", "real"])
def test_an_image_looks_as_umoci_unpacks_it(dsec, work, layers, limit):
    write_layout(work / "image", layers(), gzip.compress if layers is odd_layers else bytes)
    subprocess.run(["umoci", "unpack", "--image", f"{work}/image:latest", work / "bundle"], check=True, capture_output=True)
    dsec.ok("import", "base/x", f"oci-layout:{work}/image:latest", "--platform", "linux/amd64", "--collapse-limit", limit)
    tree = work / "tree"
    tree.mkdir()
    dsec.ok("layer", "mount", "base/x", tree)
    try:
        ours, theirs = describe(tree), describe(work / "bundle" / "rootfs")
    finally:
        dsec.ok("layer", "umount", tree)
    if limit == "1":
        # A link to a file of an image below is a copy there.
        for found in (ours, theirs):
            for name, entry in found.items():
                found[name] = tuple(part for part in entry if not part.startswith("one with"))
    assert {name: entry for name, entry in ours.items() if theirs.get(name) != entry} == {
        name: entry for name, entry in theirs.items() if ours.get(name) != entry}
    assert len(ours) > 20
