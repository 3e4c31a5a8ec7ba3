"""Layers in OCI registries: publish, pull, run and registry with oci:// URLs."""

import base64
import json
import random
import re
import signal
import time

import pytest
from fault_proxy import Fault
from oci_registry import DockerRegistry, make_certificates, tar_of

BIG = random.Random(5).randbytes(2_000_000)


@pytest.fixture
def layer(dsec, work):
    (work / "x.tar").write_bytes(tar_of({"etc/name": b"x\n", "data": BIG}))
    dsec.ok("import", "base/library/x:1", f"tar:{work / 'x.tar'}")
    return dsec.json("layer", "inspect", "base/library/x:1")[0]


def url(server, path="team/layers"):
    return f"oci://{server.host}/{path}"


def test_a_layer_comes_out_of_a_registry_as_it_went_in(dsec, other, server, layer, nothing_left):
    first = dsec.json("publish", "base/library/x:1", "--to", url(server))
    assert first["bytes_copied"] == layer["bytes"]
    pulled = other.json("pull", "base/library/x:1", "--from", url(server))
    assert pulled["bytes_copied"] == layer["bytes"]
    again = other.json("layer", "inspect", "base/library/x:1")[0]
    assert again["digest"] == layer["digest"] and again["manifest"] == layer["manifest"]
    assert again["trusted"] is False if "trusted" in again else True
    assert other.json("pull", "base/library/x:1", "--from", url(server))["bytes_copied"] == 0
    nothing_left(other)
    assert server.uploads() == []


def test_a_large_layer_goes_in_chunks_and_comes_back_the_same(dsec, other, server, proxy, work, nothing_left):
    """To the real server, which is asked where a chunk that broke off goes on."""
    (work / "large.tar").write_bytes(tar_of({"data": random.Random(6).randbytes(70 << 20)}))
    dsec.ok("import", "base/large:1", f"tar:{work / 'large.tar'}")
    patched = lambda: proxy.times("PATCH", "/blobs/uploads/")
    dsec.ok("publish", "base/large:1", "--to", f"oci://{proxy.host}/team/layers")
    assert patched() >= 3
    assert server.uploads() == []
    other.ok("pull", "base/large:1", "--from", url(server))
    assert (other.json("layer", "inspect", "base/large:1")[0]["digest"] ==
            dsec.json("layer", "inspect", "base/large:1")[0]["digest"])
    nothing_left(other)
    # The answer to a chunk that has arrived is lost: it is not sent twice over.
    broken = []

    def faults(method, path, count):
        if method == "PATCH" and not broken and patched() == 2:
            broken.append(path)
            return Fault(cut=0, reset=True)
        return None

    proxy.forget()
    proxy.faults = faults
    dsec.ok("publish", "base/large:1", "--to", f"oci://{proxy.host}/team/again")
    assert broken and server.uploads() == []
    assert dsec.json("registry", "check", f"oci://{server.host}/team/again")["problems"] == []


def test_what_is_published_is_an_artifact_that_says_what_it_is(dsec, server, layer):
    dsec.ok("publish", "base/library/x:1", "--to", url(server))
    manifest = server.manifest("team/layers/base/library/x", "1")
    assert manifest["artifactType"] == "application/vnd.dsec.layer.v1"
    assert manifest["config"]["digest"] == layer["digest"]
    assert manifest["config"]["mediaType"] == "application/vnd.dsec.layer.config.v1+json"
    blobs = [blob for image in layer["manifest"]["images"] for blob in image["blobs"]]
    assert [(one["digest"], one["size"]) for one in manifest["layers"]] == [(b["digest"], b["size"]) for b in blobs]
    assert [one["mediaType"] for one in manifest["layers"]] == [f"application/vnd.dsec.layer.{b['role']}.v1" for b in blobs]
    assert manifest["annotations"]["org.opencontainers.image.title"] == "base/library/x"
    assert server.tags("team/layers") == ["layer-" + layer["digest"].removeprefix("sha256:")]
    assert server.manifest("team/layers", server.tags("team/layers")[0]) == manifest


def test_publishing_again_sends_nothing_and_a_moved_tag_moves(dsec, other, server, proxy, layer, work):
    place = f"oci://{proxy.host}/team/layers"
    dsec.ok("publish", "base/library/x:1", "--to", place)
    assert proxy.times("POST", "mount=") == 3
    before = len(proxy.asked)
    assert dsec.json("publish", "base/library/x:1", "--to", place)["bytes_copied"] == 0
    assert {asked.method for asked in proxy.asked[before:]} <= {"GET", "HEAD"}
    (work / "y.tar").write_bytes(tar_of({"etc/name": b"y\n"}))
    dsec.ok("import", "base/library/x:1", f"tar:{work / 'y.tar'}")
    dsec.ok("publish", "base/library/x:1", "--to", place)
    other.ok("pull", "base/library/x:1", "--from", place)
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] != layer["digest"]
    # The old one is still there by its digest, and by the beginning of it.
    other.ok("pull", layer["digest"], "--from", place)
    other.ok("pull", layer["digest"][:20], "--from", place)


def test_names_tags_and_near_names(dsec, other, server, layer):
    dsec.ok("registry", "add", "team", url(server))
    dsec.ok("publish", "base/library/x:1", "--to", "team")
    dsec.ok("layer", "tag", "base/library/x:1", "base/library/x:2")
    dsec.ok("publish", "base/library/x:2", "--to", "team")
    tags = dsec.json("registry", "tags", "team")
    assert [(tag["ref"], tag["digest"], tag["bytes"]) for tag in tags] == [
        (f"base/library/x:{n}", layer["digest"], layer["bytes"]) for n in (1, 2)]
    assert len(dsec.json("registry", "tags", "team", "base/library/x")) == 2
    assert dsec.ok("registry", "tags", "team", "base/none", "-o", "json") == ""
    listed = dsec.json("registry", "ls")
    assert listed["kind"] == "oci" and listed["problem"] == ""
    assert "base/library/x:2" in other.fails(2, "pull", "base/library/x:3", "--from", "team")
    checked = dsec.json("registry", "check", "team")
    assert (checked["tags"], checked["layers"], checked["problems"]) == (2, 1, [])
    for wrong in ("oci://", "oci://host", "oci://host/UPPER", "oci://host/a:1", "oci:///x"):
        assert "names no repository" in dsec.fails(2, "publish", "base/library/x:1", "--to", wrong)


def test_one_registry_holds_images_and_layers(dsec, other, server, layer):
    server.push_image("team/layers/base/image", "1", [{"file": b"1"}])
    dsec.ok("publish", "base/library/x:1", "--to", url(server))
    told = other.fails(2, "pull", "base/image:1", "--from", url(server))
    assert "is no layer of dsec" in told and "docker://" in told
    told = other.fails(1, "import", "base/y:1", f"docker://{server.host}/team/layers/base/library/x:1")
    assert "no-image" in told and "dsec pull" in told
    other.ok("import", "base/image:1", f"docker://{server.host}/team/layers/base/image:1")
    tags = dsec.json("registry", "tags", url(server))
    assert [bool(tag["digest"]) for tag in tags] == [False, True]
    assert re.search(r"base/image:1 +no layer", dsec.ok("registry", "tags", url(server)))


def test_blobs_of_another_registry_of_ours_on_the_host_are_mounted(dsec, server, layer):
    dsec.ok("registry", "add", "first", url(server, "first"))
    dsec.ok("registry", "add", "second", url(server, "second"))
    assert dsec.json("publish", "base/library/x:1", "--to", "first")["bytes_copied"] == layer["bytes"]
    assert dsec.json("publish", "base/library/x:1", "--to", "second")["bytes_copied"] == 0
    assert server.uploads() == []


def test_damage_is_told_apart(dsec, other, server, layer):
    dsec.ok("publish", "base/library/x:1", "--to", url(server))
    data = next(blob for blob in layer["manifest"]["images"][0]["blobs"] if blob["role"] == "data")
    file = server.blob_file(data["digest"])
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert "the registry's copy is damaged" in other.fails(1, "pull", "base/library/x:1", "--from", url(server))
    assert other.json("layer", "ls") == []
    assert "is damaged" in dsec.fails(1, "publish", "base/library/x:1", "--to", url(server), "--verify-existing")
    own = dsec.home / "store/blobs/sha256" / data["digest"][7:9] / data["digest"][7:]
    own.chmod(0o644)
    own.write_bytes(own.read_bytes()[:-1] + b"!")
    told = dsec.fails(1, "publish", "base/library/x:1", "--to", url(server, "elsewhere"))
    assert "the store's copy is damaged" in told
    assert server.tags("elsewhere/base/library/x") == []


FAULTS = {
    "pull resets": lambda m, p, n: Fault(cut=300_000, reset=True) if m == "GET" and "/blobs/" in p and n < 2 else None,
    "server errors": lambda m, p, n: Fault(status=502) if n == 0 else None,
    "rate limit": lambda m, p, n: Fault(status=429, headers={"Retry-After": "1"}) if n == 0 and m != "HEAD" else None,
    "slow": lambda m, p, n: Fault(delay=0.1),
    # What distribution answers while somebody else pushes a blob that the manifest names.
    "a blob that settles": lambda m, p, n: Fault(status=400, body=json.dumps({"errors": [
        {"code": "DIGEST_INVALID", "message": "provided digest did not match uploaded content"},
        {"code": "MANIFEST_BLOB_UNKNOWN", "message": "blob unknown to registry"}]}).encode())
    if m == "PUT" and "/manifests/" in p and n < 2 else None,
}


@pytest.mark.parametrize("name", FAULTS)
def test_layers_go_and_come_whole_although_the_registry_fails(dsec, other, proxy, layer, nothing_left, name):
    proxy.faults = FAULTS[name]
    place = f"oci://{proxy.host}/team/layers"
    dsec.ok("publish", "base/library/x:1", "--to", place)
    other.ok("pull", "base/library/x:1", "--from", place)
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == layer["digest"]
    nothing_left(other)


def test_who_is_refused_although_he_has_a_token_is_told_where_to_log_in(dsec, proxy, layer):
    proxy.token_seconds = 100
    proxy.faults = lambda m, p, n: Fault(status=403, body=b'{"errors":[{"code":"DENIED"}]}') if "/v2/team" in p else None
    told = dsec.fails(1, "publish", "base/library/x:1", "--to", f"oci://{proxy.host}/team/layers")
    assert "DENIED" in told and f"docker login {proxy.host}" in told


def test_tokens_for_pushing_and_mounting(dsec, other, proxy, layer, work):
    proxy.token_seconds, proxy.login = 2, ("me", "pw")
    login = {"auths": {proxy.host: {"auth": base64.b64encode(b"me:pw").decode()}}}
    (work / "auth.json").write_text(json.dumps(login))
    env = {"REGISTRY_AUTH_FILE": str(work / "auth.json")}
    place = f"oci://{proxy.host}/team/layers"
    assert "docker login" in dsec.fails(1, "publish", "base/library/x:1", "--to", place)
    dsec.ok("publish", "base/library/x:1", "--to", place, env=env)
    scopes = [scope for asked in proxy.token_requests for scope in [asked["query"].get("scope", [])]]
    assert ["repository:team/layers/base/library/x:pull,push", "repository:team/layers:pull"] in scopes
    other.ok("pull", "base/library/x:1", "--from", place, env=env)


def test_tls_and_a_password(dsec, other, layer, work):
    certificates = work / "certificates"
    certificates.mkdir()
    make_certificates(certificates)
    registry = DockerRegistry(work / "secure", ("me", "secret"), certificates)
    try:
        (work / "config.yaml").write_text(f"hosts:\n  '{registry.host}': {{ca: {certificates}/ca.crt}}\n")
        login = {"auths": {registry.host: {"auth": base64.b64encode(b"me:secret").decode()}}}
        (work / "auth.json").write_text(json.dumps(login))
        env = {"REGISTRY_AUTH_FILE": str(work / "auth.json")}
        dsec.ok("publish", "base/library/x:1", "--to", url(registry), env=env)
        other.ok("pull", "base/library/x:1", "--from", url(registry), env=env)
        assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == layer["digest"]
    finally:
        registry.stop()


def test_killed_publishers_and_publishers_at_once_leave_whole_layers(dsec, other, server, proxy, layer):
    place = f"oci://{proxy.host}/team/layers"
    proxy.faults = lambda m, p, n: Fault(delay=0.05)
    rng = random.Random(3)
    for _ in range(3):
        publishers = [dsec.popen("publish", "base/library/x:1", "--to", place) for _ in range(2)]
        time.sleep(rng.uniform(0, 0.5))
        publishers[0].send_signal(signal.SIGKILL)
        publishers[0].communicate()
        out, err = publishers[1].communicate(timeout=120)
        assert publishers[1].returncode == 0, err
    other.ok("pull", "base/library/x:1", "--from", place)
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == layer["digest"]


def test_a_registry_that_is_away_does_not_keep_a_layer_from_coming_from_another(dsec, other, server, layer):
    dsec.ok("publish", "base/library/x:1", "--to", url(server))
    other.ok("registry", "add", "a-away", "oci://localhost:1/x")
    other.ok("registry", "add", "b-here", url(server))
    listed = other.json("registry", "ls")
    assert "ECONNREFUSED" in listed[0]["problem"] and listed[1]["problem"] == ""
