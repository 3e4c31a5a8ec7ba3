"""A guest that was saved is what microVMs go on from, each as one of its own; what does not fit is not used."""

import hashlib
import json
import os
import re
import signal
import time
from pathlib import Path

import leftovers
import network_world
import pytest
import rootfs
from on_backend import OnBackend

SIZE = ("-m", "256MiB", "--cpus", "1")


@pytest.fixture(scope="module")
def warm(kernel_home, tmp_path_factory):
    """A home with a saved guest of SIZE."""
    work = tmp_path_factory.mktemp("warm")
    tool = OnBackend(work / "home", work, "microvm")
    rootfs.import_base(tool, files={"etc/machine-id": "0123456789abcdef0123456789abcdef\n"})
    tool.give_kernel(kernel_home)
    tool.saved = json.loads(tool.ok("vm", "warm", *SIZE, "-o", "json", timeout=240))
    assert leftovers.sandboxes_of(tool.home) == [] and tool.ok("ps", "-a", "-q") == ""
    yield tool
    tool.clean_up()


@pytest.fixture
def dsec(warm):
    yield warm
    for sandbox in leftovers.sandboxes_of(warm.home):
        warm.run("rm", "-f", sandbox)


def vmm_pid(dsec, name: str) -> int:
    (told,) = json.loads(dsec.ok("inspect", name))
    return json.loads((dsec.home / "sandboxes" / told["id"] / "state.json").read_text())["init_pid"]


def vmm_of(dsec, name: str) -> list[str]:
    return Path(f"/proc/{vmm_pid(dsec, name)}/cmdline").read_text().split("\0")


def went_on(dsec, name: str) -> bool:
    return "-incoming" in vmm_of(dsec, name)


def state_of(dsec):
    return dsec.home / "vm" / "warm" / dsec.saved["name"]


def test_a_sandbox_goes_on_from_it_and_sooner(dsec, monkeypatch):
    def create(name: str) -> float:
        begin = time.monotonic()
        dsec.ok("create", "--name", name, *SIZE, "base/box")
        return time.monotonic() - begin

    warm = create("warm")
    assert went_on(dsec, "warm")
    aside = state_of(dsec).with_name("aside")
    os.rename(state_of(dsec), aside)
    try:
        cold = create("cold")
    finally:
        os.rename(aside, state_of(dsec))
    assert not went_on(dsec, "cold")
    print(f"create: {warm:.2f} s from a saved guest, {cold:.2f} s without, {cold / warm:.1f} times as long")
    assert warm < cold


def test_one_with_a_network_policy_is_held_to_it(warm, tmp_path):
    internet = network_world.World(tmp_path, warm.home)
    dsec = internet.dsec
    fetch = "for host in good.example other.example; do wget -qO- http://$host/ || echo refused; done"
    try:
        dsec.ok("create", "--backend", "microvm", "--name", "held", *SIZE, "--network", "policy", "--allow", "good.example", "base/box")
        assert went_on(warm, "held")
        assert dsec.ok("exec", "held", "--", "sh", "-c", fetch).split() == ["11.0.0.10", "good.example", "refused"]
        dsec.ok("net", "set", "held", "--allow", "other.example")
        assert dsec.ok("exec", "held", "--", "sh", "-c", fetch).split() == ["refused", "11.0.0.11", "other.example"]
    finally:
        dsec.run("rm", "-f", "held")
        dsec.run("gc")
        internet.close()


def test_each_has_its_own_files_names_clock_and_random_numbers(dsec):
    for name in ("one", "two"):
        dsec.ok("create", "--name", name, *SIZE, "base/box")
        assert went_on(dsec, name)
    seen = {}
    for name in ("one", "two"):
        dsec.ok("exec", name, "--", "sh", "-c", f"echo {name} > /root/mine")
        said = dsec.ok("exec", name, "--", "sh", "-c", "hostname; cat /proc/sys/kernel/random/boot_id; "
                       "head -c 16 /dev/urandom | md5sum; cat /root/mine; date +%s").split("\n")
        assert abs(int(said[-2]) - time.time()) < 10
        assert said[-3] == name
        seen[name] = said[:3]
    assert all(a != b for a, b in zip(seen["one"], seen["two"])), seen
    (told,) = json.loads(dsec.ok("inspect", "one"))
    assert seen["one"][0] == told["id"]


def test_a_fork_of_one_goes_on_from_it_with_a_machine_id_of_its_own(dsec):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo shared > /root/mine")
    (fork,) = dsec.ok("fork", "dev", timeout=240).split()
    assert went_on(dsec, fork)
    assert dsec.ok("exec", fork, "--", "cat", "/root/mine") == "shared\n"
    assert dsec.ok("exec", fork, "--", "cat", "/etc/machine-id") != dsec.ok("exec", "dev", "--", "cat", "/etc/machine-id")


def test_one_without_a_disk_and_one_with_many_drives_go_on_from_it_too(dsec, work):
    dsec.ok("create", "--name", "fixed", "--read-only", *SIZE, "base/box")
    assert went_on(dsec, "fixed")
    assert "Read-only" in dsec.run("exec", "fixed", "--", "touch", "/root/x").err
    tools = []
    for number in range(4):
        folder = work / str(number)
        folder.mkdir()
        (folder / "tool").write_text(f"tool {number}\n")
        dsec.ok("import", f"toolkit/t{number}", f"dir:{folder}", "--to", f"/opt/t{number}")
        tools.append(f"toolkit/t{number}")
    assert dsec.ok("run", *SIZE, "base/box", *tools, "--", "sh", "-c", "cat /opt/*/tool") == \
        "tool 0\ntool 1\ntool 2\ntool 3\n"


def test_a_pause_and_the_end_are_as_ever(dsec):
    dsec.ok("create", "--name", "box", *SIZE, "base/box")
    dsec.ok("pause", "box")
    assert dsec.ok("exec", "box", "--", "echo", "awake") == "awake\n"
    dsec.ok("stop", "box")
    (told,) = json.loads(dsec.ok("inspect", "box"))
    assert told["state"] == "stopped"


def test_another_size_begins_as_ever(dsec):
    dsec.ok("create", "--name", "larger", "-m", "288MiB", "--cpus", "1", "base/box")
    assert not went_on(dsec, "larger")


def test_it_is_listed_with_what_it_is(dsec):
    (told,) = [json.loads(line) for line in dsec.ok("vm", "snapshot", "ls", "-o", "json").splitlines()]
    assert told == dsec.saved and told["fits"] is True and told["memory"] == 256 << 20 and told["cpus"] == 1
    assert told["vmm"][0].isdigit() and "cloud" in told["kernel"] and told["bytes"] > 1 << 20 and told["sandbox"] is None
    assert " yes" in dsec.ok("vm", "snapshot", "ls")


@pytest.mark.parametrize("name", ["state", "memory"])
def test_what_was_cut_off_is_not_used(dsec, name):
    part = state_of(dsec) / name
    size = part.stat().st_size
    with open(part, "r+b") as file:
        end = file.seek(size - 4096) and file.read()
        file.truncate(size - 4096)
    try:
        assert ("cut off" if name == "memory" else "not what was saved") in dsec.ok("vm", "snapshot", "ls")
        dsec.ok("create", "--name", "box", *SIZE, "base/box")
        assert not went_on(dsec, "box")
    finally:
        with open(part, "ab") as file:
            file.write(end)


def memory_of(dsec, name: str) -> dict[str, int]:
    """What a VMM has of the memory that was saved, in KiB."""
    pid = vmm_pid(dsec, name)
    found, ours = {}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            ours = line.endswith("/memory")
        elif ours:
            found[words[0][:-1]] = found.get(words[0][:-1], 0) + int(words[1] if words[1].isdigit() else 0)
    return found


def test_all_share_its_memory_until_they_write_to_it(dsec):
    kept = hashlib.sha256((state_of(dsec) / "memory").read_bytes()).hexdigest()
    names = [f"box{number}" for number in range(4)]
    for name in names:
        dsec.ok("create", "--name", name, *SIZE, "base/box")
        assert went_on(dsec, name)
    dsec.ok("exec", names[0], "--", "sh", "-c", "head -c 20000000 /dev/urandom > /dev/shm/own")
    used = {name: memory_of(dsec, name) for name in names}
    for name, memory in used.items():
        print(f"{name}: {memory['Rss']} KiB resident, {memory['Private_Dirty']} own, {memory['Pss']} in proportion")
    for name in names[1:]:
        # Of what the others have of it, too, each is charged a part.
        assert 0 < memory_of(dsec, name)["Private_Dirty"] < used[names[0]]["Private_Dirty"] - 10_000
        assert used[name]["Shared_Clean"] > 0
    assert hashlib.sha256((state_of(dsec) / "memory").read_bytes()).hexdigest() == kept


def test_no_vmm_can_write_into_it(dsec):
    dsec.ok("create", "--name", "box", *SIZE, "base/box")
    pid = vmm_pid(dsec, "box")
    opened = {fd.name: os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    (fd,) = [number for number, path in opened.items() if path.endswith("/memory")]
    assert int(re.search(r"^flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{fd}").read_text(), re.M)[1], 8) & os.O_ACCMODE == os.O_RDONLY
    # And there is no other way to it: no file of its root is that one.
    inode = (state_of(dsec) / "memory").stat()
    for place, _, files in os.walk(f"/proc/{pid}/root/guest"):
        for file in files:
            there = os.stat(os.path.join(place, file))
            assert (there.st_dev, there.st_ino) != (inode.st_dev, inode.st_ino)


def test_memory_that_a_guest_frees_goes_back_to_the_host(dsec):
    dsec.ok("create", "--name", "box", *SIZE, "base/box")
    dsec.ok("exec", "box", "--", "sh", "-c", "head -c 60000000 /dev/urandom > /dev/shm/own")
    held = memory_of(dsec, "box")["Private_Dirty"]
    dsec.ok("exec", "box", "--", "rm", "/dev/shm/own")
    end = time.monotonic() + 30
    while memory_of(dsec, "box")["Private_Dirty"] > held - 30_000:
        assert time.monotonic() < end, memory_of(dsec, "box")
        time.sleep(0.5)
    assert dsec.ok("exec", "box", "--", "sh", "-c", "head -c 60000000 /dev/urandom | wc -c") == "60000000\n"


@pytest.mark.parametrize("part", ["kernel", "QEMU", "processor", "initramfs", "accelerator", "options of the machine"])
def test_what_was_saved_elsewhere_does_not_fit(dsec, part):
    place = state_of(dsec) / "guest.json"
    text = place.read_text()
    changed = json.loads(text)
    changed["machine"][part] = "another"
    place.write_text(json.dumps(changed))
    try:
        assert f"no: other {part}" in dsec.ok("vm", "snapshot", "ls")
        (told,) = [json.loads(line) for line in dsec.ok("vm", "snapshot", "ls", "-o", "json").splitlines()]
        assert told["fits"] is False
        if part == "QEMU":
            dsec.ok("create", "--name", "box", *SIZE, "base/box")
            assert not went_on(dsec, "box")
    finally:
        place.write_text(text)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', '{"version": 2, "memory": -1}'])
def test_a_damaged_description_is_told_and_not_used(dsec, text):
    place = state_of(dsec) / "guest.json"
    kept = place.read_text()
    place.write_text(text)
    try:
        listed = dsec.run("vm", "snapshot", "ls")
        assert "cannot be read" in listed.err and dsec.saved["name"] in listed.err
    finally:
        place.write_text(kept)


def test_a_state_that_is_no_guest_is_refused_once_and_then_gone(warm, kernel_home, work):
    """In a home of its own, as it loses what it has."""
    tool = OnBackend(work / "home", work, "microvm")
    rootfs.import_base(tool)
    tool.give_kernel(kernel_home)
    tool.ok("vm", "warm", *SIZE, timeout=240)
    (place,) = [entry for entry in (tool.home / "vm/warm").iterdir() if entry.is_dir()]
    size = (place / "state").stat().st_size
    (place / "state").write_bytes(b"no guest".ljust(size, b"\0"))
    told = json.loads((place / "guest.json").read_text())
    told["state"] = "sha256:" + hashlib.sha256((place / "state").read_bytes()).hexdigest()
    (place / "guest.json").write_text(json.dumps(told))
    failed = tool.run("create", *SIZE, "base/box")
    assert failed.code != 0 and "was removed" in failed.err and "machine did not begin" in failed.err, failed
    assert leftovers.sandboxes_of(tool.home) == [] and not place.exists()
    assert tool.ok("run", *SIZE, "base/box", "--", "echo", "cold") == "cold\n"
    # What is named is removed, and nothing else.
    assert "there is no saved guest or sandbox" in tool.fails(1, "vm", "snapshot", "rm", "../kernels")
    tool.clean_up()


@pytest.mark.parametrize("delay", [0.2, 2.0, 5.0, 8.0])
def test_whoever_saves_one_may_be_killed_at_any_time(work, kernel_home, delay):
    tool = OnBackend(work / "home", work, "microvm")
    tool.give_kernel(kernel_home)
    saving = tool.popen("vm", "warm", *SIZE)
    time.sleep(delay)
    saving.send_signal(signal.SIGKILL)
    saving.communicate()
    end = time.monotonic() + 60
    while leftovers.sandboxes_of(tool.home):
        tool.run("gc")
        assert time.monotonic() < end
        time.sleep(0.2)
    whole = [entry for entry in (tool.home / "vm/warm").glob("*/state")] if (tool.home / "vm/warm").exists() else []
    for state in whole:
        told = json.loads((state.parent / "guest.json").read_text())
        assert told["state"] == "sha256:" + hashlib.sha256(state.read_bytes()).hexdigest()
        assert (state.parent / "memory").stat().st_size == told["memory"]
    # Nothing that is half there stands in the way of the next.
    tool.clean_up()


def test_a_new_one_takes_the_place_of_those_that_fit_no_more(work, kernel_home):
    tool = OnBackend(work / "home", work, "microvm")
    tool.give_kernel(kernel_home)
    first = tool.ok("vm", "warm", *SIZE, timeout=240).strip()
    (kernel,) = (tool.home / "vm/kernels").glob("*/vmlinuz")
    os.utime(kernel)
    assert "no: other kernel" in tool.ok("vm", "snapshot", "ls")
    second = tool.ok("vm", "warm", *SIZE, timeout=240).strip()
    assert first != second
    assert [line.split()[0] for line in tool.ok("vm", "snapshot", "ls").splitlines()[1:]] == [second]
    tool.ok("vm", "snapshot", "rm", second)
    assert list((tool.home / "vm/warm").glob("*/")) == []
    tool.clean_up()


def test_without_a_kernel_it_says_how_to_get_one(work):
    tool = OnBackend(work / "home", work, "microvm")
    assert "dsec vm kernel import" in tool.fails(1, "vm", "warm")
    assert "at least 96" in tool.fails(2, "vm", "warm", "-m", "8MiB")
    assert leftovers.sandboxes_of(tool.home) == []
