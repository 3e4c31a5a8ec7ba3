"""What came after a commit is in no byte of the blobs that a workspace made from it lies in."""

import subprocess
import zlib

import pytest
from git_repo import GitRepo

MARK = b"FUTURE"


@pytest.fixture
def repo(work) -> GitRepo:
    """A past of two commits, and a future as loose and packed objects, branches, tags, notes, stash, remote and reflog."""
    lender = GitRepo(work / "lender")
    lender.commit(lent="FUTURE lent\n")
    made = GitRepo(work / "r")
    made.commit(a="one\n" * 500)
    made.base = made.commit(a="one\n" * 500 + "two\n")
    (made.path / ".git/objects/info/alternates").write_text(f"{lender.path}/.git/objects\n")
    made("branch", "here")
    for number in range(3):
        made.commit(a="one\n" * 500 + f"FUTURE packed {number}\n")
    made("tag", "-a", "v2-FUTURE", "-m", "FUTURE release")
    made("notes", "add", "-m", "FUTURE note", made.base)
    made("repack", "-adq")
    made.commit(a="FUTURE loose\n", b="FUTURE file\n" * 50)
    made("branch", "FUTURE-branch")
    made("remote", "add", "FUTURE-remote", "https://user:FUTURE@example.invalid/FUTURE")
    (made.path / "a").write_text("FUTURE stash\n")
    made("stash", "-q")
    return made


def objects(repo, *revisions: str) -> set[str]:
    return {line.split()[0] for line in repo("rev-list", "--objects", *revisions).splitlines()}


def packed_bytes(repo) -> dict[str, bytes]:
    """Of each object in a pack what it is there, packed, and perhaps as a difference to another."""
    found = {}
    for index in (repo.path / ".git/objects/pack").glob("*.idx"):
        pack = index.with_suffix(".pack").read_bytes()
        for line in repo("verify-pack", "-v", str(index)).splitlines():
            words = line.split()
            if len(words) >= 5 and len(words[0]) == 40:
                size, offset = int(words[3]), int(words[4])
                found[words[0]] = pack[offset + 4:offset + size]  # without its header, which says little
    return found


def planted(repo, ids: set[str]) -> dict[str, bytes]:
    """By a name to tell them by: every form in which a future object could lie in a blob."""
    forms = {"the mark": MARK}
    packs = packed_bytes(repo)
    for name in sorted(ids):
        kind = repo("cat-file", "-t", name)
        content = subprocess.run(["git", "-C", repo.path, "cat-file", kind, name], capture_output=True, check=True).stdout
        forms |= {f"{kind} {name} by name": name.encode(), f"{kind} {name} by number": bytes.fromhex(name),
                  f"{kind} {name} plain": content}
        loose = repo.path / ".git/objects" / name[:2] / name[2:]
        if loose.exists():
            forms[f"{kind} {name} loose"] = loose.read_bytes()
        if name in packs:
            forms[f"{kind} {name} packed"] = packs[name]
    return forms


def unpacked_streams(blob: bytes):
    """What every run of bytes gives that zlib can unpack, wherever it begins."""
    at = blob.find(b"\x78")
    while at >= 0:
        try:
            yield zlib.decompressobj().decompress(blob[at:], 1 << 20)
        except zlib.error:
            pass
        at = blob.find(b"\x78", at + 1)


def found_in_store(dsec, forms: dict[str, bytes]) -> set[str]:
    blobs = [path.read_bytes() for path in (dsec.home / "store/blobs").rglob("*") if path.is_file()]
    found = {name for name, form in forms.items() if any(form in blob for blob in blobs)}
    if any(MARK in stream for blob in blobs for stream in unpacked_streams(blob)):
        found.add("the mark, packed")
    return found


def test_no_byte_of_a_workspaces_blobs_is_of_the_future(dsec, repo):
    future = objects(repo, "--all", "--reflog") - objects(repo, "here")
    assert len(future) > 15
    forms = planted(repo, future)
    kinds = {name.split()[-1] for name in forms}
    assert {"loose", "packed", "plain", "number"} <= kinds
    dsec.ok("import", "workspace/past", f"git:{repo.path}@here")
    assert found_in_store(dsec, forms) == set()
    # The past is there, so that the search finds what there is; and with the full history all of the rest.
    assert len(found_in_store(dsec, planted(repo, objects(repo, "here")))) > 4
    dsec.ok("import", "workspace/full", f"git:{repo.path}@here", "--history", "full")
    found = found_in_store(dsec, forms)
    assert "the mark, packed" in found and len(found) > len(future) / 4
