"""dsec registry index: an image with plain layers as a layer in its own repository, without a copy of its contents."""

import base64
import json
import subprocess
import time

import pytest
from fault_proxy import Fault
from image_layers import BIG, Tar, everything, noise
from oci_registry import INDEX, MANIFEST, DockerRegistry, make_certificates, sha256

ARTIFACT = "application/vnd.dsec.index.v1"


def url(server, path="team/tool"):
    return f"oci://{server.host}/{path}"


def index(dsec, server, path="team/tool", tag="1", name="base/x:1"):
    return dsec.json("registry", "index", name, f"docker://{server.host}/{path}:{tag}")


def inspect(dsec, name="base/x:1"):
    return dsec.json("layer", "inspect", name)[0]


def data_of(layer) -> list[dict]:
    return [blob for image in layer["manifest"]["images"] for blob in image["blobs"] if blob["role"] == "data"]


@pytest.fixture
def image(server):
    """The descriptor of its manifest."""
    return server.push_image("team/tool", "1", everything(), plain=True)


def test_an_indexed_image_is_the_layer_that_importing_it_makes(dsec, other, server, image, nothing_left):
    done = index(dsec, server)
    other.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    imported = inspect(other)
    data = data_of(imported)
    assert done["digest"] == imported["digest"] and done["registry"] == url(server) and done["image"] == image["digest"]
    assert done["bytes"] == imported["bytes"] and done["bytes_in_image"] == data[0]["size"]
    assert done["bytes_copied"] == imported["bytes"] - data[0]["size"]
    assert not server.blob_file(data[0]["digest"]).exists()
    # Nothing of it is in the store of who made it.
    assert dsec.ok("layer", "ls", "-o", "json") == ""
    assert [path for path in (dsec.home / "store/blobs").rglob("*") if path.is_file()] == []
    assert [path for path in (dsec.home / "cache").rglob("*") if path.is_file()] == []
    # Pulled whole it is verified and the same, though what it consists of are layers of an image.
    dsec.ok("pull", "base/x:1", "--from", url(server))
    assert inspect(dsec)["manifest"] == imported["manifest"]
    nothing_left(dsec)
    assert server.uploads() == []


def test_what_is_published_is_an_artifact_whose_subject_is_the_image(dsec, other, server, image):
    done = index(dsec, server)
    other.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    layer = inspect(other)
    data = data_of(layer)[0]
    assert sorted(server.tags("team/tool")) == sorted(
        ["1", "layer-" + done["digest"].removeprefix("sha256:"), "index-" + data["digest"].removeprefix("sha256:"),
         "sha256-" + image["digest"].removeprefix("sha256:")])
    # Where the registry itself does not tell what refers to the image, its list does.
    status, headers, listed = server.ask("GET", "/v2/team/tool/manifests/sha256-" + image["digest"].removeprefix("sha256:"),
                                         headers={"Accept": INDEX})
    assert (status, headers["Content-Type"]) == (200, INDEX)
    artifact = server.ask("GET", "/v2/team/tool/manifests/index-" + data["digest"].removeprefix("sha256:"),
                          headers={"Accept": MANIFEST})[2]
    assert json.loads(listed)["manifests"] == [
        {"mediaType": MANIFEST, "digest": sha256(artifact), "size": len(artifact), "artifactType": ARTIFACT}]
    made = server.manifest("team/tool", "index-" + data["digest"].removeprefix("sha256:"))
    assert made["artifactType"] == ARTIFACT and made["layers"][0]["mediaType"] == ARTIFACT
    assert made["subject"] == {"mediaType": MANIFEST, "digest": image["digest"], "size": image["size"]}
    layers = server.manifest("team/tool", "1")["layers"]
    # The last layer has contents, too; all that the index leads to is named, so that the registry keeps it.
    assert made["layers"][1:] == layers
    artifact = server.manifest("team/tool/base/x", "1")
    assert artifact == server.manifest("team/tool", "layer-" + done["digest"].removeprefix("sha256:"))
    assert artifact["artifactType"] == "application/vnd.dsec.layer.v1"
    assert [one["mediaType"].split(".")[-2] for one in artifact["layers"]] == ["meta", "chunks"]
    assert made["layers"][0]["size"] < 2000


def test_indexing_again_publishes_nothing_new_and_a_moved_image_moves(dsec, other, server, image):
    first = index(dsec, server)
    again = index(dsec, server)
    assert again["digest"] == first["digest"] and again["bytes_copied"] == 0
    server.push_image("team/tool", "1", [*everything(), Tar().add("one-more", noise(9999, 6)).bytes()], plain=True)
    moved = index(dsec, server)
    assert moved["digest"] != first["digest"]
    other.ok("pull", "base/x:1", "--from", url(server))
    assert inspect(other)["digest"] == moved["digest"]
    other.ok("pull", first["digest"], "--from", url(server))
    checked = dsec.json("registry", "check", url(server))
    assert (checked["layers"], checked["problems"]) == (2, [])
    assert [tag["ref"] for tag in [dsec.json("registry", "tags", url(server))]] == ["base/x:1"]


def test_images_of_other_tools_are_indexed_when_their_layers_are_plain(dsec, other, server, work):
    def run(*args):
        return subprocess.run(list(map(str, args)), check=True, capture_output=True, text=True, cwd=work).stdout.strip()

    (work / "file").write_bytes(BIG)
    buildah = ["buildah", "--root", work / "containers", "--runroot", work / "containers-run", "--storage-driver", "vfs"]
    made = run(*buildah, "from", "scratch")
    run(*buildah, "copy", made, "file", "/opt/file")
    run(*buildah, "commit", made, "made")
    run(*buildah, "push", "--tls-verify=false", "made", f"docker://{server.host}/buildah:1")
    run("umoci", "init", "--layout", "umoci")
    run("umoci", "new", "--image", "umoci:1")
    run("umoci", "unpack", "--rootless", "--image", "umoci:1", "bundle")
    (work / "bundle/rootfs/file").write_bytes(BIG)
    run("umoci", "repack", "--image", "umoci:1", "bundle")
    run("skopeo", "copy", "--dest-tls-verify=false", "oci:umoci:1", f"docker://{server.host}/umoci:1")
    for name in ("buildah", "umoci"):
        place = f"docker://{server.host}/{name}"
        layer = server.manifest(name, "1")["layers"][0]["digest"]
        # The two commands that the message gives, as the man page has them, too.
        told = dsec.fails(1, "registry", "index", f"base/{name}:1", f"{place}:1")
        assert layer[7:19] in told and "is compressed" in told and "skopeo copy --dest-decompress" in told
        run("skopeo", "copy", "--src-tls-verify=false", "--dest-decompress", f"{place}:1", f"dir:{name}-plain")
        run("skopeo", "copy", "--dest-tls-verify=false", "--preserve-digests", f"dir:{name}-plain", f"{place}:plain")
        done = dsec.json("registry", "index", f"base/{name}:1", f"{place}:plain")
        other.ok("pull", f"base/{name}:1", "--from", f"oci://{server.host}/{name}")
        dsec.ok("import", f"base/{name}:1", f"{place}:1")
        assert inspect(other, f"base/{name}:1")["digest"] == inspect(dsec, f"base/{name}:1")["digest"] == done["digest"]
    other.ok("layer", "verify")


def test_the_platform_is_chosen_from_an_index(dsec, other, server):
    arm = server.push_image("multi", "", [{"arm": b"1"}], "arm64", plain=True)
    amd = server.push_image("multi", "", [{"amd": b"1"}], "amd64", plain=True)
    server.push_manifest("multi", "1", {
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [{**arm, "platform": {"os": "linux", "architecture": "arm64"}},
                      {**amd, "platform": {"os": "linux", "architecture": "amd64"}}]})
    done = dsec.json("registry", "index", "base/a:1", f"docker://{server.host}/multi:1", "--platform", "linux/arm64")
    assert done["image"] == arm["digest"]
    other.ok("pull", "base/a:1", "--from", url(server, "multi"))
    assert "arm" in other.ok("layer", "files", "base/a:1")


@pytest.mark.parametrize("kind", ["file", "s3", "oci"])
def test_an_indexed_layer_goes_to_other_registries_whole(dsec, other, server, image, places, kind):
    done = index(dsec, server)
    there = places.url(kind, "there")
    dsec.ok("registry", "sync", "--from", url(server), "--to", there, env=places.env)
    other.ok("pull", "base/x:1", "--from", there, env=places.env)
    assert inspect(other)["digest"] == done["digest"]
    # And from the store, published to yet another one.
    again = places.url(kind, "again")
    assert other.json("publish", "base/x:1", "--to", again, env=places.env)["bytes_copied"] == inspect(other)["bytes"]
    # In the registry of the image nothing is missing.
    assert other.json("publish", "base/x:1", "--to", url(server))["bytes_copied"] == 0


def test_the_contents_outlive_the_image(dsec, other, server, image):
    done = index(dsec, server)
    status, _, _ = server.ask("DELETE", f"/v2/team/tool/manifests/{image['digest']}")
    assert status == 202
    subprocess.run(["docker-registry", "garbage-collect", "--delete-untagged", str(server.folder / "config.yml")], check=True,
                   capture_output=True)
    assert dsec.json("registry", "check", url(server))["problems"] == []
    other.ok("pull", "base/x:1", "--from", url(server))
    assert inspect(other)["digest"] == done["digest"]


def test_a_layer_of_the_image_that_is_gone_is_named_and_publishing_brings_the_contents(dsec, other, server, image):
    done = index(dsec, server)
    other.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    lost = server.manifest("team/tool", "1")["layers"][1]["digest"]
    status, _, _ = server.ask("DELETE", f"/v2/team/tool/blobs/{lost}")
    assert status == 202
    told = dsec.fails(1, "pull", "base/x:1", "--from", url(server))
    assert lost in told and "does not have" in told
    assert dsec.ok("layer", "ls", "-o", "json") == ""
    data = data_of(inspect(other))[0]
    found = json.loads(dsec.run("registry", "check", url(server), "-o", "json").out)
    assert any(data["digest"][7:19] in json.dumps(problem) for problem in found["problems"]), found
    # The publisher sees that the data is not there any longer.
    assert other.json("publish", "base/x:1", "--to", url(server))["bytes_copied"] == data["size"]
    dsec.ok("pull", "base/x:1", "--from", url(server))
    assert inspect(dsec)["digest"] == done["digest"]
    assert dsec.json("registry", "check", url(server))["problems"] == []


def test_a_layer_of_the_image_that_became_another_is_damage(dsec, other, server, image):
    index(dsec, server)
    file = server.blob_file(server.manifest("team/tool", "1")["layers"][0]["digest"])
    content = bytearray(file.read_bytes())
    content[content.index(BIG[:64]) + 20] ^= 1
    file.write_bytes(content)
    assert "is damaged: its bytes have" in other.fails(1, "pull", "base/x:1", "--from", url(server))
    found = json.loads(dsec.run("registry", "check", url(server), "-o", "json").out)
    assert len(found["problems"]) == 1 and dsec.run("registry", "check", url(server)).code == 3
    # Of another size it is no part at all.
    file.write_bytes(content + b"more")
    told = other.fails(1, "pull", "base/x:1", "--from", url(server))
    assert "bytes instead of" in told and "team/tool" in told
    assert other.ok("layer", "ls", "-o", "json") == ""


def with_index(server, data: dict, content: bytes, type_: str = ARTIFACT):
    """Puts something else in the place of the index."""
    tag = "index-" + data["digest"].removeprefix("sha256:")
    manifest = server.manifest("team/tool", tag)
    manifest["layers"][0] = {"mediaType": type_, **server.push_blob("team/tool", content)}
    server.push_manifest("team/tool", tag, manifest)


def test_a_hostile_index_is_an_error_and_never_other_bytes(dsec, other, server, image):
    index(dsec, server)
    other.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    data = data_of(inspect(other))[0]
    tag = "index-" + data["digest"].removeprefix("sha256:")
    digest = server.manifest("team/tool", tag)["layers"][0]["digest"]
    status, _, right = server.ask("GET", f"/v2/team/tool/blobs/{digest}")
    assert status == 200 and right[:8] == b"dsecidx1"

    def varint(number):
        out = b""
        while number >= 0x80:
            out += bytes([number & 0x7f | 0x80])
            number >>= 7
        return out + bytes([number])

    head = lambda runs: right[:56] + runs.to_bytes(8, "little") + right[64:64 + 40 * int.from_bytes(right[12:16], "little")]
    size = server.manifest("team/tool", "1")["layers"][0]["size"]
    other_size = right[:16] + (data["size"] + 4096).to_bytes(8, "little") + right[24:]
    cases = {
        "beyond its part": head(1) + varint(0) + varint(2) + varint(0) + varint((size - 1) * 2),
        "beyond the data": head(1) + varint(data["size"]) + varint(1) + varint(0) + varint(0),
        "not listed": head(1) + varint(0) + varint(1) + varint(9) + varint(0),
        "ends within": right[:-1],
        "another type": b"{}" + right,
        "is one of blob": right[:24] + bytes(32) + right[56:],
        str(data["size"] + 4096): other_size,
        # In form all is right, and the bytes are others: nothing, or those of the wrong place.
        "is damaged: its bytes have": head(0),
        "is damaged: its bytes": head(1) + varint(0) + varint(1000) + varint(0) + varint(0),
    }
    for said, content in cases.items():
        with_index(server, data, content)
        told = dsec.run("pull", "base/x:1", "--from", url(server))
        assert told.code == 1 and said in told.err, (said, str(told))
        assert dsec.ok("layer", "ls", "-o", "json") == "" and "problem" in dsec.run("registry", "check", url(server), "-o", "json").out
    with_index(server, data, right, "application/octet-stream")
    assert "does not have blob" in dsec.fails(1, "pull", "base/x:1", "--from", url(server))
    # Indexing again puts the right one there.
    index(dsec, server)
    dsec.ok("pull", "base/x:1", "--from", url(server))
    assert inspect(dsec)["digest"] == inspect(other)["digest"]


def test_gc_takes_an_index_with_the_last_layer_that_needs_it(dsec, other, server, image):
    first = index(dsec, server)
    second = index(dsec, server, name="base/y:1")
    assert first["digest"] != second["digest"]
    indexes = lambda: [tag for tag in server.tags("team/tool") if tag.startswith("index-")]
    assert len(indexes()) == 1

    def untag(name):
        digest = sha256(server.ask("GET", f"/v2/team/tool/{name}/manifests/1", headers={"Accept": MANIFEST})[2])
        assert server.ask("DELETE", f"/v2/team/tool/{name}/manifests/{digest}")[0] == 202

    def collect():
        dsec.ok("registry", "gc", url(server), "--grace", "0")
        return dsec.json("registry", "gc", url(server), "--grace", "0")

    untag("base/x")
    assert collect()["layers"] == 1
    assert len(indexes()) == 1
    other.ok("pull", "base/y:1", "--from", url(server))
    untag("base/y")
    assert collect()["layers"] == 0
    assert indexes() == [] and server.tags("team/tool") == ["1"]
    # The image is nobody's business here.
    other.ok("import", "base/z:1", f"docker://{server.host}/team/tool:1")
    assert index(dsec, server)["digest"] == first["digest"]
    dsec.ok("pull", "base/x:1", "--from", url(server))


def test_a_layer_that_is_there_whole_stays_so(dsec, other, server, image):
    dsec.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    dsec.ok("publish", "base/x:1", "--to", url(server))
    before = server.manifest("team/tool/base/x", "1")
    done = index(other, server)
    assert done["bytes_copied"] == done["bytes_in_image"] == 0
    assert server.manifest("team/tool/base/x", "1") == before
    assert not [tag for tag in server.tags("team/tool") if tag.startswith("index-")]


def test_passing_troubles_of_the_registry_are_nothing_that_a_pull_sees(dsec, other, server, proxy, image):
    index(dsec, server)
    layers = {layer["digest"] for layer in server.manifest("team/tool", "1")["layers"]}

    def faults(method, path, count):
        if method == "GET" and path.split("/")[-1] in layers:
            return [Fault(cut=70_000, reset=True), Fault(status=503, headers={"Retry-After": "0"}), Fault(cut=5), None][count % 4]
        return None

    proxy.faults = faults
    other.ok("pull", "base/x:1", "--from", f"oci://{proxy.host}/team/tool")
    other.ok("layer", "verify")


def test_what_cannot_be_indexed_is_refused_with_a_reason(dsec, server, image, work, nothing_left):
    server.push_image("team/packed", "1", everything())
    layer = server.manifest("team/packed", "1")["layers"][0]["digest"]
    told = dsec.fails(1, "registry", "index", "base/x:1", f"docker://{server.host}/team/packed:1")
    assert f"layer 1 of 3 ({layer[7:19]}) is compressed" in told
    assert server.tags("team/packed") == ["1"]
    assert "is no image of a registry" in dsec.fails(2, "registry", "index", "base/x:1", "oci-archive:x.tar")
    assert "is no name for a new layer" in dsec.fails(2, "registry", "index", "sha256:1234567890", f"docker://{server.host}/team/tool:1")
    dsec.fails(1, "registry", "index", "base/x:1", f"docker://{server.host}/team/tool:none")
    nothing_left(dsec)
    assert [path for path in (dsec.home / "cache").rglob("*") if path.is_file()] == []


def test_what_a_killed_index_leaves_goes_with_gc(dsec, server, proxy, image):
    layers = {layer["digest"] for layer in server.manifest("team/tool", "1")["layers"]}
    proxy.faults = lambda method, path, count: Fault(delay=60) if path.split("/")[-1] in layers else None
    at_work = dsec.popen("registry", "index", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    left = lambda: [path for path in (dsec.home / "cache").glob(".tmp-*")]
    end = time.monotonic() + 60
    while not left() or not proxy.times("GET", "/blobs/sha256:"):
        assert time.monotonic() < end and at_work.poll() is None
        time.sleep(0.05)
    at_work.kill()
    at_work.communicate()
    proxy.faults = lambda method, path, count: None
    assert left()
    dsec.ok("gc")
    assert not left() and server.tags("team/tool") == ["1"]
    assert dsec.json("registry", "index", "base/x:1", f"docker://{proxy.host}/team/tool:1")["bytes_in_image"] > 0


def test_an_index_that_a_killed_command_left_goes_with_gc_of_the_registry(dsec, server, proxy, image):
    # All is there but the layer that needs it.
    proxy.faults = lambda method, path, count: Fault(delay=60) if "/manifests/layer-" in path else None
    at_work = dsec.popen("registry", "index", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    end = time.monotonic() + 60
    while not proxy.times("HEAD", "/manifests/layer-") and not proxy.times("PUT", "/manifests/layer-"):
        assert time.monotonic() < end and at_work.poll() is None
        time.sleep(0.05)
    at_work.kill()
    at_work.communicate()
    left = [tag for tag in server.tags("team/tool") if tag != "1"]
    assert any(tag.startswith("index-") for tag in left) and not any(tag.startswith("layer-") for tag in left)
    told = dsec.json("registry", "gc", url(server))
    assert [item["kind"] for item in told["waiting"]] == ["index"] and told["removed"] == []
    # Who is at it again in time keeps it.
    index(dsec, server)
    assert dsec.json("registry", "gc", url(server), "--grace", "0")["removed"] == []
    layer = next(tag for tag in server.tags("team/tool") if tag.startswith("layer-"))
    for path, tag in (("team/tool/base/x", "1"), ("team/tool", layer)):
        digest = sha256(server.ask("GET", f"/v2/{path}/manifests/{tag}", headers={"Accept": MANIFEST})[2])
        assert server.ask("DELETE", f"/v2/{path}/manifests/{digest}")[0] == 202
    told = dsec.json("registry", "gc", url(server), "--grace", "0")
    assert [item["kind"] for item in told["removed"]] == ["index"] and told["bytes"] == 0
    assert server.tags("team/tool") == ["1"]
    assert index(dsec, server)["bytes_in_image"] > 0


def test_an_image_behind_tls_and_a_login_is_indexed_and_pulled_with_it(dsec, other, work):
    make_certificates(work)
    registry = DockerRegistry(work / "private", ("me", "secret"), work)
    try:
        registry.push_image("team/tool", "1", everything(), plain=True)
        (work / "config.yaml").write_text(f"hosts: {{'{registry.host}': {{ca: {work / 'ca.crt'}}}}}\n")
        image, place = f"docker://{registry.host}/team/tool:1", url(registry)
        assert "docker login" in dsec.fails(1, "registry", "index", "base/x:1", image)
        login = {"auths": {registry.host: {"auth": base64.b64encode(b"me:secret").decode()}}}
        (work / "auth.json").write_text(json.dumps(login))
        env = {"REGISTRY_AUTH_FILE": str(work / "auth.json")}
        done = dsec.json("registry", "index", "base/x:1", image, env=env)
        other.ok("pull", "base/x:1", "--from", place, env=env)
        assert inspect(other)["digest"] == done["digest"]
    finally:
        registry.stop()
