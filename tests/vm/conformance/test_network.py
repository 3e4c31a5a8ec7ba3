"""What a sandbox with a network policy may reach, whatever backend it has: the same gateway decides, cuts and writes down."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import network_world
import pytest
from network_box import PRELUDE, TLS_DENIED, eventually
from on_backend import OnBackend
from python_layer import import_python


class OnBackendIn(OnBackend):
    """In the network namespace of an internet."""

    def __init__(self, internet: network_world.World, home: Path, cwd: Path, backend: str):
        super().__init__(home, cwd, backend)
        self.internet = internet

    def argv(self, *args) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.internet.process.pid}/ns/net", *super().argv(*args)]


class Box:
    """A sandbox with a policy."""

    def __init__(self, dsec: OnBackendIn, *flags, what: str = "base/python"):
        self.dsec, self.internet = dsec, dsec.internet
        self.id = dsec.ok("create", "-m", "256MiB", *flags, what).strip()

    def py(self, script: str) -> list[str]:
        return self.dsec.ok("exec", self.id, "--", "/usr/bin/python3", "-Ic", PRELUDE + script).splitlines()

    def popen(self, script: str):
        return self.dsec.popen("exec", "-i", self.id, "--", "/usr/bin/python3", "-Iuc", PRELUDE + script)

    def allow(self, *rules) -> None:
        self.dsec.ok("net", "set", self.id, *(word for rule in rules for word in ("--allow", rule)))

    def log(self, *flags) -> list[dict]:
        return [json.loads(line) for line in self.dsec.ok("net", "log", "-o", "json", *flags, self.id).splitlines()]

    def show(self) -> dict:
        return self.dsec.json("net", "show", self.id)


def make_certificate(folder: Path) -> None:
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                    folder / "key.pem", "-out", folder / "trust.pem", "-days", "2", "-subj", "/CN=good.example", "-addext",
                    "subjectAltName=DNS:good.example"], check=True, capture_output=True)
    (folder / "server.pem").write_text((folder / "key.pem").read_text() + (folder / "trust.pem").read_text())


@pytest.fixture(scope="module")
def online(world, request):
    """`dsec` of the backend, in an internet of its own."""
    folder = Path(tempfile.mkdtemp(prefix="dsec-test-"))
    make_certificate(folder)
    internet = network_world.World(folder, folder / "home")
    dsec = OnBackendIn(internet, folder / "home", folder, world.backend)
    dsec.env |= {"SSL_CERT_FILE": str(folder / "trust.pem"), "API_KEY": "sk-very-secret"}
    try:
        import_python(dsec)
        if world.backend != "container":
            dsec.give_kernel(request.getfixturevalue("kernel_home"))
        yield dsec
        dsec.clean_up()
    finally:
        internet.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def guarded(online):
    """A sandbox whose policy each test replaces."""
    box = Box(online, "--network", "policy")
    yield box
    online.run("rm", "-f", box.id)


def test_allowed_names_are_reached_and_others_do_not_leave_the_host(guarded):
    guarded.allow("good.example", "*.wild.example", "six.example")
    assert guarded.py("""
print(body(http("good.example", "good.example")).strip(), body(http("a.wild.example", "a.wild.example")).strip())
print(body(http("six.example", "six.example")).strip(), look_up("evil.example"), look_up("words.tunnel.example"))
print(status(http("good.example", "evil.example")), tcp("good.example", 443, hello("evil.example")) == "%s")
import urllib.request; print(urllib.request.urlopen("http://good.example/proxied").read().decode().strip())
""" % TLS_DENIED) == ["11.0.0.10 good.example 11.0.0.14 a.wild.example", "2a00:1::6 six.example no no", "403 Forbidden True",
                      "11.0.0.10 good.example"]
    assert not {record["name"] for record in guarded.internet.seen("dns")} & {"evil.example", "words.tunnel.example"}
    assert "words.tunnel.example" in {record["host"] for record in guarded.log("--denied") if record["protocol"] == "dns"}


def test_an_address_needs_a_rule_of_its_own(guarded):
    guarded.allow("good.example", "11.0.0.20:9000", "[2a00:1::20]:2222")
    assert guarded.py("""
print(status(http("11.0.0.10", "11.0.0.10")), tcp("11.0.0.10", 9000, b"x"), tcp("169.254.169.254", 80, b"x"), tcp("192.0.2.2", 4711, b"x"))
print(body(http("11.0.0.66", "good.example")).strip())
c = socket.create_connection(("11.0.0.20", 9000)); c.sendall(b"echo"); print(c.recv(9))
c = socket.create_connection(("2a00:1::20", 2222)); print(c.recv(99)); c.close()
s = socket.socket(); s.bind(("127.0.0.1", 8000)); s.listen()
c = socket.create_connection(("127.0.0.1", 8000)); s.accept()[0].sendall(b"own"); print(c.recv(9))
""") == ["403 Forbidden reset reset ECONNREFUSED", "11.0.0.10 good.example", "b'echo'", "b'SSH-2.0-2a00:1::20\\r\\n'", "b'own'"]


def test_datagrams_are_held_to_rules_of_their_own(guarded):
    guarded.allow("good.example", "udp/other.example:7777", "udp/[2a00:1::20]:7777")
    assert guarded.py("""
at = socket.gethostbyname("other.example") if look_up("other.example") != "no" else "none"
print(udp(at, 7777, b"hello", 5), udp(at, 7778, b"x"), udp("11.0.0.10", 7777, b"x"))
print(udp("2a00:1::20", 7777, b"six", 5), udp(at, 7777, b"y" * 40000, 5)[-3:], udp(at, 7777, b"", 5))
s = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for i in range(50)]
for i, each in enumerate(s): each.settimeout(5); each.sendto(b"%d" % i, (at, 7777))
print(sum(each.recv(99) == b"11.0.0.11 %d" % i for i, each in enumerate(s)))
q = query("more.tunnel.example"); print(udp("11.0.0.53", 53, q, 5)[3] == "\\x83")
""") == ["11.0.0.11 hello nothing nothing", "2a00:1::20 six yyy 11.0.0.11 ", "50", "True"]
    assert "11.0.0.10" not in {record["at"] for record in guarded.internet.seen("udp")}


def test_large_transfers_are_intact_and_either_half_may_end_first(guarded):
    guarded.allow("good.example", "good.example:9000")
    assert guarded.py("""
def rest(c):
    got = bytearray()
    while part := c.recv(65536): got += part
    return got
c = socket.create_connection(("good.example", 80)); c.sendall(b"GET /big?bytes=3000000 HTTP/1.1\\r\\nHost: good.example\\r\\nConnection: close\\r\\n\\r\\n")
print(len(rest(c).partition(b"\\r\\n\\r\\n")[2]))
size = 2_000_000
c = socket.create_connection(("good.example", 80)); c.sendall(b"POST / HTTP/1.1\\r\\nHost: good.example\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % size)
c.sendall(b"y" * size); print(rest(c).split(b"\\r\\n\\r\\n")[1].decode())
c = socket.create_connection(("good.example", 9000)); import threading
data = bytes(range(256)) * 4000
threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR))).start()
print(rest(c) == data)
""") == ["3000000", "2000000", "True"]


def test_what_is_no_longer_allowed_is_cut_at_once(guarded):
    guarded.allow("good.example", "other.example")
    script = """
c = socket.create_connection(("%s", 80)); c.sendall(b"GET /drip?seconds=60 HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n")
try:
    while part := c.recv(65536): print("some")
    print("end")
except ConnectionResetError: print("cut")
"""
    going, cut = (guarded.popen(script % (host, host)) for host in ("other.example", "good.example"))
    assert going.stdout.readline() == cut.stdout.readline() == b"some\n"
    guarded.allow("other.example")
    assert cut.communicate(timeout=30)[0].endswith(b"cut\n")
    assert going.poll() is None and going.stdout.readline() == b"some\n"
    assert guarded.py("print(look_up('good.example'), status(http('other.example', 'other.example')))") == ["no 200 OK"]
    assert "good.example" in [record.get("host") for record in guarded.log("--denied") if "the policy was changed" in record["reason"]]
    guarded.dsec.ok("net", "set", guarded.id, "--nothing")
    assert going.communicate(timeout=30)[0].endswith(b"cut\n")
    assert eventually(lambda: guarded.show()["connections"] == 0)


def test_who_ends_a_connection_without_reading_it_out_lets_its_server_know(guarded):
    guarded.allow("good.example")
    assert guarded.py("""
c = socket.create_connection(("good.example", 80)); c.sendall(b"GET /drip?seconds=60 HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n")
c.recv(10); time.sleep(0.5); c.close(); print("closed")
""") == ["closed"]
    assert eventually(lambda: guarded.internet.seen("broken"), 20)
    assert eventually(lambda: guarded.show()["connections"] == 0)


def test_many_connections_at_once(guarded):
    guarded.allow("good.example:9000")
    assert guarded.py("""
at = socket.gethostbyname("good.example")
some = [socket.create_connection((at, 9000), 30) for i in range(300)]
for i, c in enumerate(some): c.sendall(b"%04d" % i)
print(sum(c.recv(4) == b"%04d" % i for i, c in enumerate(some)))
""") == ["300"]
    assert eventually(lambda: guarded.show()["connections"] == 0)


def test_the_gateway_comes_back_when_it_is_killed(guarded):
    guarded.allow("good.example")
    fetch = "print([a for a in (http('good.example', 'good.example', '/b') for i in range(50)) if '200 OK' in a or time.sleep(0.1)][0][:12])"
    assert guarded.py(fetch) == ["HTTP/1.1 200"]
    os.kill(network_world.gateway_of(guarded.dsec.home), 9)
    assert guarded.py(fetch) == ["HTTP/1.1 200"]


def test_a_policy_that_is_set_while_it_is_paused_holds_when_it_goes_on(guarded):
    guarded.allow("good.example")
    guarded.dsec.ok("pause", guarded.id)
    guarded.allow("other.example")
    assert guarded.dsec.json("inspect", guarded.id)[0]["state"] == "paused"
    guarded.dsec.ok("resume", guarded.id)
    assert guarded.py("print(look_up('good.example'), look_up('other.example') != 'no')") == ["no True"]


def test_root_inside_changes_neither_rules_nor_routes(guarded):
    guarded.allow("good.example")
    assert guarded.py("""
def refused(make):
    try: make(); return "made"
    except OSError as e: return errno.errorcode[e.errno]
print(refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)), refused(lambda: socket.socket(17, socket.SOCK_RAW, 3)))
s = socket.socket(); print(refused(lambda: s.setsockopt(0, 19, 1)))
import ctypes; libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x40000000), errno.errorcode[ctypes.get_errno()])
""") == ["EPERM EPERM", "EPERM", "-1 EPERM"]


ENVIRONMENTS = """version: 1
environments:
  phased:
    base: base/python
    network:
      allow: [good.example]
      phases: {setup: {allow: [other.example]}, verify: none}
      phase: setup
      inject: [{host: good.example, prefix: "Bearer ", secret: "env:API_KEY", port: 8443}]
      intercept_tls: true
  limited:
    base: base/python
    network: {allow: ["good.example", "good.example:9000"], limits: {bytes: 1MiB, connections: 5}}
"""


def test_phases_switch_secrets_go_along_and_tls_is_read(online):
    (online.cwd / "dsec.yaml").write_text(ENVIRONMENTS)
    box = Box(online, what="phased")
    ask = "print(*[look_up(name) != 'no' for name in ('good.example', 'other.example')])"
    # The host of a secret is allowed by that, in every phase but one that allows nothing.
    assert box.py(ask) == ["True True"]
    online.ok("net", "set", box.id, "--phase", "verify")
    assert box.py(ask) == ["False False"]
    online.ok("net", "set", box.id, "--phase", "none")
    assert box.py(ask + "; print(body(http('good.example', 'good.example', '/api')).strip())") == ["True False", "11.0.0.10 good.example"]
    assert online.internet.seen("http")[-1]["headers"]["Authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in online.ok("exec", box.id, "--", "env")
    assert {record.get("phase") for record in box.log()} == {"setup", "verify", None}
    authority = online.ok("exec", box.id, "--", "cat", "/etc/dsec-ca.pem")
    assert authority.startswith("-----BEGIN CERTIFICATE-----") and "PRIVATE" not in authority
    assert online.ok("exec", box.id, "--", "sh", "-c", "echo $SSL_CERT_FILE").strip() == "/etc/dsec-ca.pem"
    # When both processes of the gateway are killed the next command makes another, with another authority.
    for pid in (network_world.guard_of(online.home), network_world.gateway_of(online.home)):
        os.kill(pid, 9)
    assert eventually(lambda: not network_world.guard_of(online.home) and not network_world.gateway_of(online.home) or
                      [os.kill(pid, 9) for pid in (network_world.guard_of(online.home), network_world.gateway_of(online.home)) if pid] is None)
    again = online.ok("exec", box.id, "--", "cat", "/etc/dsec-ca.pem")
    assert again.startswith("-----BEGIN CERTIFICATE-----") and again != authority
    assert box.py(ask) == ["True False"]
    online.ok("rm", "-f", box.id)


def test_connections_and_bytes_have_limits_and_the_log_outlives_the_sandbox(online):
    (online.cwd / "dsec.yaml").write_text(ENVIRONMENTS)
    box = Box(online, what="limited")
    assert box.py("""
at = socket.gethostbyname("good.example")
def one():
    try:
        c = socket.create_connection((at, 9000)); c.sendall(b"x"); assert c.recv(1) == b"x"; return c
    except ConnectionResetError: return None
some = [one() for i in range(6)]
print([bool(c) for c in some].count(True), bool(some[5]))
""") == ["5 False"]
    assert "limit of 5 connections" in box.log("--denied")[-1]["reason"]
    assert eventually(lambda: box.show()["connections"] == 0)
    assert box.py("""
print(len(body(http("good.example", "good.example", "/big?bytes=500000"))))
print(http("good.example", "good.example", "/big?bytes=5000000")[:5], http("good.example", "good.example")[:5])
""") == ["500000", "reset reset"]
    online.ok("rm", "-f", box.id)
    log = box.log()
    assert "bytes is reached" in log[-1]["reason"]
    assert any(record.get("http") == ["GET /big"] for record in log)


def test_one_that_was_made_without_a_policy_gets_none(online):
    plain = online.ok("create", "-m", "256MiB", "base/python").strip()
    assert "made without a network policy" in online.fails(2, "net", "set", plain, "--allow", "good.example")
    online.ok("rm", "-f", plain)
