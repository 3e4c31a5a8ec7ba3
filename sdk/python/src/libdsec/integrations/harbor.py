"""An environment for Harbor, with sandboxes of dsec:

    harbor run -p TASK -a AGENT --environment-import-path libdsec.integrations.harbor:DSecEnvironment

Which layers: `docker_image` of *task.toml* where that is one ("base/NAME…", "snapshot/NAME…" or a digest), else what the environment's
argument `layers` says, separated by spaces, in which `{name}` is the name of the task. An edge builds nothing: import the task's image first,
`dsec import base/NAME docker://IMAGE` or `dsec import base/NAME dockerfile:TASK/environment`. Other arguments: `address` of the edge (else DSEC_EDGE,
else one is started), `backend` ("container" or "microvm"), `lifetime` in seconds, for what a job that is killed leaves.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from ..errors import DSecUsageError
from ..sandbox import Sandbox
from . import _shared

_LAYERS = ("base/", "snapshot/", "sha256:")
_EVERYTHING = {"*:*": True, "0.0.0.0/0": True, "::/0": True}
# Harbor's agents are written for bash.
_SHELL = 'if command -v bash > /dev/null; then exec bash -c "$1"; fi; exec sh -c "$1"'


class DSecEnvironment(BaseEnvironment):
    """One sandbox for each environment of a trial. Its network policy is enforced by dsec's egress gateway, and switched while it
    runs; files are copied, nothing is mounted."""

    def __init__(self, *args: Any, layers: str = "", address: str | None = None, backend: str = "container", lifetime: float = 6 * 3600.0,
                 **kwargs: Any):
        self._layers, self._address, self._backend, self._lifetime = layers, address, backend, lifetime
        self._sandbox: Sandbox | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        """Of environments, as Harbor lists them."""
        return "dsec"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What the policies of an edge can hold."""
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_hostnames=True, network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True, network_allowlist_ipv6_addresses=True, network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True, dynamic_network_policy=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Limits, no reservations."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @property
    def _wanted_layers(self) -> str:
        image = self.task_env_config.docker_image or ""
        return image if image.startswith(_LAYERS) else self._layers.replace("{name}", self.environment_name)

    def _validate_definition(self) -> None:
        if not self._wanted_layers:
            image = self.task_env_config.docker_image
            source = f"docker://{image}" if image else f"dockerfile:{self.environment_dir}"
            raise DSecUsageError(f"cannot make an environment of task {self.environment_name!r}", ["its image is no layer of dsec"],
                                 [f"dsec import base/{self.environment_name} {source}", "and the environment's argument layers='base/{name}'"],
                                 kind="usage")

    async def start(self, force_build: bool) -> None:
        """Makes the sandbox. There is nothing to build: layers are imported before."""
        config = self.task_env_config
        args = _shared.args_of(
            self._wanted_layers, self._backend, cpu_cores_limit=config.cpus, memory_limit_mb=config.memory_mb, disk_limit_mb=config.storage_mb,
            workdir=config.workdir or "", lifetime=self._lifetime, network_rules=_rules(self._network_policy),
            labels={"harbor-session": self.session_id})
        client = await _shared.take(self._address)
        try:
            make = client.run_microvm if args.backend == "microvm" else client.run_container
            self._sandbox = await make(args)  # type: ignore[arg-type]
        except BaseException:
            await _shared.give_back(self._address)
            raise

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox. `delete`: with all that it wrote."""
        sandbox, self._sandbox = self._sandbox, None
        if not sandbox:
            return
        try:
            if delete:
                await sandbox.remove(force=True)
            else:
                await sandbox.stop()
                sandbox.keep()
        finally:
            await _shared.give_back(self._address)

    async def exec(self, command: str, cwd: str | None = None, env: dict[str, str] | None = None, timeout_sec: int | None = None,
                   user: str | int | None = None) -> ExecResult:
        """Runs a command; one whose time was over has exit code 124 and what it said until then."""
        user = self._resolve_user(user)
        result = await self._running.run(["/bin/sh", "-c", _SHELL, "sh", command], workdir=cwd or "", env=self._merge_env(env) or {},
                                         user="" if user is None else str(user), timeout=timeout_sec)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Into directories that are made when they are missing."""
        await self._make_directory(posixpath.dirname(target_path))
        await self._running.upload(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """What the directory contains goes into `target_dir`."""
        await self._make_directory(target_dir)
        await self._running.upload(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """To a path here."""
        await self._running.download(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """What the directory contains goes into `target_dir` here, over what is there."""
        await self._running.download(source_dir, target_dir)

    async def _apply_network_policy(self, network_policy: Any) -> None:
        await self._running.set_network(_rules(network_policy))

    @property
    def _running(self) -> Sandbox:
        if not self._sandbox:
            raise DSecUsageError(f"cannot use environment {self.session_id!r}", ["it is not started"], kind="usage")
        return self._sandbox

    async def _make_directory(self, path: str) -> None:
        await self._running.run(["mkdir", "-p", path], user="0", check=True)


def _rules(policy: Any) -> dict[str, bool]:
    """Of Harbor's modes "public", "no-network" and "allowlist"; its entries have no ports, and mean all of them."""
    mode = getattr(policy.network_mode, "value", policy.network_mode)
    if mode == "public":
        return dict(_EVERYTHING)
    if mode == "no-network":
        return {}
    if mode != "allowlist":
        raise DSecUsageError(f"cannot apply the network mode {mode!r}", ["dsec knows public, no-network and allowlist"], kind="usage")
    return {_rule(entry): True for entry in policy.allowed_hosts}


def _rule(entry: str) -> str:
    is_address = ":" in entry or entry.rpartition("/")[0].replace(".", "").isdigit() or entry.replace(".", "").isdigit()
    return entry if is_address else f"{entry}:*"
