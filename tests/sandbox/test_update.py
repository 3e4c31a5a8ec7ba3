"""dsec update: limits, times and labels of sandboxes that run, are paused or have ended."""

import json

import host
import pytest
import rootfs
from groups import block, group_files, sh
from waiting import until

MIB = 1 << 20


@pytest.fixture
def box(dsec) -> str:
    return rootfs.import_base(dsec)


def spec(dsec, name: str) -> dict:
    return dsec.json("inspect", name)[0]["spec"]


def test_limits_change_at_once_and_stand_in_the_lease(dsec, box):
    dsec.ok("create", "--name", "c", "--memory", "64m", "--pids", "100", box)
    assert dsec.run("exec", "c", "--", *block(100).split()[:-1]).code == 137
    dsec.ok("update", "c", "--memory", "200m", "--pids", "50", "--label", "a=b")
    assert dsec.run("exec", "c", "--", *block(100).split()[:-1]).code == 0
    told = spec(dsec, "c")
    assert told["limits"]["memory"] == 200 * MIB and told["limits"]["pids"] == 50 and told["labels"] == {"a": "b"}
    stats = dsec.json("stats", "c")
    assert (stats["memory_limit"], stats["pids_limit"]) == (200 * MIB, 50)
    assert dsec.ok("ps", "-q", "--label", "a=b") != ""
    dsec.ok("update", "c", "--memory", "0", "--pids", "0", "--label", "a-")
    told = spec(dsec, "c")
    assert "memory" not in told["limits"] and told["labels"] == {}
    assert dsec.run("exec", "c", "--", *block(300).split()[:-1]).code == 0


def test_memory_below_what_is_in_use_is_refused_with_the_figures_and_nothing_changes(dsec, box):
    dsec.ok("create", "--name", "c", "--memory", "200m", "--pids", "100", box)
    # Shared memory goes nowhere without swap; files do.
    dsec.ok("exec", "c", *sh("dd if=/dev/zero of=/dev/shm/file bs=1M count=60 2>/dev/null"))
    before = spec(dsec, "c")
    err = dsec.fails(2, "update", "c", "--memory", "32m", "--pids", "10", "--label", "x=y")
    assert "it uses 6" in err and "32.0 MiB" in err, err
    assert spec(dsec, "c") == before
    assert set(group_files(dsec.ok("ps", "-q").strip(), "pids.max").values()) == {"100"}
    assert dsec.run("exec", "c", "--", *block(90).split()[:-1]).code == 0
    dsec.ok("exec", "c", *sh("rm /dev/shm/file; dd if=/dev/zero of=/root/file bs=1M count=80 2>/dev/null"))
    dsec.ok("update", "c", "--memory", "32m", "--pids", "10")
    assert dsec.json("stats", "c")["memory_bytes"] <= 32 * MIB and dsec.json("stats", "c")["oom_kills"] == 0


def test_a_limit_that_is_new_binds_what_runs_already_and_what_comes_later(dsec, box):
    sandbox = dsec.ok("create", "--name", "c", box).strip()
    spinner = dsec.popen("exec", "c", *sh("echo ready; while :; do :; done"))
    assert spinner.stdout.readline() == b"ready\n"
    dsec.ok("update", "c", "--cpus", "0.2", "--pids", "12")
    assert set(group_files(sandbox, "pids.max").values()) == {"12"}
    (folder,) = group_files(sandbox, "cpu.max" if host.has_v2_limits() else "cpu.cfs_quota_us")
    throttled = lambda: dict(line.split() for line in (host.CGROUP / folder / "cpu.stat").read_text().splitlines())
    assert until(lambda: int(throttled()["nr_throttled"]) > 0)
    # A shell that cannot fork ends with 2.
    assert dsec.run("exec", "c", *sh("for i in $(seq 30); do sleep 60 & done")).code == 2
    assert 10 <= dsec.json("stats", "c")["pids"] <= 12
    dsec.ok("stop", "-t", "0", "c")
    spinner.communicate(timeout=30)
    assert group_files(sandbox, "cgroup.procs") == {}


@pytest.mark.needs("cgroup_v1_limits")
def test_a_first_memory_limit_is_refused_where_it_would_not_count_all(dsec, box):
    dsec.ok("create", "--name", "c", box)
    assert "made without a memory limit" in dsec.fails(2, "update", "c", "--memory", "1g")


def test_the_class_of_what_runs_changes_and_changes_back(dsec, box):
    sandbox = dsec.ok("create", "--name", "c", "--cpus", "1", box).strip()
    spinner = dsec.popen("exec", "c", *sh("echo ready; while :; do :; done"))
    assert spinner.stdout.readline() == b"ready\n"
    for cpu_class in ("batch", "latency", "default", "batch"):
        dsec.ok("update", "c", "--class", cpu_class)
        assert spec(dsec, "c")["limits"].get("class", "default") == cpu_class
        groups = group_files(sandbox, "cgroup.procs")
        if host.has("cgroup_v1_limits"):
            (cpu,) = [folder for folder in groups if folder.startswith("cpu/") or folder.startswith("cpu,")]
            assert group_files(sandbox, "cpu.idle") == {cpu: str(int(cpu_class == "batch"))}
            if cpu_class == "latency":
                assert group_files(sandbox, "cpu.shares") == {cpu: "10240"}
            assert (cpu_class == "default") == (f"dsec-{sandbox[:6]}/" in cpu)
            assert len(groups[cpu].split()) >= 2, groups  # PID 1 and the spinner
            # The limit went along.
            assert (host.CGROUP / cpu / "cpu.cfs_quota_us").read_text() == "100000\n"
        else:
            assert (set(group_files(sandbox, "cpu.idle").values()) == {"1"}) == (cpu_class == "batch")
        if cpu_class != "batch":  # which may wait for long on a busy host
            assert dsec.run("exec", "c", "--", "true").code == 0
    dsec.ok("rm", "-f", "c")
    spinner.communicate(timeout=30)
    assert group_files(sandbox, "cgroup.procs") == {}


@pytest.mark.guest_slow("no limit of a kernel is changed")
def test_times_change_while_it_runs(dsec, box):
    dsec.ok("create", "--name", "a", box)
    dsec.ok("create", "--name", "b", "--lifetime", "1h", box)
    dsec.ok("update", "a", "--idle", "300ms")
    assert until(lambda: dsec.json("inspect", "a")[0]["state"] == "stopped")
    assert dsec.json("inspect", "a")[0]["reason"] == "it was idle"
    assert "its lifetime counts from its creation" in dsec.fails(2, "update", "b", "--lifetime", "1ms")
    dsec.ok("update", "b", "--idle-pause", "200ms")
    assert until(lambda: dsec.json("inspect", "b")[0]["state"] == "paused")
    age = 30
    dsec.ok("update", "b", "--lifetime", f"{age}s", "--idle-pause", "0")
    assert spec(dsec, "b")["lifetime_ms"] == age * 1000


def test_a_paused_one_is_changed_and_stays_paused(dsec, box):
    sandbox = dsec.ok("create", "--name", "c", "--memory", "200m", box).strip()
    dsec.ok("pause", "c")
    dsec.ok("update", "c", "--memory", "100m", "--cpus", "1", "--class", "latency", "--idle", "1h")
    info = dsec.json("inspect", "c")[0]
    assert info["state"] == "paused" and info["spec"]["limits"]["cpus"] == 1.0
    files = group_files(sandbox, "memory.max") or group_files(sandbox, "memory.limit_in_bytes")
    assert set(files.values()) == {str(100 * MIB)}
    assert dsec.run("exec", "c", "--", *block(150).split()[:-1]).code == 137


@pytest.mark.guest_slow("no limit of a kernel is changed")
def test_of_one_that_has_ended_only_labels_change(dsec, box):
    dsec.ok("run", "--keep", "--name", "c", "--memory", "64m", box, "--", "true")
    err = dsec.fails(2, "update", "c", "--memory", "128m")
    assert "it is stopped" in err and "labels" in err
    dsec.ok("update", "c", "--label", "kept=yes")
    assert dsec.ok("ps", "-aq", "--label", "kept=yes") != ""
    assert dsec.json("stats", "c")["memory_limit"] == 64 * MIB


@pytest.mark.guest_slow("no limit of a kernel is changed")
def test_an_update_is_recorded_and_not_done_twice(dsec, box):
    dsec.ok("create", "--name", "c", "--pids", "100", box)
    dsec.ok("update", "c", "--pids", "60", "--op-id", "one")
    dsec.ok("update", "c", "--pids", "70")
    dsec.ok("update", "c", "--pids", "60", "--op-id", "one")
    assert spec(dsec, "c")["limits"]["pids"] == 70
    assert "another request" in dsec.fails(2, "update", "c", "--pids", "61", "--op-id", "one")
    dsec.run("update", "c", "--memory", "1")
    told = [json.loads(line) for line in dsec.ok("traj", "show", "c", "-o", "json").splitlines()]
    updates = [line for line in told if line.get("kind") == "update"]
    assert [line["op_id"] for line in updates][0] == "one" and len(updates) >= 2
    assert updates[0]["request"] == {"pids": 60} and updates[0]["result"]["limits"]["pids"] == 60


@pytest.mark.guest_slow("no limit of a kernel is changed")
def test_what_makes_no_sense_is_refused(dsec, box):
    dsec.ok("create", "--name", "c", box)
    assert "nothing is to be changed" in dsec.fails(2, "update", "c")
    assert "made without a disk limit" in dsec.fails(2, "update", "c", "--disk", "1g")
    assert "would keep nothing" in dsec.fails(2, "update", "c", "--output-limit", "0")
    assert "there is no sandbox" in dsec.fails(2, "update", "nobody", "--pids", "3")
    dsec.ok("update", "c", "--output-limit", "4k")
    dsec.ok("exec", "-d", "c", "--", "seq", "1", "10000")
    assert until(lambda: dsec.json("inspect", "c")[0]["commands"][-1]["result"])
    assert dsec.json("inspect", "c")[0]["commands"][-1]["result"]["stdout_dropped"] > 40_000
