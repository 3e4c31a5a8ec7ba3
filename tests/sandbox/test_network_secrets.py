"""Secrets that go along without being in the sandbox, and TLS that the gateway ends on purpose."""

import json
import os
import subprocess

import network_box
import network_world
import pytest
from network_box import Box, eventually


@pytest.fixture
def world(work):
    yield from network_box.world(work)


@pytest.fixture
def dsec(world):
    yield from network_box.dsec_in(world)


@pytest.fixture
def certificate(work):
    name = work / "server.pem"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", work / "key.pem",
                           "-out", work / "ca.pem", "-days", "2", "-subj", "/CN=good.example", "-addext", "subjectAltName=DNS:good.example"],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    name.write_text((work / "key.pem").read_text() + (work / "ca.pem").read_text())
    return work / "ca.pem"


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_secret_header_is_added_on_the_way_and_never_enters(certificate, dsec, world):
    dsec.env |= {"SSL_CERT_FILE": str(certificate), "API_KEY": "sk-very-secret"}
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
environments:
  demo:
    base: base/box
    network:
      inject:
        - {host: good.example, prefix: "Bearer ", secret: "env:API_KEY", port: 8443}
        - {host: other.example, secret: "env:API_KEY", port: 8443}
""")
    box = Box(dsec, what="demo")
    lines = box.py(r"""
a = http("good.example", "good.example", "/api"); print(body(a) or a)
one = "GET /1 HTTP/1.1\r\nHost: good.example\r\nauthorization: mine\r\n\r\n"
print(tcp("good.example", 80, (one + one.replace("GET /1", "GET /2").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).encode()).count("200 OK"))
import urllib.request; print(urllib.request.urlopen("http://good.example/proxied").read().decode().strip())
print(status(http("good.example", "evil.example")), status(http("other.example", "other.example")), tcp("good.example", 443, hello("good.example")))
# A server would repeat what it was sent, with the secret.
print(*[status(tcp("good.example", 80, f"{method} /trace HTTP/1.1\r\nHost: good.example\r\n\r\n".encode())) for method in ("TRACE", "TRACK")])
""").splitlines()
    assert [line for line in lines if line] == ["11.0.0.10 good.example", "2", "11.0.0.10 good.example", "403 Forbidden 502 Bad Gateway reset",
                                                  "403 Forbidden 403 Forbidden"]
    seen = world.seen("http")
    assert [record["path"] for record in seen] == ["/api", "/1", "/2", "/proxied"]
    assert all(record["headers"]["Authorization"] == "Bearer sk-very-secret" for record in seen)
    # The other host has no certificate that proves it, so it got nothing.
    assert any("certificate" in record["reason"] or "mismatch" in record["reason"] for record in box.log())
    assert "sk-very-secret" not in json.dumps(dsec.json("inspect", box.id)) + dsec.ok("exec", box.id, "--", "env") + dsec.ok("net", "show", box.id)
    # Nor in any file of ours; of run/ the namespaces cannot be read.
    grep = subprocess.run(["grep", "-rlsa", "--devices=skip", "--exclude-dir=run", "sk-very-secret", dsec.home], capture_output=True, text=True)
    assert grep.stdout == ""


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_secrets_are_named_on_the_command_line_and_never_stand_there(certificate, dsec, world):
    secret = "sk-command-line"
    dsec.env |= {"SSL_CERT_FILE": str(certificate), "API_KEY": secret}
    (dsec.cwd / "token").write_text("tok-of-a-file\n")
    box = Box(dsec, "--inject", "good.example:8443=Authorization: Bearer env:API_KEY", "--inject",
              f"other.example:8443=X-Key: file:{dsec.cwd}/token")
    assert box.py("print(body(http('good.example', 'good.example', '/a')))") == "11.0.0.10 good.example"
    assert world.seen("http")[0]["headers"]["Authorization"] == "Bearer " + secret
    # All that the sandbox can look at: its files, every process in it, its environment.
    inside = box.py("""
import glob
for name in glob.glob("/proc/[0-9]*/*") + ["/proc/mounts", "/etc/resolv.conf"]:
    try: print(open(name, "rb").read().decode("latin1"))
    except OSError: pass
print(os.environ)
""")
    told = json.dumps(dsec.json("inspect", box.id)) + dsec.ok("net", "show", box.id) + dsec.ok("traj", "show", box.id) + inside
    assert secret not in told and "tok-of-a-file" not in told
    assert "env:API_KEY" in dsec.ok("net", "show", box.id)
    grep = subprocess.run(["grep", "-rlsa", "--devices=skip", "--exclude-dir=run", secret, dsec.home], capture_output=True, text=True)
    assert grep.stdout == ""
    for pid in (network_world.gateway_of(dsec.home), network_world.guard_of(dsec.home)):
        with open(f"/proc/{pid}/environ") as environ, open(f"/proc/{pid}/cmdline") as cmdline:
            assert secret not in environ.read() + cmdline.read()
    # It comes along when the gateway is killed, and nobody has to give it again.
    os.kill(network_world.gateway_of(dsec.home), 9)
    again = "print([a for a in (http('good.example', 'good.example', '/b') for i in range(50)) if '200 OK' in a or time.sleep(0.1)][0][:12])"
    assert box.py(again, env={"API_KEY": ""}) == "HTTP/1.1 200"
    assert world.seen("http")[-1]["headers"]["Authorization"] == "Bearer " + secret


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_secrets_of_a_running_sandbox_are_replaced(certificate, dsec, world):
    dsec.env |= {"SSL_CERT_FILE": str(certificate), "OLD_KEY": "sk-old", "NEW_KEY": "sk-new"}
    box = Box(dsec, "--inject", "good.example:8443=Authorization: Bearer env:OLD_KEY", "--allow", "other.example")
    fetch = "print(status(http('good.example', 'good.example', '/a')))"
    assert box.py(fetch) == "200 OK"
    kept = box.popen(r"""
c = socket.create_connection(("good.example", 80)); request = b"GET /kept HTTP/1.1\r\nHost: good.example\r\n\r\n"
c.sendall(request); print(c.recv(9999)[:12].decode(), flush=True)
for line in sys.stdin:
    try: c.sendall(request); print(c.recv(9999)[:12].decode(), flush=True)
    except ConnectionResetError: print("cut", flush=True)
""", "-i")
    assert kept.stdout.readline() == b"HTTP/1.1 200\n"
    # What changes nothing for it cuts nothing.
    dsec.ok("net", "set", box.id, "--allow", "other.example")
    kept.stdin.write(b"again\n")
    kept.stdin.flush()
    assert kept.stdout.readline() == b"HTTP/1.1 200\n"
    dsec.ok("net", "set", box.id, "--inject", "good.example:8443=X-Key: env:NEW_KEY")
    assert kept.communicate(b"again\n", timeout=20)[0] == b"cut\n"
    assert box.py(fetch) == "200 OK"
    old, *_, new = (record["headers"] for record in world.seen("http"))
    assert old["Authorization"] == "Bearer sk-old" and "X-Key" not in old
    assert new["X-Key"] == "sk-new" and "Authorization" not in new
    # What cannot be read changes nothing; what the sandbox has already need not be read again.
    assert "NOT_THERE" in dsec.fails(2, "net", "set", box.id, "--inject", "good.example=env:NOT_THERE")
    del dsec.env["NEW_KEY"]
    dsec.ok("net", "set", box.id, "--strict")
    assert box.py(fetch) == "200 OK"
    assert world.seen("http")[-1]["headers"]["X-Key"] == "sk-new"
    dsec.ok("net", "set", box.id, "--no-inject")
    assert box.py(fetch) != "200 OK"
    assert [rule for rule in dsec.json("net", "show", box.id)["plan"]["allow"]] == ["other.example"]
    for wrong in (("--no-inject", "--inject", "a.example=env:HOME"), ("--nothing", "--inject", "a.example=env:HOME")):
        assert "contradict" in dsec.fails(2, "net", "set", box.id, *wrong)
    assert "sk-oops" not in dsec.fails(2, "net", "set", box.id, "--inject", "good.example=sk-oops")


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_secret_itself_on_the_command_line_is_refused_and_not_repeated(dsec, world):
    for text in ("good.example=sk-oops", "good.example=Authorization: Bearer sk-oops", "sk-oops", "good.example=Bearer env:X", "=env:X"):
        said = dsec.fails(125, "run", "--inject", text, "base/box", "--", "true")
        assert "sk-oops" not in said and "inject" in said
    assert "NOT_THERE" in dsec.fails(125, "run", "--inject", "good.example=env:NOT_THERE", "base/box", "--", "true")
    assert "frames requests" in dsec.fails(125, "run", "--inject", "good.example=Host: env:HOME", "base/box", "--", "true")
    assert "leave --network out" in dsec.fails(125, "run", "--network", "none", "--inject", "a.example=env:HOME", "base/box", "--", "true")


INTERCEPTED = r"""
import ssl
def https(host, port=8443, inner=None, path="/", server_name=None, alpn=("http/1.1",), more=""):
    context = ssl.create_default_context()
    if alpn: context.set_alpn_protocols(list(alpn))
    try:
        with context.wrap_socket(socket.create_connection((host, port)), server_hostname=server_name or host) as tls:
            tls.sendall(f"GET {path} HTTP/1.1\r\nHost: {inner or host}\r\n{more}Connection: close\r\n\r\n".encode())
            got = b""
            while part := tls.recv(65536): got += part
            return got.decode("latin1")
    except ssl.SSLError as e: return e.reason or "ssl"
    except ConnectionResetError: return "reset"
"""


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_tls_is_intercepted_where_that_is_asked_for_and_recorded(certificate, dsec, world):
    dsec.env |= {"SSL_CERT_FILE": str(certificate)}
    box = Box(dsec, "--allow", "good.example:8443", "--allow", "other.example:8443", "--intercept-tls")
    assert dsec.json("net", "show", box.id)["plan"]["intercept_tls"] is True
    recorded = dsec.json("inspect", box.id)
    assert '"intercept_tls": true' in json.dumps(recorded)
    environment = dict(line.split("=", 1) for line in dsec.ok("exec", box.id, "--", "env").splitlines())
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE"):
        assert environment[name] == "/etc/dsec-ca.pem"
    inside = dsec.ok("exec", box.id, "--", "cat", "/etc/dsec-ca.pem")
    assert inside.startswith("-----BEGIN CERTIFICATE-----") and "KEY" not in inside
    lines = box.py(INTERCEPTED + r"""
print(body(https("good.example", path="/a?q")), end="")
print(len(body(https("good.example", path="/big?bytes=3000000"))))
# What is behind it must prove who it is before it gets anything.
print(status(https("other.example")))
# Domain fronting is seen, and so is HTTP/2.
print(status(https("good.example", inner="evil.example")), https("good.example", alpn=("h2",)), https("evil.example", port=8443) if look_up("evil.example") != "no" else "no")
""").splitlines()
    assert lines[:4] == ["11.0.0.10 good.example", "3000000", "502 Bad Gateway", lines[3]]
    assert lines[3].startswith("403 Forbidden ") and "200" not in lines[3] and lines[3].endswith(" no")
    assert [record["host"] for record in world.seen("http")] == ["good.example"] * 2
    log = eventually(lambda: [r for r in box.log() if r["protocol"] == "http"] if len(box.log()) >= 6 else None)
    assert log[0]["intercepted"] is True and log[0]["http"] == ["GET /a"] and log[0]["requests"] == 1
    assert any("certificate" in r["reason"] or "mismatch" in r["reason"] for r in log if r["verdict"] == "fail")
    # The key of the authority is in no file.
    assert subprocess.run(["grep", "-rlsa", "--devices=skip", "--exclude-dir=run", "PRIVATE KEY", dsec.home],
                          capture_output=True, text=True).stdout == ""


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_what_the_sandbox_does_not_trust_is_not_sent_through_an_interception(certificate, dsec, world):
    dsec.env |= {"SSL_CERT_FILE": str(certificate)}
    box = Box(dsec, "--allow", "good.example:8443", "--intercept-tls")
    lines = box.py(INTERCEPTED + r"""
os.environ["SSL_CERT_FILE"] = "/dev/null"
print(https("good.example"))
c = ssl._create_unverified_context().wrap_socket(socket.create_connection(("good.example", 8443)), server_hostname="good.example")
c.sendall(b"\x00\x01 this is no HTTP")
try: print(c.recv(9))
except OSError as e: print(b"")
""").splitlines()
    assert lines == ["CERTIFICATE_VERIFY_FAILED", "b''"]
    assert not world.seen("http")
    assert any("does not speak HTTP/1" in r["reason"] for r in box.log("--denied"))


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_secrets_go_along_within_intercepted_tls(certificate, dsec, world):
    dsec.env |= {"SSL_CERT_FILE": str(certificate), "API_KEY": "sk-within"}
    box = Box(dsec, "--inject", "good.example:8443=Authorization: Bearer env:API_KEY", "--intercept-tls")
    lines = box.py(INTERCEPTED + r"""
print(body(https("good.example", more="Authorization: mine\r\n")), end="")
import urllib.request
print(urllib.request.urlopen("https://good.example:8443/proxied").read().decode(), end="")
print(body(http("good.example", "good.example", "/plain")))
""").splitlines()
    assert [line for line in lines if line] == ["11.0.0.10 good.example", "11.0.0.10 good.example:8443", "11.0.0.10 good.example"]
    assert all(record["headers"]["Authorization"] == "Bearer sk-within" for record in world.seen("http"))
    assert len(world.seen("http")) == 3


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_fork_has_the_secrets_of_its_parent_and_they_are_in_neither(certificate, dsec, world):
    secret = "sk-of-the-parent"
    dsec.env |= {"SSL_CERT_FILE": str(certificate), "API_KEY": secret}
    box = Box(dsec, "--inject", "good.example:8443=Authorization: Bearer env:API_KEY")
    ask = "print(body(http('good.example', 'good.example', '/%s')))"
    assert box.py(ask % "parent") == "11.0.0.10 good.example"
    fork = object.__new__(Box)
    fork.dsec, fork.id = dsec, dsec.ok("fork", box.id).strip()
    assert fork.py(ask % "fork") == "11.0.0.10 good.example"
    seen = {record["path"]: record["headers"]["Authorization"] for record in world.seen("http")}
    assert seen == {"/parent": "Bearer " + secret, "/fork": "Bearer " + secret}
    told = json.dumps(dsec.json("inspect", fork.id)) + dsec.ok("net", "show", fork.id) + dsec.ok("traj", "show", "-o", "json", fork.id)
    assert "env:API_KEY" in told and secret not in told + dsec.ok("exec", fork.id, "--", "env")
    grep = subprocess.run(["grep", "-rlsa", "--devices=skip", "--exclude-dir=run", secret, dsec.home], capture_output=True, text=True)
    assert grep.stdout == ""
    # Where the secret cannot be had any more there is no fork without it.
    assert "API_KEY" in dsec.fails(2, "fork", box.id, env={"API_KEY": ""})


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_the_authority_stays_the_same_when_the_gateway_is_killed(certificate, dsec, world):
    dsec.env |= {"SSL_CERT_FILE": str(certificate)}
    box = Box(dsec, "--allow", "good.example:8443", "--intercept-tls")
    authority = dsec.ok("exec", box.id, "--", "cat", "/etc/dsec-ca.pem")
    first = network_world.gateway_of(dsec.home)
    os.kill(first, 9)
    assert eventually(lambda: network_world.gateway_of(dsec.home) not in (None, first))
    assert box.py(INTERCEPTED + "print({body(https('good.example')) for i in range(20)})") == r"{'11.0.0.10 good.example\n'}"
    assert dsec.ok("exec", box.id, "--", "cat", "/etc/dsec-ca.pem") == authority
