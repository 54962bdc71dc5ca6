"""Make CDI specs, check them as a runtime does before they are written, and render them.

A runtime leaves out a spec that is not valid, silently, and containerd panics at a vendor or class of one letter. So a spec is
checked by its bytes. Names come from drivers and the kernel: a device whose name is none is left out, and the others stay.

Source: cncf-tags/container-device-interface, pkg/parser/parser.go, pkg/cdi/container-edits.go, specs-go/version.go; containerd
1.7.24, 2.1.9 and 2.3.4, tried.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from hooks.model.cdi import CdiDevice, DeviceNode, Edits, Spec
from hooks.model.inventory import CharDevice
from lading.errors import HostError

VERSION: Final = "0.5.0"  # the first with the hostPath of a device node, and with names that begin with a digit
HOOK_STAGE: Final = "createContainer"
MOUNT_OPTIONS: Final = frozenset({"ro", "nosuid", "nodev", "noexec", "rbind", "rprivate"})

_VENDOR: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_CLASS: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")  # with a dot it needs 0.6.0
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_LONGEST_NAME: Final = 128
_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*")
_PATH: Final = re.compile(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f\x7f]+)+")


class SpecError(HostError):
    """Report a spec that a runtime would not accept, or that has something which Lading never writes."""


def make_spec(kind: str, edits: Edits, devices: Iterable[CdiDevice]) -> tuple[Spec | None, tuple[str, ...]]:
    """Return the spec, and why a device is not in it; None if there is no device."""
    named: dict[str, CdiDevice] = {}
    problems = []
    for device in devices:
        if not is_device_name(device.name):
            problems.append(
                f"cannot write {ascii(device.name)[:100]} into the CDI spec of {kind}: it is no name of a CDI device"
            )
        elif device.name in named:
            problems.append(f"cannot write {device.name} into the CDI spec of {kind} twice")
        else:
            named[device.name] = device
    spec = Spec(cdi_version=VERSION, kind=kind, container_edits=edits, devices=tuple(named.values())) if named else None
    return spec, tuple(problems)


def is_device_name(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def nodes_of(nodes: Iterable[CharDevice]) -> tuple[DeviceNode, ...]:
    """Return each node once, for read and write. The runtime reads its numbers when a container is created."""
    unique = {node.path: node for node in nodes}
    return tuple(DeviceNode(path=node.path, host_path=node.host_path, permissions="rw") for node in unique.values())


def render_spec(spec: Spec) -> bytes:
    """Return the content of the file. Raise SpecError if it is not valid."""
    try:
        content = msgspec.json.encode(spec)
    except UnicodeEncodeError as e:  # a file name that is not UTF-8
        raise SpecError(f"invalid CDI spec of {spec.kind}: it has text that is not UTF-8") from e
    parse_spec(content)
    return msgspec.json.format(content, indent=2) + b"\n"


def parse_spec(content: bytes) -> Spec:
    """Return the spec. Raise SpecError."""
    try:
        spec = msgspec.json.decode(content, type=Spec)
    except msgspec.DecodeError as e:  # also RecursionError and wrong types, which it reports as one
        raise SpecError(f"invalid CDI spec: {e}") from e
    if problem := next(_problems(spec), ""):
        raise SpecError(f"invalid CDI spec of {ascii(spec.kind)[:100]}: {problem[:300]}")
    return spec


def _problems(spec: Spec) -> Iterator[str]:
    vendor, _, class_name = spec.kind.partition("/")
    if not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(class_name):
        yield "a kind is vendor/class, each of two characters at least"
    if spec.cdi_version != VERSION:
        yield f"cdiVersion is {spec.cdi_version!a}, not {VERSION}"
    if not spec.devices:
        yield "it has no device"
    names = [device.name for device in spec.devices]
    if len(set(names)) < len(names):
        yield "two of its devices have one name"
    yield from (f"{name!a} is no name of a device" for name in names if not is_device_name(name))
    yield from (f"device {device.name} changes nothing" for device in spec.devices if device.container_edits == Edits())
    for edits in (spec.container_edits, *(device.container_edits for device in spec.devices)):
        yield from _edit_problems(edits)


def _edit_problems(edits: Edits) -> Iterator[str]:
    yield from (f"env {env!a} is not NAME=value" for env in edits.env if not _ENV.fullmatch(env))
    for node in edits.device_nodes:
        if not node.path.startswith("/dev/") or node.permissions not in {"r", "w", "rw"}:
            yield f"{node.path!a} with {node.permissions!a} is no device node for reading and writing"
    for mount in edits.mounts:
        if not set(mount.options) <= MOUNT_OPTIONS or "nosuid" not in mount.options:
            yield f"the options of mount {mount.container_path!a} are {mount.options!a}"
    for hook in edits.hooks:
        if hook.hook_name != HOOK_STAGE or not hook.args or not hook.env:
            yield f"hook {hook.path!a} is not of {HOOK_STAGE}, or is without args or env"
        yield from (f"a hook's env {env!a} is not NAME=value" for env in hook.env if not _ENV.fullmatch(env))
        yield from ("a hook's argument has a null byte" for arg in hook.args if "\0" in arg)
    yield from (f"{path!a} is no absolute path" for path in list_paths(edits) if not _PATH.fullmatch(path))


def list_paths(edits: Edits) -> Iterator[str]:
    """Yield the paths in it, of the container and of the host."""
    for node in edits.device_nodes:
        yield from (node.path, node.host_path)
    for mount in edits.mounts:
        yield from (mount.container_path, mount.host_path)
    yield from (hook.path for hook in edits.hooks)
