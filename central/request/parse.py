"""Parse a pod's device request in any dialect: Lading's own, and those of other systems that the cluster's settings enable.

Exactly one dialect reads a pod. A pod that two of them could read is refused with the names of both; only VFs of a pool may
come beside cards. A pod of a known system that is not enabled is refused by name too: it might start without its card.

Tests: tests/ports/test_central.py
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from central.request.amounts import BadRequestError, is_zero
from central.request.check import Keys, check_request
from central.request.dialects.dialect import Dialect
from central.request.dialects.gpushare import Gpushare
from central.request.dialects.kai import Kai
from central.request.dialects.koordinator import Koordinator
from central.request.dialects.kubeshare import Kubeshare
from central.request.dialects.nvidia import NVIDIA_GPU, Nvidia
from central.request.dialects.options import ANY_SCHEDULER, NO_OPTIONS, DialectName, DialectOptions
from central.request.dialects.unread import UNREAD, UnreadSystem, switch_off
from central.request.dialects.vf_pools import VfPools
from central.request.dialects.vgpu import HAMI, VOLCANO, Vgpu
from central.request.gang import parse_membership
from central.request.model import DeviceRequest, MalformedRequest
from central.request.own import Own
from central.request.pod import Pod, roles_of
from lading.errors import ConfigError
from lading.vocabulary import GANG, RESOURCE_GANG_MEMBER, is_request_annotation

Request = DeviceRequest | MalformedRequest | None

# Every dialect of another system, one line for each.
DIALECTS: Final[dict[DialectName, Callable[[DialectOptions], Dialect]]] = {
    DialectName.NVIDIA: Nvidia,
    DialectName.HAMI: lambda options: Vgpu(HAMI),
    DialectName.GPUSHARE: Gpushare,
    DialectName.KOORDINATOR: Koordinator,
    DialectName.VOLCANO: lambda options: Vgpu(VOLCANO),
    DialectName.KAI: lambda options: Kai(),
    DialectName.KUBESHARE: lambda options: Kubeshare(),
    DialectName.VF_POOLS: VfPools,
}
OWN: Final = Own()
_NO_KEYS: Final[dict[str, Dialect | UnreadSystem]] = {}


class Dialects:
    """Hold the dialects that a cluster reads, and find the dialect of a pod."""

    def __init__(self, options: DialectOptions = NO_OPTIONS) -> None:
        """Create the dialects. Raise ConfigError if the options contradict one another."""
        self.options = options
        made = {name: make(options) for name, make in DIALECTS.items()}
        self.enabled = tuple(made[name] for name in dict.fromkeys(options.enabled))
        off = (one for name, one in made.items() if name not in options.enabled)
        self._unread = (*(switch_off(one) for one in off), *UNREAD)
        systems: tuple[Dialect | UnreadSystem, ...] = (OWN, *self.enabled, *self._unread)
        # Resources of pods without any enabled dialect stay those of the cluster's device plugins.
        self._systems = systems if self.enabled else systems[:1]
        self._by_name = {name: one for one in reversed(self._systems) for name in one.claims.resources}
        others: tuple[Dialect | UnreadSystem, ...] = (*self.enabled, *self._unread)
        self._by_key = {key: one for one in reversed(others) for key in one.claims.keys}
        self._by_key_of = {one.claims.scheduler: dict.fromkeys(one.claims.keys_of_scheduler, one) for one in others}
        self._readers = {one.name: one for one in self.enabled if NVIDIA_GPU in one.claims.resources}
        self._default = options.nvidia_gpu.get(ANY_SCHEDULER, "" if options.nvidia_gpu else next(iter(self._readers), ""))
        self._check()
        self.resources = frozenset(name for one in (OWN, *self.enabled) for name in one.claims.resources)
        self.prefixes = tuple(prefix for one in (OWN, *self.enabled) for prefix in one.claims.prefixes)
        self.annotations = tuple(dict.fromkeys(key for one in self.enabled for key in one.claims.annotations))
        self.by_metadata = any(one.claims.keys or one.claims.keys_of_scheduler for one in self.enabled)

    def _check(self) -> None:
        owners, names = self.options.nvidia_gpu, " or ".join(self._readers)
        if wrong := next((name for name in owners.values() if name not in self._readers), ""):
            hint = f"write {names}" if names else f"add {wrong} to enabled"
            raise ConfigError(
                f"dialects.nvidia_gpu names {wrong}, which is not enabled or does not read {NVIDIA_GPU}", hint=hint
            )
        if not owners and len(self._readers) > 1:
            raise ConfigError(f"{names} read {NVIDIA_GPU}", hint=f'nvidia_gpu = {{ "*" = "{next(iter(self._readers))}" }}')
        if DialectName.VF_POOLS in self.options.enabled and not self.options.vf_pools:
            raise ConfigError("the dialect vf-pools is enabled without pools", hint='vf_pools = ["nvidia.com/sriov_rdma"]')

    def system_of(self, resource: str, scheduler: str) -> Dialect | UnreadSystem | None:
        """Return the system that this resource belongs to, in a pod of this schedulerName."""
        if resource == NVIDIA_GPU and self._readers:
            return self._readers.get(self.options.nvidia_gpu.get(scheduler, self._default))
        if resource in self._by_name:
            return self._by_name[resource]
        for system in self._systems:
            if resource.startswith(system.claims.prefixes):
                return system
        return None

    def claims(self, pod: Pod) -> dict[Dialect | UnreadSystem, str]:
        """Return the systems to which the pod has keys, each with one of the keys."""
        result: dict[Dialect | UnreadSystem, str] = {}
        for resource in sorted({name for name in _named(pod, zero=False) if "/" in name}):
            if (system := self.system_of(resource, pod.spec.scheduler_name)) is not None:
                result.setdefault(system, resource)
        if refining := min(filter(is_request_annotation, pod.metadata.annotations), default=""):
            result.setdefault(OWN, refining)
        for key, one in self.systems_of_metadata(pod):
            result.setdefault(one, key)
        return result

    def systems_of_metadata(self, pod: Pod) -> Iterator[tuple[str, Dialect | UnreadSystem]]:
        """Yield the labels and annotations by which the pod requests devices, each with its system."""
        metadata, scheduler = pod.metadata, pod.spec.scheduler_name
        for by_key in (self._by_key, self._by_key_of.get(scheduler, _NO_KEYS)):
            for key in sorted((by_key.keys() & metadata.labels.keys()) | (by_key.keys() & metadata.annotations.keys())):
                yield key, by_key[key]


OWN_ONLY: Final = Dialects()


def parse_request(pod: Pod, dialects: Dialects = OWN_ONLY) -> Request:
    """Return the pod's device request; None if the pod requests no device. A pod with requests in two dialects is refused,
    because they may or may not mean the same devices. A pod with unreadable gang keys is refused too."""
    try:
        request = _parse(pod, dialects.claims(pod)) if dialects.enabled else _parse_own(pod, dialects)
    except BadRequestError as e:
        return MalformedRequest(message=str(e))
    return _with_gang(pod, request) if isinstance(request, DeviceRequest) else request


def _parse_own(pod: Pod, dialects: Dialects) -> Request:
    """Return the request in Lading's own dialect. Without one, refuse a pod that might start without another system's card."""
    request = OWN.parse(pod)
    return request or next(
        (one.refuse(key) for key, one in dialects.systems_of_metadata(pod) if isinstance(one, UnreadSystem)), None
    )


def _parse(pod: Pod, claims: dict[Dialect | UnreadSystem, str]) -> Request:
    readers = {one: key for one, key in claims.items() if not isinstance(one, UnreadSystem)}
    if len(readers) < len(claims):
        return next(one.refuse(key) for one, key in claims.items() if isinstance(one, UnreadSystem))
    pools = next((one for one in readers if isinstance(one, VfPools)), None)
    cards = [one for one in readers if one is not pools]
    if len(cards) > 1:
        first, second = (f"{readers[one]} ({one.name})" for one in cards[:2])
        return MalformedRequest(message=f"cannot use {first} with {second}: two ways to ask for devices; keep one")
    if pools is None:
        return (cards[0] if cards else OWN).parse(pod)
    request = cards[0].parse(pod) if cards else None
    return _with_vfs(pod, request, pools.parse(pod), readers[pools])


def _with_vfs(pod: Pod, cards: DeviceRequest | None, vfs: DeviceRequest | None, pool: str) -> DeviceRequest | None:
    """Return the request for cards and for VFs of pools together. Raise BadRequestError."""
    if cards is None or vfs is None:
        return cards or vfs
    if any(one.vfs for one in cards.containers):
        raise BadRequestError(f"cannot use {pool}: the pod asks for VFs in another way too; keep one")
    by_name, amounts = {one.name: one for one in cards.containers}, {one.name: one for one in vfs.containers}
    named = [name for name, _ in roles_of(pod) if name in by_name or name in amounts]
    containers = tuple(
        replace(by_name[name], vfs=amounts[name].vfs if name in amounts else 0) if name in by_name else amounts[name]
        for name in named
    )
    return check_request(replace(cards, containers=containers), Keys(gpus=NVIDIA_GPU, vfs=pool))


def _with_gang(pod: Pod, request: DeviceRequest) -> DeviceRequest | MalformedRequest:
    gang = parse_membership(pod)
    if gang is None and not request.containers:
        return MalformedRequest(
            message=f"cannot use {RESOURCE_GANG_MEMBER}: the pod names no gang; add {GANG}, or ask for devices"
        )
    return gang if isinstance(gang, MalformedRequest) else request


def mentions_devices(pod: Pod, dialects: Dialects = OWN_ONLY) -> bool:
    """Return whether the pod names a resource or another key of a dialect that is read, valid or not."""
    resources, prefixes = dialects.resources, dialects.prefixes
    if any(name in resources or name.startswith(prefixes) for name in _named(pod, zero=True)):
        return True
    systems = dialects.systems_of_metadata(pod) if dialects.by_metadata else ()
    return any(not isinstance(one, UnreadSystem) for _, one in systems)


def mentions_own(pod: Pod) -> bool:
    """Return whether the pod names a resource of Lading, valid or not."""
    return any(resource.startswith(OWN.claims.prefixes) for resource in _named(pod, zero=True))


def _named(pod: Pod, *, zero: bool) -> Iterator[str]:
    """Yield the resources of the pod's containers. `zero`: also those with an amount of 0."""
    for one in (*pod.spec.containers, *pod.spec.init_containers):
        for amounts in (one.resources.limits, one.resources.requests):
            for name, amount in amounts.items():
                if zero or not is_zero(amount):
                    yield name
