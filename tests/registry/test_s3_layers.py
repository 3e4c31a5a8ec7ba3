"""Layers in buckets: an S3 server behind a proxy that checks every signature."""

import random
import signal
import time

import pytest
from fault_proxy import Fault
from oci_registry import tar_of
from web_servers import S3Proxy, S3Server, refusal

SECRET = "top/secret+key/="
BIG = random.Random(7).randbytes(2_000_000)


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3"), "layers")
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server):
    proxy = S3Proxy(s3_server, SECRET)
    yield proxy
    proxy.stop()


@pytest.fixture
def place(work):
    """A prefix of the test's own."""
    return f"s3://layers/{work.name}/team"


def keys(s3, secret=SECRET):
    return {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ACCESS_KEY_ID": s3.key_id, "AWS_SECRET_ACCESS_KEY": secret}


@pytest.fixture
def layer(dsec, work):
    (work / "x.tar").write_bytes(tar_of({"etc/name": b"x\n", "data": BIG}))
    dsec.ok("import", "base/library/x:1", f"tar:{work / 'x.tar'}")
    return dsec.json("layer", "inspect", "base/library/x:1")[0]


def test_a_layer_comes_out_of_a_bucket_as_it_went_in(dsec, other, s3, layer, place, nothing_left):
    env = keys(s3)
    assert dsec.json("publish", "base/library/x:1", "--to", place, env=env)["bytes_copied"] == layer["bytes"]
    written = [asked.path for asked in s3.asked if asked.method == "PUT"]
    assert [path.split("/team/")[1].split("/")[0] for path in written] == [
        "dsec-registry.json", "leases", "blobs", "blobs", "blobs", "manifests", "tags"]
    assert "/tags/base/library%2Bx/1" in written[-1]
    assert other.json("pull", "base/library/x:1", "--from", place, env=env)["bytes_copied"] == layer["bytes"]
    again = other.json("layer", "inspect", "base/library/x:1")[0]
    assert again["digest"] == layer["digest"] and again["manifest"] == layer["manifest"]
    nothing_left(other)
    s3.forget()
    assert dsec.json("publish", "base/library/x:1", "--to", place, env=env)["bytes_copied"] == 0
    assert {asked.method for asked in s3.asked if "/leases/" not in asked.path} <= {"GET", "HEAD"}
    assert [asked.method for asked in s3.asked if "/leases/" in asked.path] == ["PUT", "GET", "DELETE"]


def test_names_tags_prefixes_check_and_settings(dsec, other, s3, layer, place, work):
    (work / ".aws").mkdir()
    (work / ".aws/credentials").write_text(f"[team]\naws_access_key_id = {s3.key_id}\naws_secret_access_key = {SECRET}\n")
    env = {"AWS_PROFILE": "team"}
    dsec.ok("registry", "add", "cloud", place, "--endpoint", s3.endpoint, "--region", "eu-west-1", "--path-style")
    dsec.ok("publish", "base/library/x:1", "--to", "cloud", env=env)
    assert "eu-west-1/s3/aws4_request" in s3.asked[-1].headers["Authorization"]
    dsec.ok("layer", "tag", "base/library/x:1", "base/library/x:2")
    dsec.ok("publish", "base/library/x:2", "--to", "cloud", env=env)
    listed = dsec.json("registry", "ls", env=env)
    assert listed["kind"] == "s3" and listed["problem"] == ""
    tags = dsec.json("registry", "tags", "cloud", env=env)
    assert [(tag["ref"], tag["digest"], tag["bytes"]) for tag in tags] == [
        (f"base/library/x:{n}", layer["digest"], layer["bytes"]) for n in (1, 2)]
    assert "base/library/x:2" in other.fails(2, "pull", "base/library/x:3", "--from", "cloud", env=env)
    other.ok("pull", layer["digest"].removeprefix("sha256:")[:12], "--from", "cloud", env=env)
    checked = dsec.json("registry", "check", "cloud", env=env)
    assert (checked["tags"], checked["layers"], checked["problems"]) == (2, 1, [])
    assert "cannot be repaired from here" in dsec.fails(2, "registry", "check", "--repair", "cloud", env=env)
    # The settings were written so that they are read again, and go when the name goes.
    assert "path_style: true" in (work / "config.yaml").read_text()
    dsec.ok("registry", "rm", "cloud")
    assert "only s3: registries have" in dsec.fails(2, "registry", "add", "x", "file:///x", "--region", "r")


def test_a_bucket_that_is_named_in_the_host(dsec, other, s3, layer, place, work):
    settings = f"{{url: '{place}', endpoint: 'http://s3.{s3.host}', path_style: false}}"
    (work / "config.yaml").write_text(f"registries: {{cloud: {settings}}}\n")
    dsec.ok("publish", "base/library/x:1", "--to", "cloud", env=keys(s3))
    assert {asked.headers["Host"] for asked in s3.asked} == {f"layers.s3.{s3.host}"}
    other.ok("pull", "base/library/x:1", "--from", "cloud", env=keys(s3))
    assert other.json("registry", "tags", "cloud", env=keys(s3))["digest"] == layer["digest"]


def test_a_large_blob_goes_in_parts_and_comes_back(dsec, other, s3, place, work):
    data = random.Random(9).randbytes(70 << 20)
    (work / "big.tar").write_bytes(tar_of({"data": data}))
    dsec.ok("import", "base/big:1", f"tar:{work / 'big.tar'}")
    layer = dsec.json("layer", "inspect", "base/big:1")[0]
    parts = []
    s3.faults = lambda m, p, n: parts.append(p) or Fault(status=500) if "partNumber=2" in p and n == 0 else None
    dsec.ok("publish", "base/big:1", "--to", place, env=keys(s3))
    assert s3.times("PUT", "partNumber=") == 3 and len(parts) == 1
    other.ok("pull", "base/big:1", "--from", place, env=keys(s3))
    assert other.json("layer", "inspect", "base/big:1")[0]["digest"] == layer["digest"]


def test_wrong_keys_buckets_and_refusals_say_what_to_try_and_no_key(dsec, s3, layer, place, work):
    told = dsec.fails(1, "publish", "base/library/x:1", "--to", place, env=keys(s3, "not-the/secret"))
    assert "SignatureDoesNotMatch" in told and "AWS_ACCESS_KEY_ID of the environment" in told
    assert "not-the/secret" not in told
    told = dsec.fails(1, "publish", "base/library/x:1", "--to", place, env={"AWS_ENDPOINT_URL": s3.endpoint})
    assert "AccessDenied" in told and "no keys were found" in told
    told = dsec.fails(2, "publish", "base/library/x:1", "--to", "s3://no-such-bucket/x", env=keys(s3))
    assert "NoSuchBucket" in told and "make the bucket" in told
    s3.faults = lambda m, p, n: refusal(403, "AccessDenied") if m == "PUT" and "/blobs/" in p else None
    told = dsec.fails(1, "publish", "base/library/x:1", "--to", place, env=keys(s3))
    assert "AccessDenied" in told and "bucket's policy" in told
    s3.faults = lambda m, p, n: refusal(403, "RequestTimeTooSkewed")
    assert "set the clock" in dsec.fails(1, "publish", "base/library/x:1", "--to", place, env=keys(s3))
    for file in work.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_keys_of_a_session(dsec, s3, layer, place):
    s3.token = "a/session+token=="
    assert "InvalidToken" in dsec.fails(1, "publish", "base/library/x:1", "--to", place, env=keys(s3))
    dsec.ok("publish", "base/library/x:1", "--to", place, env={**keys(s3), "AWS_SESSION_TOKEN": s3.token})


FAULTS = {
    "resets": lambda m, p, n: Fault(cut=300_000, reset=True) if m == "GET" and "/blobs/" in p and n < 2 else None,
    "server errors": lambda m, p, n: refusal(500, "InternalError") if n == 0 and "/blobs/" in p and m != "HEAD" else None,
    "busy": lambda m, p, n: refusal(503, "SlowDown") if n == 0 and ("/tags/" in p or "/manifests/" in p) else None,
    "slow": lambda m, p, n: Fault(delay=0.1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_layers_go_and_come_whole_although_the_server_fails(dsec, other, s3, layer, place, nothing_left, name):
    s3.faults = FAULTS[name]
    dsec.ok("publish", "base/library/x:1", "--to", place, env=keys(s3))
    other.ok("pull", "base/library/x:1", "--from", place, env=keys(s3))
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == layer["digest"]
    nothing_left(other)


def test_nothing_is_written_twice_where_the_server_sees_to_it(dsec, s3, layer, place):
    def conditional(asked):
        return asked.headers.get("If-None-Match") == "*"

    dsec.ok("publish", "base/library/x:1", "--to", place, env=keys(s3))
    put = [asked for asked in s3.asked if asked.method == "PUT" and "/leases/" not in asked.path]
    assert [conditional(asked) for asked in put] == [True] * 5 + [False]
    # Elsewhere it goes without.
    s3.faults = lambda m, p, n: refusal(501, "NotImplemented") if conditional(s3.asked[-1]) else None
    dsec.ok("publish", "base/library/x:1", "--to", place + "/2", env=keys(s3))


@pytest.mark.parametrize("fault,words", [(Fault(alter=True), "the registry's copy is damaged"),
                                         (Fault(length=5), "5 bytes instead of")])
def test_a_server_that_lies_puts_nothing_into_the_store(dsec, other, s3, layer, place, nothing_left, fault, words):
    dsec.ok("publish", "base/library/x:1", "--to", place, env=keys(s3))
    s3.faults = lambda m, p, n: fault if m == "GET" and "/blobs/" in p else None
    assert words in other.fails(1, "pull", "base/library/x:1", "--from", place, env=keys(s3))
    assert other.json("layer", "ls") == []
    nothing_left(other)


def test_killed_publishers_and_publishers_at_once_leave_whole_layers(dsec, other, s3, layer, place):
    s3.faults = lambda m, p, n: Fault(delay=0.05)
    rng = random.Random(3)
    for _ in range(3):
        publishers = [dsec.popen("publish", "base/library/x:1", "--to", place, env=keys(s3)) for _ in range(2)]
        time.sleep(rng.uniform(0, 0.5))
        publishers[0].send_signal(signal.SIGKILL)
        publishers[0].communicate()
        _, err = publishers[1].communicate(timeout=120)
        assert publishers[1].returncode == 0, err
    other.ok("pull", "base/library/x:1", "--from", place, env=keys(s3))
    assert other.json("layer", "inspect", "base/library/x:1")[0]["digest"] == layer["digest"]
