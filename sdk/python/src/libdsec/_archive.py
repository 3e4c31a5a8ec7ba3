"""Files as the tar streams that edges take and give."""

from __future__ import annotations

import io
import os
import posixpath
import shutil
import tarfile
from pathlib import Path
from typing import IO

from .errors import DSecUsageError


def split(path: str) -> tuple[str, str]:
    """Directory and name of a file inside."""
    directory, name = posixpath.split(path)
    if not directory.startswith("/") or name in ("", ".", ".."):
        raise DSecUsageError(f"cannot use {path!r} as the path of a file in a sandbox", ["it is not absolute, or names no file"],
                             kind="usage")
    return directory, name


def of_file(name: str, data: bytes, mode: int, uid: int, gid: int) -> bytes:
    """An archive of one file."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.uid, entry.gid = len(data), mode, uid, gid
        tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()


def pack(source: Path, name: str, to: IO[bytes]) -> None:
    """The file or directory `source` as `name`; all of it belongs to root inside."""
    def of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(fileobj=to, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, name, filter=of_root)


def one_file(archive: IO[bytes], path: str) -> bytes:
    """The content of the only entry."""
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        entry = tar.next()
        content = tar.extractfile(entry) if entry is not None and entry.isreg() else None
        if content is None:
            raise DSecUsageError(f"cannot read {path!r} of a sandbox", ["it is no regular file"], kind="usage")
        return content.read()


def unpack(archive: IO[bytes], top: str, target: Path) -> None:
    """What came out of a sandbox, whose entry `top` becomes `target`. Nothing outside `target` is written, whatever the
    archive says: a sandbox may have written it to do harm. Owners are not kept, devices are refused."""
    links: list[tuple[Path, str]] = []
    modes: list[tuple[Path, int]] = []
    with tarfile.open(fileobj=archive, mode="r:") as tar:
        for entry in tar:
            place = _place(entry.name, top, target)
            if entry.isdir():
                if place.is_symlink() or not place.is_dir():
                    _make_room(place)
                    place.mkdir(parents=True)
                modes.append((place, entry.mode & 0o777))
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            _make_room(place)
            if entry.issym():
                links.append((place, entry.linkname))
            elif entry.islnk():
                shutil.copy2(_place(entry.linkname, top, target), place, follow_symlinks=False)
            elif entry.isreg():
                content = tar.extractfile(entry)
                assert content is not None
                _write(place, content, entry.mode & 0o777)
            else:
                raise DSecUsageError(f"cannot write {place}", ["it is a device, a FIFO or a socket"], kind="usage")
    # At last: nothing can be written through links of the archive, nor into directories that may not be written to.
    for place, linked in links:
        place.symlink_to(linked)
    for place, mode in reversed(modes):
        place.chmod(mode | 0o700)


def _place(name: str, top: str, target: Path) -> Path:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or name.startswith("/") or (top and parts[:1] != [top]):
        raise DSecUsageError(f"cannot write {target}", [f"the archive has an entry {name!r}, which lies outside"], kind="usage")
    return target.joinpath(*parts[1 if top else 0:])


def _make_room(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()


def _write(place: Path, content: IO[bytes], mode: int) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        os.fchmod(file.fileno(), mode)
