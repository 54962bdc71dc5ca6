"""Define a grant: what one container of one pod holds on this node, its two written forms, and its description in messages.

In the ledger, request and devices are canonical JSON. In the container's own annotations (`lading.dev/grant`) the same JSON
carries the identity too, so that a lost ledger can be rebuilt from the runtime. Only this node writes that annotation; what is
read back is still checked like untrusted input: it must be exactly the bytes that this node would write for these values;
otherwise StateError.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from hooks.model.assignment import ContainerRequest, FormName, GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.canonical import check_length, decode, defaults, render_canonical
from lading.amounts import first_few
from lading.devices.identity import is_ifname, parse_gpu_uuid, parse_mig_uuid, parse_pci_address
from lading.errors import StateError
from lading.vocabulary import ContainerId, PodUid, SandboxId

_LARGEST_INTEGER: Final = 2**63 - 1  # largest integer that SQLite stores
_LISTED: Final = 16  # devices in one message


class GrantKey(NamedTuple):
    """Hold the key of a grant: a restarted container is the same one, with another id."""

    pod: PodUid
    container: str


class HeldBy(NamedTuple):
    """Represent one container of the runtime that was created with a grant."""

    id: ContainerId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    pod: PodUid
    container: str
    namespace: str
    pod_name: str
    sandbox: SandboxId  # the newest one that it was used in
    form: FormName
    gen: int  # generation of central's assignment; 0 in the manual form
    request: ContainerRequest  # request of the annotation, which distinguishes a changed annotation from a retry
    devices: GrantedDevices
    granted_at: int  # Unix time, seconds
    boot_id: str
    containers: tuple[HeldBy, ...] = ()  # seen so far, in order of id

    @property
    def key(self) -> GrantKey:
        return GrantKey(self.pod, self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Hold the annotation's JSON, version 1."""

    v: Literal[1]
    pod: PodUid
    container: str
    namespace: str
    name: str
    form: FormName
    gen: int
    request: ContainerRequest
    devices: GrantedDevices


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    pod: PodUid
    pod_name: str  # namespace/name, for messages
    container: str  # empty: a VF that is not back from this pod yet, whichever container has the grant
    devices: GrantedDevices
    program: str = ""  # program that holds the devices, if no pod does

    def holds(self, what: str) -> str:
        """Describe the holder in words."""
        if self.program:
            return f"{self.program} holds {what}"
        if self.container:
            return f"container {self.container} of pod {self.pod_name} holds {what}"
        return f"pod {self.pod_name} has {what} in its network namespace, or it is on its way back from there"


def holding_of(grant: Grant) -> Holding:
    return Holding(
        pod=grant.pod,
        pod_name=f"{grant.namespace}/{grant.pod_name}",
        container=grant.container,
        devices=grant.devices,
    )


def listed(names: Sequence[str]) -> str:
    return first_few(names, _LISTED) or "none"


def render_json(value: ContainerRequest | GrantedDevices | Annotation) -> str:
    """Return canonical JSON: compact, keys sorted, defaults left out (so that a field added later does not change what is
    written)."""
    return _render(value).decode()


def parse_request(text: str) -> ContainerRequest:
    return _parse_canonical(text, ContainerRequest)


def parse_devices(text: str) -> GrantedDevices:
    devices = _parse_canonical(text, GrantedDevices)
    for problem in _misnamed(devices):
        raise StateError(f"cannot read devices: {problem}")
    return devices


def parse_form(text: str) -> FormName:
    try:
        return msgspec.convert(text, FormName)
    except msgspec.ValidationError as e:
        raise StateError(f"{text!r:.80} is no form of an assignment") from e


def render_annotation(grant: Grant) -> str:
    return render_json(
        Annotation(
            v=1,
            pod=grant.pod,
            container=grant.container,
            namespace=grant.namespace,
            name=grant.pod_name,
            form=grant.form,
            gen=grant.gen,
            request=grant.request,
            devices=grant.devices,
        )
    )


def parse_annotation(text: str, *, sandbox: SandboxId, granted_at: int, boot_id: str) -> Grant:
    """Return the grant in an annotation; the caller supplies the other values from where it was found. Raise StateError if it
    is not in Lading's form."""
    canonical = _parse_canonical(text, Annotation)
    _check(canonical)
    return Grant(
        pod=canonical.pod,
        container=canonical.container,
        namespace=canonical.namespace,
        pod_name=canonical.name,
        sandbox=sandbox,
        form=canonical.form,
        gen=canonical.gen,
        request=canonical.request,
        devices=canonical.devices,
        granted_at=granted_at,
        boot_id=boot_id,
    )


def check_readable(grant: Grant) -> None:
    """Raise StateError if the annotation of this grant could not be read back."""
    check_length(render_annotation(grant), Annotation.__name__)
    _check(grant)


def _check(grant: Annotation | Grant) -> None:
    if not grant.pod or not grant.container or not 0 <= grant.gen <= _LARGEST_INTEGER:
        raise StateError("cannot read grant annotation: pod, container or gen out of range")
    for problem in _misnamed(grant.devices):
        raise StateError(f"cannot read grant annotation: {problem}")


def _parse_canonical(text: str, kind: type[T]) -> T:
    value = decode(text, kind)
    if _render(value).decode() != text:
        raise StateError(f"cannot read {kind.__name__}: not the bytes that this node writes")
    return value


def _render(value: Any) -> bytes:
    if not isinstance(value, Annotation):
        return _rendered(value)
    parts = {"request": msgspec.Raw(_rendered(value.request)), "devices": msgspec.Raw(_rendered(value.devices))}
    fields = ((name, getattr(value, name), default) for name, default in defaults(Annotation) or () if name not in parts)
    return msgspec.json.encode({**parts, **{name: item for name, item, default in fields if item != default}}, order="sorted")


@functools.lru_cache(maxsize=16)
def _rendered(value: ContainerRequest | GrantedDevices) -> bytes:
    """Render a value, cached: one decision writes the same request and devices several times, for the ledger, for the
    container, and to check both."""
    return render_canonical(value)


def _misnamed(devices: GrantedDevices) -> list[str]:
    """Return identities that are not in their one spelling: otherwise two holders of one device would look like holders of
    two."""
    return [*filter(None, map(_gpu_problem, devices.gpus)), *filter(None, map(_vf_problem, devices.vfs))]


def _gpu_problem(gpu: GrantedGpu) -> str:
    if parse_gpu_uuid(gpu.uuid) != gpu.uuid:
        return f"{gpu.uuid!r:.80} is no GPU's UUID"
    if gpu.mig_uuid and parse_mig_uuid(gpu.mig_uuid) != gpu.mig_uuid:
        return f"{gpu.mig_uuid!r:.80} is no MIG instance's UUID"
    if any((amount or 0) < 0 for amount in (gpu.memory_mib, gpu.core_percent, gpu.pod_memory_mib, gpu.pod_core_percent)):
        return f"a negative share of {gpu.uuid}"
    return ""


def _vf_problem(vf: GrantedVf) -> str:
    if parse_pci_address(vf.bdf) != vf.bdf:
        return f"{vf.bdf!r:.80} is no PCI address"
    if vf.ifname and not is_ifname(vf.ifname):
        return f"{vf.ifname!r:.80} is no interface name"
    return ""
