"""Layers whose contents come while they are read: from the first command to what follows the death of everything."""

import base64
import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
import rootfs
from dsec_tool import BIN, Dsec
from fault_proxy import Fault, FaultProxy
from oci_registry import DockerRegistry, make_certificates
from web_servers import Nginx, S3Proxy, S3Server

MIB = 1 << 20
CHUNK, GAP = 64 << 10, 128 << 10


def wait_for(check, seconds: float = 60.0):
    """What the check finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return found


def big_file() -> bytes:
    return b"".join(hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(8 * MIB // 32))


def have_program(dsec: Dsec, sandbox: str):
    """All of it: a page of a program that cannot come kills it, and what it wanted to say is not said."""
    dsec.ok("exec", sandbox, "--", "md5sum", "/bin/busybox")


class World:
    """A layer base/box with a file of 8 MiB that another host publishes, and what its digest is."""

    def __init__(self, dsec: Dsec, work: Path, author: Dsec):
        self.dsec, self.work, self.author = dsec, work, author
        self.big = big_file()
        self.sum = hashlib.sha256(self.big).hexdigest()
        self.layer = author.json("layer", "inspect", "base/box")[0]
        self.data = next(blob for blob in self.layer["manifest"]["images"][0]["blobs"] if blob["role"] == "data")
        self.hex = self.data["digest"].removeprefix("sha256:")
        self.stored = dsec.home / "store/blobs/sha256" / self.hex[:2] / self.hex

    def publish(self, url: str):
        self.author.ok("publish", "base/box", "--to", url)

    def publish_to_folder(self) -> Path:
        """Returns the file of the data blob in the registry."""
        self.url = f"file://{self.work}/registry"
        self.publish(self.url)
        return self.work / "registry/blobs/sha256" / self.hex[:2] / self.hex

    def configure(self, text: str):
        (self.work / "config.yaml").write_text(text)

    def ask(self, op: str) -> dict:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(30)
            client.connect(str(self.dsec.home / "run/loader.sock"))
            client.send(json.dumps({"op": op}).encode())
            return json.loads(client.recv(1 << 20))

    def status(self) -> dict:
        return self.ask("status")

    def fetched(self) -> int:
        return sum(blob.get("fetched", 0) for blob in self.status()["blobs"])

    def processes(self) -> dict[str, int]:
        """"serve" and "hold", by pid."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/dsec-loader") and len(words) > 2 and words[2] == os.fsencode(self.dsec.home):
                found[words[1].decode()] = int(entry.name)
        return found

    def where_in_data(self, part: bytes) -> int:
        """Where bytes of the file lie in the blob."""
        blob = self.author.home / "store/blobs/sha256" / self.hex[:2] / self.hex
        return blob.read_bytes().index(part)


@pytest.fixture(scope="module")
def author():
    """Another host, which has the layer."""
    folder = Path(tempfile.mkdtemp(prefix="dsec-test-"))
    other = Dsec(folder / "home", folder)
    other.ok("import", "base/box", f"tar:{rootfs.write_tar(folder / 'base.tar', files={'big': big_file()})}")
    yield other
    shutil.rmtree(folder)


@pytest.fixture
def world(dsec, work, author):
    return World(dsec, work, author)


@pytest.fixture
def server(work):
    registry = DockerRegistry(work / "server")
    yield registry
    registry.stop()


def test_a_sandbox_runs_before_its_layer_has_come_and_reads_the_same(dsec, world, work):
    blob = world.publish_to_folder()
    said = dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    assert "loaded on demand" in said
    assert not world.stored.exists()
    assert dsec.json("layer", "inspect", "base/box")[0]["on_demand"]
    assert "on demand" in dsec.ok("layer", "ls")

    sandbox = dsec.ok("create", "base/box").strip()
    assert dsec.ok("exec", sandbox, "--", "echo", "here") == "here\n"
    first = world.fetched()
    assert 0 < first < world.data["size"] / 2
    assert dsec.json("inspect", sandbox)[0]["on_demand"] == {"bytes": world.data["size"], "fetched": first}
    used = dsec.json("stats", sandbox)["on_demand"]
    assert used["fetched"] == first and 0 < used["first_command_ms"] < 60_000
    assert "first command after" in dsec.ok("stats", sandbox)
    header, record = dsec.json("traj", "show", sandbox)
    assert record["on_demand"] == {"bytes": world.data["size"], "fetched": first}
    assert "fetched" in dsec.ok("traj", "show", sandbox)
    used = dsec.json("system", "df")["layers"][0]
    assert used["on_demand"] == world.data["size"] and 0 < used["on_demand_here"] < world.data["size"]
    assert world.ask("instance").keys() == {"instance", "pid", "protocol"}
    # The mount is needed, and gc knows by which loader.
    dsec.ok("gc")
    assert world.sum in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")
    assert world.fetched() <= world.data["size"]
    # What was read has come; with the rest it becomes a blob of the store, and the next mount needs no registry.
    dsec.ok("exec", sandbox, "--", "sh", "-c", "cat /bin/busybox /etc/passwd /etc/group > /dev/null")
    wait_for(world.stored.exists)
    assert hashlib.sha256(world.stored.read_bytes()).hexdigest() == world.hex
    assert not dsec.json("layer", "inspect", "base/box")[0]["on_demand"]
    dsec.ok("rm", "-f", sandbox)
    blob.unlink()
    assert world.sum in dsec.ok("run", "base/box", "--", "sha256sum", "/big")
    dsec.ok("gc")
    assert wait_for(lambda: not world.processes())


@pytest.mark.guest_slow("the kernel does not decide it")
def test_run_pulls_on_demand_when_it_is_told_and_by_configuration(dsec, world, work):
    world.publish_to_folder()
    (work / "tool").mkdir()
    (work / "tool/readme").write_text("a tool\n")
    world.author.ok("import", "toolkit/tool", f"dir:{work}/tool", "--to", "/opt/tool")
    world.author.ok("publish", "toolkit/tool", "--to", world.url)
    # Stacking looks at what is there, not into it.
    run = ["run", "--on-demand", "--registry", world.url, "base/box", "toolkit/tool", "--"]
    assert dsec.ok(*run, "cat", "/opt/tool/readme") == "a tool\n"
    assert not world.stored.exists()
    second = Dsec(work / "second", work)
    world.configure(f"on_demand: true\nregistries: {{r: '{world.url}'}}\n")
    assert second.json("pull", "base/box")["bytes_on_demand"] == world.data["size"]
    second.ok("layer", "verify")
    assert "on demand" in second.ok("layer", "verify", "base/box")
    # A whole pull after it brings the rest.
    world.configure(f"registries: {{r: '{world.url}'}}\n")
    assert second.json("pull", "base/box")["bytes_copied"] == world.data["size"]
    assert not second.json("layer", "inspect", "base/box")[0]["on_demand"]


@pytest.mark.guest_slow("the kernel does not decide it")
def test_what_needs_a_whole_blob_fetches_it_first(dsec, world, work):
    world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    dsec.ok("publish", "base/box", "--to", f"file://{work}/copy")
    assert world.stored.exists()
    third = Dsec(work / "third", work)
    assert third.json("pull", "base/box", "--from", f"file://{work}/copy")["digest"] == world.layer["digest"]


@pytest.mark.guest_slow("the kernel does not decide it")
def test_sandboxes_share_what_is_fetched(dsec, world):
    world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandboxes = [dsec.ok("create", "base/box").strip() for _ in range(2)]
    running = [dsec.popen("exec", sandbox, "--", "sha256sum", "/big") for sandbox in sandboxes]
    assert all(world.sum in each.communicate(timeout=120)[0].decode() for each in running)
    assert world.fetched() <= world.data["size"]


def few_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.guest_slow("the kernel does not decide it")
def test_the_loader_keeps_nothing_of_its_caller(dsec, world):
    world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    reading, writing = os.pipe()
    try:
        pipe = os.readlink(f"/proc/self/fd/{writing}")
        caller = dsec.popen("create", "base/box", pass_fds=[writing], preexec_fn=few_files)
        assert caller.wait(timeout=120) == 0, caller.stderr.read()
    finally:
        os.close(writing)
        os.close(reading)
    processes = wait_for(lambda: len(now := world.processes()) == 2 and now)
    for pid in processes.values():
        assert pipe not in [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        few, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert few == min(most, 1 << 20) > 256


def stalling_proxy(world, server) -> tuple[FaultProxy, threading.Event]:
    """While the event is set, nothing of the layer's data is answered: parts of it are asked for by ranges."""
    holding = threading.Event()

    def faults(method, path, count):
        while holding.is_set() and world.hex in path:
            time.sleep(0.05)

    return FaultProxy(server.port, faults), holding


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_the_death_of_the_server_while_a_process_waits_goes_unnoticed(dsec, world, work, server):
    proxy, holding = stalling_proxy(world, server)
    try:
        world.publish(f"oci://{server.host}/layers")
        world.configure(f"hosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
        dsec.ok("pull", "--on-demand", "base/box", "--from", f"oci://{proxy.host}/layers")
        sandbox = dsec.ok("create", "base/box").strip()
        have_program(dsec, sandbox)
        holding.set()
        proxy.forget()
        reader = dsec.popen("exec", sandbox, "--", "sha256sum", "/big")
        wait_for(lambda: proxy.times("GET", world.hex))
        before = world.processes()
        os.kill(before["serve"], signal.SIGKILL)
        after = wait_for(lambda: (now := world.processes()) and now.get("serve", before["serve"]) != before["serve"] and now)
        assert after["hold"] == before["hold"]
        assert reader.poll() is None
        holding.clear()
        out, err = reader.communicate(timeout=120)
        assert world.sum in out.decode(), err

        # The holder's death alone changes nothing either.
        os.kill(after["hold"], signal.SIGKILL)
        wait_for(lambda: world.processes().get("hold", after["hold"]) != after["hold"])
        os.kill(after["serve"], signal.SIGKILL)
        wait_for(lambda: world.processes().get("serve", after["serve"]) != after["serve"])
        assert "root" in dsec.ok("exec", sandbox, "--", "cat", "/etc/passwd")
    finally:
        holding.clear()
        proxy.stop()


def test_when_holder_and_server_die_reads_fail_and_the_next_start_works(dsec, world):
    world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandbox = dsec.ok("create", "base/box").strip()
    # A program whose pages cannot come ends with SIGBUS; this one shall tell of a read.
    dsec.ok("exec", sandbox, "--", "sh", "-c", "cat /bin/busybox > /dev/null")
    processes = world.processes()
    for pid in processes.values():
        os.kill(pid, signal.SIGSTOP)
    for pid in processes.values():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not world.processes())
    result = dsec.run("exec", sandbox, "--", "cat", "/big")
    assert result.code == 1 and "Input/output error" in result.err, str(result)
    assert world.sum in dsec.ok("run", "base/box", "--", "sha256sum", "/big")


class Release(Dsec):
    """dsec as it is installed in a folder."""

    def __init__(self, home: Path, cwd: Path, folder: Path):
        super().__init__(home, cwd)
        self.folder = folder
        folder.mkdir()
        for program in BIN.glob("dsec*"):
            shutil.copy(program, folder)

    def argv(self, *args) -> list[str]:
        return [str(self.folder / "dsec"), *super().argv(*args)[1:]]

    def install_loader(self, change=lambda program: program):
        new = self.folder / "new"
        new.write_bytes(change((BIN / "dsec-loader").read_bytes()))
        new.chmod(0o755)
        new.rename(self.folder / "dsec-loader")


def of_another_release(program: bytes) -> bytes:
    """What its holder keeps has another layout."""
    assert b"dsecload" in program
    return program.replace(b"dsecload", b"dsecLOAD")


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.parametrize("newer", [True, False])
def test_what_a_holder_of_another_release_keeps_is_served_on(dsec, world, work, newer):
    world.publish_to_folder()
    before, after = (of_another_release, lambda program: program)[::1 if newer else -1]
    release = Release(dsec.home, work, work / "release")
    release.install_loader(before)
    release.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandbox = release.ok("create", "base/box").strip()
    have_program(release, sandbox)
    release.install_loader(after)
    for part in (1024, 1600):
        # First its own holder, then one that its server has made.
        old = world.processes()
        os.kill(old["serve"], signal.SIGTERM)
        now = wait_for(lambda: (now := world.processes()) and now.get("serve", old["serve"]) != old["serve"] and now)
        assert now["hold"] == old["hold"]
        release.ok("exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", f"skip={part}")
        assert "of another release, which goes on" in (dsec.home / "run/loader.log").read_text()
        os.kill(now["hold"], signal.SIGKILL)
        wait_for(lambda: world.processes().get("hold", now["hold"]) != now["hold"])
    # Others use it, too, and it counts for them.
    second = release.ok("create", "base/box").strip()
    assert world.sum in release.ok("exec", second, "--", "sha256sum", "/big")
    assert release.json("inspect", second)[0]["on_demand"]["fetched"] == world.fetched() > 8 * MIB
    for each in (sandbox, second):
        release.ok("rm", "-f", each)
    release.ok("gc")
    wait_for(lambda: not world.processes())
    assert world.sum in release.ok("run", "base/box", "--", "sha256sum", "/big")


@pytest.mark.guest_slow("the kernel does not decide it")
def test_a_home_that_was_removed_is_not_made_anew(dsec, world):
    world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandbox = dsec.ok("create", "base/box").strip()
    have_program(dsec, sandbox)
    server, away = world.processes()["serve"], dsec.home.with_name("away")
    dsec.home.rename(away)
    try:
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: "there is no dsec home" in (away / "run/loader.log").read_text())
        assert not dsec.home.exists()
    finally:
        away.rename(dsec.home)
    # The holder has not given up.
    assert world.sum in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")


@pytest.mark.guest_slow("the kernel does not decide it")
def test_wrong_bytes_of_a_registry_are_an_error_and_are_named(dsec, world):
    blob = world.publish_to_folder()
    at = world.where_in_data(world.big[5 * MIB:5 * MIB + 4096])
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    os.chmod(blob, 0o644)
    with open(blob, "r+b") as file:
        file.seek(at)
        file.write(b"x")
    sandbox = dsec.ok("create", "base/box").strip()
    read = ["exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1"]
    dsec.ok(*read, "skip=0")
    result = dsec.run(*read, f"skip={5 * MIB // 4096}")
    assert result.code != 0 and "Input/output error" in result.err, str(result)
    assert world.hex in dsec.run("doctor", "storage").out
    told = (dsec.home / "run/loader.log").read_text()
    assert f"cannot load blob sha256:{world.hex} of layer base/box from {world.url}" in told
    assert f"chunk {at // CHUNK}" in told


@pytest.mark.guest_slow("the kernel does not decide it")
def test_a_blob_that_is_deleted_while_in_use_is_an_error_and_is_named(dsec, world):
    blob = world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandbox = dsec.ok("create", "base/box").strip()
    have_program(dsec, sandbox)
    blob.unlink()
    result = dsec.run("exec", sandbox, "--", "sha256sum", "/big")
    assert result.code != 0 and "Input/output error" in result.err, str(result)
    assert f"the registry does not have blob sha256:{world.hex}" in (dsec.home / "run/loader.log").read_text()
    # What is pulled from another one heals what runs.
    mirror = f"file://{world.work}/mirror"
    world.publish(mirror)
    dsec.ok("pull", "--on-demand", "base/box", "--from", mirror)
    assert world.sum in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")


@pytest.mark.guest_slow("the kernel does not decide it")
def test_a_full_cache_disk_is_as_if_there_was_no_cache(dsec, world):
    world.publish_to_folder()
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    chunks = dsec.home / "cache/chunks"
    chunks.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "full", chunks], check=True)
    try:
        sandbox = dsec.ok("create", "base/box").strip()
        have_program(dsec, sandbox)
        assert world.sum in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")
        # Of the part that was not kept it comes anew.
        dsec.ok("exec", sandbox, "--", "sh", "-c", "sha256sum /big > /dev/null")
        assert not world.stored.exists()
    finally:
        subprocess.run(["umount", "-l", chunks], check=True)


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_a_stalled_registry_is_an_error_in_time(dsec, world, work, server):
    holding = threading.Event()

    def faults(method, path, count):
        while holding.is_set() and world.hex in path:
            time.sleep(0.05)

    proxy = FaultProxy(server.port, faults)
    try:
        world.publish(f"oci://{server.host}/layers")
        world.configure(f"on_demand: {{timeout: 1s}}\nhosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
        dsec.ok("pull", "--on-demand", "base/box", "--from", f"oci://{proxy.host}/layers")
        sandbox = dsec.ok("create", "base/box").strip()
        have_program(dsec, sandbox)
        holding.set()
        began = time.monotonic()
        result = dsec.run("exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", "skip=1024")
        assert result.code != 0 and "Input/output error" in result.err, str(result)
        assert time.monotonic() - began < 30
        assert "was not answered in time" in (dsec.home / "run/loader.log").read_text()
        holding.clear()
        assert world.sum in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")
    finally:
        holding.clear()
        proxy.stop()


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_where_one_registry_stalls_another_gives_the_rest(dsec, world, work, server):
    holding = threading.Event()

    def faults(method, path, count):
        while holding.is_set() and "/a/" in path and world.hex in path:
            time.sleep(0.05)

    proxy = FaultProxy(server.port, faults)
    try:
        world.configure(f"on_demand: {{timeout: 12s}}\nhosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
        for name in ("a", "b"):
            world.publish(f"oci://{server.host}/{name}")
            dsec.ok("pull", "--on-demand", "base/box", "--from", f"oci://{proxy.host}/{name}")
        sandbox = dsec.ok("create", "base/box").strip()
        have_program(dsec, sandbox)
        holding.set()
        proxy.forget()
        assert world.sum in dsec.ok("exec", sandbox, "--", "sha256sum", "/big")
        assert proxy.times("GET", "/a/")
    finally:
        holding.clear()
        proxy.stop()


def trace(world, *more) -> dict:
    """Of two parts of /big, the later one first."""
    read = "dd if=/big of=/dev/null bs=4096 count=1 skip=1024; dd if=/big of=/dev/null bs=4096 count=1 skip=256"
    return world.dsec.json("registry", "trace", "--registry", world.url, *more, "base/box", "--", "sh", "-c", read)


def listed_file(world) -> Path:
    digest = world.layer["digest"].removeprefix("sha256:")
    return world.work / "registry/prefetch/sha256" / digest[:2] / f"{digest}.json"


# Through a loop device the kernel reads ahead before anybody asks.
@pytest.mark.needs("file_backed_mounts")
def test_what_a_traced_command_reads_is_fetched_first_from_then_on(dsec, world, work):
    blob = world.publish_to_folder()
    told = trace(world)
    layer = told["layers"][0]
    assert (layer["name"], layer["digest"], layer["published"]) == ("base/box", world.layer["digest"], True)
    assert 0 < layer["read"] <= told["fetched"] < layer["bytes"] == world.data["size"] == told["bytes"]
    assert told["first_command_ms"] > 0
    # Nothing of the run is left here, and the layer is what it was.
    assert dsec.json("layer", "ls") == [] and not any((dsec.home / "cache").iterdir())
    assert not list((work / "registry").rglob(".tmp-*"))
    # Each piece once; the later part of the file was read before the other one.
    found = json.loads(listed_file(world).read_text())["blobs"]
    assert [each["digest"] for each in found] == [world.data["digest"]]
    order = [chunk for first, count in found[0]["chunks"] for chunk in range(first, first + count)]
    assert len(order) == len(set(order)) == -(-layer["read"] // CHUNK)
    later, earlier = (world.where_in_data(world.big[at:at + 4096]) // CHUNK for at in (4 * MIB, MIB))
    assert order.index(later) < order.index(earlier)

    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandbox = dsec.ok("create", "base/box").strip()
    # Nobody has read anything. What separates two pieces by little comes with them.
    wait_for(lambda: world.fetched() >= layer["read"])
    time.sleep(0.5)
    assert world.fetched() <= layer["read"] + layer["runs"] * GAP
    blob.unlink()
    read = ["exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1"]
    dsec.ok(*read, "skip=1024")
    dsec.ok(*read, "skip=256")
    assert dsec.run(*read, "skip=1600").code != 0


@pytest.mark.guest_slow("the kernel does not decide it")
def test_a_trace_of_a_command_that_fails_publishes_nothing(dsec, world, work):
    world.publish_to_folder()
    said = dsec.fails(1, "registry", "trace", "--registry", world.url, "base/box", "--", "sh", "-c", "echo so; exit 3")
    assert "'sh' ended with 3" in said and "so\n" in said
    trace(world, "--dry-run")
    assert not listed_file(world).exists() and not any((dsec.home / "cache").iterdir())
    (work / "config.yaml").write_text("hosts: {'localhost:1': {plain_http: true}}\n")
    # Told before the command runs.
    said = dsec.fails(1, "registry", "trace", "--registry", world.url, "--to", "http://localhost:1/x", "base/box", "--", "false")
    assert "ended with" not in said


@pytest.mark.guest_slow("the kernel does not decide it")
def test_what_a_killed_trace_leaves_goes_with_gc(dsec, world):
    world.publish_to_folder()
    tracing = dsec.popen("registry", "trace", "--registry", world.url, "base/box", "--", "sleep", "600")
    try:
        wait_for(lambda: [name for home in (dsec.home / "cache").glob(".tmp-*/sandboxes") for name in home.iterdir()])
        wait_for(lambda: any(b"sleep\x00600" in (entry / "cmdline").read_bytes() for entry in Path("/proc").glob("[0-9]*")
                             if (entry / "cmdline").exists()))
    finally:
        tracing.kill()
        tracing.communicate()
    dsec.ok("gc")
    assert not any((dsec.home / "cache").glob(".tmp-*"))


@pytest.mark.guest_slow("the kernel does not decide it")
def test_a_layer_that_is_filled_becomes_local_although_nobody_reads_it(dsec, world):
    world.publish_to_folder()
    world.configure("on_demand: {fill: true}\n")
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    dsec.ok("create", "base/box")
    wait_for(world.stored.exists)
    assert hashlib.sha256(world.stored.read_bytes()).hexdigest() == world.hex


@pytest.mark.guest_slow("the kernel does not decide it")
def test_a_layer_that_is_read_beyond_a_share_comes_wholly(dsec, world):
    world.publish_to_folder()
    world.configure("on_demand: {eager_share: 0.3}\n")
    dsec.ok("pull", "--on-demand", "base/box", "--from", world.url)
    sandbox = dsec.ok("create", "base/box").strip()
    have_program(dsec, sandbox)
    time.sleep(1)
    assert not world.stored.exists()
    dsec.ok("exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=1M", "count=5")
    wait_for(world.stored.exists)


@pytest.mark.needs("file_backed_mounts")
@pytest.mark.needs("registry_servers")
def test_a_process_that_waits_for_a_piece_can_be_killed(dsec, world, work, server):
    proxy, holding = stalling_proxy(world, server)
    try:
        world.publish(f"oci://{server.host}/layers")
        world.configure(f"on_demand: {{timeout: 60s}}\nhosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
        dsec.ok("pull", "--on-demand", "base/box", "--from", f"oci://{proxy.host}/layers")
        sandbox = dsec.ok("create", "base/box").strip()
        dsec.ok("exec", sandbox, "--", "sh", "-c", "cat /bin/busybox > /dev/null")
        holding.set()
        proxy.forget()
        reader = dsec.popen("exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", "skip=1024")
        wait_for(lambda: proxy.times("GET", world.hex))
        time.sleep(0.3)
        began = time.monotonic()
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(timeout=30) == 128 + signal.SIGTERM
        assert time.monotonic() - began < 5
        # And a sandbox with such a process can be removed.
        reader = dsec.popen("exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", "skip=1300")
        time.sleep(0.5)
        dsec.ok("rm", "-f", sandbox)
        assert time.monotonic() - began < 15
        reader.communicate(timeout=30)
    finally:
        holding.clear()
        proxy.stop()


# --- servers of every kind, and what they do meanwhile ----------------------------------------------------------------

SECRET = "secret/of+this=test"
READ = ["dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", "skip=1024"]


def pulled(world, url: str, config: str = "", env: dict | None = None) -> str:
    world.configure("on_demand: {timeout: 20s}\n" + config)
    world.dsec.ok("pull", "--on-demand", "base/box", "--from", url, env=env)
    assert not world.stored.exists()
    return world.dsec.ok("create", "base/box", env=env).strip()


def reads_all(world, sandbox: str) -> bool:
    return world.sum in world.dsec.ok("exec", sandbox, "--", "sha256sum", "/big")


@pytest.fixture
def proxy(server):
    faults = FaultProxy(server.port)
    yield faults
    faults.stop()


# --- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_a_layer_is_read_from_a_bucket(world, work):
    bucket = S3Server(work / "bucket", "layers")
    s3 = S3Proxy(bucket, SECRET)
    env = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ACCESS_KEY_ID": s3.key_id, "AWS_SECRET_ACCESS_KEY": SECRET}
    try:
        url = f"s3://layers/{work.name}/team"
        world.author.ok("publish", "base/box", "--to", url, env=env)
        sandbox = pulled(world, url, env=env)
        s3.forget()
        assert reads_all(world, sandbox)
        ranges = [asked for asked in s3.asked if world.hex in asked.path]
        assert ranges and all(asked.status == 206 for asked in ranges)
    finally:
        s3.stop()
        bucket.stop()


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_keys_that_ended_are_replaced_by_those_of_a_later_command(world, work):
    bucket = S3Server(work / "bucket", "layers")
    s3 = S3Proxy(bucket, SECRET, "first")

    def keys(token):
        return {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ACCESS_KEY_ID": s3.key_id, "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": token}
    try:
        url = f"s3://layers/{work.name}/team"
        world.author.ok("publish", "base/box", "--to", url, env=keys("first"))
        sandbox = pulled(world, url, env=keys("first"))
        have_program(world.dsec, sandbox)
        s3.token = "second"
        result = world.dsec.run("exec", sandbox, "--", *READ)
        assert result.code != 0 and "Input/output error" in result.err, str(result)
        assert "InvalidToken" in (world.dsec.home / "run/loader.log").read_text()
        before = world.processes()
        world.dsec.ok("create", "base/box", env=keys("second"))
        assert reads_all(world, sandbox)
        assert world.processes() == before
    finally:
        s3.stop()
        bucket.stop()


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_each_caller_brings_logins_of_its_own(world, work, server):
    """Also when they are in files whose names are relative to where the command is called."""
    hosts, proxies = "", []
    try:
        for user in ("ada", "bob"):
            proxy = FaultProxy(server.port)
            proxies.append(proxy)
            proxy.token_seconds, proxy.login = 300, (user, "secret")
            hosts += f"  '{proxy.host}': {{plain_http: true}}\n"
            (work / user).mkdir()
            auth = base64.b64encode(f"{user}:secret".encode()).decode()
            (work / user / "auth.json").write_text(json.dumps({"auths": {proxy.host: {"auth": auth}}}))
            world.publish(f"oci://{server.host}/{user}")
        world.configure(f"on_demand: {{timeout: 20s}}\nhosts:\n{hosts}")
        env = {"REGISTRY_AUTH_FILE": "auth.json", "DSEC_CONFIG": "../config.yaml"}
        for user, proxy in zip(("ada", "bob"), proxies):
            world.dsec.ok("pull", "--on-demand", "base/box", "--from", f"oci://{proxy.host}/{user}", env=env, cwd=work / user)
            sandbox = world.dsec.ok("create", "base/box", env=env, cwd=work / user).strip()
        have_program(world.dsec, sandbox)
        # Each of the two registries gives a part of it, to whom it knows.
        for (user, proxy), part in zip(zip(("ada", "bob"), proxies), (1024, 1600)):
            away = [other for other in proxies if other is not proxy][0]
            away.faults = lambda m, p, n: Fault(status=404)
            proxy.faults = lambda m, p, n: None
            proxy.forget()
            world.dsec.ok("exec", sandbox, "--", "dd", "if=/big", "of=/dev/null", "bs=4096", "count=1", f"skip={part}")
            assert proxy.times("GET", world.hex)
    finally:
        for proxy in proxies:
            proxy.stop()


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_a_layer_is_read_from_a_web_server_over_tls(world, work):
    world.publish_to_folder()
    certificates = work / "certificates"
    certificates.mkdir()
    make_certificates(certificates)
    nginx = Nginx(work / "secure", work / "registry", certificates)
    try:
        sandbox = pulled(world, nginx.url, f"hosts:\n  '{nginx.host}': {{ca: {certificates}/ca.crt}}\n")
        assert reads_all(world, sandbox)
    finally:
        nginx.stop()


# --- troubles ---------------------------------------------------------------------------------------------------------


TROUBLES = {
    "reset": lambda: Fault(cut=1000, reset=True),
    "cut": lambda: Fault(cut=100_000),
    "500": lambda: Fault(status=500),
    "503": lambda: Fault(status=503, headers={"Retry-After": "1"}),
    "429": lambda: Fault(status=429, headers={"Retry-After": "2"}),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_passing_troubles_of_a_server_are_nothing_that_a_reader_sees(world, server, proxy, trouble):
    """Each part of the blob has it once."""
    troubled = {}

    def faults(method, path, count):
        if not (on and method == "GET" and world.hex in path and len(troubled) < 4):
            return None
        troubled[time.monotonic()] = path
        return TROUBLES[trouble]()

    on = False
    proxy.faults = faults
    world.publish(f"oci://{server.host}/layers")
    sandbox = pulled(world, f"oci://{proxy.host}/layers", f"hosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
    on = True
    assert reads_all(world, sandbox)
    assert troubled


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_a_server_that_asks_to_wait_is_left_alone_for_so_long(world, server, proxy):
    refused = []

    def faults(method, path, count):
        if on and method == "GET" and world.hex in path and not refused:
            refused.append(time.monotonic())
            return Fault(status=429, headers={"Retry-After": "3"})
        if on and refused and method == "GET" and world.hex in path:
            after.append(time.monotonic())
        return None

    on, after = False, []
    proxy.faults = faults
    world.publish(f"oci://{server.host}/layers")
    sandbox = pulled(world, f"oci://{proxy.host}/layers", f"hosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
    on = True
    world.dsec.ok("exec", sandbox, "--", *READ)
    assert min(after) - refused[0] >= 2.9


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_tokens_that_end_are_asked_for_again(world, server, proxy):
    world.publish(f"oci://{server.host}/layers")
    proxy.token_seconds = 2
    sandbox = pulled(world, f"oci://{proxy.host}/layers", f"hosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
    have_program(world.dsec, sandbox)
    time.sleep(3)
    proxy.forget()
    assert reads_all(world, sandbox)
    assert proxy.token_requests


@pytest.mark.guest_slow("the kernel does not decide it")
@pytest.mark.needs("registry_servers")
def test_a_server_that_trickles_is_given_up(world, work, server, proxy):
    """It never stops for long, so that it could hold every request for ever."""
    slow = False
    proxy.faults = lambda method, path, count: Fault(rate=4096) if slow and world.hex in path else None
    world.publish(f"oci://{server.host}/layers")
    world.configure(f"on_demand: {{timeout: 1s}}\nhosts: {{'{proxy.host}': {{plain_http: true}}}}\n")
    world.dsec.ok("pull", "--on-demand", "base/box", "--from", f"oci://{proxy.host}/layers")
    sandbox = world.dsec.ok("create", "base/box").strip()
    have_program(world.dsec, sandbox)
    slow = True
    result = world.dsec.run("exec", sandbox, "--", *READ)
    assert result.code != 0 and "Input/output error" in result.err, str(result)
    log = world.dsec.home / "run/loader.log"
    wait_for(lambda: "which is too slow" in log.read_text(), 40)
    slow = False
    assert reads_all(world, sandbox)
