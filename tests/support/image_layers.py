"""Layers of an image as tar archives in which everything stands that decides what a layer of dsec has of it, and where."""

import hashlib
import io
import tarfile


def noise(size: int, seed: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d %d" % (seed, number)).digest() for number in range(size // 32 + 1))[:size]


class Tar:
    def __init__(self):
        self.out = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.out, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name: str, data: bytes = b"", kind=tarfile.REGTYPE, mode: int = 0o644, uid: int = 0, target: str = "",
            mtime: float = 1_600_000_000, pax: dict | None = None):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.uid, entry.gid, entry.linkname, entry.mtime = kind, mode, uid, uid, target, mtime
        entry.size, entry.pax_headers = len(data), dict(pax or {})
        self.tar.addfile(entry, io.BytesIO(data))
        return self

    def bytes(self) -> bytes:
        self.tar.close()
        return self.out.getvalue()


BIG = noise(3_000_000, 1)
SPARSE = {"GNU.sparse.size": "5000000", "GNU.sparse.map": "4096,600,2000000,1000,4999000,1000"}


def everything() -> list[bytes]:
    """Deletions across layers, further names, holes, equal files, attributes, devices, an opaque folder, long names."""
    below = (Tar().add("usr", kind=tarfile.DIRTYPE, mode=0o755).add("usr/big", BIG).add("usr/alias", kind=tarfile.LNKTYPE, target="usr/big")
             .add("usr/gone", noise(9000, 2)).add("usr/small", b"small\n", mode=0o4755, uid=7)
             .add("old", kind=tarfile.DIRTYPE, mode=0o700).add("old/a", noise(70_000, 3)).add("old/b", b"b")
             .add("tmp", kind=tarfile.DIRTYPE, mode=0o1777)
             .add("attributes", b"x" * 5000, mtime=-1.5,
                  pax={"SCHILY.xattr.user.note": "said", "SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x04\0\0" + "\0" * 12}))
    above = (Tar().add("usr/.wh.gone").add("usr/more", BIG[::-1]).add("usr/again", BIG)
             .add("old", kind=tarfile.DIRTYPE, mode=0o755).add("old/.wh..wh..opq").add("old/new", b"new\n")
             .add("sparse", noise(2600, 4), pax=SPARSE).add("zeros", bytes(2_000_000)).add("empty")
             .add("link", kind=tarfile.SYMTYPE, target="usr/big").add("pipe", kind=tarfile.FIFOTYPE)
             .add("deep/" * 30 + "n" * 200, noise(4097, 5)))
    top = (Tar().add("usr/second", kind=tarfile.LNKTYPE, target="usr/alias").add("attributes", b"y" * 600, pax={"SCHILY.xattr.user.note": "again"})
           .add("usr/small", b"another\n"))
    return [below.bytes(), above.bytes(), top.bytes()]


__all__ = ["Tar", "everything", "noise", "BIG"]
