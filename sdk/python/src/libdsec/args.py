"""What a sandbox is asked to be."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Mapping, Sequence

from ._wire import milliseconds
from .errors import DSecUsageError

MIB = 1 << 20

Rules = Mapping[str, bool]
"""Rule of dsec-network(7) to whether it allows or denies: {"pypi": True, "example.org:443": True, "*.example.com": False}.
A word without a dot is a preset of the edge's configuration. What no rule allows is denied; a denial always wins."""


@dataclasses.dataclass(frozen=True)
class HeaderSecret:
    """A header that the egress gateway adds to plain HTTP requests for `host` and sends on over TLS, so that the secret
    never enters the sandbox. `secret`: "env:NAME" or "file:/PATH", of the edge. `port`: of the server."""

    host: str
    secret: str
    header: str = "Authorization"
    prefix: str = ""
    port: int = 443


@dataclasses.dataclass(frozen=True)
class DSecContainerRunArgs:
    """A container of layers that the edge's store has. Absent limits are none; a limit that the edge's host cannot enforce
    is refused.

    `container_image`: the base layer, "base/NAME[:TAG]" or a digest; or a snapshot, which says itself what it stands on.
    `layers`: a workspace and toolkits over it, in any order.
    `memory_limit_mb`, `disk_limit_mb`: MiB. `cpu_cores_limit`: cores, 1.5 for example. `pids_limit`: processes and threads.
    `output_limit_mb`: MiB of each stream of a command that are kept, half of it the beginning and half the end.
    `ttl_running_stop`: seconds after which the sandbox ends when no command ran and nobody was attached.
    `ttl_running_pause`: seconds after which it is paused; the next operation resumes it. `lifetime`: seconds from creation
    to the end. Without any of them a sandbox whose client dies stays.
    `network_rules`: None: no network. Rules: what it may reach and nothing else, {} nothing yet. `network_phases`: rules of
    the phases "setup", "agent" and "verify". `network_strict`: only TLS and HTTP that show whom they are for.
    `header_secrets`: see HeaderSecret. `host_network`: that of the host, confined by nothing.
    `init_user`: whom commands run as, "NAME[:GROUP]" or numbers; None: as the layers say, else root.
    `env`, `workdir`: of commands, over what the layers say. `labels`: to select by.
    `cpu_class`: "default", "latency" or "batch". `tmpfs`: path to MiB of an empty filesystem in memory.
    """

    container_image: str
    memory_limit_mb: int | None = None
    cpu_cores_limit: float | None = None
    ttl_running_stop: float | None = None
    network_rules: Rules | None = None
    init_user: str | None = None
    layers: Sequence[str] = ()
    name: str = ""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    workdir: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pids_limit: int | None = None
    disk_limit_mb: int | None = None
    output_limit_mb: int | None = None
    cpu_class: str = "default"
    ttl_running_pause: float | None = None
    lifetime: float | None = None
    network_phases: Mapping[str, Rules] = dataclasses.field(default_factory=dict)
    network_strict: bool = False
    header_secrets: Sequence[HeaderSecret] = ()
    host_network: bool = False
    hostname: str = ""
    read_only: bool = False
    tmpfs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    accept_conflicts: bool = False
    record: bool = True

    backend: ClassVar[str] = "container"

    @property
    def references(self) -> tuple[str, ...]:
        """Of all layers that are asked for."""
        return (self.container_image, *self.layers)

    def config(self) -> dict[str, Any]:
        """What is asked for over the layers' image config."""
        return {"env": [f"{name}={value}" for name, value in self.env.items()], "workdir": self.workdir, "user": self.init_user or ""}

    def settings(self) -> dict[str, Any]:
        """The specification of the contract, without layers and their config."""
        spec: dict[str, Any] = {"name": self.name, "backend": self.backend, "labels": dict(self.labels), "hostname": self.hostname,
                                "read_only": self.read_only, "accept_conflicts": self.accept_conflicts, "record": self.record,
                                "limits": self._limits(), **self._network()}
        times = {"idle_ms": self.ttl_running_stop, "idle_pause_ms": self.ttl_running_pause, "lifetime_ms": self.lifetime}
        spec.update({name: milliseconds(time) for name, time in times.items() if time is not None})
        if self.tmpfs:
            spec["tmpfs"] = [{"target": path, "size": size * MIB} for path, size in self.tmpfs.items()]
        return spec

    def _limits(self) -> dict[str, Any]:
        sizes = {"memory": self.memory_limit_mb, "disk": self.disk_limit_mb, "output": self.output_limit_mb}
        limits: dict[str, Any] = {name: size * MIB for name, size in sizes.items() if size is not None}
        if self.cpu_cores_limit is not None:
            limits["cpus"] = self.cpu_cores_limit
        if self.pids_limit is not None:
            limits["pids"] = self.pids_limit
        if self.cpu_class != "default":
            limits["class"] = self.cpu_class
        return limits

    def _network(self) -> dict[str, Any]:
        wants_policy = self.network_rules is not None or self.network_phases or self.header_secrets
        if self.host_network and wants_policy:
            raise DSecUsageError(f"cannot ask for a sandbox of {self.container_image!r}",
                                 ["it has either the host's network, which nothing confines, or rules"], kind="usage")
        if not wants_policy:
            return {"network": "host" if self.host_network else "none"}
        plan: dict[str, Any] = {**rules_to_wire(self.network_rules or {}), "strict": self.network_strict,
                                "inject": [dataclasses.asdict(secret) for secret in self.header_secrets],
                                "phases": {name: rules_to_wire(rules) for name, rules in self.network_phases.items()}}
        return {"network": "policy", "network_plan": plan}


@dataclasses.dataclass(frozen=True)
class DSecMicroVMRunArgs(DSecContainerRunArgs):
    """The same layers behind a kernel of their own. `container_image` is the base layer here, too. `pmem`: whether the guest
    reads layers from the host's page cache: "auto", "on" or "off". What a microVM cannot do, the edge refuses by name."""

    pmem: str = "auto"

    backend: ClassVar[str] = "microvm"

    def settings(self) -> dict[str, Any]:
        spec = super().settings()
        if self.pmem != "auto":
            spec["pmem"] = self.pmem
        return spec


@dataclasses.dataclass(frozen=True)
class DSecFullVMRunArgs(DSecContainerRunArgs):
    """A computer with a screen. `container_image` is the base layer with the disk it begins from ("dsec vm build", "dsec
    import NAME disk:FILE"), of which it changes a copy of its own. Commands, sessions and files are there where its system
    has dsec's agent. What a full VM cannot do, the edge refuses by name."""

    backend: ClassVar[str] = "fullvm"


def rules_to_wire(rules: Rules) -> dict[str, list[str]]:
    """As dsec-network(7) has them."""
    return {"allow": [rule for rule, allowed in rules.items() if allowed],
            "deny": [rule for rule, allowed in rules.items() if not allowed]}
