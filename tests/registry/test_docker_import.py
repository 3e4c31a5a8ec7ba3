"""dsec import … docker://: images come from registries whatever happens on the way."""

import base64
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import time

import pytest
from fault_proxy import Fault, FaultProxy
from oci_registry import INDEX, DockerRegistry, make_certificates, sha256

BIG = random.Random(7).randbytes(3_000_000)
LAYERS = [{"etc/name": b"x\n", "data": BIG}, {"etc/.wh.name": b"", "usr/more": BIG[::-1]}, {"bin/tool": b"#!/bin/sh\n"}]


@pytest.fixture
def image(server):
    return server.push_image("team/tool", "1", LAYERS)


def digest_of(dsec, ref="base/x:1"):
    return dsec.json("layer", "inspect", ref)[0]["digest"]


def test_an_image_makes_the_layer_that_its_archive_makes(dsec, other, server, image, work, nothing_left):
    dsec.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    subprocess.run(["skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{server.host}/team/tool:1",
                    f"oci:{work / 'layout'}:1"], check=True)
    other.ok("import", "base/x:1", f"oci-layout:{work / 'layout'}:1")
    assert digest_of(dsec) == digest_of(other)
    files = dsec.ok("layer", "files", "base/x:1")
    assert "usr/more" in files and "etc/name" not in files
    dsec.ok("import", "base/y:1", f"docker://{server.host}/team/tool@{image['digest']}")
    assert "no image" not in dsec.fails(1, "import", "base/z:1", f"docker://{server.host}/team/tool:2")
    nothing_left(dsec)


def test_images_of_other_tools_come_over(dsec, server, work):
    layout = work / "umoci"
    subprocess.run(["umoci", "init", "--layout", layout], check=True)
    subprocess.run(["umoci", "new", "--image", f"{layout}:1"], check=True)
    bundle = work / "bundle"
    subprocess.run(["umoci", "unpack", "--rootless", "--image", f"{layout}:1", bundle], check=True)
    (bundle / "rootfs/opt").mkdir()
    (bundle / "rootfs/opt/file").write_text("from umoci\n")
    subprocess.run(["umoci", "repack", "--image", f"{layout}:1", bundle], check=True)
    for repository, form in (("oci", "oci"), ("docker", "v2s2")):
        subprocess.run(["skopeo", "copy", "-q", "--dest-tls-verify=false", "--format", form, f"oci:{layout}:1",
                        f"docker://{server.host}/{repository}:1"], check=True)
        dsec.ok("import", f"base/{repository}:1", f"docker://{server.host}/{repository}:1")
        assert "opt/file" in dsec.ok("layer", "files", f"base/{repository}:1")


BUILDAH_FORMS = {"oci": ["--format", "oci"], "docker": ["--format", "v2s2"],
                 "zstd": ["--format", "oci", "--compression-format", "zstd"]}


@pytest.mark.parametrize("form", BUILDAH_FORMS)
def test_images_that_buildah_made_and_pushed_come_over(dsec, other, server, work, form):
    buildah = ["buildah", "--root", work / "containers", "--runroot", work / "containers-run", "--storage-driver", "vfs"]

    def run(*args):
        return subprocess.run([*buildah, *map(str, args)], check=True, capture_output=True, text=True, cwd=work).stdout.strip()

    (work / "file").write_text("from buildah\n")
    (work / "big").write_bytes(BIG)
    made = run("from", "scratch")
    run("copy", made, "file", "/opt/file")
    run("config", "--env", "A=b", "--entrypoint", '["/opt/file"]', "--workingdir", "/opt", made)
    first = run("commit", made)
    made = run("from", first)
    run("copy", made, "big", "/opt/big")
    image = run("commit", made)
    run("push", "--tls-verify=false", *BUILDAH_FORMS[form], image, f"docker://{server.host}/made:1")
    dsec.ok("import", "base/made:1", f"docker://{server.host}/made:1")
    layer = dsec.json("layer", "inspect", "base/made:1")[0]
    config = layer["manifest"]["config"]
    assert "A=b" in config["env"] or config["env"] == {"A": "b"}
    assert config["entrypoint"] == ["/opt/file"] and config["workdir"] == "/opt"
    run("push", image, f"oci-archive:{work / 'archive.tar'}:1")
    other.ok("import", "base/made:1", "oci-archive:archive.tar")

    def files(host):
        return [{key: value for key, value in file.items() if key != "layer"} for file in host.json("layer", "files", "base/made:1")]
    assert files(dsec) == files(other)
    assert {"/opt/file", "/opt/big"} <= {file["path"] for file in files(dsec)}


def test_the_platform_is_chosen_from_an_index(dsec, server):
    arm = server.push_image("multi", "", [{"arm": b"1"}], "arm64")
    amd = server.push_image("multi", "", [{"amd": b"1"}], "amd64")
    server.push_manifest("multi", "1", {
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [{**arm, "platform": {"os": "linux", "architecture": "arm64"}},
                      {**amd, "platform": {"os": "linux", "architecture": "amd64"}}]})
    dsec.ok("import", "base/a:1", f"docker://{server.host}/multi:1", "--platform", "linux/arm64")
    assert "arm" in dsec.ok("layer", "files", "base/a:1")
    dsec.ok("import", "base/b:1", f"docker://{server.host}/multi:1", "--platform", "linux/amd64")
    assert "amd" in dsec.ok("layer", "files", "base/b:1")
    told = dsec.fails(1, "import", "base/c:1", f"docker://{server.host}/multi:1", "--platform", "linux/s390x")
    assert "platform-missing" in told and "linux/arm64" in told


BLOBS = "/blobs/"
FAULTS = {
    "reset": lambda m, p, n: Fault(cut=100_000, reset=True) if BLOBS in p and n == 0 and m == "GET" else None,
    "truncated": lambda m, p, n: Fault(cut=1_000_000) if BLOBS in p and n < 2 and m == "GET" else None,
    "too many requests": lambda m, p, n: Fault(status=429, headers={"Retry-After": "1"}) if n == 0 else None,
    "server errors": lambda m, p, n: Fault(status=503 if n else 500) if n < 2 and BLOBS in p else None,
    "slow": lambda m, p, n: Fault(delay=0.3),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_image_comes_whole_although_the_registry_fails(dsec, other, server, proxy, image, nothing_left, name):
    other.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    proxy.faults = FAULTS[name]
    result = dsec.run("import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    assert result.code == 0, str(result)
    assert digest_of(dsec) == digest_of(other)
    nothing_left(dsec)
    if name in ("reset", "truncated"):
        ranges = [asked.headers["Range"] for asked in proxy.asked if "Range" in asked.headers]
        assert ranges and all(text.startswith("bytes=") and text != "bytes=0-" for text in ranges)
    if name == "too many requests":
        assert "429" in result.err and "trying again" in result.err


def test_wrong_bytes_are_refused_and_nothing_is_left(dsec, proxy, image, nothing_left):
    proxy.faults = lambda m, p, n: Fault(alter=True) if BLOBS in p and m == "GET" and p.endswith(layer) else None
    layer = sha256(b"")
    manifest = proxy_manifest(proxy, image)
    layer = manifest["layers"][1]["digest"]
    assert "digest-mismatch" in dsec.fails(1, "import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    layer = manifest["config"]["digest"]
    assert "have the digest" in dsec.fails(1, "import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    layer = manifest["layers"][0]["digest"]
    proxy.faults = lambda m, p, n: Fault(length=17) if p.endswith(layer) and m == "GET" else None
    assert "17 bytes instead of" in dsec.fails(1, "import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    proxy.faults = lambda m, p, n: Fault(alter=True) if "/manifests/" in p else None
    assert "has the digest" in dsec.fails(1, "import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    nothing_left(dsec)
    assert dsec.json("layer", "ls") == []


def proxy_manifest(proxy, image):
    import urllib.request
    request = urllib.request.Request(f"http://{proxy.host}/v2/team/tool/manifests/{image['digest']}",
                                     headers={"Accept": image["mediaType"]})
    return json.load(urllib.request.urlopen(request))


def test_a_rate_limit_is_told_with_the_time_it_lasts(dsec, proxy, image):
    proxy.faults = lambda m, p, n: Fault(status=429, headers={"Retry-After": "7200", "RateLimit-Limit": "100;w=21600"})
    told = dsec.fails(1, "import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    assert "429" in told and "100;w=21600" in told and "2h" in told
    assert proxy.times("GET", "/manifests/") == 1


def test_a_redirect_to_another_host_carries_no_token(dsec, server, proxy, image, nothing_left):
    far = FaultProxy(server.port)
    proxy.token_seconds = 300
    proxy.faults = lambda m, p, n: (Fault(status=307, headers={"Location": f"http://127.0.0.1:{far.port}{p}"})
                                    if BLOBS in p and m == "GET" else None)
    dsec.ok("import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    assert far.times("GET", BLOBS) == 4
    assert all("Authorization" not in asked.headers for asked in far.asked)
    nothing_left(dsec)
    far.stop()


def test_tokens_are_fetched_kept_and_renewed(dsec, proxy, image):
    proxy.token_seconds = 300
    dsec.ok("import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    assert len(proxy.token_requests) == 1
    assert proxy.token_requests[0]["query"]["scope"] == ["repository:team/tool:pull"]
    # A token that ends in the middle of a download: what is asked for afterwards has a new one.
    proxy.forget()
    proxy.token_seconds = 1
    proxy.faults = lambda m, p, n: Fault(delay=0.7, cut=1_000_000) if BLOBS in p and m == "GET" and n == 0 else None
    dsec.ok("import", "base/y:1", f"docker://{proxy.host}/team/tool:1")
    assert len(proxy.token_requests) > 1


def test_logins_come_from_where_docker_and_podman_keep_them(dsec, proxy, image, work):
    source = f"docker://{proxy.host}/team/tool:1"
    proxy.token_seconds, proxy.login = 300, ("me", "pass:word")
    told = dsec.fails(1, "import", "base/x:1", source)
    assert f"docker login {proxy.host}" in told and "auth.json" in told
    auth = base64.b64encode(b"me:pass:word").decode()
    docker = work / ".docker"
    docker.mkdir()
    (docker / "config.json").write_text(json.dumps({"auths": {proxy.host: {"auth": auth}}}))
    dsec.ok("import", "base/x:1", source)

    (docker / "config.json").write_text(json.dumps({"credHelpers": {proxy.host: "mine"}}))
    helpers = work / "helpers"
    helpers.mkdir()
    helper = helpers / "docker-credential-mine"
    helper.write_text(f'#!/bin/sh\nread -r host\n[ "$1 $host" = "get {proxy.host}" ] || exit 9\n'
                      'echo \'{"ServerURL":"x","Username":"me","Secret":"pass:word"}\'\n')
    helper.chmod(0o755)
    path = f"{helpers}:{os.environ['PATH']}"
    dsec.ok("import", "base/y:1", source, env={"PATH": path})
    # An identity token is changed into a token, and never sent as a password.
    helper.write_text('#!/bin/sh\necho \'{"Username":"<token>","Secret":"pass:word"}\'\n')
    proxy.token_requests.clear()
    dsec.ok("import", "base/z:1", source, env={"PATH": path})
    assert proxy.token_requests[0]["form"]["grant_type"] == ["refresh_token"]
    assert proxy.token_requests[0]["login"] is None
    helper.write_text("#!/bin/sh\necho broken; exit 1\n")
    assert "docker-credential-mine" in dsec.fails(1, "import", "base/w:1", source, env={"PATH": path})
    # podman's file comes first.
    run = work / "run"
    (run / "containers").mkdir(parents=True)
    (run / "containers/auth.json").write_text(json.dumps({"auths": {f"{proxy.host}/team": {"auth": auth}}}))
    dsec.ok("import", "base/w:1", source, env={"PATH": path, "XDG_RUNTIME_DIR": str(run)})


def test_a_registry_with_tls_and_a_password(dsec, work):
    certificates = work / "certificates"
    certificates.mkdir()
    make_certificates(certificates)
    registry = DockerRegistry(work / "secure", ("me", "secret"), certificates)
    try:
        registry.push_image("x", "1", [{"file": b"1"}])
        source = f"docker://{registry.host}/x:1"
        config = work / "config.yaml"
        config.write_text(f"hosts:\n  '{registry.host}': {{plain_http: false}}\n")
        assert "certificate" in dsec.fails(1, "import", "base/x:1", source)
        assert "plain_http: false" in dsec.fails(1, "import", "base/x:1", source, env={"DSEC_CONFIG": str(work / "none")})
        config.write_text(f"hosts:\n  '{registry.host}': {{ca: {certificates}/ca.crt}}\n")
        assert "docker login" in dsec.fails(1, "import", "base/x:1", source)
        login = {"auths": {registry.host: {"auth": base64.b64encode(b"me:wrong").decode()}}}
        (work / "auth.json").write_text(json.dumps(login))
        env = {"REGISTRY_AUTH_FILE": str(work / "auth.json")}
        assert "does not accept the login" in dsec.fails(1, "import", "base/x:1", source, env=env)
        login["auths"][registry.host]["auth"] = base64.b64encode(b"me:secret").decode()
        (work / "auth.json").write_text(json.dumps(login))
        dsec.ok("import", "base/x:1", source, env=env)
        # Where docker and podman look for it, without a word in our own configuration.
        config.unlink()
        own = work / ".config/containers/certs.d" / registry.host
        own.mkdir(parents=True)
        shutil.copy(certificates / "ca.crt", own)
        dsec.ok("import", "base/y:1", source, env=env)
    finally:
        registry.stop()


def test_a_mirror_is_asked_first_and_passed_over_when_it_fails(dsec, server, proxy, image, work):
    direct = server.host
    (work / "config.yaml").write_text(f"hosts:\n  '{direct}': {{mirrors: ['{proxy.host}']}}\n")
    dsec.ok("import", "base/x:1", f"docker://{direct}/team/tool:1")
    assert proxy.times("GET", BLOBS) >= 3
    proxy.faults = lambda m, p, n: Fault(status=403) if BLOBS in p else None
    result = dsec.run("import", "base/y:1", f"docker://{direct}/team/tool:1")
    assert result.code == 0 and "passed over" in result.err, str(result)
    assert digest_of(dsec, "base/y:1")


def test_a_mirror_with_wrong_bytes_is_passed_over(dsec, other, server, proxy, image, work, nothing_left):
    other.ok("import", "base/x:1", f"docker://{server.host}/team/tool:1")
    second = FaultProxy(server.port)
    (work / "config.yaml").write_text(f"hosts:\n  '{server.host}': {{mirrors: ['{proxy.host}', '{second.host}']}}\n")
    manifest = proxy_manifest(proxy, image)
    for layer in (manifest["layers"][0]["digest"], manifest["layers"][1]["digest"], manifest["config"]["digest"]):
        lies = lambda m, p, n: Fault(alter=True) if p.endswith(layer) and m == "GET" else None
        # One mirror of two, then both, then the first half of a blob from a mirror that goes away.
        for first, last in ((lies, lambda m, p, n: None), (lies, lies),
                            (lambda m, p, n: (Fault(alter=True, cut=1000) if n == 0 else Fault(status=403))
                             if p.endswith(layer) and m == "GET" else None, lambda m, p, n: None)):
            proxy.forget()
            proxy.faults, second.faults = first, last
            result = dsec.run("import", "base/x:1", f"docker://{server.host}/team/tool:1")
            assert result.code == 0, str(result)
            assert f"mirror {proxy.host}/team/tool is passed over" in result.err
            assert digest_of(dsec) == digest_of(other)
            dsec.ok("layer", "rm", "base/x:1")
    second.stop()
    # And when the registry lies, too, nothing comes of it.
    liar = FaultProxy(server.port)
    layer = manifest["layers"][1]["digest"]
    proxy.faults = liar.faults = lambda m, p, n: Fault(alter=True) if p.endswith(layer) and m == "GET" else None
    (work / "config.yaml").write_text(f"hosts:\n  '{liar.host}': {{mirrors: ['{proxy.host}']}}\n")
    assert "digest-mismatch" in dsec.fails(1, "import", "base/y:1", f"docker://{liar.host}/team/tool:1")
    liar.stop()
    nothing_left(dsec)


def test_plain_http_is_for_the_loopback_and_named_hosts(dsec):
    told = dsec.fails(1, "import", "base/x:1", "docker://registry.invalid/x:1")
    assert "https://registry.invalid" in told
    for wrong in ("docker:///x", "docker://HOST/UPPER", "docker://localhost:99999/x", "docker://h.example/x@md5:12"):
        assert "names no image" in dsec.run("import", "base/x:1", wrong).err


def test_a_killed_import_leaves_nothing(dsec, proxy, image, nothing_left):
    proxy.faults = lambda m, p, n: Fault(rate=200_000) if BLOBS in p and m == "GET" else None
    process = dsec.popen("import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    deadline = time.monotonic() + 60
    while proxy.times("GET", BLOBS) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cache = dsec.home / "cache"
    assert [path for path in cache.rglob("*") if path.is_file() and stat.S_ISREG(path.stat().st_mode)] == []
    dsec.ok("gc")
    nothing_left(dsec)


def test_a_layer_is_read_while_it_arrives(dsec, proxy, image):
    """A wrong second layer ends the import long before the first slow byte of the third has to be there."""
    manifest = proxy_manifest(proxy, image)
    first, third = manifest["layers"][0]["digest"], manifest["layers"][2]["digest"]
    proxy.faults = lambda m, p, n: (Fault(alter=True) if p.endswith(first) else
                                    Fault(delay=30) if p.endswith(third) and m == "GET" else None)
    began = time.monotonic()
    assert "digest-mismatch" in dsec.fails(1, "import", "base/x:1", f"docker://{proxy.host}/team/tool:1")
    assert time.monotonic() - began < 25
