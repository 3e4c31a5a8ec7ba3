"""A microVM that is saved goes on as any number of others, with all that runs in it and each as one of its own."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import leftovers
import network_world
import pytest
import rootfs
from on_backend import OnBackend

SIZE = ("-m", "256MiB", "--cpus", "1")
# Counts in a file, and keeps what only its memory has.
COUNTER = "secret=$(cat /proc/sys/kernel/random/uuid); echo $secret > /root/secret; i=0; while :; do i=$((i+1)); " \
          "echo $secret $i > /root/count.new; mv /root/count.new /root/count; sleep 0.2; done"


@pytest.fixture(scope="module")
def home(kernel_home, tmp_path_factory):
    work = tmp_path_factory.mktemp("memory")
    tool = OnBackend(work / "home", work, "microvm")
    rootfs.import_base(tool, files={"etc/machine-id": "0123456789abcdef0123456789abcdef\n"})
    tool.give_kernel(kernel_home)
    yield tool
    tool.clean_up()


@pytest.fixture
def dsec(home):
    yield home
    for sandbox in leftovers.sandboxes_of(home.home):
        home.run("rm", "-f", sandbox)
    for place in saved_places(home):
        home.ok("vm", "snapshot", "rm", place.name)


def saved_places(dsec) -> list[Path]:
    place = dsec.home / "vm/saved"
    return [entry for entry in place.iterdir() if entry.is_dir() and not entry.name.startswith(".")] if place.exists() else []


def info(dsec, name: str) -> dict:
    (told,) = json.loads(dsec.ok("inspect", name))
    return told


def pid_of(dsec, name: str) -> int:
    return json.loads((dsec.home / "sandboxes" / info(dsec, name)["id"] / "state.json").read_text())["init_pid"]


def count_of(dsec, name: str) -> tuple[str, int]:
    secret, count = dsec.ok("exec", name, "--", "cat", "/root/count").split()
    return secret, int(count)


def counts_on(dsec, name: str) -> bool:
    first, end = count_of(dsec, name), time.monotonic() + 20
    while time.monotonic() < end:
        if count_of(dsec, name)[1] > first[1]:
            return True
        time.sleep(0.2)
    return False


def counting(dsec, name: str = "dev", *flags: str) -> str:
    dsec.ok("create", "--name", name, *SIZE, *flags, "base/box")
    dsec.ok("exec", "-d", name, "--", "sh", "-c", COUNTER)
    end = time.monotonic() + 30
    while dsec.run("exec", name, "--", "test", "-e", "/root/count").code != 0:
        assert time.monotonic() < end
        time.sleep(0.1)
    return info(dsec, name)["id"]


def test_what_runs_goes_on_in_each_and_in_the_first(dsec):
    origin = counting(dsec)
    begin = time.monotonic()
    assert dsec.ok("vm", "save", "dev", "one").strip() == "one"
    saved = time.monotonic() - begin
    secret, at = count_of(dsec, "dev")
    begin = time.monotonic()
    made = dsec.ok("vm", "restore", "one", "-n", "3", "--label", "suite=memory").split()
    print(f"saved in {saved:.2f} s, three restored in {time.monotonic() - begin:.2f} s")
    assert len(set(made)) == 3 and origin not in made
    for each in [*made, "dev"]:
        assert counts_on(dsec, each), each
        assert count_of(dsec, each)[0] == secret
    told = info(dsec, made[0])
    assert told["name"] == "dev-1" and told["spec"]["labels"] == {"suite": "memory", "dsec.forked-from": origin, "dsec.memory-of": origin}
    # They do not meet.
    dsec.ok("exec", made[0], "--", "sh", "-c", "echo mine > /root/mine")
    for each in [*made[1:], "dev"]:
        assert dsec.run("exec", each, "--", "cat", "/root/mine").code == 1
    assert "A /root/mine" in dsec.ok("diff", made[0]) and "A /root/count" in dsec.ok("diff", made[1])


def test_each_has_its_own_names_numbers_and_time(dsec):
    counting(dsec)
    dsec.ok("vm", "save", "dev", "one")
    time.sleep(3)
    made = dsec.ok("vm", "restore", "one", "-n", "2").split()
    look = "hostname; cat /etc/hostname; echo $HOSTNAME; cat /etc/machine-id; head -c 16 /dev/urandom | md5sum; cat /etc/hosts; date +%s"
    seen = {}
    for each in made:
        lines = dsec.ok("exec", each, "--", "sh", "-c", look).splitlines()
        assert lines[:3] == [each] * 3 and each in "".join(lines[5:])
        assert abs(int(lines[-1]) - time.time()) < 5
        seen[each] = lines[3:5]
    assert all(a != b for a, b in zip(seen[made[0]], seen[made[1]])), seen
    assert all(re.fullmatch("[0-9a-f]{32}", lines[0]) and not lines[0].startswith("0123") for lines in seen.values())
    assert dsec.ok("exec", "dev", "--", "cat", "/etc/machine-id").startswith("0123")


def test_they_share_the_memory_that_was_saved(dsec):
    counting(dsec)
    dsec.ok("exec", "dev", "--", "sh", "-c", "head -c 40000000 /dev/urandom > /dev/shm/data; md5sum < /dev/shm/data > /root/sum")
    dsec.ok("vm", "save", "dev", "one")
    place = dsec.home / "vm/saved/one"
    kept = hashlib.sha256((place / "memory").read_bytes()).hexdigest()
    made = dsec.ok("vm", "restore", "one", "-n", "3").split()
    for each in made:
        assert dsec.ok("exec", each, "--", "sh", "-c", "md5sum < /dev/shm/data") == dsec.ok("exec", each, "--", "cat", "/root/sum")
    for each in made:
        smaps = Path(f"/proc/{pid_of(dsec, each)}/smaps").read_text()
        (block,) = re.findall(r"/memory\n((?:\w+: .*\n)+)", smaps)
        used = {name: int(value) for name, value in re.findall(r"(\w+): +(\d+) kB", block)}
        print(f"{used['Rss']} KiB resident, {used['Private_Dirty']} own, {used['Shared_Clean']} shared")
        assert used["Shared_Clean"] > 35_000 and used["Private_Dirty"] < used["Rss"] - 35_000
    assert hashlib.sha256((place / "memory").read_bytes()).hexdigest() == kept
    # What went on from it has it for as long as it lives.
    dsec.ok("vm", "snapshot", "rm", "one")
    assert dsec.ok("exec", made[0], "--", "sh", "-c", "md5sum < /dev/shm/data") == dsec.ok("exec", made[0], "--", "cat", "/root/sum")


def test_a_fork_with_memory_leaves_nothing_behind(dsec):
    origin = counting(dsec)
    secret, _ = count_of(dsec, "dev")
    made = dsec.ok("fork", "--memory", "-n", "2", "dev", timeout=240).split()
    for each in made:
        assert counts_on(dsec, each) and count_of(dsec, each)[0] == secret
    place = dsec.home / "vm/saved"
    assert [entry.name for entry in place.iterdir() if entry.name != ".lock"] == []
    told = [json.loads(line) for line in dsec.ok("traj", "show", "-o", "json", origin).splitlines()]
    (record,) = [line for line in told if line.get("kind") == "fork"]
    assert record["request"]["memory"] is True and record["result"]["sandboxes"] == made


def test_one_that_went_on_can_be_saved_again_and_forked_by_its_files(dsec):
    counting(dsec)
    (second,) = dsec.ok("fork", "--memory", "dev").split()
    secret, at = count_of(dsec, second)
    (third,) = dsec.ok("fork", "--memory", second).split()
    assert count_of(dsec, third)[0] == secret and counts_on(dsec, third)
    (files,) = dsec.ok("fork", third, timeout=240).split()
    assert dsec.ok("exec", files, "--", "cat", "/root/secret").strip() == secret
    assert dsec.run("exec", files, "--", "pidof", "sleep").code == 1


def test_a_session_goes_on_with_its_shell(dsec):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    dsec.ok("session", "open", "--name", "work", "dev")
    dsec.ok("session", "run", "dev", "work", "--", "cd /tmp; kept=yes")
    (fork,) = dsec.ok("fork", "--memory", "dev").split()
    assert dsec.ok("session", "run", fork, "work", "--", "echo $kept; pwd") == "yes\n/tmp\n"
    assert dsec.ok("session", "run", "dev", "work", "--", "pwd") == "/tmp\n"


def test_a_command_that_runs_is_heard_by_its_own_client_alone(dsec):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    running = dsec.popen("exec", "-i", "dev", "--", "sh", "-c", "echo begun; read line; echo $line > /root/heard; echo $line; exec sleep 1000")
    assert running.stdout.readline() == b"begun\n"
    (fork,) = dsec.ok("fork", "--memory", "dev").split()
    assert dsec.ok("commands", fork) == dsec.ok("commands", fork) and "begun" not in dsec.ok("commands", fork)
    running.stdin.write(b"for the first\n")
    running.stdin.flush()
    assert running.stdout.readline() == b"for the first\n"
    # In the other it waits for a line that nobody sends.
    assert dsec.run("exec", fork, "--", "test", "-e", "/root/heard").code == 1
    assert dsec.ok("exec", fork, "--", "sh", "-c", "ps | grep -c '[r]ead line'").strip() == "1"
    running.kill()
    running.communicate()


def test_one_without_a_disk_and_one_that_began_from_a_saved_guest(dsec):
    dsec.ok("vm", "warm", *SIZE, timeout=240)
    try:
        dsec.ok("create", "--name", "fixed", "--read-only", *SIZE, "base/box")
        dsec.ok("exec", "fixed", "--", "sh", "-c", "echo in memory > /dev/shm/file")
        (fork,) = dsec.ok("fork", "--memory", "fixed").split()
        assert dsec.ok("exec", fork, "--", "cat", "/dev/shm/file") == "in memory\n"
        counting(dsec)
        (fork,) = dsec.ok("fork", "--memory", "dev").split()
        assert counts_on(dsec, fork)
    finally:
        (guest,) = [json.loads(line)["name"] for line in dsec.ok("vm", "snapshot", "ls", "-o", "json").splitlines()]
        dsec.ok("vm", "snapshot", "rm", guest)


def test_one_that_is_paused_is_saved_and_stays_paused(dsec):
    counting(dsec)
    dsec.ok("pause", "dev")
    dsec.ok("vm", "save", "dev", "one")
    assert info(dsec, "dev")["state"] == "paused"
    (made,) = dsec.ok("vm", "restore", "one").split()
    assert counts_on(dsec, made) and counts_on(dsec, "dev")


def test_one_with_a_policy_is_held_to_it_and_its_connections_have_ended(home, tmp_path):
    internet = network_world.World(tmp_path, home.home)
    dsec = internet.dsec
    fetch = "for host in good.example other.example; do wget -qO- http://$host/ || echo refused; done"
    try:
        dsec.ok("create", "--backend", "microvm", "--name", "held", *SIZE, "--network", "policy", "--allow", "good.example", "base/box")
        assert dsec.ok("exec", "held", "--", "sh", "-c", fetch).split() == ["11.0.0.10", "good.example", "refused"]
        (fork,) = dsec.ok("fork", "--memory", "held").split()
        assert dsec.ok("exec", fork, "--", "sh", "-c", fetch).split() == ["11.0.0.10", "good.example", "refused"]
        dsec.ok("net", "set", fork, "--allow", "other.example")
        assert dsec.ok("exec", fork, "--", "sh", "-c", fetch).split() == ["refused", "11.0.0.11", "other.example"]
        assert dsec.ok("exec", "held", "--", "sh", "-c", fetch).split() == ["11.0.0.10", "good.example", "refused"]
        dsec.run("rm", "-f", fork)
    finally:
        dsec.run("rm", "-f", "held")
        dsec.run("gc")
        internet.close()


def test_where_it_is_not_possible_it_says_why(dsec):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    dsec.ok("vm", "save", "dev", "one")
    assert "already" in dsec.fails(2, "vm", "save", "dev", "one")
    assert "no valid name" in dsec.fails(2, "vm", "save", "dev", "../one")
    assert "saved guest" in dsec.fails(2, "vm", "save", "dev", "0123456789ab")
    assert "did you mean one?" in dsec.fails(2, "vm", "restore", "onn")
    dsec.ok("stop", "dev")
    assert "only what runs has a memory" in dsec.fails(2, "vm", "save", "dev", "two")
    dsec.ok("create", "--backend", "container", "--name", "plain", "base/box")
    assert "cannot save what runs" in dsec.fails(2, "fork", "--memory", "plain")


def test_a_replay_of_one_is_refused(dsec):
    origin = counting(dsec)
    (fork,) = dsec.ok("fork", "--memory", "dev").split()
    assert f"went on from the memory of sandbox {origin}" in dsec.fails(2, "replay", fork)


@pytest.mark.parametrize("part", ["kernel", "QEMU", "processor", "initramfs", "accelerator", "options of the machine", "layers"])
def test_what_does_not_fit_is_refused_naming_what_is_other(dsec, part):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    dsec.ok("vm", "save", "dev", "one")
    place = dsec.home / "vm/saved/one/machine.json"
    record = json.loads(place.read_text())
    record["machine"][part] = "another"
    place.write_text(json.dumps(record))
    error = dsec.fails(1, "vm", "restore", "one")
    assert f"here is other {part}" in error and f"saved with QEMU {record['vmm']}" in error and "dsec vm save" in error
    assert leftovers.sandboxes_of(dsec.home) == [info(dsec, "dev")["id"]]
    if part != "layers":
        assert f"no: other {part}" in dsec.ok("vm", "snapshot", "ls")


@pytest.mark.parametrize("damage", ["state cut", "state altered", "memory cut", "no disk", "no record", "record altered", "no state"])
def test_what_is_damaged_is_refused_and_leaves_nothing(dsec, damage):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    dsec.ok("vm", "save", "dev", "one")
    place = dsec.home / "vm/saved/one"
    part, how = damage.split()[-2:] if damage.split()[0] != "no" else (damage.split()[1], "gone")
    file = place / {"record": "machine.json"}.get(part, part)
    if how == "gone":
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    elif how == "cut":
        os.truncate(file, file.stat().st_size - 4096)
    else:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    failed = dsec.run("vm", "restore", "one")
    assert failed.code != 0 and "cannot go on from the memory snapshot 'one'" in failed.err, failed
    assert len(leftovers.sandboxes_of(dsec.home)) == 1
    assert dsec.ok("exec", "dev", "--", "echo", "lives") == "lives\n"


def test_layers_of_what_is_saved_are_kept(dsec, work):
    folder = work / "tool"
    folder.mkdir()
    (folder / "tool").write_text("kept\n")
    dsec.ok("import", "toolkit/kept", f"dir:{folder}", "--to", "/opt/kept")
    dsec.ok("create", "--name", "dev", *SIZE, "base/box", "toolkit/kept")
    dsec.ok("vm", "save", "dev", "one")
    dsec.ok("rm", "-f", "dev")
    dsec.ok("layer", "rm", "toolkit/kept")
    dsec.ok("gc")
    (made,) = dsec.ok("vm", "restore", "one").split()
    assert dsec.ok("exec", made, "--", "cat", "/opt/kept/tool") == "kept\n"


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3, 0.5, 0.8, 1.2])
def test_whoever_saves_one_may_be_killed_at_any_time(dsec, delay):
    counting(dsec)
    saving = dsec.popen("vm", "save", "dev", "one")
    time.sleep(delay)
    saving.send_signal(signal.SIGKILL)
    saving.communicate()
    # It goes on, whatever it was in.
    assert counts_on(dsec, "dev")
    dsec.ok("gc")
    place = dsec.home / "vm/saved"
    left = [entry.name for entry in place.iterdir() if entry.name != ".lock"] if place.exists() else []
    assert left in ([], ["one"])
    (made,) = dsec.ok("fork", "--memory", "dev").split()
    assert counts_on(dsec, made)


@pytest.mark.parametrize("delay", [0.1, 0.4, 0.8])
def test_whoever_restores_may_be_killed_at_any_time(dsec, delay):
    dsec.ok("create", "--name", "dev", *SIZE, "base/box")
    dsec.ok("vm", "save", "dev", "one")
    restoring = dsec.popen("vm", "restore", "one", "-n", "3")
    time.sleep(delay)
    restoring.send_signal(signal.SIGKILL)
    restoring.communicate()
    end = time.monotonic() + 60
    while True:
        dsec.run("gc")
        living = [each for each in leftovers.sandboxes_of(dsec.home) if dsec.run("exec", each, "--", "true").code != 0]
        if not living:
            break
        assert time.monotonic() < end, living
        time.sleep(0.2)


def test_its_vmm_may_be_killed_while_it_is_saved(dsec):
    counting(dsec)
    pid = pid_of(dsec, "dev")
    saving = dsec.popen("vm", "save", "dev", "one")
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    _, err = saving.communicate(timeout=60)
    assert dsec.run("wait", "dev").code == 125
    if saving.returncode != 0:
        assert b"cannot save the memory" in err
    # What is there is whole: its name comes last.
    assert saved_places(dsec) or saving.returncode != 0
    if saved_places(dsec):
        (made,) = dsec.ok("vm", "restore", "one").split()
        assert counts_on(dsec, made)


def test_a_disk_that_is_full_fails_and_the_sandbox_goes_on(kernel_home, work):
    small = work / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=180m", "dsec-small", small], check=True)
    tool = OnBackend(small / "home", work, "microvm")
    try:
        rootfs.import_base(tool)
        tool.give_kernel(kernel_home)
        counting(tool)
        tool.ok("exec", "dev", "--", "sh", "-c", "head -c 50000000 /dev/urandom > /dev/shm/data")
        room = os.statvfs(small)
        (small / "filler").write_bytes(bytes(room.f_bavail * room.f_frsize - (40 << 20)))
        error = tool.fails(1, "vm", "save", "dev", "one")
        assert "No space left" in error
        assert counts_on(tool, "dev")
        assert [entry.name for entry in (tool.home / "vm/saved").iterdir() if entry.name != ".lock"] == []
        tool.clean_up()
    finally:
        tool.run("rm", "-f", "dev")
        subprocess.run(["umount", "-l", small], check=True)
