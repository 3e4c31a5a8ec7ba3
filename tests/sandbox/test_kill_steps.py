"""dsec, or the keeper of a sandbox, is killed at any step of an operation that its caller named: whoever repeats it finds
it done once, or is told that its outcome is unknown; nothing is done twice.

With --long at every step, else at some: DSEC_TEST_SEED repeats which."""

import json
import os
import random
import re
import tarfile
from pathlib import Path

import leftovers
import network_box
import pytest
import rootfs
from network_box import eventually
from syscall_trace import TracedProgram, Tracer

LONG = bool(os.environ.get("DSEC_TEST_LONG"))
KILLS = 6  # of dsec, for each verb in a plain run
STRIDE = 1 if LONG else 26  # between steps at which keepers are killed

pytestmark = [pytest.mark.guest_slow("who repeats what is no matter of the kernel"), pytest.mark.timeout(3600 if LONG else 300)]

COUNTER = "#!/bin/sh\necho x >> /out/count\nprintf 'Content-Type: text/plain\\r\\n\\r\\nsaid\\n'\n"


class Box:
    """One sandbox, and what the verbs below do to it."""

    def __init__(self, dsec, name: str):
        self.dsec, self.name, self.out = dsec, name, dsec.cwd / "out"
        self.out.mkdir(exist_ok=True)
        self.out.chmod(0o777)
        self.id = dsec.ok("create", "--name", name, "-v", f"{self.out}:/out", *self.flags(), "base/box").strip()

    def flags(self) -> list[str]:
        return []

    def keeper(self) -> int:
        return self.dsec.json("inspect", self.id)[0]["keeper_pid"] or 0

    def live(self) -> bool:
        return bool(self.keeper())

    def operation(self, op_id: str) -> dict | None:
        _, *operations = [json.loads(line) for line in self.dsec.ok("traj", "show", "-o", "json", self.id).splitlines()]
        (*_, found) = [None, *(operation for operation in operations if operation["op_id"] == op_id)]
        return found

    def upper(self) -> Path:
        return self.dsec.home / "sandboxes" / self.id / "upper"

    # Each verb: how it is asked for, how often its effect is to be seen, and how that is taken away again.

    def prepare(self):
        pass

    def command(self) -> list[str]:
        raise NotImplementedError

    def done(self) -> int:
        raise NotImplementedError

    def undo(self):
        raise NotImplementedError


class Counted(Box):
    """Its effect is a line more in a file of the host."""

    def done(self):
        count = self.out / "count"
        return len(count.read_text().splitlines()) if count.exists() else 0

    def undo(self):
        (self.out / "count").unlink(missing_ok=True)


class Exec(Counted):
    def command(self):
        return ["exec", self.name, "--", "sh", "-c", "echo x >> /out/count; echo said"]


class Session(Counted):
    def prepare(self):
        self.dsec.ok("session", "open", "--name", "work", self.name)

    def command(self):
        return ["session", "run", self.name, "work", "--", "echo x >> /out/count; echo said"]


class Http(Counted):
    def prepare(self):
        self.dsec.ok("exec", "-d", self.name, "--", "busybox", "httpd", "-f", "-p", "127.0.0.1:8080", "-h", "/srv")
        assert eventually(lambda: self.dsec.run("http", self.name, "8080/").code == 0)

    def command(self):
        return ["http", self.name, "8080/cgi-bin/count"]


class Copy(Box):
    def prepare(self):
        with tarfile.open(self.dsec.cwd / "brought.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("brought"))

    def command(self):
        return ["cp", self.dsec.cwd / "brought.tar", f"{self.name}:/root"]

    def done(self):
        return int((self.upper() / "root/brought.tar").exists())

    def undo(self):
        self.dsec.ok("exec", self.name, "--", "rm", "/root/brought.tar")


class Pause(Box):
    def command(self):
        return ["pause", self.name]

    def done(self):
        return int(self.dsec.json("inspect", self.id)[0]["state"] == "paused")

    def undo(self):
        self.dsec.ok("resume", self.name)


class Update(Box):
    def command(self):
        return ["update", self.name, "--label", "renewed=yes", "--pids", "77"]

    def done(self):
        return int(self.dsec.json("inspect", self.id)[0]["spec"]["labels"].get("renewed") == "yes")

    def undo(self):
        self.dsec.ok("update", self.name, "--label", "renewed=no")


class Snapshot(Box):
    def prepare(self):
        self.dsec.ok("exec", self.name, "--", "touch", "/changed")

    def command(self):
        return ["snapshot", self.name, f"{self.name}:1"]

    def done(self):
        return self.dsec.ok("layer", "ls", "-q").split().count(f"snapshot/{self.name}:1")

    def undo(self):
        self.dsec.ok("layer", "rm", f"snapshot/{self.name}:1")


class Fork(Box):
    def prepare(self):
        self.dsec.ok("exec", self.name, "--", "touch", "/changed")

    def command(self):
        return ["fork", self.name]

    def done(self):
        # One that was being made is nobody's, and gc takes it.
        return len([info for info in map(json.loads, self.dsec.ok("ps", "-a", "-o", "json", "--label", f"dsec.forked-from={self.id}").splitlines())
                    if info["state"] == "running"])

    def undo(self):
        self.dsec.ok("rm", "-f", "--label", f"dsec.forked-from={self.id}")


class Policy(Box):
    def flags(self):
        return ["--allow", "good.example"]

    def command(self):
        return ["net", "set", self.name, "--nothing"]

    def done(self):
        return int(self.dsec.json("net", "show", self.id)["plan"]["allow"] == [])

    def undo(self):
        self.dsec.ok("net", "set", self.name, "--allow", "good.example")


VERBS = [Exec, Session, Http, Copy, Pause, Update, Snapshot, Fork]


@pytest.fixture
def dice(request):
    seed = int(os.environ.get("DSEC_TEST_SEED", random.randrange(1 << 32)))
    print(f"DSEC_TEST_SEED={seed}")  # shown when the test fails
    return random.Random(seed)


@pytest.fixture
def base(dsec):
    rootfs.import_base(dsec, files={"srv/cgi-bin/count": COUNTER, "srv/index.html": "hello\n"})
    return dsec


def named(box: Box, op_id: str) -> list[str]:
    command = box.command()
    dash = command.index("--") if "--" in command else len(command)
    words = 2 if command[0] in ("session", "net") else 1
    return [*command[:words], "--op-id", op_id, *command[words:dash], *command[dash:]]


def judge(box: Box, op_id: str, answered: bool) -> str:
    """What whoever repeats the operation finds, after a kill. `answered`: the first caller was told that it is done."""
    live = box.live()
    # Without its caller it comes to an end all the same.
    if live:
        eventually(lambda: (box.operation(op_id) or {"outcome": ""})["outcome"] != "unknown", 30)
    early = box.operation(op_id)
    before = box.done()
    earlier = box.operation(op_id)
    assert before <= 1, f"done {before} times"
    assert earlier or not before, "it was done before its beginning was recorded"
    assert not answered or earlier["outcome"] == "ok", f"it was answered, and is recorded as {earlier}"
    # What is done already is taken away: a second time would show.
    if live and before and not isinstance(box, Fork):
        box.undo()
        before = box.done()
    result = box.dsec.run(*named(box, op_id))
    after = box.done()
    recorded = box.operation(op_id)
    where = f"{result}\nbefore: done {before} times, {earlier}\nafter: done {after} times, {recorded}"
    assert after <= 1, where
    # Where nothing was recorded a request may still have been on its way.
    assert after == before or not earlier or not early, where
    if result.code == 0:
        assert recorded["outcome"] == "ok", where
        return "done"
    if recorded and recorded["outcome"] in ("unknown", "interrupted"):
        assert re.search(r"the outcome of .* is unknown", result.err), where
        return "unknown"
    assert not live and not after, where
    return "refused"


def steps_of(dsec, box: Box, op_id: str) -> tuple[int, int]:
    """The step of dsec at which it first opens something of its home, and the last one."""
    program = TracedProgram(dsec.argv(*named(box, op_id)), dsec.cwd, dsec.env)
    first, home = [], str(dsec.home)

    def look(pid):
        if not first and any(os.readlink(entry.path).startswith(home) for entry in os.scandir(f"/proc/{pid}/fd")):
            first.append(program.steps)

    assert not program.run(each=look)
    assert program.code == 0, program.said()
    return first[0], program.steps


def places(dice, first: int, last: int, count: int) -> list[int]:
    if LONG:
        return list(range(first, last + 1))
    stride = max((last - first + 1) / count, 1)
    return sorted({int(first + stride * (turn + dice.random())) for turn in range(count)})


def kill_dsec_everywhere(dsec, kind, dice):
    """One sandbox outlives all of it."""
    box = kind(dsec, "box")
    box.prepare()
    if box.done():
        box.undo()
    first, last = steps_of(dsec, box, "measured")
    box.undo()
    outcomes = []
    for step in places(dice, first, last, KILLS):
        op_id = f"killed-at-{step}"
        program = TracedProgram(dsec.argv(*named(box, op_id)), dsec.cwd, dsec.env)
        killed = program.run(step)
        assert killed or program.code == 0, f"step {step}: {program.said()}"
        try:
            outcomes.append(judge(box, op_id, not killed))
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} at step {step} of {first} to {last}: {error}") from error
        if box.done():
            box.undo()
        assert dsec.run("exec", box.name, "--", "true").code == 0, "the sandbox does not go on"
    return outcomes


@pytest.mark.parametrize("kind", VERBS, ids=lambda kind: kind.__name__.lower())
def test_dsec_is_killed_at_any_step_and_nothing_is_done_twice(base, dice, kind):
    outcomes = kill_dsec_everywhere(base, kind, dice)
    print(outcomes)
    assert "done" in outcomes and "refused" not in outcomes, outcomes


def kill_keeper_everywhere(dsec, kind, dice):
    """Each in a sandbox of its own, which dies with its keeper."""
    outcomes = []

    def kill_at(step) -> bool:
        """False: the operation had ended before."""
        box = kind(dsec, f"box{len(outcomes)}")
        box.prepare()
        if box.done():
            box.undo()
        keeper = box.keeper()
        tracer = Tracer(keeper)
        client = dsec.popen(*named(box, "once"))
        killed = tracer.run(step, lambda: client.poll() is not None)
        told = client.communicate(timeout=30)
        assert killed or client.returncode == 0, told
        if killed:
            leftovers.await_end(box.id)
            try:
                outcomes.append(judge(box, "once", client.returncode == 0))
            except AssertionError as error:
                raise AssertionError(f"{kind.__name__} at step {step} of its keeper: {error}\n{told}") from error
        dsec.ok("rm", "-f", box.id)
        if isinstance(box, (Counted, Fork)):
            box.undo()
        return killed

    step = dice.randint(1, STRIDE)
    while kill_at(step):
        step += STRIDE
    return outcomes


@pytest.mark.parametrize("kind", [verb for verb in VERBS if verb is not Exec], ids=lambda kind: kind.__name__.lower())
def test_a_keeper_is_killed_at_any_step_and_nothing_is_done_twice(base, dice, kind):
    outcomes = kill_keeper_everywhere(base, kind, dice)
    print(outcomes)
    assert outcomes


@pytest.fixture
def world(work):
    yield from network_box.world(work)


@pytest.fixture
def networked(world):
    yield from network_box.dsec_in(world)


def test_a_change_of_policy_is_killed_at_any_step_and_nothing_is_done_twice(networked, dice):
    outcomes = kill_dsec_everywhere(networked, Policy, dice)
    outcomes += kill_keeper_everywhere(networked, Policy, dice)
    print(outcomes)
    assert "done" in outcomes, outcomes


def claim(sandbox: Path, boot_id: str) -> None:
    """Its maker had the pid of this process, and began when it did."""
    lease = json.loads((sandbox / "lease.json").read_text())
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    lease["creator"] = {"boot_id": boot_id, "pid": os.getpid(), "start_ticks": ticks}
    (sandbox / "lease.json").write_text(json.dumps(lease))


def test_what_was_under_way_when_the_host_died_is_unknown_and_gc_takes_the_rest(base):
    dsec, box = base, Exec(base, "box")
    command = ["exec", "--op-id", "once", "box", "--", "sh", "-c", "echo x >> /out/count; exec sleep 1000"]
    client = dsec.popen(*command)
    assert eventually(lambda: box.done() == 1)
    os.kill(box.keeper(), 9)
    client.communicate(timeout=30)
    assert eventually(lambda: not box.live())
    directory = dsec.home / "sandboxes" / box.id
    record = json.loads((directory / "state.json").read_text())
    claim(directory, "00000000-0000-4000-8000-000000000000")
    (directory / "state.json").write_text(json.dumps({**record, "boot_id": "00000000-0000-4000-8000-000000000000"}))
    # And one that was being made.
    begun = Exec(dsec, "begun")
    os.kill(begun.keeper(), 9)
    assert eventually(lambda: not begun.live())
    directory = dsec.home / "sandboxes" / begun.id
    (directory / "state.json").unlink()
    claim(directory, record["boot_id"])
    states = {info["id"]: info["state"] for info in dsec.json("inspect", box.id, begun.id)}
    assert states == {box.id: "orphaned", begun.id: "creating"}
    assert dsec.ok("gc", "-n").count(begun.id) == 0
    claim(directory, "00000000-0000-4000-8000-000000000000")
    assert "its beginning is recorded, but not its end" in dsec.fails(125, *command) and box.done() == 1
    collected = dsec.ok("gc")
    assert box.id in collected and begun.id in collected and dsec.ok("ps", "-aq") == ""
    command[3] = box.id
    assert "the outcome of 'sh' is unknown" in dsec.fails(125, *command) and box.done() == 1
