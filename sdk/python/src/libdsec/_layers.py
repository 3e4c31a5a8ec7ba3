"""Which layers a sandbox is made of, in which order, and what their images say of its commands. As dsec composes them
(dsec-layer(5)): the contract takes digests bottom to top and one config, and leaves the rest to its clients."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Mapping, Sequence

from .errors import DSecUsageError
from .values import Layer

GetLayer = Callable[[str], Awaitable[Layer]]

_KINDS = ("base", "workspace", "toolkit", "snapshot")
# What no layer says: the same wherever a sandbox is made again.
_DEFAULT_ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC", "LANG=C.UTF-8")
_LISTS = ("exposed_ports", "volumes")
_WORDS = ("workdir", "user", "stop_signal")


def _wrong(cause: str, *hints: str) -> DSecUsageError:
    return DSecUsageError("cannot make a sandbox of these layers", [cause], hints, kind="usage")


async def with_lowers(get: GetLayer, layers: Sequence[Layer]) -> list[Layer]:
    """The layers, with those that snapshots among them stand on."""
    whole = {layer.digest: layer for layer in layers}
    if len(whole) != len(layers):
        raise _wrong("a layer is given twice")
    for layer in layers:
        for lower in layer.manifest.get("lowers", []):
            if lower not in whole:
                whole[lower] = await get(lower)
    return list(whole.values())


def ordered(layers: Sequence[Layer]) -> list[Layer]:
    """Bottom to top; raises DSecUsageError for a stack that is no environment."""
    snapshot = _top_snapshot(layers)
    stack = _on_snapshot(layers, snapshot) if snapshot else sorted(layers, key=lambda layer: _KINDS.index(layer.kind))
    for kind, least in (("base", 1), ("workspace", 0)):
        names = [layer.name for layer in stack if layer.kind == kind]
        if len(names) < least:
            raise _wrong("no base layer is given", "container_image='base/NAME'")
        if len(names) > 1:
            raise _wrong(f"an environment has one {kind}, here are {', '.join(names)}")
    platforms = {layer.manifest["platform"]: layer.name for layer in stack if layer.manifest["platform"]}
    if len(platforms) > 1:
        raise _wrong("they are for different platforms: " + ", ".join(f"{name} for {platform}" for platform, name in platforms.items()))
    return stack


def _top_snapshot(layers: Sequence[Layer]) -> Layer | None:
    top: Layer | None = None
    for layer in layers:
        if layer.kind != "snapshot":
            continue
        if top is None or top.digest in layer.manifest.get("lowers", []):
            top = layer
        elif layer.digest not in top.manifest.get("lowers", []):
            raise _wrong(f"snapshots {top.name} and {layer.name} do not stand on each other")
    return top


def _on_snapshot(layers: Sequence[Layer], top: Layer) -> list[Layer]:
    by_digest = {layer.digest: layer for layer in layers}
    below = [*top.manifest.get("lowers", []), top.digest]
    over = [layer for layer in layers if layer.digest not in below]
    for layer in over:
        if layer.kind != "toolkit":
            raise _wrong(f"layer {layer.name} cannot be put under {top.name}, which stands on other layers",
                         "only toolkits can be added, and lie over the snapshot")
    return [*(by_digest[digest] for digest in below), *over]


def merged_config(bottom_to_top: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One config: the environment by name, the rest by the topmost that says something; an entrypoint drops the command of
    those below."""
    merged: dict[str, Any] = {"entrypoint": [], "command": [], "labels": {}, **{word: "" for word in _WORDS},
                              **{name: [] for name in _LISTS}}
    env = {assignment.partition("=")[0]: assignment for assignment in _DEFAULT_ENV}
    for config in bottom_to_top:
        env.update({assignment.partition("=")[0]: assignment for assignment in config.get("env", [])})
        merged.update({word: config[word] for word in _WORDS if config.get(word)})
        if config.get("entrypoint"):
            merged.update(entrypoint=config["entrypoint"], command=[])
        if config.get("command"):
            merged["command"] = config["command"]
        for name in _LISTS:
            merged[name] = merged[name] + [word for word in config.get(name, []) if word not in merged[name]]
        merged["labels"] = {**merged["labels"], **config.get("labels", {})}
    return {**merged, "env": list(env.values())}
