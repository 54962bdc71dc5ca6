"""Merge the adjustments of several hooks: every field has one owner, a second claim with another value is a conflict.

Identical claims agree. The merged result is validated last, so that forbidden claims of any hook are refused: relative paths,
kubelet's own annotations, a device and a mount at one path.

Source: the owner-per-field merge of containerd/nri's adaptation; container-device-interface's parser for CDI names.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lading.reasons import Reason
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.calls import Stage
from runtimeproxy.call.outcome import CallRefusal

# Hooks may not set keys with these prefixes: they are kubelet's own, or make the runtime inject CDI devices or set properties.
RESERVED_ANNOTATIONS: Final = ("io.kubernetes.", "cdi.k8s.io/", "org.systemd.property.")
RESERVED_LABELS: Final = ("io.kubernetes.",)  # kubelet finds its containers by these labels

_CDI_NAME: Final = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)
_CAPABILITY: Final = re.compile(r"(?!CAP_)[A-Z][A-Z0-9_]*")
_NOT_NAMES: Final = frozenset({"", ".", ".."})
_PERMISSIONS: Final = frozenset({"r", "w", "m", "rw", "rm", "wm", "rwm"})
_PLAIN_RESOURCES: Final = tuple(f.name for f in hook.LinuxResources.DESCRIPTOR.fields if f.name != "unified")

# Each stage's CRI request can carry these kinds of claims. Start, Stop and Remove carry nothing that a hook could change.
_CARRIES: Final[Mapping[Stage, frozenset[str]]] = {
    Stage.RUN_POD_SANDBOX: frozenset({"annotation", "label", "resources", "unified"}),
    Stage.CREATE_CONTAINER: frozenset(
        {"env", "mount", "device", "cdi-device", "annotation", "label", "resources", "unified", "capability"}
    ),
    Stage.UPDATE_CONTAINER_RESOURCES: frozenset({"annotation", "resources", "unified"}),
}

Key = tuple[str, str]  # kind and name: ("env", "NCCL_IB_HCA"), ("device", "/dev/infiniband/uverbs0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    adjustment: hook.Adjustment = field(default_factory=hook.Adjustment)
    owners: Mapping[Key, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not self.owners


def merge(adjustments: Sequence[tuple[str, hook.Adjustment]], stage: Stage) -> Merged | CallRefusal:
    """Merge (owner, adjustment) pairs, in hook order, into the adjustment for that stage's request."""
    claims: dict[Key, object] = {}
    owners: dict[Key, str] = {}
    for owner, adjustment in adjustments:
        for key, value in _claims(adjustment):
            if key not in claims:
                claims[key], owners[key] = value, owner
            elif claims[key] != value:
                return _conflict(key, owners[key], owner)
    for (kind, name), value in claims.items():
        problem = _problem(kind, name, value, stage)
        if problem:
            return _invalid((kind, name), owners[kind, name], problem)
    for kind, path in claims:
        if kind == "device" and ("mount", path) in claims:
            return _conflict((kind, path), owners["device", path], owners["mount", path], " as a mount and as a device")
    return Merged(adjustment=_adjustment(claims), owners=owners)


def _claims(adjustment: hook.Adjustment) -> Iterator[tuple[Key, object]]:
    """Yield the claims of an adjustment, in its order. Claims that mean the same have equal values: `wr` becomes `rw`."""
    for env in adjustment.env:
        yield ("env", env.name), env.value
    for name in adjustment.env_remove:
        yield ("env", name), None
    for mount in adjustment.mounts:
        yield ("mount", mount.container_path), (mount.host_path, mount.readonly)
    for device in adjustment.devices:
        permissions = device.permissions
        if permissions not in _PERMISSIONS:
            permissions = "".join(sorted(permissions, key="rwm".find))
        yield ("device", device.container_path), (device.host_path, permissions)
    for name in adjustment.cdi_devices:
        yield ("cdi-device", name), True
    for name in sorted(adjustment.annotations):
        yield ("annotation", name), adjustment.annotations[name]
    for name in sorted(adjustment.labels):
        yield ("label", name), adjustment.labels[name]
    if adjustment.HasField("resources"):
        for name in _PLAIN_RESOURCES:
            if adjustment.resources.HasField(name):
                yield ("resources", name), getattr(adjustment.resources, name)
        for name in sorted(adjustment.resources.unified):
            yield ("unified", name), adjustment.resources.unified[name]
    for name in adjustment.add_capabilities:
        yield ("capability", name), True


def _adjustment(claims: Mapping[Key, object]) -> hook.Adjustment:
    merged = hook.Adjustment()
    for (kind, name), value in claims.items():
        match kind, value:
            case "env", None:
                merged.env_remove.append(name)
            case "env", str():
                merged.env.add(name=name, value=value)
            case "mount", (str(host_path), bool(readonly)):
                merged.mounts.add(container_path=name, host_path=host_path, readonly=readonly)
            case "device", (str(host_path), str(permissions)):
                merged.devices.add(container_path=name, host_path=host_path, permissions=permissions)
            case "cdi-device", _:
                merged.cdi_devices.append(name)
            case "annotation", str():
                merged.annotations[name] = value
            case "label", str():
                merged.labels[name] = value
            case "resources", _:
                setattr(merged.resources, name, value)
            case "unified", str():
                merged.resources.unified[name] = value
            case _:
                merged.add_capabilities.append(name)
    return merged


def _problem(kind: str, name: str, value: object, stage: Stage) -> str:
    """Return why this claim cannot be applied, or an empty text."""
    if kind not in _CARRIES.get(stage, frozenset()):
        return f"{stage.value} cannot carry it"
    match kind, value:
        case "env", _ if not name or "=" in name or "\0" in name or (isinstance(value, str) and "\0" in value):
            return "names are not empty and without '=', neither names nor values contain NUL"
        case (("mount" | "device"), (str(host_path), _)) if not (_clean(name) and _clean(host_path)):
            return f"from {host_path!r}: both paths must be absolute, not '/', without '.', '..', doubled or trailing '/'"
        case "device", (_, str(permissions)) if permissions not in _PERMISSIONS:
            return f"permissions {permissions!r} are not a combination of 'r', 'w' and 'm'"
        case "cdi-device", _ if not _CDI_NAME.fullmatch(name):
            return "not of the form vendor/class=name"
        case "annotation", _ if not name or name.startswith(RESERVED_ANNOTATIONS):
            return f"no hook may set {', '.join(f'{p}*' for p in RESERVED_ANNOTATIONS)}"
        case "label", _ if not name or name.startswith(RESERVED_LABELS):
            return f"no hook may set {', '.join(f'{p}*' for p in RESERVED_LABELS)}"
        case "unified", _ if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)+", name, re.IGNORECASE):
            return "not the name of a cgroup v2 file, for example memory.high"
        case "capability", _ if not _CAPABILITY.fullmatch(name):
            return "not the name of a capability without 'CAP_', for example IPC_LOCK"
        case _:
            return ""


def _clean(path: str) -> bool:
    root, *names = path.split("/")
    return not root and bool(names) and _NOT_NAMES.isdisjoint(names) and "\0" not in path


def _conflict(key: Key, first: str, second: str, how: str = " differently") -> CallRefusal:
    kind, name = key
    if first == second:
        return _invalid(key, first, f"claimed twice{how}")
    message = f"hooks {first} and {second} both claim {kind} {name!r}{how}"
    return CallRefusal(reason=Reason.HOOK_CONFLICT, message=message, hook=second)


def _invalid(key: Key, owner: str, problem: str) -> CallRefusal:
    kind, name = key
    return CallRefusal(reason=Reason.HOOK_INVALID, message=f"hook {owner} answered {kind} {name!r}: {problem}", hook=owner)
