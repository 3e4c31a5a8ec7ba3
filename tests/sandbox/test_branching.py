"""Snapshots, commits and forks: the same files, the right layers below, nothing kept or lost that should not be."""

import io
import json
import os
import sqlite3
import struct
import subprocess
import tarfile
import threading
import time

import pytest
import rootfs
from dsec_tool import Dsec
from network_box import PYTHON
from sandbox_tree import differences, disk_bytes, walk

LONG = bool(os.environ.get("DSEC_TEST_LONG"))

# A default ACL that gives "other" nothing: version 2, then (tag, permissions, id) of owner, group, other.
ACL = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, perm, 0xFFFFFFFF) for tag, perm in
                                      ((0x01, 7), (0x04, 5), (0x20, 0)))
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service, effective


@pytest.fixture
def base(dsec):
    return rootfs.import_base(dsec, files={
        "data/keep": "kept\n", "data/gone": "g\n", "data/changed": "one\ntwo\nthree\n", "whole/a": "a\n", "whole/b/c": "c\n",
        "renewed/old": "o\n", "etc/machine-id": "0123456789abcdef0123456789abcdef\n", "script": "#!/bin/sh\n"})


@pytest.fixture
def dev(dsec, base):
    return dsec.ok("create", "--name", "dev", base).strip()


def nasty_archive() -> bytes:
    """What no command of busybox makes: nanoseconds, negative times, xattrs, capabilities, ACLs, odd names."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:

        def add(name, data=b"", kind=tarfile.REGTYPE, mode=0o644, uid=0, target="", **pax):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.uid, entry.gid, entry.linkname = kind, mode, uid, uid, target
            entry.size = len(data)
            entry.pax_headers = {key.replace("__", "."): value for key, value in pax.items()}
            tar.addfile(entry, io.BytesIO(data))

        add("nasty", kind=tarfile.DIRTYPE, mode=0o1770, uid=1000, mtime="1700000000.123456789")
        add("nasty/old", b"x", mtime="-12345.987654321")
        add("nasty/far", b"y", mtime="9999999999.5")
        add("nasty/tagged", b"z", mode=0o4755, **{"SCHILY.xattr.user.note": "a note"})
        add("nasty/" + "n" * 200, b"long")
        add("nasty/with \"quotes\"\nand lines", b"odd\n")
        add("nasty/link-1", b"linked", uid=1000)
        add("nasty/link-2", kind=tarfile.LNKTYPE, target="nasty/link-1")
        add("nasty/dangling", kind=tarfile.SYMTYPE, target="/nowhere/" + "d" * 100)
        add("nasty/pipe", kind=tarfile.FIFOTYPE, mode=0o600)
    return out.getvalue()


CHANGES = r"""
rm /data/gone
rm -r /whole
rm -r /renewed && mkdir /renewed && echo new > /renewed/new
printf 'one\n2\nthree\nfour\n' > /data/changed
chmod 700 /data
chmod 755 /data/changed
chown 1000:1000 /home/user
mkdir -p /deep/er/est && echo x > /deep/er/est/file
ln /data/keep /data/keep-too
ln -s keep /data/soft
truncate -s 64M /sparse && echo middle | dd of=/sparse bs=1 seek=33554432 conv=notrunc 2>/dev/null
rm /script && mkdir /script && echo now a folder > /script/inside
dd if=/dev/urandom of=/noise bs=64k count=16 2>/dev/null
mknod /deep/fifo p
"""


def change(dsec, sandbox: str):
    dsec.ok("exec", sandbox, "--", "sh", "-ec", CHANGES)
    dsec.ok("cp", "-a", "-", f"{sandbox}:/", input=nasty_archive())
    # Below the id map: what only the kernel's own calls set.
    pid = json.loads((dsec.home / "sandboxes" / sandbox / "state.json").read_text())["init_pid"]
    root = f"/proc/{pid}/root"
    os.setxattr(f"{root}/deep/er", "system.posix_acl_default", ACL)
    os.setxattr(f"{root}/deep/er/est/file", "user.empty", b"")


def layer_names(dsec) -> set[str]:
    """Also of layers without a tag."""
    with sqlite3.connect(f"file:{dsec.home}/store/index.db?mode=ro", uri=True) as index:
        return {f"{kind}/{name}" for kind, name in index.execute("SELECT kind, name FROM layers")}


def collect(dsec):
    """gc, when no trajectory names layers any more."""
    for sandbox in os.listdir(dsec.home / "trajectories"):
        dsec.ok("traj", "rm", sandbox)
    dsec.ok("gc")


def test_a_snapshot_shows_the_same_tree_to_the_nanosecond(dsec, dev):
    change(dsec, dev)
    before = walk(dsec, dev)
    assert dsec.ok("snapshot", "dev", "nasty:1").strip() == "snapshot/nasty:1"
    assert differences(before, walk(dsec, dev)) == [], "the snapshot changed the sandbox"
    again = dsec.ok("create", "snapshot/nasty:1").strip()
    assert differences(before, walk(dsec, again)) == []
    # A second one of the same files is the same layer.
    first, second = (dsec.json("layer", "inspect", dsec.ok("snapshot", name, f"twin-{name[:3]}:1").strip())[0]
                     for name in ("dev", "dev"))
    assert first["digest"] == second["digest"]


def test_capabilities_of_files_are_the_same_for_whoever_has_the_layer(dsec, base):
    """Each sandbox has other host ids: the kernel keeps a capability with the root that it is for."""
    python = lambda sandbox, script: dsec.ok("exec", sandbox, "--", "/usr/bin/python3", "-c", f"import os; {script}").strip()
    dsec.ok("create", "--name", "dev", *PYTHON, base)
    python("dev", f"os.setxattr('/script', 'security.capability', {CAPABILITY!r}); os.setxattr('/data/keep', 'user.note', b'kept')")
    look = "print(os.getxattr('/script', 'security.capability').hex(), os.getxattr('/data/keep', 'user.note'))"
    told = f"{CAPABILITY.hex()} b'kept'"
    assert python("dev", look) == told
    dsec.ok("snapshot", "dev", "able:1")
    again = dsec.ok("create", "--name", "again", *PYTHON, "snapshot/able:1").strip()
    assert python(again, look) == told
    assert python(dsec.ok("fork", again).strip(), look) == told
    # What was taken over is changed, and taken again.
    python(again, "os.removexattr('/script', 'security.capability'); os.setxattr('/data/keep', 'user.note', b'changed')")
    dsec.ok("snapshot", again, "able:2")
    last = dsec.ok("create", *PYTHON, "snapshot/able:2").strip()
    assert python(last, "print(os.listxattr('/script'), os.getxattr('/data/keep', 'user.note'))") == "[] b'changed'"


def test_a_snapshot_holds_only_what_changed_and_stands_on_the_layers_below(dsec, dev, base):
    change(dsec, dev)
    made = dsec.json("snapshot", "dev", "nasty:1")
    below = dsec.json("inspect", "dev")[0]["spec"]["layers"]
    assert made["layers"] == [*below, made["digest"]]
    manifest = dsec.json("layer", "inspect", "snapshot/nasty:1")[0]["manifest"]
    assert manifest["lowers"] == below
    names = {line.split(" ", 1)[-1] for line in dsec.ok("layer", "files", "snapshot/nasty:1").splitlines()}
    assert not any("busybox" in name or "passwd" in name for name in names)
    # gc keeps what it stands on, although nothing else names it.
    dsec.ok("rm", "-f", "dev")
    dsec.ok("layer", "rm", base)
    collect(dsec)
    assert dsec.ok("run", "snapshot/nasty:1", "--", "cat", "/data/keep") == "kept\n"
    dsec.ok("layer", "rm", "snapshot/nasty:1")
    collect(dsec)
    assert layer_names(dsec) == set()


def test_a_snapshot_knows_nothing_of_the_directories_that_dsec_restored(dsec, base, work):
    """A tool in /home/user/bin has /home/user as it is by default, over that of the base."""
    (work / "tool").mkdir()
    (work / "tool/check").write_text("of the tool\n")
    dsec.ok("import", "toolkit/check", f"dir:{work / 'tool'}", "--to", "/home/user/bin")
    one = dsec.ok("create", "--name", "one", base, "toolkit/check").strip()
    assert len(os.listdir(dsec.home / "cache/fixup")) == 1, "this stack has nothing to restore"
    assert walk(dsec, one)["home/user"][:3] == ("drwxr-x---", 1000, 1000)
    dsec.ok("exec", "one", "--", "sh", "-c", "echo x > /data/x")
    before = walk(dsec, one)
    made = dsec.json("snapshot", "one", "s:1")
    assert made["layers"] == [*dsec.json("inspect", "one")[0]["spec"]["layers"], made["digest"]]
    files = {line.split()[-1] for line in dsec.ok("layer", "files", "snapshot/s:1").splitlines()}
    assert {name for name in files if "home" in name or "user" in name} == set(), files
    again = dsec.ok("create", "snapshot/s:1").strip()
    assert differences(before, walk(dsec, again)) == []
    # What is changed in such a directory, and it with that, is the sandbox's own.
    dsec.ok("exec", again, "--", "sh", "-c", "echo mine > /home/user/bin/mine")
    before = walk(dsec, again)
    dsec.ok("snapshot", again, "s:2")
    assert differences(before, walk(dsec, dsec.ok("create", "snapshot/s:2").strip())) == []


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_a_snapshot_is_published_pulled_and_run_elsewhere_with_all_it_stands_on(dsec, dev, work):
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo mine > /data/mine; rm /data/gone")
    dsec.ok("snapshot", "dev", "step:1")
    registry = work / "registry"
    told = dsec.ok("publish", "snapshot/step:1", "--to", f"file://{registry}")
    assert told.splitlines()[-1].startswith("snapshot/step:1 sha256:")
    other = Dsec(work / "other", work)
    try:
        assert other.ok("run", "--registry", f"file://{registry}", "snapshot/step:1", "--", "ls", "/data") == \
            "changed\nkeep\nmine\n"
        other.ok("gc")
        assert other.ok("run", "snapshot/step:1", "--", "cat", "/data/mine") == "mine\n"
    finally:
        other.ok("gc")


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_a_toolkit_can_lie_over_a_snapshot_and_nothing_else_below_it(dsec, dev, work):
    (work / "tool").mkdir()
    (work / "tool/check").write_text("of the toolkit")
    dsec.ok("import", "toolkit/check", f"dir:{work / 'tool'}", "--to", "/data")
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo forged > /data/check")
    dsec.ok("snapshot", "dev", "end:1")
    assert dsec.ok("run", "snapshot/end:1", "toolkit/check", "--", "cat", "/data/check") == "of the toolkit"
    dsec.ok("import", "workspace/w", f"dir:{work / 'tool'}", "--to", "/w")
    assert "cannot be put under" in dsec.fails(125, "run", "snapshot/end:1", "workspace/w", "--", "true")


def test_scrubbing_leaves_out_residue_and_nothing_else(dsec, dev):
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo s > /root/.ash_history; echo t > /tmp/t; echo k > /root/kept")
    dsec.ok("snapshot", "--scrub", "dev", "clean:1")
    assert dsec.ok("run", "snapshot/clean:1", "--", "ls", "-A", "/root", "/tmp") == "/root:\nkept\n\n/tmp:\n"


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_a_workspace_is_scrubbed_too_and_both_have_labels(dsec, base, work):
    (work / "w").mkdir()
    (work / "w/file").write_text("workspace\n")
    dsec.ok("import", "workspace/w:1", f"dir:{work / 'w'}", "--to", "/ws")
    dsec.ok("create", "--name", "dev", base, "workspace/w:1")
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo s > /root/.ash_history; echo t > /tmp/t; echo k > /ws/kept")
    dsec.ok("commit", "dev", "workspace/w:2")
    assert dsec.ok("run", base, "workspace/w:2", "--", "ls", "-A", "/root", "/tmp", "/ws") == \
        "/root:\n.ash_history\n\n/tmp:\nt\n\n/ws:\nfile\nkept\n"
    dsec.ok("commit", "--scrub", "--label", "suite=demo", "-l", "try=1", "dev", "workspace/w:3")
    assert dsec.ok("run", base, "workspace/w:3", "--", "ls", "-A", "/root", "/tmp", "/ws") == "/root:\n\n/tmp:\n\n/ws:\nfile\nkept\n"
    dsec.ok("snapshot", "--label", "suite=other", "dev", "s:1")
    labels = {name: dsec.json("layer", "inspect", name)[0]["labels"] for name in ("workspace/w:2", "workspace/w:3", "snapshot/s:1")}
    assert labels == {"workspace/w:2": {}, "workspace/w:3": {"suite": "demo", "try": "1"}, "snapshot/s:1": {"suite": "other"}}


def test_a_snapshot_of_a_sandbox_that_writes_is_of_one_moment_and_does_not_stop_it(dsec, dev):
    # Two files that are never apart by more than one; at every moment b is a or a - 1.
    writer = "mkdir /w; n=0; while :; do n=$((n+1)); echo $n > /w/a.new; mv /w/a.new /w/a; echo $n > /w/b.new; mv /w/b.new /w/b; done"
    dsec.ok("exec", "-d", "dev", "--", "sh", "-c", writer)
    time.sleep(0.3)
    for round in range(3):
        dsec.ok("snapshot", "dev", f"moment:{round}")
        a, b = dsec.ok("run", f"snapshot/moment:{round}", "--", "cat", "/w/a", "/w/b").split()
        assert int(a) - int(b) in (0, 1), (a, b)
    before = int(dsec.ok("exec", "dev", "--", "cat", "/w/a"))
    time.sleep(0.2)
    assert int(dsec.ok("exec", "dev", "--", "cat", "/w/a")) > before


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_snapshots_lie_on_each_other_up_to_sixteen_and_then_become_one(dsec, dev):
    at, lengths = "dev", []
    for number in range(18):
        dsec.ok("exec", at, "--", "sh", "-c", f"echo {number} > /data/n{number}; echo {number} > /data/last; "
                                              f"rm -f /data/n{number - 2}; rm -rf /swap; mkdir /swap; echo {number} > /swap/{number}")
        made = dsec.json("snapshot", at, f"chain:{number}")
        lengths.append(len(made["layers"]) - 1)
        dsec.ok("rm", "-f", at)
        at = dsec.ok("create", f"snapshot/chain:{number}").strip()
    assert lengths == [*range(1, 17), 1, 2]
    assert dsec.ok("exec", at, "--", "sh", "-c", "cd /data; ls; cat last; ls /swap") == \
        "changed\ngone\nkeep\nlast\nn16\nn17\n17\n17\n"


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_commit_makes_a_workspace_that_stands_on_the_base_alone(dsec, base, work):
    for name, text in (("w", "workspace"), ("t", "toolkit")):
        (work / name).mkdir()
        (work / name / "file").write_text(text + "\n")
        (work / name / "other").write_text(text + "\n")
    dsec.ok("import", "workspace/w:1", f"dir:{work / 'w'}", "--to", "/ws")
    dsec.ok("import", "toolkit/t", f"dir:{work / 't'}", "--to", "/tool")
    dsec.ok("create", "--name", "one", base, "workspace/w:1", "toolkit/t")
    dsec.ok("exec", "one", "--", "sh", "-c", "echo mine > /ws/new; rm /ws/other; echo base > /data/keep; rm /data/gone")
    dsec.ok("snapshot", "one", "between:1")
    two = dsec.ok("create", "snapshot/between:1").strip()
    dsec.ok("exec", two, "--", "sh", "-c", "echo more > /ws/more; echo bad > /tool/file")
    result = dsec.run("commit", two, "workspace/w:2")
    assert (result.code, result.out) == (0, "workspace/w:2\n"), result
    assert "'/tool/file'" in result.err and "hide them" in result.err
    assert dsec.ok("run", base, "workspace/w:2", "--", "sh", "-c", "cd /ws; ls; cat new file; ls /data; cat /data/keep") == \
        "file\nmore\nnew\nmine\nworkspace\nchanged\nkeep\nbase\n"
    # The toolkit still wins over what the workspace says of it.
    assert dsec.ok("run", base, "workspace/w:2", "toolkit/t", "--", "cat", "/tool/file") == "toolkit\n"
    manifest = dsec.json("layer", "inspect", "workspace/w:2")[0]["manifest"]
    assert manifest["provenance"]["built_on"] == dsec.json("layer", "inspect", base)[0]["digest"]
    assert "lowers" not in manifest
    assert "no name of a workspace" in dsec.fails(2, "commit", "one", "snapshot/w:3")
    assert "no name of a snapshot" in dsec.fails(2, "snapshot", "one", "workspace/w:3")


def test_forks_have_the_files_and_settings_and_an_identity_of_their_own(dsec, base):
    parent = dsec.ok("create", "--name", "dev", "--label", "suite=demo", "--env", "A=b", "--workdir", "/data", "--memory", "200m",
                     base).strip()
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo shared > mine; mkdir -p /var/lib/systemd; echo s > /var/lib/systemd/random-seed")
    before = walk(dsec, parent)
    forks = dsec.ok("fork", "dev", "--count", "3", "--label", "try=1").split()
    assert differences(before, walk(dsec, parent)) == []
    infos = dsec.json("inspect", *forks)
    assert [info["spec"]["name"] for info in infos] == ["dev-1", "dev-2", "dev-3"]
    for info in infos:
        assert info["state"] == "running"
        assert info["spec"]["labels"] == {"suite": "demo", "try": "1", "dsec.forked-from": parent}
        assert info["spec"]["limits"]["memory"] == 200 << 20
        # All but the seed, which would make two systems draw the same numbers.
        left = {name for name in before if name != "var/lib/systemd/random-seed"}
        assert differences({name: before[name] for name in left if name != "var/lib/systemd"},
                           {name: facts for name, facts in walk(dsec, info["id"]).items() if name != "var/lib/systemd"}) == []
    own = {dsec.ok("exec", fork, "--", "sh", "-c", "cat /etc/machine-id; hostname; echo $A; pwd; cat mine") for fork in forks}
    assert len(own) == 3
    machines = {text.splitlines()[0] for text in own} | {dsec.ok("exec", "dev", "--", "cat", "/etc/machine-id").strip()}
    assert len(machines) == 4 and all(len(machine) == 32 and int(machine, 16) for machine in machines)
    hosts = {text.splitlines()[1] for text in own} | {dsec.ok("exec", "dev", "--", "hostname").strip()}
    assert len(hosts) == 4 and all(hosts), hosts
    assert {tuple(text.splitlines()[2:]) for text in own} == {("b", "/data", "shared")}
    # Each goes its own way, and so does the parent.
    dsec.ok("exec", forks[0], "--", "sh", "-c", "echo first > mine; rm keep")
    assert dsec.ok("exec", forks[1], "--", "cat", "mine", "keep") == "shared\nkept\n"
    assert dsec.ok("exec", "dev", "--", "cat", "mine", "keep") == "shared\nkept\n"
    # Names that are taken are passed over, and forks can be forked.
    more = dsec.ok("fork", "dev-1", "--count", "2", "--name", "dev").split()
    assert [info["spec"]["name"] for info in dsec.json("inspect", *more)] == ["dev-4", "dev-5"]
    assert dsec.ok("exec", "dev-4", "--", "cat", "mine") == "first\n"
    # The layer of the changes goes with the last fork.
    dsec.ok("rm", "-f", parent, *forks, *more)
    collect(dsec)
    assert layer_names(dsec) == {"base/box"}


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_a_hundred_forks_of_fifty_megabytes_cost_one_copy(dsec, dev):
    megabytes, count = 50, 100 if LONG else 20
    dsec.ok("exec", "dev", "--", "dd", "if=/dev/urandom", "of=/blob", "bs=1M", f"count={megabytes}")
    places = (dsec.home / "store", dsec.home / "sandboxes")
    before = disk_bytes(*places)
    started = time.monotonic()
    forks = dsec.ok("fork", "dev", "-n", str(count), timeout=300).split()
    took = time.monotonic() - started
    assert len(forks) == count
    grown = disk_bytes(*places) - before
    # All of them read all of it: the pages are in memory once. Whatever else runs on the host reads, too, but not always.
    read = min(read_by(dsec, forks[:10]), read_by(dsec, forks[10:20]))
    print(f"{count} forks in {took:.1f} s: {grown >> 20} MiB of disk, {read} MiB of page cache after 10 read all")
    assert grown < 1.5 * (megabytes << 20), f"{grown >> 20} MiB"
    assert read < 3 * megabytes, f"{read} MiB"


def read_by(dsec, sandboxes: list[str]) -> int:
    """MiB by which the page cache of the host grows."""
    cached = meminfo("Cached")
    for sandbox in sandboxes:
        dsec.ok("exec", sandbox, "--", "md5sum", "/blob")
    return (meminfo("Cached") - cached) >> 20


def meminfo(key: str) -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def test_a_paused_and_an_ended_sandbox_can_be_branched(dsec, dev):
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo x > /data/x")
    dsec.ok("pause", "dev")
    dsec.ok("snapshot", "dev", "paused:1")
    fork = dsec.ok("fork", "dev").strip()
    assert dsec.json("inspect", "dev")[0]["state"] == "paused"
    assert dsec.ok("exec", fork, "--", "cat", "/data/x") == "x\n"
    dsec.ok("stop", "dev")
    dsec.ok("snapshot", "dev", "ended:1")
    paused, ended = (dsec.json("layer", "inspect", f"snapshot/{name}:1")[0]["manifest"] for name in ("paused", "ended"))
    assert paused["images"] == ended["images"]
    assert dsec.ok("exec", dsec.ok("fork", "dev").strip(), "--", "cat", "/data/x") == "x\n"


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_what_has_no_writable_layer_has_no_snapshot_but_forks(dsec, base):
    dsec.ok("create", "--name", "fixed", "--read-only", base)
    assert "no writable layer" in dsec.fails(2, "snapshot", "fixed", "x:1")
    assert dsec.ok("exec", dsec.ok("fork", "fixed").strip(), "--", "cat", "/data/keep") == "kept\n"


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_what_is_done_at_the_same_time_is_done_right(dsec, dev):
    """Snapshots, forks, commands and pauses of one sandbox by many, with nothing wrong or left."""
    dsec.ok("exec", "dev", "--", "sh", "-c", "echo x > /data/x")
    results = []

    def again(*args):
        for _ in range(3):
            results.append(dsec.run(*args))

    workers = [threading.Thread(target=again, args=args) for args in (
        ("snapshot", "dev"), ("fork", "dev"), ("exec", "dev", "--", "cat", "/data/x"), ("diff", "dev", "--patch"), ("stats", "dev"))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [str(result) for result in results if result.code != 0] == []
    forks = dsec.ok("ps", "-q", "--label", "dsec.forked-from").split()
    assert len(forks) == 3
    assert {dsec.ok("exec", fork, "--", "cat", "/data/x") for fork in forks} == {"x\n"}


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_pauses_snapshots_and_forks_are_recorded(dsec, dev):
    dsec.ok("pause", "dev")
    dsec.ok("resume", "dev")
    made = dsec.json("snapshot", "dev", "kept:1")
    fork = dsec.ok("fork", "dev").strip()
    log = dsec.home / "trajectories" / dev
    records = [json.loads(line) for line in next(log.glob("*.jsonl")).read_text().splitlines()]
    text = json.dumps(records)
    assert [kind for kind in ("pause", "resume", "snapshot", "fork") if f'"{kind}"' not in text] == []
    assert made["digest"] in text and fork in text


# ---- diff ----


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_a_patch_makes_the_base_the_sandbox(dsec, dev, work):
    dsec.ok("exec", "dev", "--", "sh", "-ec", CHANGES)
    dsec.ok("exec", "dev", "--", "sh", "-ec", "printf 'no newline' > /data/cut; : > /data/empty; echo b > '/data/a b'; echo t > \"/data/ta\tb\"")
    patch = work / "changes.patch"
    dsec.ok("diff", "dev", "--patch", "--out", patch)
    text = patch.read_text()
    assert "# /noise: binary contents" in text and "# /sparse: binary contents" in text
    left, right = (work / name for name in ("left", "right"))
    for place in (left, right):
        place.mkdir()
    dsec.ok("cp", "-a", f"{dsec.ok('create', 'base/box').strip()}:/data/.", left / "data")
    for path in ("whole", "renewed", "script"):
        dsec.ok("cp", f"{dsec.ok('ps', '-q').split()[0]}:/{path}", left / path)
    subprocess.run(["git", "apply", "--exclude=home/*", "--exclude=sparse", patch], cwd=left, check=True)
    for path in ("data", "renewed", "script", "deep"):
        dsec.ok("cp", f"dev:/{path}", right / path)
    compare = subprocess.run(["diff", "-r", "--no-dereference", left, right], capture_output=True, text=True, check=False)
    lines = [line for line in compare.stdout.splitlines() if "deep: fifo" not in line]
    assert lines == [], compare.stdout
    assert os.access(left / "data/changed", os.X_OK)


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_stat_counts_lines_as_git_does(dsec, dev):
    dsec.ok("exec", "dev", "--", "sh", "-ec", "printf 'one\\n2\\nthree\\nfour\\n' > /data/changed; rm /data/gone; head -c 100 /dev/zero > /bin/z; "
                                              "chmod 700 /data/keep; touch /data/changed")
    assert dsec.ok("diff", "dev", "--stat") == (
        " /bin/z        | Bin 0 -> 100 bytes\n"
        " /data/changed | 3 ++-\n"
        " /data/gone    | 1 -\n"
        " 3 files changed, 2 insertions(+), 2 deletions(-)\n")
    changed = next(line for line in dsec.json("diff", "dev", "--stat") if line["path"] == "/data/changed")
    assert (changed["kind"], changed["added_lines"], changed["deleted_lines"]) == ("modified", 2, 1)


def test_the_archive_of_the_changes_is_an_oci_layer_of_them(dsec, dev, work):
    change(dsec, dev)
    archive = work / "changes.tar"
    dsec.ok("diff", "dev", "--tar", "--out", archive)
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        assert {"data/.wh.gone", ".wh.whole", "renewed/.wh..wh..opq", "renewed/new", "nasty/link-2"} <= names
        assert "bin/busybox" not in names
        assert tar.getmember("nasty/tagged").pax_headers["SCHILY.xattr.user.note"] == "a note"
    assert dsec.fails(2, "diff", "dev", "--tar", "--stat")


@pytest.mark.guest_slow("other tests look at what a writable layer becomes")
def test_a_sandbox_that_did_nothing_has_no_changes(dsec, dev):
    assert dsec.ok("diff", "dev", "--patch") == ""
    assert dsec.ok("diff", "dev", "--stat") == ""
    made = dsec.json("snapshot", "dev", "nothing:1")
    assert dsec.ok("run", "snapshot/nothing:1", "--", "cat", "/data/keep") == "kept\n"
    assert made["warnings"] == []


# ---- pause, by the command line ----


def test_pause_resume_and_what_ps_and_stats_say(dsec, base):
    dsec.ok("create", "--name", "dev", "--memory", "200m", base)
    dsec.ok("exec", "dev", "--", "dd", "if=/dev/zero", "of=/big", "bs=1M", "count=20")
    assert dsec.ok("pause", "dev") == "dev\n"
    assert " paused\n" in dsec.ok("ps")
    assert dsec.json("inspect", "dev")[0]["state"] == "paused"
    stats = dsec.json("stats", "dev")
    assert stats["memory_before_pause"] > stats["memory_bytes"]
    assert "before the pause" in dsec.ok("stats", "dev")
    assert dsec.ok("resume", "dev") == "dev\n"
    assert dsec.json("inspect", "dev")[0]["state"] == "running"
    for operation in (["exec", "dev", "--", "true"], ["cp", "dev:/data", "-"], ["diff", "dev"], ["diff", "dev", "--stat"]):
        dsec.ok("pause", "dev")
        dsec.ok(*operation)
        assert dsec.json("inspect", "dev")[0]["state"] == "running", operation
    dsec.ok("pause", "dev")
    assert "dsec stop" in dsec.fails(2, "rm", "dev")
    dsec.ok("rm", "-f", "dev")


def test_an_idle_sandbox_pauses_by_itself(dsec, base):
    dsec.ok("create", "--name", "dev", "--idle-pause", "200ms", base)
    for _ in range(2):
        end = time.monotonic() + 10
        while dsec.json("inspect", "dev")[0]["state"] != "paused":
            assert time.monotonic() < end
            time.sleep(0.05)
        assert dsec.ok("exec", "dev", "--", "echo", "awake") == "awake\n"


def test_gc_finds_a_paused_sandbox_whose_keeper_was_killed(dsec, base):
    sandbox = dsec.ok("create", "--name", "dev", base).strip()
    dsec.ok("exec", "-d", "dev", "--", "sleep", "1000")
    dsec.ok("pause", "dev")
    os.kill(dsec.json("inspect", "dev")[0]["keeper_pid"], 9)
    end = time.monotonic() + 10
    while dsec.json("inspect", "dev")[0]["state"] != "orphaned":
        assert time.monotonic() < end
    assert sandbox in dsec.ok("gc")
    assert dsec.ok("ps", "-aq") == ""
