"""Every way around a network policy that we know of, played against it."""

import os

import network_box
import network_world
import pytest
from network_box import TLS_DENIED, Box, eventually


@pytest.fixture
def world(work):
    yield from network_box.world(work)


@pytest.fixture
def dsec(world):
    yield from network_box.dsec_in(world)


def hosts_reached(world) -> set[str]:
    """By what the servers were told in HTTP."""
    return {record["host"] for record in world.seen("http") if record.get("host")}


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_http_requests_that_could_be_read_in_two_ways_go_nowhere(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    lines = box.py(r"""
def ask(text): return status(tcp("good.example", 80, text.replace("\n", "\r\n").encode("latin1")))
end = "\n\n"
bad = [
    "GET / HTTP/1.1\nHost: good.example\nHost: evil.example",
    "GET / HTTP/1.1\nHost: good.example\n evil.example",
    "GET / HTTP/1.1\nHost : good.example",
    "GET / HTTP/1.1\nHost: good.example\nX: a\x0bb",
    "GET / HTTP/1.1\nHost: good.example, evil.example",
    "GET / HTTP/1.1\nHost: good.example@evil.example",
    "GET / HTTP/1.1\nHost: evil.example#good.example",
    "GET / HTTP/1.1\nX: y",
    "GET http://evil.example/ HTTP/1.1\nHost: good.example",
    "GET http://good.example@evil.example/ HTTP/1.1\nHost: good.example",
    "GET http://evil.example#@good.example/ HTTP/1.1\nHost: good.example",
    "GET http://good.example\\@evil.example/ HTTP/1.1\nHost: good.example",
    "GET //evil.example/ HTTP/1.1 HTTP/1.1\nHost: evil.example",
    "POST / HTTP/1.1\nHost: good.example\nContent-Length: 4\nContent-Length: 44",
    "POST / HTTP/1.1\nHost: good.example\nContent-Length: 4, 4",
    "POST / HTTP/1.1\nHost: good.example\nContent-Length: +4",
    "POST / HTTP/1.1\nHost: good.example\nContent-Length: 4\nTransfer-Encoding: chunked",
    "POST / HTTP/1.1\nHost: good.example\nTransfer-Encoding: chunked\nTransfer-Encoding: identity",
    "POST / HTTP/1.1\nHost: good.example\nTransfer-Encoding: gzip, chunked",
    "POST / HTTP/1.1\nHost: good.example\nTransfer-Encoding:\x0bchunked",
    "POST / HTTP/1.0\nHost: good.example\nTransfer-Encoding: chunked",
    "GET / HTTP/1.1\nHost: good.example\nConnection: Upgrade\nUpgrade: h2c",
    "PRI * HTTP/2.0\nHost: good.example",
]
print([text for text in bad if not ask(text + end).startswith("403")])
print(status(tcp("good.example", 80, b"GET / HTTP/1.1\nHost: good.example\n\n")))
""").splitlines()
    assert lines == ["[]", "403 Forbidden"]
    assert not world.seen("http")


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_of_two_hosts_in_a_request_the_server_is_told_the_one_that_was_allowed(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    assert box.py(r"""
print(status(tcp("good.example", 80, b"GET http://good.example/abs HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")))
""") == "200 OK"
    assert [(record["host"], record["path"]) for record in world.seen("http")] == [("good.example", "/abs")]


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_later_requests_of_a_connection_are_held_to_the_policy(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    box.py(r"""
def get(path, host, more=""): return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()
post = b"POST /p HTTP/1.1\r\nHost: good.example\r\n"
for first in (get("/1", "good.example"), post + b"Content-Length: 3\r\n\r\nabc",
              get("/u", "good.example", "Connection: Upgrade\r\nUpgrade: websocket\r\n")):
    tcp("good.example", 80, first + get("/2", "evil.example"))
    # On one that is kept alive, after the first answer.
    c = socket.create_connection(("good.example", 80)); c.sendall(first); c.recv(65536); c.sendall(get("/3", "evil.example"))
    try:
        while c.recv(65536): pass
    except OSError: pass
# A second request is hidden in what looks like the body of the first.
tcp("good.example", 80, b"POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0x0\r\n\r\n" + get("/4", "evil.example"))
tcp("good.example", 80, b"POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n" + get("/5", "evil.example"))
tcp("good.example", 80, get("/6", "good.example") + b"\r\n" + get("/7", "evil.example"))
""")
    assert hosts_reached(world) == {"good.example"}
    assert any(record["path"] == "/1" for record in world.seen("http") if "path" in record)


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_tls_hellos_in_many_pieces_are_read_whole(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "xn--gd-1ka.example")
    lines = box.py(r"""
def pieces(data, size, pause=False):
    body, out = data[5:], []
    for at in range(0, len(body), size): out.append(b"\x16\3\1" + vec(body[at:at + size], 2))
    c = socket.create_connection(("good.example", 443))
    try:
        for piece in out:
            c.sendall(piece)
            if pause: time.sleep(0.002)
        return c.recv(99).decode("latin1").strip()
    except OSError: return "reset"
denied = "%s"
for size, pause in ((1, False), (1, True), (7, False), (100, False)):
    print(pieces(hello("good.example"), size, pause), pieces(hello("evil.example"), size, pause) == denied)
# In pieces of TCP, with a hello as long as a hello can be, and with an empty record in between.
c = socket.create_connection(("good.example", 443))
for byte in hello("evil.example"): c.send(bytes([byte]))
print(c.recv(99).decode("latin1") == denied)
print(tcp("good.example", 443, hello("evil.example", ext(21, b"\0" * 9000))) == denied, tcp("good.example", 443, hello("good.example", ext(21, b"\0" * 9000))).strip())
print(tcp("good.example", 443, b"\x16\3\1\0\0" + hello("good.example")) == denied, tcp("good.example", 443, b"\x16\3\1\xff\xff" + hello("good.example")) == denied)
""" % TLS_DENIED).splitlines()
    assert lines == ["at 11.0.0.10 True"] * 4 + ["True", "True at 11.0.0.10", "True True"]
    assert {record["at"] for record in world.seen("hello")} == {"11.0.0.10"}


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_server_names_are_compared_as_names(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--deny", "evil.example")
    lines = box.py(r"""
denied = "%s"
def raw(name, times=1):
    e = ext(0, vec(b"".join(b"\0" + vec(n, 2) for n in name), 2)) * times + ext(43, b"\2\3\4")
    return b"\x16\3\1" + vec(b"\1" + vec(b"\3\3" + b"r" * 32 + b"\0" + vec(b"\x13\1", 2) + b"\1\0" + vec(e, 2), 3), 2)
def ask(*name, times=1, at="good.example"):
    answer = tcp(at, 443, raw(name, times)).strip()
    return "denied" if answer == denied else answer
print(ask(b"GOOD.Example"), ask(b"good.example."), ask(b"EVIL.example."), ask(b"evil.example.", at="11.0.0.66"))
print(ask(b"good.example\0.evil.example"), ask(b"evil.example\0good.example"), ask(b"g\xc3\xb6od.example"), ask(b"11.0.0.66"), ask(b""))
print(ask(b"good.example", b"evil.example"), ask(b"good.example", times=2), ask(b"good.example..", at="good.example"))
""" % TLS_DENIED).splitlines()
    assert lines[0] == "at 11.0.0.10 at 11.0.0.10 denied denied"
    assert lines[1:] == ["denied denied denied denied denied", "denied denied denied"]
    assert {record["at"] for record in world.seen("hello")} == {"11.0.0.10"}


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_addresses_in_other_spellings_are_the_same_addresses(dsec, world):
    box = Box(dsec, "--allow", "*", "--deny", "evil.example")
    lines = box.py(r"""
def six(address, port=9000):
    s = socket.socket(socket.AF_INET6); s.settimeout(3)
    try: s.connect((address, port)); s.sendall(b"x"); return s.recv(9)
    except OSError as e: return "no"
print([six(a) for a in ("::ffff:11.0.0.66", "::ffff:169.254.169.254", "::11.0.0.66", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:a9fe:a9fe::1",
                        "2001:0:1::1", "fe80::1", "fec0::1", "ff02::1")])
for text in ("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.1", "017700000001", "127.0.0.1", "0.0.0.0", "0", "[::ffff:127.0.0.1]", "[::]"):
    # As a name it is one that nobody knows, or the allowed server's affair; and a tunnel to it carries nothing.
    http("11.0.0.66", text)
    tcp("192.0.2.1", 3128, f"CONNECT {text}:80 HTTP/1.1\r\n\r\nnothing\n".encode())
    tcp("192.0.2.1", 3128, f"GET http://{text}/ HTTP/1.1\r\nHost: {text}\r\n\r\n".encode())
print([tcp("0.0.0.0", 80, b"x"), tcp("240.0.0.1", 80, b"x"), tcp("255.255.255.255", 80, b"x"), tcp("224.0.0.1", 80, b"x")])
""").splitlines()
    assert lines[0] == str(["no"] * 10)
    assert len(lines) == 2 and not set(eval(lines[1])) - {"reset", "ECONNREFUSED", "ENETUNREACH", "EACCES", "timeout", "TimeoutError"}
    assert not world.seen("http") and not world.seen("quiet")


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_names_that_lead_to_special_addresses_lead_nowhere(dsec, world):
    names = ["cname.example", "mapped.example", "nat64.example", "zero.example", "sixtofour.example", "unspecified.example", "mixed.example"]
    box = Box(dsec, *(word for name in names for word in ("--allow", name)), "--allow", "0.0.0.0/0", "--allow", "::/0")
    lines = box.py("for name in %r: print(name, status(http(name, name)))" % (names,)).splitlines()
    assert lines[:-1] == [f"{name} 403 Forbidden" for name in names[:-1]]
    # Of several addresses those that may be are taken.
    assert lines[-1] == "mixed.example 200 OK"
    assert [(record["host"], record["at"]) for record in world.seen("http")] == [("mixed.example", "11.0.0.17")]


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_a_name_cannot_be_bound_to_another_address_in_between(dsec, world):
    box = Box(dsec, "--allow", "rebind.example")
    lines = box.py("for i in range(3): print(status(http('rebind.example', 'rebind.example')), len(look_up('rebind.example')))").splitlines()
    assert lines == ["200 OK 2"] * 3
    assert {record["at"] for record in world.seen("http")} == {"11.0.0.15"}


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_answers_of_name_servers_cannot_be_too_large(dsec, world):
    box = Box(dsec, "--allow", "huge.example", "--allow", "garbage.example", "--allow", "good.example")
    lines = box.py("""
print(status(http("huge.example", "huge.example")), look_up("garbage.example"), status(http("good.example", "good.example")))
big = query("good.example") + b"x" * 60000
print(udp("192.0.2.1", 53, big)[:2].encode("latin1"), status(http("good.example", "good.example")))
""").splitlines()
    assert lines[0] == "200 OK no 200 OK" and lines[1].endswith("200 OK")


def test_quic_and_other_protocols_have_no_way(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "11.0.0.20")
    lines = box.py(r"""
at = socket.gethostbyname("good.example")
print([udp(a, 443, b"\xc3\0\0\0\1\x08" + b"q" * 1200, 0.3) for a in (at, "11.0.0.20", "11.0.0.66")])
def made(*kind):
    try: return socket.socket(*kind)
    except OSError: return None
# Sockets of families and protocols that know no network namespaces, or that no rule reads.
for family in (17, 16, 21, 29, 30, 31, 40, 42, 43, 44):
    for kind in (1, 2, 3, 5):
        s = made(family, kind)
        if s is None: continue
        s.settimeout(1)
        try:
            if family == 40: s.connect((2, 1024)); print("vsock", family)
            elif family == 43: s.connect(("11.0.0.66", 9000)); s.sendall(b"x"); print("smc", s.recv(9))
        except OSError: pass
for kind, protocol in ((1, 262), (1, 132), (5, 132), (2, 136), (6, 33), (3, 1), (2, 1), (3, 255)):
    s = made(2, kind, protocol)
    if s is None: continue
    s.settimeout(1)
    try: s.connect(("11.0.0.66", 9000)); s.send(b"x"); print("through", kind, protocol, s.recv(9))
    except OSError: pass
""").splitlines()
    assert lines == [str(["nothing"] * 3)]
    assert not world.seen("udp") and not world.seen("quiet")
    assert any(record["protocol"] == "udp" and record["port"] == 443 for record in box.log("--denied"))


def test_rules_routes_and_devices_cannot_be_changed_from_inside(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    lines = box.py(r"""
import fcntl
def refused(make):
    try: make(); return "made"
    except OSError as e: return errno.errorcode[e.errno]
def netlink(protocol, kind, body=b"", flags=0x605):
    s = socket.socket(16, socket.SOCK_RAW, protocol); s.settimeout(2)
    s.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    answer = s.recv(4096)
    return errno.errorcode.get(-struct.unpack("=i", answer[16:20])[0], "done")
print(netlink(0, 24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 4, 0, 1, 0)))                # a route
print(netlink(0, 16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + vec(b"", 0)))                 # a device
print(netlink(0, 20, struct.pack("=BBBBI", 2, 24, 0, 0, 1) + struct.pack("=HH4s", 8, 2, b"\x0a\0\0\1")))  # an address
print(netlink(12, (10 << 8) | 2, struct.pack(">BBH", 1, 0, 0)))                            # a table of nftables
print(refused(lambda: fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 0))))
for option, value in ((socket.SO_MARK, 1), (socket.SO_BINDTODEVICE, b"eth0\0")):
    print(refused(lambda: socket.socket().setsockopt(socket.SOL_SOCKET, option, value)))
print(refused(lambda: open("/proc/sys/net/ipv4/ip_forward", "w").write("1")))
""").splitlines()
    assert set(lines) <= {"EPERM", "EROFS", "EACCES", "ENODEV", "EINVAL"}, lines
    assert len(lines) == 8
    assert box.py("print(status(http('good.example', 'good.example')), tcp('11.0.0.66', 9000, b'x'))") == "200 OK reset"


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_the_proxy_leads_nowhere_that_a_connection_would_not(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--allow", "other.example:2222")
    lines = box.py(r"""
def connect(to, then=b"", more=""):
    c = socket.create_connection(("192.0.2.1", 3128)); c.settimeout(3)
    c.sendall(f"CONNECT {to} HTTP/1.1\r\n{more}\r\n".encode() + then)
    got = b""
    try:
        while part := c.recv(65536): got += part
    except OSError: pass
    return got.decode("latin1")
for to in ("evil.example:443", "EVIL.example.:443", "11.0.0.66:80", "[::ffff:11.0.0.66]:80", "169.254.169.254:80", "127.0.0.1:3128", "192.0.2.1:3128",
           "good.example:22", "other.example:443", "good.example", "good.example:0", "good.example:99999", "localhost:80"):
    answer = connect(to, b"nothing\n")
    # One that only an address names may still say a name; that it does not ends it.
    if not answer.startswith("HTTP/1.1 403") and answer != "HTTP/1.1 200 Connection established\r\n\r\n": print(to, answer)
# What goes through a tunnel is read like a connection of its own.
inner = b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
print(connect("good.example:80", inner).count("403 Forbidden"), connect("good.example:443", hello("evil.example")).endswith("%s"))
print(connect("good.example:80", b"CONNECT evil.example:443 HTTP/1.1\r\n\r\n").count("403 Forbidden"))
print(status(connect("evil.example:443", more="Host: good.example\r\n")))
two = "GET http://good.example/1 HTTP/1.1\r\nHost: good.example\r\n\r\nGET http://evil.example/2 HTTP/1.1\r\nHost: evil.example\r\n\r\n"
print(tcp("192.0.2.1", 3128, two.encode()).count("HTTP/1.1"))
""" % TLS_DENIED).splitlines()
    assert lines == ["1 True", "1", "403 Forbidden", "1"]
    assert hosts_reached(world) == {"good.example"}


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_http_that_only_some_servers_take_for_it_is_held_to_the_policy(dsec, world):
    """The server here is one of them: it takes tabs for blanks, and lines of 64 KiB."""
    lines = r"""
odd = ["\r\nGET /empty HTTP/1.1", "\n\n GET /blank HTTP/1.1", "GET\t/tab\tHTTP/1.1", "GET\x0b/vertical\x0bHTTP/1.1", "get /small HTTP/1.1",
       "GET /" + "x" * 17000 + " HTTP/1.1", "AMETHODTHATISMUCHTOOLONGFORONE /method HTTP/1.1", "x GET /three words HTTP/1.1"]
def pieces(address, port, data, size):
    c = socket.create_connection((address, port)); got = b""
    try:
        for at in range(0, len(data), size):
            c.sendall(data[at:at + size])
            if len(data) < 1000: time.sleep(0.003)
        while part := c.recv(65536): got += part
    except OSError: pass
    return got.decode("latin1")
for line in odd:
    data = (line + "\r\nHost: evil.example\r\nConnection: close\r\n\r\n").encode("latin1")
    whole, cut = pieces("%s", 80, data, len(data)), pieces("%s", 80, data, 4 if len(data) < 1000 else 1500)
    print(status(whole), "200" in cut)
"""
    box = Box(dsec, "--allow", "good.example", "--allow", "good.example:9000", "--allow", "other.example:2222")
    assert set(box.py(lines % (("good.example",) * 2)).splitlines()) == {"403 Forbidden False"}
    # Where an address is allowed and a name denied, the name counts, too.
    by_address = Box(dsec, "--allow", "11.0.0.20", "--deny", "evil.example")
    assert set(by_address.py(lines % (("11.0.0.20",) * 2)).splitlines()) == {"403 Forbidden False"}
    assert not world.seen("http")
    assert "can be read in two ways" in {record["reason"].rpartition("its first line ")[2] for record in box.log("--denied")}
    # After a server that speaks first, too; other protocols go on, in small pieces and large.
    assert box.py(r"""
def spoken(data):
    c = socket.create_connection(("other.example", 2222)); c.recv(100); c.sendall(data)
    try: return c.recv(100) == data
    except OSError: return "reset"
print(spoken(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), spoken(b"PRI * HTTP/2.0\r\n"), spoken(b"SSH-2.0-OpenSSH\r\n"))
c = socket.create_connection(("good.example", 9000)); got = b""
said = [b"\r\n", b"hello ", b"http/ you\n", b"GET / HTTP/1.1\n", b"z" * 50000]
for part in said: c.sendall(part); time.sleep(0.005)
while len(got) < sum(map(len, said)): got += c.recv(65536)
print(got == b"".join(said))
""") == "reset reset True\nTrue"


def test_datagrams_of_a_made_up_sender_go_nowhere(dsec, world):
    """Answers to them would come to the gateway again, and be sent on: two servers would talk to each other for ever."""
    box = Box(dsec, "--allow", "udp/11.0.0.10:7777", "--allow", "udp/11.0.0.11:7777")
    assert box.py("""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("11.0.0.11", 7777)); s.sendto(b"ball", ("11.0.0.10", 7777)); s.close()
time.sleep(0.5)
print(udp("11.0.0.10", 7777, b"mine"))
""") == "11.0.0.10 mine"
    assert [record["data"] for record in world.seen("udp")] == ["mine"]


@pytest.mark.guest_slow("the gateway reads what it reads on any kernel")
def test_a_flood_of_lookups_leaves_the_gateway_to_others(dsec, world):
    flooding, other = Box(dsec, "--allow", "*.silent.example"), Box(dsec, "--allow", "good.example")
    flood = flooding.popen("""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.3); refused = 0
for i in range(3000): s.sendto(query(f"n{i}.silent.example"), ("192.0.2.1", 53)); time.sleep(0.0001)
try:
    while True: refused += s.recv(512)[3] & 15 == 5
except OSError: print(refused > 100, flush=True)
sys.stdin.read()
""", "-i")
    assert flood.stdout.readline() == b"True\n"
    assert len(os.listdir(f"/proc/{network_world.gateway_of(dsec.home)}/fd")) < 500
    assert other.py("print(status(http('good.example', 'good.example')))") == "200 OK"
    flood.communicate(timeout=30)
    assert "the sandbox looks up too many names" in {record.get("reason") for record in flooding.log()}
    # Those that were asked for are given up in time, and then the next are asked for.
    asked = {record["name"] for record in world.seen("dns") if record["name"].endswith(".silent.example")}
    assert len(asked) >= 100, len(asked)
    assert eventually(lambda: flooding.py("print(look_up('late.silent.example'))") and
                      "late.silent.example" in {record["name"] for record in world.seen("dns")}, 30)
