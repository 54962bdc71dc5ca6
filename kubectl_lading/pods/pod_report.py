"""Collect everything about one pod in one value. Pure.

Take the pod, its node's report, its Events, and public keys by id. Return a `PodReport`. Without the public key, a signature is
reported as present but not checked.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from central.assignment.annotation import BadAssignment, name_vfs, parse_own
from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from central.request.describe import describe_request
from central.request.model import MalformedRequest
from central.request.parse import Request
from central.request.pod import roles_of
from kubectl_lading.objects import FullPod
from kubectl_lading.pods.given import GivenGpu, Pair, given_of, pairs_of
from kubectl_lading.pods.read_pod import PodEvent
from kubectl_lading.pods.situation import Stand, read_situation
from lading.nodedevices import Grant, NodeDevices
from lading.signature import parse_signature, verifies
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, PREFIX, GpuUuid, PciAddress, is_manual


class SignatureState(StrEnum):
    ABSENT = "absent"
    MALFORMED = "malformed"
    UNCHECKED = "unchecked"  # the user did not give the public key with the signature's id
    VALID = "valid"
    INVALID = "invalid"


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    state: SignatureState
    key_id: str = ""


class ContainerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a container and its devices, in the order of the assignment. A GPU or VF may be assigned, granted, or both."""

    name: str
    gpus: tuple[GivenGpu, ...] = ()
    vfs: tuple[str, ...] = ()
    ifnames: Mapping[str, str] = {}  # names of the network devices in the pod, by the VF's PCI address
    granted_gpus: tuple[GivenGpu, ...] = ()
    granted_vfs: tuple[str, ...] = ()
    form: str = ""  # form of the grant: signed, unsigned or manual
    pairs: tuple[Pair, ...] = ()


class ReportedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    type: str
    reason: str
    message: str
    source: str = ""
    last: str = ""  # RFC 3339 time of the last occurrence
    times: int = 1  # number of occurrences


class PodReport(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    uid: str
    stand: Stand
    said: str  # the pod's state, as text
    asks: str = ""  # the pod's device request, as text
    by_hand: Mapping[str, str] = {}  # annotations by which a person names devices
    without_effect: tuple[str, ...] = ()  # annotations without effect: they name a container that the pod does not have
    node: str = ""
    gen: int | None = None  # generation of the assignment
    signature: Signature | None = None
    problem: str = ""  # error of the assignment; empty: none
    healthy: str = ""  # status of the health condition, True or False; empty: no such condition, so the devices are healthy
    healthy_said: str = ""
    reported: bool = True  # whether the pod's node reports devices
    containers: tuple[ContainerReport, ...] = ()
    events: tuple[ReportedEvent, ...] = ()  # Events, the oldest first


def report_pod(
    pod: FullPod,
    requested: Request,
    devices: NodeDevices | None,
    events: Sequence[PodEvent],
    keys: Mapping[str, Ed25519PublicKey],
) -> PodReport:
    metadata = pod.metadata
    situation = read_situation(pod, requested, events)
    text = metadata.annotations.get(ASSIGNMENT)
    own = parse_own(text, roles_of(pod), namespace=metadata.namespace) if text is not None else None
    placed: Mapping[str, PlacedContainer] = {}
    problem, gen = "", None
    if isinstance(own, BadAssignment):
        problem = own.message
    elif own is not None:
        placed, gen = own.placed, own.gen
        problem = _misplaced((own.pod, own.node), (metadata.uid, pod.spec.node_name))
    healthy = pod.status.healthy
    return PodReport(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        stand=situation.stand,
        said=situation.said,
        asks=""
        if requested is None
        else requested.message
        if isinstance(requested, MalformedRequest)
        else describe_request(requested),
        by_hand={key: value for key, value in metadata.annotations.items() if is_manual(key)},
        without_effect=tuple(key for key in metadata.annotations if is_manual(key) and not _has_container(pod, key)),
        node=pod.spec.node_name,
        gen=gen,
        signature=None if text is None else _signature(text, metadata.annotations.get(ASSIGNMENT_SIGNATURE), keys),
        problem=problem,
        healthy=healthy.status if healthy else "",
        healthy_said=healthy.message if healthy else "",
        reported=devices is not None,
        containers=tuple(_containers(pod, placed, devices)),
        events=tuple(_report_event(event) for event in events),
    )


def _misplaced(says: tuple[str, str], its: tuple[str, str]) -> str:
    if says[0] != its[0]:
        return f"it is for another pod, {says[0]}"
    return f"it is for node {says[1]}" if says[1] != its[1] else ""


def _has_container(pod: FullPod, key: str) -> bool:
    named = key.removeprefix(PREFIX).partition(".")[2]
    return not named or named in {one.name for one in (*pod.spec.init_containers, *pod.spec.containers)}


def _signature(text: str, written: str | None, keys: Mapping[str, Ed25519PublicKey]) -> Signature:
    if written is None:
        return Signature(state=SignatureState.ABSENT)
    signature = parse_signature(written)
    if signature is None:
        return Signature(state=SignatureState.MALFORMED)
    key = keys.get(signature.key_id)
    if key is None:
        return Signature(state=SignatureState.UNCHECKED, key_id=signature.key_id)
    state = SignatureState.VALID if verifies(signature, text, key) else SignatureState.INVALID
    return Signature(state=state, key_id=signature.key_id)


# ---- devices


def _containers(pod: FullPod, placed: Mapping[str, PlacedContainer], devices: NodeDevices | None) -> Iterator[ContainerReport]:
    grants = {grant.container: grant for grant in devices.status.grants if grant.pod == pod.metadata.uid} if devices else {}
    ifnames = name_vfs(placed, roles_of(pod))
    started = [name for name, _ in roles_of(pod)]
    for name in dict.fromkeys((*started, *placed, *grants)):
        given, grant = placed.get(name, PlacedContainer()), grants.get(name)
        assigned = given_of(given)
        if grant is None and given == PlacedContainer():
            continue
        yield ContainerReport(
            name=name,
            gpus=assigned.gpus,
            vfs=tuple(vf.bdf for vf in given.vfs),
            ifnames={vf.bdf: ifnames[vf.bdf] for vf in given.vfs},
            granted_gpus=tuple(_granted(grant, devices)) if grant and devices else (),
            granted_vfs=grant.vfs if grant else (),
            form=grant.form if grant else "",
            pairs=tuple(pairs_of(devices, _as_placed(given, grant, devices))) if devices else (),
        )


def _granted(grant: Grant, devices: NodeDevices) -> Iterator[GivenGpu]:
    addresses = {gpu.uuid: gpu.bdf for gpu in devices.status.gpus}
    for gpu in grant.gpus:
        yield GivenGpu(
            uuid=gpu.uuid,
            bdf=addresses.get(gpu.uuid, PciAddress("")),
            mig=gpu.mig_uuid,
            memory_mib=gpu.memory_mib,
            core_percent=gpu.core_percent,
            core_limit_percent=gpu.core_limit_percent,
            isolation=gpu.isolation,
        )


def _as_placed(given: PlacedContainer, grant: Grant | None, devices: NodeDevices) -> PlacedContainer:
    """Return the assigned devices, or the granted ones if none are assigned: devices named by hand are only granted."""
    if given != PlacedContainer() or grant is None:
        return given
    ports = {vf.bdf: pf.bdf for pf in devices.status.pfs for vf in pf.vfs}
    gpus = (PlacedGpu(uuid=GpuUuid(gpu.uuid), bdf=PciAddress(gpu.bdf), mig_uuid=gpu.mig) for gpu in _granted(grant, devices))
    vfs = (PlacedVf(bdf=vf, pf=ports[vf]) for vf in grant.vfs if vf in ports)
    return PlacedContainer(gpus=tuple(gpus), vfs=tuple(vfs))


def _report_event(event: PodEvent) -> ReportedEvent:
    return ReportedEvent(
        type=event.type,
        reason=event.reason,
        message=event.message,
        source=event.reporting_component or event.source.component,
        last=event.last,
        times=event.times,
    )
