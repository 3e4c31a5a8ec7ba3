"""`dsec import` as a person meets it: what it prints, how it refuses, and that nothing of a refused input remains. No root."""

import gzip
import io
import json
import os
import tarfile

import pytest


def tar_of(*members: tuple[str, bytes | str]) -> bytes:
    """Files, or symlinks where the content is a str."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def left_behind(home) -> list[str]:
    return [os.path.join(folder, name) for folder, _, names in os.walk(home) for name in names
            if name.startswith(".tmp-") or "sha256" in folder]


def test_an_archive_from_standard_input_is_the_same_layer_as_from_a_file(dsec, work):
    tar = tar_of(("bin/tool", b"tool"), ("link", "bin/tool"))
    (work / "a.tar").write_bytes(tar)
    (work / "a.tar.gz").write_bytes(gzip.compress(tar))
    layers = [dsec.json("import", f"toolkit/t{i}", source, input=data)
              for i, (source, data) in enumerate([("tar:a.tar", None), ("tar:-", tar), ("tar:a.tar.gz", None)])]
    images = [layer["manifest"]["images"] if "manifest" in layer else layer["images"] for layer in layers]
    assert images[0] == images[1] == images[2]
    assert not [path for path in left_behind(dsec.home) if ".tmp-" in path]


@pytest.mark.parametrize("data, words", [
    (tar_of(("../evil", b"x")), "path-escapes-root: entry '../evil' has '..' in its path"),
    (tar_of(("a/../../evil", b"x")), "path-escapes-root"),
    (tar_of(("out", "/etc"), ("out/passwd", b"x")), "entry 'out/passwd' leads through the symlink 'out'"),
    (tar_of(("f", b"x" * 5000))[:3000], "layer-truncated"),
    (gzip.compress(tar_of(("f", os.urandom(5000))))[:4000], "layer-truncated"),
    (b"no archive at all" * 100, "layer-damaged: this is no tar archive"),
    (gzip.compress(bytes(200 << 20)), "size-limit: unpacks to more than 1000 times its size"),
], ids=["dots", "dots-inside", "symlink", "cut", "cut-gzip", "no-archive", "bomb"])
def test_hostile_input_is_refused_by_name_and_leaves_nothing(dsec, data, words):
    err = dsec.fails(1, "import", "base/evil", "tar:-", input=data)
    assert err.startswith("error: cannot import base/evil:latest"), err
    assert words in err
    assert left_behind(dsec.home) == []
    assert dsec.json("layer", "ls") == []


def test_each_limit_is_a_flag(dsec):
    tar = tar_of(("a/long/path/to/a/file", b"x" * 100_000), ("b", b"y"))
    for flags, words in [(("--max-unpacked", "50000"), "size-limit"), (("--max-entries", "1"), "entry-limit"),
                         (("--max-path", "10"), "path-limit")]:
        err = dsec.fails(1, "import", "base/x", "tar:-", *flags, input=tar)
        assert words in err and f"try: allow more with {flags[0]}" in err, err
    dsec.ok("import", "base/x", "tar:-", input=tar)


def test_an_input_packed_more_often_than_allowed_is_refused_and_the_flag_allows_it(dsec):
    tar = gzip.compress(tar_of(("zeros", bytes(65 << 20))))
    err = dsec.fails(1, "import", "base/x", "tar:-", "--max-ratio", "100", input=tar)
    assert "size-limit: unpacks to more than 100 times its size" in err and "try: allow more with --max-ratio" in err, err
    assert left_behind(dsec.home) == []
    dsec.ok("import", "base/x", "tar:-", "--max-ratio", "2000", input=tar)


def test_a_wrong_value_is_a_mistake_of_usage(dsec):
    tar = gzip.compress(tar_of(("zeros", bytes(70 << 20))))
    for flags, words in [(("--max-ratio", "0"), "--max-ratio 0 would refuse every input"),
                         (("--platform", "amd64"), "'amd64' is no platform")]:
        err = dsec.fails(2, "import", "base/x", "tar:-", *flags, input=tar)
        assert words in err, err
    assert left_behind(dsec.home) == []


def test_what_is_no_source_is_a_mistake_of_usage(dsec):
    assert "one of docker://HOST" in dsec.fails(2, "import", "base/x", "tra:x.tar")
    assert "did you mean tar:?" in dsec.fails(2, "import", "base/x", "tra:x.tar")
    assert "No such file or directory (ENOENT)" in dsec.fails(1, "import", "base/x", "tar:missing.tar")
    assert "there is no" in dsec.fails(1, "import", "base/x", "oci-archive:missing.tar")


def test_a_refused_input_is_told_as_json_too(dsec):
    err = dsec.fails(1, "import", "base/x", "tar:-", "-o", "json", input=b"x" * 600)
    assert "layer-damaged" in json.dumps(json.loads(err))
