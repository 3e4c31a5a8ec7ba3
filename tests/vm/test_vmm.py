"""The VMM of a microvm is shut in, dies with its keeper, and what a microvm cannot do is refused by name."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import leftovers
import pytest
import rootfs
from on_backend import OnBackend
from readme import blocks, run_script


@pytest.fixture
def dsec(microvms):
    return microvms


def record_of(dsec, name: str) -> tuple[str, dict]:
    (told,) = json.loads(dsec.ok("inspect", name))
    return told["id"], json.loads((dsec.home / "sandboxes" / told["id"] / "state.json").read_text())


def test_the_vmm_has_nothing_of_the_host(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox, record = record_of(dsec, "box")
    process = Path("/proc", str(record["init_pid"]))
    assert (process / "comm").read_text().startswith("qemu")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert all(int(uid) >= 1 << 16 for uid in status["Uid"].split() + status["Gid"].split())
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2" and int(status["Seccomp_filters"]) >= 2
    for namespace in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
        assert os.readlink(process / "ns" / namespace) != os.readlink(f"/proc/self/ns/{namespace}"), namespace
    root = process / "root"
    assert {"usr", "dev", "proc", "sys", "machine", "drives", "guest"} <= set(os.listdir(root))
    assert not (root / "root").exists() and not (root / "home").exists() and not (root / "tmp" / sandbox).exists()
    assert set(os.listdir(root / "etc")) <= {"ld.so.cache"}
    writable = [fields[4] for fields in map(str.split, (process / "mountinfo").read_text().splitlines())
                if "rw" in fields[5].split(",")]
    assert set(writable) <= {"/machine", "/proc", "/dev/pts", "/dev/shm", "/dev/mqueue", "/tmp"}, writable
    assert [line.split(":")[0].strip() for line in (process / "net/dev").read_text().splitlines()[2:]] == ["lo"]
    # Of the home it has what lies in its drives open, and its own sockets.
    opened = {os.readlink(process / "fd" / fd) for fd in os.listdir(process / "fd")}
    assert not [path for path in opened if path.startswith(str(dsec.home))], opened
    assert any(sandbox in line for line in (process / "cgroup").read_text().splitlines())


def test_the_vmm_dies_with_its_keeper_and_gc_finds_the_rest(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox, record = record_of(dsec, "box")
    os.kill(record["keeper_pid"], signal.SIGKILL)
    end = time.monotonic() + 10
    while leftovers.still_runs(record["init_pid"]):
        assert time.monotonic() < end
        time.sleep(0.01)
    dsec.ok("gc")
    assert leftovers.sandboxes_of(dsec.home) == []


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0, 2.5])
def test_whoever_makes_one_may_be_killed_at_any_time(dsec, delay):
    making = dsec.popen("create", "--name", "box", "base/box")
    time.sleep(delay)
    making.kill()
    making.communicate()
    end = time.monotonic() + 60
    while True:
        dsec.run("gc")
        if leftovers.sandboxes_of(dsec.home) == [] or dsec.run("exec", "box", "--", "true").code == 0:
            break
        assert time.monotonic() < end
        time.sleep(0.2)


def test_what_a_disk_was_given_is_on_it_after_a_stop(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox, _ = record_of(dsec, "box")
    dsec.ok("exec", "box", "--", "sh", "-c", "echo kept words > /root/file")
    dsec.ok("stop", "box")
    disk, image = dsec.home / "sandboxes" / sandbox / "disk", dsec.cwd / "disk.img"
    layers = json.loads((disk / "stack.json").read_text())
    files = [disk / f"{number}.obd" for number in layers["layers"]] + [disk / f"{layers['top']}{end}" for end in (".obd", ".index")]
    with open(image, "wb") as file:
        subprocess.run([*dsec.argv("obd", "cat"), *files], stdout=file, check=True)
    assert "kept words" in subprocess.run(["debugfs", "-R", "cat /upper/root/file", image], text=True, capture_output=True).stdout
    assert "only a machine that runs has its files" in dsec.fails(2, "cp", "box:/root/file", "-")


def test_a_guest_without_a_channel_is_the_end(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    sandbox, record = record_of(dsec, "box")
    os.kill(record["init_pid"], signal.SIGKILL)
    assert dsec.run("wait", "box").code == 125
    (told,) = json.loads(dsec.ok("inspect", "box"))
    assert told["state"] == "failed" and told["reason"] in ("its machine ended", "its machine closed the channel")


REFUSED = {
    "-v": (["-v", "/srv:/srv"], "shares no filesystem with the host"),
    "--device": (["--device", "/dev/full:/dev/other"], "has no devices of the host"),
    "--network host": (["--network", "host"], "has no network of the host"),
    "--userns host": (["--userns", "host"], "has users of its own"),
    "--memory": (["-m", "8MiB"], "cannot begin"),
    "--disk": (["--disk", "5MiB"], "too small for a machine"),
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_it_cannot_do_is_refused_before_anything_is_made(dsec, flags):
    words, reason = REFUSED[flags]
    assert reason in dsec.fails(125, "run", *words, "base/box", "--", "true")
    assert leftovers.sandboxes_of(dsec.home) == []


def test_without_a_kernel_it_says_how_to_get_one(work):
    tool = OnBackend(work / "home", work, "microvm")
    rootfs.import_base(tool)
    error = tool.fails(125, "run", "base/box", "--", "true")
    assert "there is no kernel" in error and "dsec vm kernel import" in error
    assert leftovers.sandboxes_of(tool.home) == []


def test_a_kernel_without_what_policies_need_is_told_of(dsec):
    (description,) = (dsec.home / "vm/kernels").glob("*/kernel.json")
    description.write_text(json.dumps(json.loads(description.read_text()) | {"egress": False}))
    error = dsec.fails(125, "run", "--allow", "example.org", "base/box", "--", "true")
    assert "nft_tproxy" in error and "dsec vm kernel import" in error
    assert leftovers.sandboxes_of(dsec.home) == []


def test_what_a_running_one_cannot_do_is_refused(dsec):
    dsec.ok("create", "--name", "box", "base/box")
    assert "keeps the memory" in dsec.run("update", "-m", "1GiB", "box").err
    assert "keeps its limit of tasks" in dsec.run("update", "--pids", "10", "box").err
    dsec.ok("update", "--lifetime", "1h", "box")
    assert dsec.ok("exec", "box", "--", "echo", "lives") == "lives\n"


def test_the_readme_puts_a_kernel_in_between(dsec, work, kernel_package):
    dsec.ok("layer", "tag", "base/box", "base/python")
    (work / "linux-image-6.1.0-50-cloud-amd64_x.deb").symlink_to(kernel_package)
    [script] = blocks("Put a kernel in between")
    fetch, script = script.split("\n", 1)
    assert fetch.startswith("apt-get download linux-image-")
    told = run_script(dsec, script)
    assert "-cloud-amd64\n" in told and told.count("kept\n") == 4 and "A /root/note" in told, told
    assert dsec.ok("ps", "-a", "-q") == ""
