"""Many sandboxes at once that do everything at random, against a model of what each must be.

A plain run takes a few seconds; --long is 1,000 sandboxes for 10 minutes. DSEC_SOAK=SANDBOXESxSECONDS says it itself, and
DSEC_SOAK_SEED repeats the choices of a run (not what came of them in time)."""

import collections
import itertools
import os
import random
import signal
import threading
import time
import traceback

import network_box
import network_world
import pytest

HOSTS = ["good.example", "other.example"]
WORKERS = 8


@pytest.fixture
def world(work):
    yield from network_box.world(work)


@pytest.fixture
def dsec(world):
    yield from network_box.dsec_in(world)


class Model:
    """What a sandbox must be; each belongs to one worker."""

    def __init__(self, sandbox: str, lines: list[str], allowed: set[str] | None):
        self.id, self.lines, self.allowed = sandbox, lines, allowed
        self.commands, self.paused, self.session, self.counter = 0, False, "", 0


class Worker:
    def __init__(self, soak, seed: int):
        self.soak, self.dsec, self.random = soak, soak.dsec, random.Random(seed)
        self.models: list[Model] = []
        self.numbers = itertools.count()
        self.done = collections.Counter()
        self.most = 0  # sandboxes at a time
        # Whatever chance brings, each of these is done at least once.
        self.first = self.random.sample([self.pause, self.resume, self.fork, self.policy, self.remove], 5)

    def work(self):
        try:
            while (time.monotonic() < self.soak.end or not self.has_begun()) and not self.soak.faults:
                self.step()
                self.most = max(self.most, len(self.models))
                self.soak.count()
            for model in self.models:
                self.check(model)
        except BaseException:
            self.soak.faults.append(traceback.format_exc())

    def has_begun(self) -> bool:
        return self.most == self.soak.share and not self.first

    def step(self):
        if len(self.models) < self.soak.share and (not self.models or self.random.random() < 0.5):
            return self.create()
        model = self.random.choice(self.models)
        if self.first and len(self.models) > 1:
            return self.first.pop()(model)
        acts = {self.append: 8, self.exit_code: 2, self.pause: 3, self.resume: 1, self.fork: 2, self.policy: 3, self.visit: 4, self.in_session: 4,
                self.close_session: 1, self.check: 2, self.remove: 1 if len(self.models) > 1 else 0}
        self.random.choices(list(acts), list(acts.values()))[0](model)
        self.done["operation"] += 1

    def create(self):
        allowed = set(self.random.sample(HOSTS, self.random.randint(0, 2))) if self.random.random() < 0.7 else None
        flags = [] if allowed is None else ["--network", "policy", *(word for host in sorted(allowed) for word in ("--allow", host))]
        self.models.append(Model(self.dsec.ok("create", *network_box.PYTHON, *flags, "base/box").strip(), [], allowed))

    def sh(self, model: Model, script: str, code: int = 0) -> str:
        result = self.dsec.run("exec", model.id, "--", "sh", "-c", script)
        model.commands += 1
        model.paused = False
        assert result.code == code, f"{vars(model)}\n{result}"
        return result.out

    def append(self, model: Model):
        line = f"{id(self)}-{next(self.numbers)}"
        model.lines.append(line)
        assert self.sh(model, f"echo {line} >> /kept; wc -l < /kept").strip() == str(len(model.lines)), vars(model)

    def exit_code(self, model: Model):
        code = self.random.randint(1, 120)
        self.sh(model, f"exit {code}", code)

    def pause(self, model: Model):
        if not model.paused:
            self.dsec.ok("pause", model.id)
            model.paused = True
            self.done["pause"] += 1

    def resume(self, model: Model):
        if model.paused:
            self.dsec.ok("resume", model.id)
            model.paused = False

    def fork(self, model: Model):
        count = min(self.random.randint(1, 3), self.soak.share - 1)
        # They take the place of others.
        while len(self.models) > self.soak.share - count:
            self.remove(self.random.choice([other for other in self.models if other is not model]))
        children = self.dsec.ok("fork", model.id, "--count", str(count)).split()
        assert len(children) == count, children
        self.done["fork"] += count
        for child in children:
            self.models.append(Model(child, list(model.lines), model.allowed and set(model.allowed)))
            self.check(self.models[-1])
            self.visit(self.models[-1])

    def policy(self, model: Model):
        if model.allowed is None:
            return
        model.allowed = set(self.random.sample(HOSTS, self.random.randint(0, 2)))
        flags = [word for host in sorted(model.allowed) for word in ("--allow", host)] or ["--nothing"]
        self.dsec.ok("net", "set", model.id, *flags)
        self.done["policy"] += 1

    def visit(self, model: Model):
        host = self.random.choice([*HOSTS, "evil.example"])
        allowed = bool(model.allowed) and host in model.allowed
        # The gateway is killed now and then, and what was under way is lost then.
        again = "sleep 0.3" if allowed else "break"
        out = self.sh(model, f"for i in 1 2 3 4 5 6 7 8 9; do wget -O- -T 10 http://{host}/hello 2>&1 && break; {again}; done; true")
        passed = f" {host}\n" in out
        assert passed == allowed, f"{vars(model)}\n{host}\n{out}\n{self.dsec.run('net', 'log', model.id)}\n{self.dsec.run('net', 'show', model.id)}"

    def in_session(self, model: Model):
        if not model.session:
            model.session, model.counter = self.dsec.ok("session", "open", model.id).strip(), 0
        model.counter += 1
        model.paused = False
        out = self.dsec.ok("session", "run", model.id, model.session, "--", "N=$((N+1)); echo $N")
        assert out == f"{model.counter}\n", f"{vars(model)} {out!r}"

    def close_session(self, model: Model):
        if model.session:
            self.dsec.ok("session", "close", model.id, model.session)
            model.session, model.paused = "", False

    def check(self, model: Model):
        assert self.sh(model, "cat /kept 2>/dev/null; true").split() == model.lines, vars(model)
        recorded = self.dsec.json("traj", "show", model.id)
        recorded = recorded if isinstance(recorded, list) else [recorded]
        commands = [operation for operation in recorded if operation.get("kind") == "exec"]
        assert len(commands) == model.commands, f"{vars(model)} {len(commands)} recorded"
        assert all(operation.get("outcome", "ok") == "ok" for operation in commands), vars(model)

    def remove(self, model: Model):
        self.check(model)
        self.models.remove(model)
        self.dsec.ok("rm", "-f", model.id)
        self.done["remove"] += 1


class Soak:
    def __init__(self, dsec, sandboxes: int, seconds: float, seed: int):
        self.dsec, self.share = dsec, max(sandboxes // WORKERS, 1)
        self.end = time.monotonic() + seconds
        self.faults: list[str] = []
        self.kills, self.most = 0, 0
        self.workers = [Worker(self, seed + number) for number in range(WORKERS)]

    def count(self):
        self.most = max(self.most, sum(len(worker.models) for worker in self.workers))

    def run(self):
        threads = [threading.Thread(target=worker.work) for worker in self.workers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(2)
            if gateway := network_world.gateway_of(self.dsec.home):
                os.kill(gateway, signal.SIGKILL)
                self.kills += 1
        for thread in threads:
            thread.join()


@pytest.mark.guest_slow("a soak")
@pytest.mark.timeout(3600)
def test_sandboxes_that_do_everything_at_random_lose_nothing_and_leave_nothing(dsec, world, long_run):
    size = os.environ.get("DSEC_SOAK", "1000x600" if long_run else "24x4")
    sandboxes, seconds = (int(word) for word in size.split("x"))
    seed = int(os.environ.get("DSEC_SOAK_SEED", time.time_ns() % 1_000_000))
    soak = Soak(dsec, sandboxes, seconds, seed)
    soak.run()
    done = sum((worker.done for worker in soak.workers), collections.Counter())
    print(f"seed {seed}: up to {soak.most} sandboxes, {dict(done)}, the gateway was killed {soak.kills} times")
    assert not soak.faults, f"seed {seed}\n" + "\n".join(soak.faults)
    # All of them, but for those that have just been removed.
    assert soak.most >= (soak.share - 2) * WORKERS and {worker.most for worker in soak.workers} == {soak.share}
    few = {what: count for what in ("pause", "fork", "policy", "remove") if (count := done[what]) < max(done["operation"] / 100, 3)}
    assert not few, done
    assert soak.kills > 0
    there = {line for line in dsec.ok("ps", "-aq").split()}
    assert there == {model.id for worker in soak.workers for model in worker.models}
    assert not [record for record in world.seen("http") if record["host"] not in HOSTS]
