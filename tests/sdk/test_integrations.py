"""Classes for harnesses, on real sandboxes, against the interfaces of these as they are documented."""

import abc
import asyncio
import dataclasses
import importlib
import sys
import types

import pytest
from libdsec import DSecClient, DSecUsageError


def module(monkeypatch, name: str, **members) -> None:
    made = types.ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)


@pytest.fixture
def fresh(monkeypatch):
    """Imports a module anew, and forgets it."""
    def load(name: str):
        monkeypatch.delitem(sys.modules, name, raising=False)
        loaded = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, loaded)
        return loaded

    return load


@pytest.mark.parametrize("name, package", [("inspect", "inspect_ai"), ("harbor", "harbor")])
def test_each_needs_the_package_of_its_harness(monkeypatch, fresh, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=package):
        fresh(f"libdsec.integrations.{name}")


class SandboxEnvironment(abc.ABC):
    """Of inspect_ai.util, https://inspect.aisi.org.uk/sandboxing.html."""

    @classmethod
    @abc.abstractmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted): ...

    @abc.abstractmethod
    async def exec(self, cmd, input=None, cwd=None, env={}, user=None, timeout=None, timeout_retry=True, concurrency=True): ...

    @abc.abstractmethod
    async def write_file(self, file, contents): ...

    @abc.abstractmethod
    async def read_file(self, file, text=True): ...


@dataclasses.dataclass
class InspectResult:
    success: bool
    returncode: int
    stdout: str
    stderr: str

    def __class_getitem__(cls, _):
        return cls


class OutputLimitExceededError(Exception):
    def __init__(self, limit_str, truncated_output):
        super().__init__(limit_str)
        self.truncated_output = truncated_output


@pytest.fixture
def provider(monkeypatch, fresh, edge):
    registered = {}

    def sandboxenv(name):
        return lambda cls: registered.setdefault(name, cls)

    module(monkeypatch, "inspect_ai")
    module(monkeypatch, "inspect_ai.util", ExecResult=InspectResult, OutputLimitExceededError=OutputLimitExceededError,
           SandboxEnvironment=SandboxEnvironment, sandboxenv=sandboxenv)
    monkeypatch.setenv("DSEC_EDGE", edge)
    fresh("libdsec.integrations.inspect")
    return registered["dsec"]


async def test_inspect_runs_commands_and_moves_files(provider, edge, work):
    (work / "sandbox.json").write_text('{"container_image": "base/box", "workdir": "/srv", "init_user": "user", "lifetime": 300}')
    await provider.task_init("task", None)
    environments = await provider.sample_init("task", str(work / "sandbox.json"), {})
    box = environments["default"]
    result = await box.exec(["sh", "-c", "pwd; echo err >&2; cat; exit 3"], input="in\n")
    assert (result.success, result.returncode, result.stdout, result.stderr) == (False, 3, "/srv\nin\n", "err\n")
    assert (await box.exec(["sh", "-c", "pwd; echo $A; id -un"], cwd="/tmp", env={"A": "b"}, user="root")).stdout == "/tmp\nb\nroot\n"
    assert (await box.exec(["none"])).returncode == 127
    with pytest.raises(TimeoutError):
        await box.exec(["sleep", "1000"], timeout=1)
    with pytest.raises(UnicodeDecodeError):
        await box.exec(["printf", "\\377"])
    with pytest.raises(PermissionError):
        await box.exec(["/etc/passwd"])
    with pytest.raises(OutputLimitExceededError):
        await box.exec(["head", "-c", str(11 << 20), "/dev/zero"])
    assert (await box.exec(["sh", "-c", "touch /etc/secret; chmod 600 /etc/secret"], user="root")).success
    await box.write_file("/home/user/a/b/text", "täxt")
    assert await box.read_file("/home/user/a/b/text") == "täxt"
    await box.write_file("/tmp/bytes", b"\xff\n")
    assert await box.read_file("/tmp/bytes", text=False) == b"\xff\n"
    for error, work_ in [(FileNotFoundError, box.read_file("none")), (IsADirectoryError, box.read_file("/etc")),
                         (IsADirectoryError, box.write_file("/tmp", "x")), (PermissionError, box.read_file("/etc/secret")),
                         (PermissionError, box.write_file("/etc/passwd", "x")), (UnicodeDecodeError, box.read_file("/tmp/bytes"))]:
        with pytest.raises(error):
            await work_
    await provider.sample_cleanup("task", None, environments, True)
    await provider.task_cleanup("task", None, True)
    async with DSecClient(edge) as client:
        assert await client.sandboxes(all=True) == []


async def test_inspect_can_keep_its_sandboxes_and_clean_up_later(provider, edge):
    await provider.task_init("task", None)
    await provider.sample_init("task", "base/box", {})
    await provider.task_cleanup("task", None, False)
    async with DSecClient(edge) as client:
        assert len(await client.sandboxes(labels={"inspect-task": "task"})) == 1
    await provider.cli_cleanup(None)
    await provider.task_init("task", None)
    with pytest.raises(DSecUsageError, match="names no layers"):
        await provider.sample_init("task", "{", {})
    with pytest.raises(DSecUsageError, match="names no layers"):
        await provider.sample_init("task", None, {})
    await provider.task_cleanup("task", None, True)


class BaseEnvironment(abc.ABC):
    """Of harbor.environments.base, release 0.20, as far as environments use it."""

    def __init__(self, environment_dir, environment_name, session_id, trial_paths, task_env_config, logger=None, persistent_env=None,
                 network_policy=None, **kwargs):
        assert not kwargs, kwargs
        self.environment_dir, self.environment_name, self.session_id = environment_dir, environment_name, session_id
        self.task_env_config, self.default_user = task_env_config, None
        self._persistent_env, self._network_policy = persistent_env or {}, network_policy
        self._validate_definition()

    def _resolve_user(self, user):
        return user if user is not None else self.default_user

    def _merge_env(self, env):
        return {**self._persistent_env, **(env or {})} or None

    async def set_network_policy(self, policy):
        assert self.capabilities.dynamic_network_policy
        await self._apply_network_policy(policy)
        self._network_policy = policy

    for name in ("start", "stop", "exec", "upload_file", "upload_dir", "download_file", "download_dir", "_validate_definition", "type"):
        locals()[name] = abc.abstractmethod(lambda self: None)


def some(**members):
    return types.SimpleNamespace(**members)


@pytest.fixture
def environment(monkeypatch, fresh, edge, work):
    class Members(types.SimpleNamespace):
        pass

    for name in ("harbor", "harbor.environments"):
        module(monkeypatch, name)
    module(monkeypatch, "harbor.environments.base", BaseEnvironment=BaseEnvironment, ExecResult=Members)
    module(monkeypatch, "harbor.environments.capabilities", EnvironmentCapabilities=Members, EnvironmentResourceCapabilities=Members)
    kind = fresh("libdsec.integrations.harbor").DSecEnvironment

    def make(policy=some(network_mode="no-network"), image="base/box", **kwargs):
        config = some(docker_image=image, cpus=1, memory_mb=256, storage_mb=None, workdir="/srv")
        return kind(work, "hello", "hello__1", None, config, persistent_env={"P": "1"}, network_policy=policy, address=edge, **kwargs)

    return make


async def test_harbor_runs_a_trial(environment, edge, work):
    trial = environment()
    await trial.start(False)
    trial.default_user = "user"
    result = await trial.exec("echo $P $A; pwd; id -un; exit 4", env={"A": "2"})
    assert (result.return_code, result.stdout) == (4, "1 2\n/srv\nuser\n")
    assert (await trial.exec("id -u; pwd", cwd="/tmp", user="root")).stdout == "0\n/tmp\n"
    result = await trial.exec("echo begun; sleep 1000", timeout_sec=1)
    assert (result.return_code, result.stdout) == (124, "begun\n")
    (work / "tests").mkdir()
    (work / "tests/test.sh").write_text("mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n")
    await trial.upload_dir(work / "tests", "/tests")
    await trial.upload_file(work / "tests/test.sh", "/solution/deep/solve.sh")
    assert (await trial.exec("ls /solution/deep; sh /tests/test.sh", user=0)).stdout == "solve.sh\n"
    await trial.download_dir("/logs/verifier", work / "logs")
    await trial.download_file("/logs/verifier/reward.txt", work / "reward.txt")
    assert (work / "logs/reward.txt").read_text() == (work / "reward.txt").read_text() == "1\n"
    await trial.stop(True)
    await trial.stop(True)
    with pytest.raises(DSecUsageError, match="it is not started"):
        await trial.exec("true")


async def test_harbor_switches_networks_and_stops_without_deleting(environment, edge):
    trial = environment(some(network_mode="public"))
    await trial.start(False)
    assert (await trial._sandbox.network()).plan["allow"] == ["*:*", "0.0.0.0/0", "::/0"]
    await trial.set_network_policy(some(network_mode=some(value="allowlist"), allowed_hosts=["example.test", "*.example.test", "10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]))
    assert (await trial._sandbox.network()).plan["allow"] == ["example.test:*", "*.example.test:*", "10.0.0.0/8", "192.0.2.7", "2001:db8::/32"]
    await trial.set_network_policy(some(network_mode="no-network"))
    assert (await trial._sandbox.network()).plan["allow"] == []
    with pytest.raises(DSecUsageError, match="network mode 'half'"):
        await trial.set_network_policy(some(network_mode="half"))
    await trial.stop(False)
    async with DSecClient(edge) as client:
        left, = await client.sandboxes(all=True, labels={"harbor-session": "hello__1"})
        assert left.info.state == "stopped" and left.info.spec["limits"]["memory"] == 256 << 20
        await left.remove()


async def test_harbor_takes_layers_by_the_name_of_the_task(environment, shared):
    with pytest.raises(DSecUsageError, match="its image is no layer of dsec") as caught:
        environment(image="python:3.11")
    assert caught.value.hints[0] == "dsec import base/hello docker://python:3.11"
    trial = environment(image="python:3.11", layers="base/{name}")
    with pytest.raises(DSecUsageError, match="no layer 'base/hello:latest'"):
        await trial.start(False)
    trials = [environment(image=None, layers="base/box") for _ in range(3)]
    await asyncio.gather(*(one.start(False) for one in trials))
    await asyncio.gather(*(one.stop(True) for one in trials))
