"""Define the devices assigned to a pod, as one typed value for both forms of its annotations, and which forms a node accepts.

Tests: tests/unit/hooks/model/test_grant.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hooks.model.attachment import VfSettings
from lading.devices.isolation import IsolationName
from lading.errors import ConfigError
from lading.reasons import Reason
from lading.vocabulary import GpuUuid, PciAddress, PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Represent an expected refusal. `message` is for the person who wrote the annotation: what is wrong, where, and what to
    write instead."""

    reason: Reason
    message: str
    transient: bool = False  # whether a new reading of the devices may end the refusal


# The names of an assignment's form are written in the setting `assignments` of hooks.toml, and in grants.
FormName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9-]{0,31}\Z")]


class Form(StrEnum):
    """List the forms of Lading's own dialects."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"  # central's JSON without a signature
    MANUAL = "manual"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """Represent the request for one GPU. Central's assignment names the GPU by UUID; a manual one by any name that is allowed
    there."""

    name: str  # UUID of the card or MIG instance, PCI address or index, normalised; "all" in the manual form
    bdf: PciAddress | None = None  # PCI address that central observed; a mismatch with the inventory is a refusal
    memory_mib: int | None = None  # memory of a share; the whole card if core_percent is None too
    core_percent: int | None = None
    core_limit_percent: int | None = None
    isolation: IsolationName | None = None  # None: the node's default
    pod_wide: bool = False  # manual form without a suffix: one share for the pod, however many containers use it
    pod_memory_mib: int | None = None  # memory of the whole pod on this card, if less than the sum of its containers'
    pod_core_percent: int | None = None

    @property
    def whole(self) -> bool:
        return self.memory_mib is None and self.core_percent is None


@dataclass(frozen=True, slots=True, kw_only=True)
class VfRequest:
    name: str  # PCI address or ibdev
    pf: PciAddress | None = None
    ifname: str = ""
    netdev: bool | None = None  # whether its network device goes into the pod; None: as on this node
    settings: VfSettings = field(default_factory=VfSettings)  # a setting of None stays as on this node


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    gpus: tuple[GpuRequest, ...] = ()
    vfs: tuple[VfRequest, ...] = ()
    any_vfs: int = 0  # manual form: number of free VFs that the node chooses
    any_vfs_pod_wide: bool = False  # manual form without a suffix: all containers of the pod use the same VFs

    @property
    def empty(self) -> bool:
        return not self.gpus and not self.vfs and self.any_vfs == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    form: FormName
    containers: Mapping[str, ContainerRequest] = field(default_factory=dict)
    every_container: ContainerRequest = field(default_factory=ContainerRequest)  # manual form without a suffix
    pod: PodUid | None = None  # pod that the assignment names; an assignment without a pod has no generation
    node: str = ""
    gen: int = 0
    key_id: str = ""

    def for_container(self, name: str) -> ContainerRequest:
        """Return the request of this container; empty if the assignment does not name it."""
        return self.containers.get(name, self.every_container)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedGpu:
    """Represent one GPU that a container holds. The ledger stores this value, so it has identities and amounts only."""

    uuid: GpuUuid  # UUID of the card, also for a MIG instance
    mig_uuid: str = ""
    memory_mib: int | None = None
    core_percent: int | None = None
    core_limit_percent: int | None = None  # percent of the compute that the share may use while other shares do not
    isolation: IsolationName = IsolationName.NONE  # isolation that keeps the container within its share
    pod_wide: bool = False  # equal shares of the pod's containers are one share, counted once
    pod_memory_mib: int | None = None  # memory counted once for the pod, in place of the sum of its containers' shares
    pod_core_percent: int | None = None

    @property
    def whole(self) -> bool:
        return not self.mig_uuid and not self.shared

    @property
    def shared(self) -> bool:
        """Return whether this GPU is a share of a card: neither a whole card nor a MIG instance."""
        return self.memory_mib is not None or self.core_percent is not None

    def excludes(self, other: "GrantedGpu") -> bool:
        """Return whether two pods must not hold `self` and `other` at the same time. Both are of one card; two shares, or two
        different MIG instances, exclude nothing."""
        if not self.mig_uuid and not other.mig_uuid:
            return self.whole or other.whole
        return not self.mig_uuid or not other.mig_uuid or self.mig_uuid == other.mig_uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedVf:
    bdf: PciAddress
    ifname: str = ""
    pod_wide: bool = False  # the pod requested a number of VFs: its other containers use this VF before a free VF


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedDevices:
    """Hold the devices that one container holds, in the order of its request."""

    gpus: tuple[GrantedGpu, ...] = ()
    vfs: tuple[GrantedVf, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return the UUIDs of the GPUs and the PCI addresses of the VFs."""
        return [gpu.mig_uuid or gpu.uuid for gpu in self.gpus] + [vf.bdf for vf in self.vfs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Hold the assignments that a node accepts: of which forms, and signed with which keys."""

    accepted: frozenset[FormName]
    keys: Mapping[str, Ed25519PublicKey] = field(default_factory=dict)  # key id → public key
    foreign: frozenset[str] = frozenset()  # keys below lading.dev/ that another system uses

    def __post_init__(self) -> None:
        if Form.MANUAL in self.accepted and len(self.accepted) > 1:
            raise ConfigError(
                f"cannot accept assignments = {sorted(self.accepted)}: a node takes manual assignments or central's, not both",
                hint='assignments = ["signed"], ["signed", "unsigned"], ["unsigned"] or ["manual"]',
            )
