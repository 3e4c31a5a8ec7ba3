"""Dockerfiles whose FROM names images of registries: fetched once, kept by digest, and there again without a network."""

import json

import pytest
from oci_registry import INDEX

TEXT = "FROM python:3.11-slim\nCOPY a.txt /a.txt\n"


@pytest.fixture
def hub(dsec, server, work):
    """docker.io is the test's server, under a path of it."""
    def use(tool):
        (tool.cwd / "config.yaml").write_text(f"hosts:\n  docker.io: {{mirrors: ['{server.host}/hub']}}\n")
    use(dsec)
    (work / "context").mkdir()
    (work / "context/a.txt").write_text("a\n")
    (work / "context/Dockerfile").write_text(TEXT)
    server.push_image("hub/library/python", "3.11-slim", [{"etc/version": b"1\n"}])
    return server


def project(work, names=("base/task",)):
    lines = "".join(f"  {name}: {{from: 'dockerfile:context'}}\n" for name in names)
    (work / "dsec.yaml").write_text(f"version: 1\nlayers:\n{lines}")


def files(dsec, ref: str) -> str:
    return dsec.ok("layer", "files", ref)


def test_a_short_name_is_an_image_of_the_hub_and_is_there_again_without_it(dsec, hub, work):
    dsec.ok("import", "base/one", "dockerfile:context")
    base = dsec.json("layer", "inspect", "base/python:3.11-slim")[0]
    assert "etc/version" in files(dsec, "base/one") and "a.txt" in files(dsec, "base/one")
    hub.stop()
    (work / "context/a.txt").write_text("changed\n")
    for name, text in (("two", TEXT), ("three", TEXT.replace("python:3.11-slim", "docker.io/library/python:3.11-slim")),
                       ("four", TEXT.replace("python:3.11-slim", "docker.io/python:3.11-slim"))):
        (work / "context/Dockerfile").write_text(text)
        dsec.ok("import", f"base/{name}", "dockerfile:context")
        made = dsec.json("layer", "inspect", f"base/{name}")[0]["manifest"]
        assert made["images"][:-1] == base["manifest"]["images"]
        assert [name for name in made["provenance"]["inputs"] if name.startswith("image ")] == [
            "image docker.io/library/python:3.11-slim"]
    project(work)
    assert dsec.json("build", "--offline")["result"] == "built"
    (work / "context/Dockerfile").write_text("FROM python:3.12\n")
    told = dsec.fails(2, "build", "--offline")
    assert "Dockerfile:1: FROM: cannot have 'python:3.12'" in told and "needs a network" in told, told


def test_offline_all_images_that_are_missing_are_told_at_once(dsec, hub, work):
    dsec.ok("import", "base/one", "dockerfile:context")
    (work / "context/Dockerfile").write_text(
        "FROM golang:1.22 AS made\nFROM python:3.11-slim AS here\nFROM golang:1.22 AS again\nFROM alpine AS unused\n"
        "FROM here\nCOPY --from=made /x /x\nCOPY --from=again /x /y\nCOPY --from=ghcr.io/a/b:2 /z /z\n")
    project(work)
    told = dsec.fails(2, "build", "--offline")
    assert "Dockerfile needs 2 images that cannot be had" in told, told
    for place in ("Dockerfile:1: FROM: cannot have 'golang:1.22'", "Dockerfile:8: COPY: cannot have 'ghcr.io/a/b:2'"):
        assert told.count(place) == 1, told
    assert "alpine" not in told and "python" not in told and told.count("build without --offline") == 2, told


def test_several_layers_fetch_an_image_once(dsec, hub, proxy, work):
    (work / "config.yaml").write_text(f"hosts:\n  docker.io: {{mirrors: ['{proxy.host}/hub']}}\n")
    names = ["base/a", "base/b", "base/c"]
    project(work, names)
    blobs = []
    proxy.faults = lambda method, path, count: blobs.append(path) if method == "GET" and "/blobs/" in path else None
    dsec.ok("build", "-j", "3")
    assert len(blobs) == len(set(blobs)) == 2, blobs


def test_the_lock_pins_images_by_digest_and_pull_moves_them(dsec, other, hub, work):
    project(work)
    first = dsec.json("build")
    lock = json.loads((work / "dsec.lock").read_text())
    pinned = lock["layers"]["base/task:latest"]["inputs"]["image docker.io/library/python:3.11-slim"]
    hub.push_image("hub/library/python", "3.11-slim", [{"etc/version": b"2\n"}])
    assert dsec.json("build")["digest"] == first["digest"]
    kept = (work / "dsec.lock").read_bytes()
    moved = dsec.json("build", "--pull")
    assert moved["result"] == "built" and moved["digest"] != first["digest"]
    assert dsec.json("build", "--pull")["result"] == "cached"
    # Another host, at a time when the tag means another image.
    (work / "dsec.lock").write_bytes(kept)
    assert other.json("build", "--locked")["digest"] == first["digest"]
    assert pinned in other.ok("layer", "inspect", "base/task")
    assert dsec.json("build", "--locked")["digest"] == first["digest"]
    hub.stop()
    assert other.json("build", "--locked", "--offline")["digest"] == first["digest"]
    assert "--pull asks registries" in other.fails(2, "build", "--locked", "--pull")


def test_digests_and_platforms_name_images_too(dsec, hub, work):
    arm = hub.push_image("hub/library/tool", "", [{"bin/tool": b"arm\n"}], "arm64")
    amd = hub.push_image("hub/library/tool", "", [{"bin/tool": b"amd\n"}], "amd64")
    index = hub.push_manifest("hub/library/tool", "1", {
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [{**arm, "platform": {"os": "linux", "architecture": "arm64"}},
                      {**amd, "platform": {"os": "linux", "architecture": "amd64"}}]})
    (work / "context/Dockerfile").write_text(
        f"FROM --platform=linux/arm64 tool:1 AS arm\nFROM --platform=$BUILDPLATFORM tool@{index['digest']}\n"
        "COPY --from=arm /bin/tool /bin/arm\nCOPY --from=tool:1 /bin/tool /bin/amd\n")
    dsec.ok("import", "base/both", "dockerfile:context")
    dsec.ok("layer", "export", "base/both", "--out", work / "both.tar")
    import tarfile
    with tarfile.open(work / "both.tar") as tar:
        content = {entry.name.removeprefix("./"): tar.extractfile(entry).read() for entry in tar if entry.isfile()}
    assert (content["bin/arm"], content["bin/amd"], content["bin/tool"]) == (b"arm\n", b"amd\n", b"amd\n")
    hub.stop()
    (work / "context/Dockerfile").write_text((work / "context/Dockerfile").read_text() + "COPY a.txt /\n")
    dsec.ok("import", "base/again", "dockerfile:context")
    (work / "context/Dockerfile").write_text("FROM --platform=linux/arm64 tool:1\nRUN x\n")
    assert "Dockerfile:2: RUN: the stage is for linux/arm64" in dsec.fails(2, "import", "base/x", "dockerfile:context")


def test_what_an_image_says_of_builds_counts(dsec, hub, work):
    check = {"Test": ["CMD-SHELL", "true"], "Interval": 30_000_000_000, "Retries": 3}
    hub.push_image("hub/library/onbuild", "1", [{"etc/version": b"1\n"}], settings={
        "OnBuild": ["ARG NAME=a.txt", "COPY $NAME /triggered", "WORKDIR /app"], "Shell": ["/bin/bash", "-c"],
        "Healthcheck": check, "StopSignal": "SIGINT"})
    (work / "context/Dockerfile").write_text("FROM onbuild:1\nCMD run it\n")
    dsec.ok("import", "base/t", "dockerfile:context")
    base, made = (dsec.json("layer", "inspect", ref)[0]["manifest"]["config"] for ref in ("base/onbuild:1", "base/t"))
    assert base["onbuild"] == ["ARG NAME=a.txt", "COPY $NAME /triggered", "WORKDIR /app"]
    assert made["command"] == ["/bin/bash", "-c", "run it"] and made["workdir"] == "/app" and "onbuild" not in made
    assert made["healthcheck"] == {"test": ["CMD-SHELL", "true"], "interval": 30_000_000_000, "retries": 3}
    assert "triggered" in files(dsec, "base/t") and made["stop_signal"] == "SIGINT"
    (work / "context/a.txt").unlink()
    assert "Dockerfile:1: ONBUILD COPY" in dsec.fails(2, "import", "base/u", "dockerfile:context")


def test_what_cannot_be_had_is_told_with_its_line(dsec, hub, work):
    for text, words in (
        (f"FROM {hub.host}/none:1\n", "Dockerfile:1: FROM: cannot have"),
        (f"FROM scratch\nCOPY --from={hub.host}/none:1 /a /b\n", "Dockerfile:2: COPY: cannot have"),
        ("FROM python@sha256:12\n", "is no sha256 digest"),
        ("FROM base/none\n", "there is no layer base/none:latest"),
        ("FROM UPPER/Case\n", "Dockerfile:1: FROM: cannot have 'UPPER/Case'"),
    ):
        (work / "context/Dockerfile").write_text(text)
        result = dsec.run("import", "base/x", "dockerfile:context")
        assert result.code in (1, 2) and words in result.err, result.err
    assert "base/x" not in dsec.ok("layer", "ls")


def test_a_layer_on_a_base_that_was_not_checked_is_not_taken_for_checked(dsec, other, hub, work):
    dsec.ok("import", "base/python:3.11-slim", f"docker://{hub.host}/hub/library/python:3.11-slim")
    dsec.ok("publish", "base/python:3.11-slim", "--to", f"file://{work}/layers")
    other.ok("pull", "base/python:3.11-slim", "--from", f"file://{work}/layers")
    for tool, trusted in ((dsec, True), (other, False)):
        tool.ok("import", "base/t", "dockerfile:context")
        for ref in ("base/python:3.11-slim", "base/t"):
            assert tool.json("layer", "inspect", ref)[0]["checked"] is trusted
