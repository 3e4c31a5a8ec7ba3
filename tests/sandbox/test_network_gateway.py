"""The egress gateway: it serves all sandboxes of a home, outlives its own death, and writes down what it is asked for."""

import json
import os
import signal

import network_box
import network_world
import pytest
from html_page import Page
from network_box import PRELUDE, Box, eventually
from sealed_lines import sealed_lines


@pytest.fixture
def world(work):
    yield from network_box.world(work)


@pytest.fixture
def dsec(world):
    yield from network_box.dsec_in(world)


def test_one_gateway_without_rights_serves_all_and_ends_with_the_last(dsec, world):
    boxes = [Box(dsec, "--allow", "good.example"), Box(dsec, "--allow", "other.example")]
    pid = network_world.gateway_of(dsec.home)
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status").read().splitlines())
    assert status["Uid"].split()[0] == "65534" and int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"].strip() == "1"
    assert (dsec.home / "run" / "egress.sock").stat().st_mode & 0o777 == 0o600
    assert [box.py("print(look_up('good.example') != 'no', look_up('other.example') != 'no')") for box in boxes] == ["True False", "False True"]
    dsec.ok("rm", "-f", boxes[0].id)
    assert boxes[1].show()["attached"] is True
    # One that ends without anybody's doing is let go of as well.
    dsec.ok("stop", boxes[1].id)
    assert eventually(lambda: network_world.gateway_of(dsec.home) is None)



@pytest.mark.guest_slow("the kernel does not decide it")
def test_the_gateway_keeps_nothing_of_its_caller(dsec, world):
    reading, writing = os.pipe()
    try:
        pipe = os.readlink(f"/proc/self/fd/{writing}")
        caller = dsec.popen("create", "--allow", "good.example", "base/box", pass_fds=[writing])
        assert caller.wait(timeout=120) == 0, caller.stderr.read()
    finally:
        os.close(writing)
        os.close(reading)
    for pid in (network_world.gateway_of(dsec.home), network_world.guard_of(dsec.home)):
        assert pipe not in [os.readlink(f"/proc/{pid}/fd/{entry}") for entry in os.listdir(f"/proc/{pid}/fd")]


# Asks until it is answered, since a connection that the gateway had when it died is reset.
PERSISTENT = """
def persistent(path):
    for attempt in range(200):
        try:
            c = socket.create_connection(("good.example", 80), 8)
            c.sendall(f"GET {path} HTTP/1.1\\r\\nHost: good.example\\r\\nConnection: close\\r\\n\\r\\n".encode())
            got = bytearray()
            while part := c.recv(65536): got += part
            if got.startswith(b"HTTP/1.1 200"): return len(got.partition(b"\\r\\n\\r\\n")[2])
        except OSError: pass
        time.sleep(0.01)
    return got[:100]
"""


def kill(pid: int):
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not runs(pid))


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, before it is read
        return False


def test_a_gateway_that_is_killed_in_the_middle_of_transfers_comes_back_by_itself(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    transfers = box.popen(PERSISTENT + """
at = look_up("good.example")
for line in sys.stdin: print(persistent("/big?bytes=8000000") == 8000000, flush=True)
print(look_up("good.example") == at, look_up("evil.example"))
""", "-i")
    seen = set()
    for turn in range(20):
        transfers.stdin.write(b"go\n")
        transfers.stdin.flush()
        gateway = eventually(lambda: network_world.gateway_of(dsec.home))
        assert gateway and gateway not in seen, f"turn {turn}"
        seen.add(gateway)
        # Its guard dies, too, now and then: the gateway makes a new one.
        if turn % 4 == 3:
            guard = network_world.guard_of(dsec.home)
            kill(guard)
            assert eventually(lambda old=guard: network_world.guard_of(dsec.home) not in (None, old))
        kill(gateway)
        assert transfers.stdout.readline() == b"True\n", f"turn {turn}"
    transfers.stdin.close()
    assert transfers.stdout.read().splitlines() == [b"True no"]
    assert transfers.wait() == 0
    # Nobody had to do anything for it, and what passed before is counted on.
    report = box.show()
    assert report["attached"] and report["received"] > 20 * 8000000 and report["names"] == 1
    assert not [record for record in world.seen("http") if record["host"] != "good.example"]
    # What was open when it died nobody could log; that is told.
    whole = sum(record.get("received", 0) > 8000000 for record in box.log())
    assert whole + sum(record.get("lost", 0) for record in box.log()) >= 20
    sealed_lines(dsec.home / "trajectories" / box.id / "network.jsonl")


def test_nothing_passes_while_no_gateway_is_there(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    asking = box.popen(PERSISTENT + """
print("ready", flush=True)
for line in sys.stdin:
    print(http("good.example", "good.example")[:12] if line == "once\\n" else persistent("/big?bytes=1000"), flush=True)
""", "-i")
    assert asking.stdout.readline() == b"ready\n"
    guard, gateway = network_world.guard_of(dsec.home), network_world.gateway_of(dsec.home)
    os.kill(guard, signal.SIGSTOP)
    try:
        kill(gateway)
        asking.stdin.write(b"once\n")
        asking.stdin.flush()
        assert not eventually(lambda: world.seen("dns") or world.seen("http"), 1.0)
    finally:
        os.kill(guard, signal.SIGCONT)
    asking.stdout.readline()
    asking.stdin.write(b"again\n")
    asking.stdin.close()
    assert asking.stdout.readline() == b"1000\n"
    asking.wait()


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_when_both_processes_are_killed_the_next_command_opens_the_network(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    assert box.py("print(status(http('good.example', 'good.example')))") == "200 OK"
    waiting = dsec.popen("exec", "-i", box.id, "--", "/usr/bin/python3", "-uc", PRELUDE + """
print("ready")
sys.stdin.readline()
try: print(socket.create_connection(("11.0.0.10", 80), 1))
except OSError as e: print("closed")
sys.stdin.readline()
print(status(http("good.example", "good.example")))
""")
    assert waiting.stdout.readline() == b"ready\n"
    os.kill(network_world.guard_of(dsec.home), signal.SIGSTOP)
    kill(network_world.gateway_of(dsec.home))
    kill(network_world.guard_of(dsec.home))
    waiting.stdin.write(b"\n")
    waiting.stdin.flush()
    assert waiting.stdout.readline() == b"closed\n"
    assert box.show()["attached"] is False
    dsec.ok("exec", box.id, "--", "true")
    assert box.show()["attached"] is True
    waiting.stdin.write(b"\n")
    waiting.stdin.flush()
    assert waiting.communicate(timeout=20)[0] == b"200 OK\n"
    sealed_lines(dsec.home / "trajectories" / box.id / "network.jsonl")


def test_a_sandbox_that_ends_while_no_gateway_is_there_is_let_go_of(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    guard = network_world.guard_of(dsec.home)
    os.kill(guard, signal.SIGSTOP)
    kill(network_world.gateway_of(dsec.home))
    dsec.ok("stop", "-t", "0s", box.id)
    os.kill(guard, signal.SIGCONT)
    assert eventually(lambda: not network_world.gateway_of(dsec.home) and not network_world.guard_of(dsec.home), 10)


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_every_request_is_logged_with_its_verdict(dsec, world):
    box = Box(dsec, "--allow", "good.example", "--deny", "evil.example")
    box.py("http('good.example', 'good.example'); tcp('11.0.0.66', 443, hello('evil.example')); tcp('good.example', 22); udp('11.0.0.10', 7777, b'x', 0.1)")
    log = eventually(lambda: box.log() if len(box.log()) >= 5 else None)
    by = {(r["protocol"], r["verdict"]): r for r in log}
    allowed = by["http", "allow"]
    assert (allowed["host"], allowed["address"], allowed["port"], allowed["requests"]) == ("good.example", "11.0.0.10", 80, 1)
    assert allowed["sent"] > 0 and allowed["received"] > 0 and "duration_us" in allowed
    assert by["tls", "deny"]["reason"] == "deny evil.example" and by["tls", "deny"]["host"] == "evil.example"
    assert by["tcp", "deny"]["reason"] == "no rule allows it" and by["tcp", "deny"]["port"] == 22
    assert by["udp", "deny"]["address"] == "11.0.0.10"
    assert by["dns", "allow"]["host"] == "good.example"
    text = dsec.ok("net", "log", box.id, "--denied")
    assert "deny  tls  evil.example 11.0.0.66:443  (deny evil.example)" in text
    shown = dsec.ok("net", "show", box.id)
    assert "allow  good.example" in shown and "deny   evil.example" in shown


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_lookup_of_one_family_alone_is_logged_too(dsec, world):
    """What leaves the host in names below an allowed one is to be seen."""
    box = Box(dsec, "--allow", "*.wild.example", "--allow", "good.example")
    box.py("""
for kind in (28, 28, 1, 28): udp("192.0.2.1", 53, query("a.wild.example", kind))
for kind in (1, 28): udp("192.0.2.1", 53, query("good.example", kind))
""")
    lookups = [record["host"] for record in box.log() if record["protocol"] == "dns"]
    assert lookups == ["a.wild.example", "a.wild.example", "good.example"], lookups
    assert {record["name"] for record in world.seen("dns")} == {"a.wild.example", "good.example"}


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_every_request_of_a_long_connection_is_logged(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    assert box.py(r"""
import http.client
server = http.client.HTTPConnection("good.example")
print(sum(len(server.getresponse().read()) > 0 for i in range(70) if not server.request("GET", f"/{i}?k=quiet")))
server.close()
""") == "70"
    log = eventually(lambda: [r for r in box.log() if r["protocol"] == "http"] if any(r["protocol"] == "http" and "more" not in r for r in box.log()) else None)
    assert [(r["requests"], r.get("more", False)) for r in log] == [(32, True), (32, True), (6, False)]
    assert [path for r in log for path in r["http"]] == [f"GET /{i}" for i in range(70)]
    assert all(r["verdict"] == "allow" and r["sent"] > 0 and r["received"] > 0 for r in log)
    shown = dsec.json("net", "show", box.id)
    assert (sum(r["sent"] for r in log), sum(r["received"] for r in log)) == (shown["sent"], shown["received"])


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_the_log_outlives_the_sandbox_with_its_trajectory(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    box.py("http('good.example', 'good.example', '/one?token=quiet'); tcp('11.0.0.66', 9000, b'x')")
    dsec.ok("net", "set", box.id, "--nothing")
    assert eventually(lambda: len(box.log()) >= 3)
    log = dsec.home / "trajectories" / box.id / "network.jsonl"
    before = sealed_lines(log)
    assert before[0]["sandbox"] == box.id and before[0]["schema"] == 1
    dsec.ok("rm", "-f", box.id)
    assert sealed_lines(log)[:len(before)] == before
    assert [record["http"] for record in box.log() if record["protocol"] == "http"] == [["GET /one"]]
    assert "quiet" not in log.read_text()
    assert "GET /one" in dsec.ok("net", "log", box.id)
    # Who changed the policy when is an operation.
    operations = [json.loads(line) for line in (log.parent / "log.jsonl").read_text().splitlines()[1:]]
    assert [o["request"]["allow"] for o in operations if o.get("kind") == "policy"] == [[]]
    dsec.ok("traj", "rm", box.id)
    assert not log.exists()


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_log_is_followed_until_its_sandbox_has_ended(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    box.py("http('good.example', 'good.example', '/before')")
    follower = dsec.popen("net", "log", box.id, "-f", "-o", "json")
    denied = dsec.popen("net", "log", box.id, "--follow", "--denied")

    def next_of(protocol: str) -> dict:
        while (record := json.loads(follower.stdout.readline()))["protocol"] != protocol:
            pass
        return record

    assert next_of("http")["http"] == ["GET /before"]
    box.py("http('good.example', 'good.example', '/after'); tcp('11.0.0.66', 9000, b'x')")
    assert next_of("http")["http"] == ["GET /after"]
    assert next_of("tcp")["address"] == "11.0.0.66"
    assert b"deny  tcp  11.0.0.66:9000" in denied.stdout.readline()
    assert follower.poll() is None and denied.poll() is None
    dsec.ok("rm", "-f", box.id)
    assert follower.wait(10) == denied.wait(10) == 0
    assert denied.stdout.read() == b""


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_report_shows_what_was_asked_of_the_network_and_during_what(dsec, world):
    box = Box(dsec, "-e", "API_TOKEN=hunter2hunter2", "--allow", "good.example")
    box.py("http('good.example', 'good.example', '/one?x'); tcp('11.0.0.66', 9000, b'x')")
    assert eventually(lambda: len(box.log()) >= 3)
    dsec.ok("exec", box.id, "--", "true")
    box.py("http('good.example', 'good.example', '/hunter2hunter2')")
    assert eventually(lambda: len(box.log()) >= 4)
    count = len(box.log())
    dsec.ok("rm", "-f", box.id)
    dsec.ok("traj", "export", box.id, "--out", "x.jsonl")
    for what in (box.id, "./x.jsonl"):
        dsec.ok("traj", "report", what, "--out", "report.html")
        html = (dsec.cwd / "report.html").read_text()
        page = Page(html)
        assert page.texts["events"] == str(count) and len(page.of("tr", "event")) > count
        for text in ("good.example 11.0.0.10:80", "GET /one", "11.0.0.66:9000", "no rule allows it", "deny"):
            assert text in page.texts["network"], text
        assert "network requests meanwhile" in page.texts["op-1"] and "GET /one" in page.texts["op-1"]
        assert "11.0.0.66:9000" in page.texts["op-1"] and "GET /one" not in page.texts["op-3"]
        assert "network requests meanwhile" not in page.texts["op-2"]
        assert "network requests meanwhile" in page.texts["op-3"] and "hunter2" not in html


@pytest.mark.guest_slow("the gateway decides alike on any kernel")
def test_a_torn_last_line_is_taken_away_and_the_chain_goes_on(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    log = dsec.home / "trajectories" / box.id / "network.jsonl"
    box.py("http('good.example', 'good.example')")
    assert eventually(lambda: len(box.log()) >= 2)
    whole = log.read_bytes()
    with log.open("ab") as file:
        file.write(b'{"verdict":"al')
    kill(network_world.gateway_of(dsec.home))
    assert eventually(lambda: log.read_bytes() == whole)
    box.py("http('good.example', 'good.example')")
    assert eventually(lambda: len(sealed_lines(log)) >= 5)


@pytest.mark.guest_slow("writes a log to its limit")
def test_a_flood_of_requests_is_bounded_and_what_is_dropped_is_counted(dsec, world):
    box = Box(dsec, "--allow", "good.example")
    log = dsec.home / "trajectories" / box.id / "network.jsonl"
    # Long names fill it soonest; half of it stays for what passes.
    asked = int(box.py("""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); count = 0
name = ".".join(["n" * 60] * 3) + ".example"
for i in range(54000):
    s.sendto(query("%d.%s" % (i, name)), ("192.0.2.1", 53)); count += len(s.recv(999)) > 0
print(count)
""", timeout=300))
    assert log.stat().st_size <= 17 << 20
    box.py("http('good.example', 'good.example')")
    dsec.ok("rm", "-f", box.id)
    records = sealed_lines(log)[1:]
    assert sum(record.get("lost", 0) for record in records) + sum(r["host"].startswith(tuple("0123456789")) for r in records if "host" in r) == asked
    assert sum("lost" in record for record in records) < 20
    assert [r["verdict"] for r in records if r.get("protocol") == "http"] == ["allow"]
    assert "records were not kept" in dsec.ok("net", "log", box.id)
