"""Programs that try to exceed what they are allowed, and how that is told; classes of processor time."""

import json
import subprocess
from pathlib import Path

import host
import pytest
import rootfs
from groups import block, group_files, sh

MIB = 1 << 20


@pytest.fixture
def box(dsec) -> str:
    return rootfs.import_base(dsec)


EATERS = {
    "memory of one process": "tail /dev/zero",
    "memory of many processes": r"for i in 1 2 3 4 5 6; do (x=$(head -c 4000000 /dev/zero | tr '\0' x); sleep 60) & done; "
                                "exec tail /dev/zero",
    "shared memory": "dd if=/dev/zero of=/dev/shm/file bs=1M count=60 2>/dev/null; exec tail /dev/zero",
}


@pytest.mark.parametrize("eater", EATERS)
def test_what_exceeds_its_memory_is_killed_and_told_with_limit_and_peak(dsec, box, work, eater):
    result = dsec.run("run", "--memory", "64m", "--status-file", "status", "--keep", "--name", "eater", box,
                      *sh(EATERS[eater]))
    assert result.code == 137, str(result)
    assert "ran out of memory" in result.err and "of a limit of 64.0 MiB the most used was " in result.err, str(result)
    status = json.loads((work / "status").read_text())
    assert status["by"] == "command" and status["memory"]["limit"] == 64 * MIB and status["memory"]["oom_kills"] >= 1
    told = dsec.json("inspect", "eater")[0]["result"]
    assert told["cause"] == "out_of_memory" and told["memory"] == status["memory"]
    peak = told["memory"]["peak"]
    if host.counts_memory_peak():
        assert 0.95 * 64 * MIB <= peak <= 1.05 * 64 * MIB
    else:
        assert peak is None


def test_only_what_a_sandbox_runs_is_preferred_when_the_host_runs_out_of_memory(dsec, box):
    own = Path("/proc/self/oom_score_adj").read_text()
    dsec.ok("create", "--name", "c", box)
    session = dsec.ok("session", "open", "c").strip()
    for verb in (["exec", "c"], ["session", "run", "c", session]):
        assert dsec.ok(*verb, "--", "cat", "/proc/self/oom_score_adj") == "500\n"
    keeper = dsec.json("inspect", "c")[0]["keeper_pid"]
    assert Path(f"/proc/{keeper}/oom_score_adj").read_text() == own


def test_json_tells_the_same(dsec, box):
    result = dsec.run("run", "--memory", "64m", "-o", "json", box, "--", "tail", "/dev/zero")
    end = json.loads(result.out.splitlines()[-1])
    assert end["cause"] == "out_of_memory" and end["memory"]["limit"] == 64 * MIB, str(result)
    assert "64.0 MiB" in end["reason"]


def test_a_program_whose_child_was_killed_for_memory_is_told_of(dsec, box):
    result = dsec.run("run", "--memory", "64m", box, *sh("tail /dev/zero; exit 9"))
    assert result.code == 9 and "1 process of 'sh' was killed: the sandbox ran out of memory" in result.err, str(result)
    assert "of a limit of 64.0 MiB" in result.err, str(result)
    result = dsec.run("run", "--memory", "64m", box, *sh("tail /dev/zero; exit 0"))
    assert (result.code, result.err.count("memory")) == (0, 0), str(result)
    dsec.ok("create", "--memory", "64m", "--name", "c", box)
    result = dsec.run("exec", "c", "--", "tail", "/dev/zero")
    assert result.code == 137 and "64.0 MiB" in result.err
    # The next one has nothing to do with it.
    assert dsec.run("exec", "c", "--", "sh", "-c", "exit 3").err == ""
    assert dsec.json("stats", "c")["oom_kills"] >= 1


def test_the_memory_limit_holds_within_5_percent(dsec, box):
    dsec.ok("create", "--memory", "200m", "--name", "c", box)
    assert dsec.run("exec", "c", "--", *block(191).split()[:-1]).code == 0
    assert dsec.run("exec", "c", "--", *block(209).split()[:-1]).code == 137


def test_page_cache_is_given_back_and_kills_nobody(dsec, box):
    script = "dd if=/dev/zero of=/root/file bs=1M count=96 2>/dev/null && cat /root/file >/dev/null && rm /root/file"
    dsec.ok("create", "--memory", "48m", "--name", "c", box)
    assert dsec.run("exec", "c", *sh(script)).code == 0
    stats = dsec.json("stats", "c")
    assert stats["oom_kills"] == 0 and stats["memory_bytes"] <= 48 * MIB


def test_processes_beyond_the_limit_are_not_made_and_dsec_still_gets_in(dsec, box):
    dsec.ok("create", "--pids", "20", "--name", "c", box)
    bomb = dsec.popen("exec", "c", *sh("bomb() { bomb | bomb & }; bomb; sleep 60"))
    try:
        # While it tries.
        for _ in range(5):
            assert dsec.json("stats", "c")["pids"] <= 21
        dsec.ok("stop", "-t", "0", "c")
    finally:
        bomb.communicate(timeout=60)
    assert dsec.json("inspect", "c")[0]["state"] == "stopped"


def test_a_full_writable_layer_says_so(dsec, box):
    result = dsec.run("run", "--disk", "16m", box, *sh("dd if=/dev/zero of=/root/file bs=1M count=64"))
    assert result.code == 1 and ("No space left" in result.err or "quota" in result.err.lower()), str(result)


def test_output_beyond_the_limit_is_counted_and_dropped_from_the_middle(dsec, box):
    dsec.ok("run", "--keep", "--name", "loud", "--output-limit", "64k", "-o", "json", box, "--", "seq", "1", "100000")
    end = dsec.json("inspect", "loud")[0]["result"]
    assert end["stdout_bytes"] == 588895 and end["stdout_dropped"] >= 588895 - 65536
    kept = dsec.ok("logs", "loud")
    assert kept.startswith("1\n2\n") and kept.endswith("99999\n100000\n") and len(kept) < 80_000


@pytest.mark.guest_slow("numbers that no kernel decides, and 70 MiB of them")
def test_of_each_stream_64_mib_are_kept_unless_somebody_says_otherwise(dsec, box):
    written = 70 << 20
    dsec.ok("run", "-d", "--name", "loud", box, *sh(f"echo first; head -c {written - 11} /dev/zero; echo last"))
    dsec.ok("wait", "loud")
    end = dsec.json("inspect", "loud")[0]["result"]
    dropped = end["stdout_dropped"]
    assert (end["stdout_bytes"], end["stderr_dropped"]) == (written, 0)
    assert 48 << 20 < written - dropped <= 64 << 20  # the tail is dropped in large pieces
    kept = dsec.ok("logs", "loud")
    assert kept.startswith("first\n") and kept.endswith("\0last\n") and str(dropped) in kept
    assert abs(len(kept) - (written - dropped)) < 200  # and a line that says what is missing


@pytest.mark.parametrize("cpu_class", ["batch", "latency"])
def test_a_class_is_in_force_and_told(dsec, box, cpu_class):
    sandbox = dsec.ok("create", "--class", cpu_class, box).strip()
    limits = dsec.json("inspect", sandbox)[0]["spec"]["limits"]
    assert limits["class"] == cpu_class and limits["class_by"].split(",")[0] in ("cpu.idle", "cpu.weight"), limits
    lease = json.loads((dsec.home / "sandboxes" / sandbox / "lease.json").read_text())
    assert lease["spec"]["limits"] == limits
    if host.has("cgroup_v1_limits"):
        # Beside all other processes, where the weight counts.
        (folder,) = group_files(sandbox, "tasks")
        assert (host.CGROUP / folder).parent.parent == host.CGROUP
        wanted = ("cpu.idle", "1") if cpu_class == "batch" else ("cpu.shares", "10240")
        assert group_files(sandbox, wanted[0]) == {folder: wanted[1]}
    elif cpu_class == "batch":
        assert list(group_files(sandbox, "cpu.idle").values()) == ["1"]
    else:
        assert list(group_files(sandbox, "cpu.weight").values()) == ["1000"]
    dsec.ok("rm", "-f", sandbox)


@pytest.mark.needs("cgroup_v1_limits")
def test_where_no_group_weighs_processors_batch_is_a_scheduling_policy(dsec, box):
    script = """
umount -l /sys/fs/cgroup/cpu || exit 90
dsec() { "$0" "$@"; }
dsec run -d --class batch --name idle base/box -- sleep 1000 >/dev/null
dsec inspect -o json idle
dsec exec idle -- cat /proc/self/stat
dsec exec idle -- sh -c 'cat /proc/$$/stat'
dsec update --class latency idle 2>&1
dsec run --class latency base/box -- true 2>&1
dsec rm -f idle
"""
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, *dsec.argv()], env=dsec.env, cwd=dsec.cwd, capture_output=True,
                          text=True, timeout=120)
    told = done.stdout + done.stderr
    assert done.stdout.startswith("["), told
    (inspected,), end = json.JSONDecoder().raw_decode(done.stdout)
    rest = done.stdout[end:]
    assert inspected["spec"]["limits"]["class_by"] == "SCHED_IDLE", told
    policies = [line.rpartition(")")[2].split()[38] for line in rest.splitlines() if line[:1].isdigit()]
    assert policies == ["5", "5"], told
    # What a class before all others would take cannot be had: neither later nor from the start.
    assert rest.count("no cgroup hierarchy here has the cpu controller") == 2, told


def test_a_class_of_an_environment_and_of_a_function(dsec, box, work):
    (work / "dsec.yaml").write_text("""\
version: 1
environments:
  e: {base: base/box, limits: {class: batch}}
functions:
  f: {environment: e, command: "true", limits: {class: latency}}
""")
    sandbox = dsec.ok("create", "e").strip()
    assert dsec.json("inspect", sandbox)[0]["spec"]["limits"]["class"] == "batch"
    assert dsec.run("fn", "run", "f").code == 0
    (work / "dsec.yaml").write_text("version: 1\nenvironments:\n  e: {base: base/box, limits: {class: slow}}\n")
    assert ":3:39:" in dsec.fails(2, "create", "e")


def test_a_limit_of_0_is_none_whatever_the_environment_says(dsec, box, work):
    (work / "dsec.yaml").write_text(
        "version: 1\nenvironments:\n  e: {base: base/box, limits: {cpus: 1, memory: 64MiB, pids: 10, disk: 64MiB}}\n")
    none = [word for flag in ("--cpus", "--memory", "--pids", "--disk") for word in (flag, "0")]
    dsec.ok("create", "--name", "free", *none, "e")
    dsec.ok("create", "--name", "held", "e")
    held, free = (dsec.json("inspect", name)[0]["spec"]["limits"] for name in ("held", "free"))
    kinds = ("cpus", "memory", "pids", "disk")
    assert [held.get(kind) for kind in kinds] == [1, 64 * MIB, 10, 64 * MIB]
    assert not any(free.get(kind) for kind in kinds), free


def test_a_limit_below_what_a_sandbox_takes_is_told_as_such(dsec, box):
    for flags, words in [(("--memory", "64k"), "a memory limit of 64.0 KiB is too small"),
                         (("--pids", "1"), "a limit of 1 processes is too small"), (("--disk", "1"), "a disk limit of 1 B is too small")]:
        err = dsec.fails(125, "run", *flags, box, "--", "true")
        assert words in err and "try: use at least" in err, err
