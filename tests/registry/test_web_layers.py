"""Registries behind a web server, nginx: what was published to a directory, read over HTTP."""

import base64
import functools
import http.server
import json
import threading

import pytest
from fault_proxy import Fault, FaultProxy
from oci_registry import make_certificates, tar_of
from web_servers import Nginx

BIG = bytes(range(256)) * 8000


@pytest.fixture
def layer(dsec, work):
    (work / "x.tar").write_bytes(tar_of({"etc/name": b"x\n", "data": BIG}))
    dsec.ok("import", "base/library/x:1", f"tar:{work / 'x.tar'}")
    return dsec.json("layer", "inspect", "base/library/x:1")[0]


@pytest.fixture
def published(dsec, work, layer):
    dsec.ok("publish", "base/library/x:1", "--to", f"file://{work}/registry")
    return layer


@pytest.fixture
def nginx(work):
    (work / "registry").mkdir(exist_ok=True)
    server = Nginx(work / "nginx", work / "registry")
    yield server
    server.stop()


@pytest.fixture
def proxy(nginx):
    faults = FaultProxy(nginx.port)
    yield faults
    faults.stop()


def data_blob(layer):
    return next(blob for blob in layer["manifest"]["images"][0]["blobs"] if blob["role"] == "data")


def blob_path(digest):
    name = digest.removeprefix("sha256:")
    return f"blobs/sha256/{name[:2]}/{name}"


def test_over_tls_with_a_certificate_of_ones_own(dsec, other, published, work, nothing_left):
    certificates = work / "certificates"
    certificates.mkdir()
    make_certificates(certificates)
    server = Nginx(work / "secure", work / "registry", certificates)
    try:
        told = other.fails(1, "pull", "base/library/x:1", "--from", server.url)
        assert f"the certificate of {server.host} is not accepted" in told and "'ca: FILE'" in told
        (work / "config.yaml").write_text(f"hosts:\n  '{server.host}': {{ca: {certificates}/ca.crt}}\n")
        assert other.json("pull", "base/library/x:1", "--from", server.url)["bytes_copied"] == published["bytes"]
        again = other.json("layer", "inspect", "base/library/x:1")[0]
        assert again["digest"] == published["digest"] and again["manifest"] == published["manifest"]
        nothing_left(other)
    finally:
        server.stop()


def test_a_server_that_wants_a_password_gets_the_login_for_its_host(other, published, work):
    server = Nginx(work / "locked", work / "registry", login=("me", "pass:word"))
    try:
        told = other.fails(1, "pull", "base/library/x:1", "--from", server.url)
        assert "401" in told and f"a login for {server.host} in" in told
        for password, good in (("wr0ng:word", False), ("pass:word", True)):
            login = base64.b64encode(f"me:{password}".encode()).decode()
            (work / "auth.json").write_text(json.dumps({"auths": {server.host: {"auth": login}}}))
            done = other.run("pull", "base/library/x:1", "--from", server.url, env={"REGISTRY_AUTH_FILE": str(work / "auth.json")})
            assert (done.code == 0) == good, str(done)
            assert good or f"look at the login for {server.host} in {work}/auth.json" in done.err
            assert password not in done.err
    finally:
        server.stop()


def test_names_tags_prefixes_and_check(dsec, other, published, nginx, work):
    other.ok("registry", "add", "web", nginx.url + "/")
    listed = other.json("registry", "ls")
    assert listed["kind"] == "https" and listed["problem"] == ""
    dsec.ok("layer", "tag", "base/library/x:1", "base/library/x:2")
    dsec.ok("publish", "base/library/x:2", "--to", f"file://{work}/registry")
    tags = other.json("registry", "tags", "web")
    assert [(tag["ref"], tag["digest"], tag["bytes"]) for tag in tags] == [
        (f"base/library/x:{n}", published["digest"], published["bytes"]) for n in (1, 2)]
    assert "base/library/x:2" in other.fails(2, "pull", "base/library/x:3", "--from", "web")
    other.ok("pull", published["digest"].removeprefix("sha256:")[:12], "--from", "web")
    assert "catalogue is behind" in other.fails(2, "pull", "sha256:" + "0" * 12, "--from", "web")
    checked = other.json("registry", "check", "web")
    assert (checked["tags"], checked["layers"], checked["problems"]) == (2, 1, [])
    told = dsec.fails(2, "publish", "base/library/x:1", "--to", nginx.url)
    assert "it can be read, not published to" in told and "file:///PATH" in told
    told = other.fails(2, "registry", "add", "w2", nginx.url, "--in-place")
    assert "in place" in told


def test_without_a_catalogue_tags_are_pulled_and_lists_say_what_they_lack(dsec, other, published, nginx, work):
    (work / "registry/catalogue.json").unlink()
    assert "has no catalogue.json" in other.fails(1, "registry", "tags", nginx.url)
    other.ok("pull", "base/library/x:1", "--from", nginx.url)
    assert "catalogue: catalogue.json" in dsec.run("registry", "check", f"file://{work}/registry").out
    dsec.ok("registry", "check", "--repair", f"file://{work}/registry")
    assert other.json("registry", "tags", nginx.url, "base/library/x")["ref"] == "base/library/x:1"


def test_what_is_not_there_or_not_shown_is_told_apart(dsec, other, published, nginx, work):
    blob = work / "registry" / blob_path(data_blob(published)["digest"])
    blob.rename(work / "kept")
    told = other.fails(1, "pull", "base/library/x:1", "--from", nginx.url)
    assert "does not have blob" in told and "publish the layer again" in told
    (work / "kept").rename(blob)
    assert "there is no http://" in other.fails(2, "pull", "base/library/x:1", "--from", nginx.url + "/elsewhere")
    told = other.fails(2, "pull", "base/library/x:1", "--from", "http://registry.invalid/layers")
    assert "without encryption" in told and "plain_http: true" in told
    assert other.json("layer", "ls") == []


FAULTS = {
    "resets": lambda m, p, n: Fault(cut=300_000, reset=True) if "/blobs/" in p and n < 2 else None,
    "truncation": lambda m, p, n: Fault(cut=1000) if "/blobs/" in p and n == 0 else None,
    "server errors": lambda m, p, n: Fault(status=500) if n == 0 else None,
    "busy": lambda m, p, n: Fault(status=503, headers={"Retry-After": "1"}) if n == 0 and "/blobs/" in p else None,
    "slow": lambda m, p, n: Fault(delay=0.1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_layer_comes_whole_although_the_server_fails(other, proxy, nginx, published, nothing_left, name):
    proxy.faults = FAULTS[name]
    other.ok("pull", "base/library/x:1", "--from", f"http://{proxy.host}/layers")
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == published["digest"]
    nothing_left(other)
    if name == "resets":
        assert [status for _, uri, status, _ in nginx.asked() if "/blobs/" in uri].count("206") == 2


LIES = {
    "other bytes": (lambda p: Fault(alter=True), "the registry's copy is damaged"),
    "forbidden": (lambda p: Fault(status=403), "403 Forbidden"),
    "errors for ever": (lambda p: Fault(status=404), "does not have blob"),
    "another length": (lambda p: Fault(length=5), "5 bytes instead of"),
    "a page instead": (lambda p: Fault(status=200, body=b"<html>"), "6 bytes instead of"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_puts_nothing_into_the_store(other, proxy, published, nothing_left, name):
    fault, words = LIES[name]
    path = blob_path(data_blob(published)["digest"])
    proxy.faults = lambda m, p, n: fault(p) if path in p else None
    told = other.fails(1, "pull", "base/library/x:1", "--from", f"http://{proxy.host}/layers")
    assert words in told
    assert other.json("layer", "ls") == []
    nothing_left(other)
    proxy.faults = lambda *_: None
    other.ok("pull", "base/library/x:1", "--from", f"http://{proxy.host}/layers")


def test_a_blob_that_changes_while_it_is_read_is_not_mixed(other, proxy, nginx, published, work, nothing_left):
    blob = work / "registry" / blob_path(data_blob(published)["digest"])
    right = blob.read_bytes()

    def swap(method, path, count):
        if blob.name not in path:
            return None
        if count == 0:
            return Fault(cut=500_000)
        blob.chmod(0o644)
        blob.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
        return None

    proxy.faults = swap
    told = other.fails(1, "pull", "base/library/x:1", "--from", f"http://{proxy.host}/layers")
    assert "damaged" in told or "changed while it was read" in told
    nothing_left(other)
    proxy.faults = lambda *_: None
    blob.write_bytes(right)
    other.ok("pull", "base/library/x:1", "--from", f"http://{proxy.host}/layers")
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == published["digest"]


def test_a_server_that_sends_no_parts_is_told_before_anything_starts(other, published, work, nothing_left):
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=work / "registry"))
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    try:
        place = f"http://127.0.0.1:{plain.server_address[1]}"
        told = other.fails(1, "pull", "--on-demand", "base/library/x:1", "--from", place)
        assert "it knows no ranges" in told and "without --on-demand" in told
        assert other.run("layer", "inspect", "base/library/x:1").code != 0
        nothing_left(other)
        other.ok("pull", "base/library/x:1", "--from", place)
    finally:
        plain.shutdown()
        plain.server_close()
