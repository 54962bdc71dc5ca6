"""The schema of the annotation `lading.dev/assignment`: central writes it, and the node reads it.

Amounts are MiB and percent of one card's compute. Unknown keys are ignored, because a newer central may write more; an
incompatible change comes under another `v`. A person may add to a VF how it is to be set (`hooks.forms.netdev`).

Source: docs/reference.md, "Assignments".
"""

from typing import Annotated, Final, Literal

import msgspec

from lading.devices.identity import GPU_SHAPE, MIG_SHAPE, PCI_SHAPE
from lading.devices.isolation import IsolationName

VERSION: Final = 1
MAX_GEN: Final = 2**63 - 1  # the ledger's integer
MAX_MEMORY_MIB: Final = 2**31 - 1
LABEL: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"  # of Kubernetes, and not empty

Address = Annotated[str, msgspec.Meta(pattern=rf"\A{PCI_SHAPE}\Z")]
Mib = Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
Label = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{LABEL})?\Z")]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    uuid: Annotated[str, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE}|{MIG_SHAPE})\Z")]
    bdf: Address | None = None
    memory_mib: Mib | None = None  # a share; with core_percent None too, the whole card
    core_percent: Percent | None = None
    core_limit_percent: Percent | None = None  # what a share may use while others leave it; None: what its isolation does
    isolation: IsolationName | None = None  # of a share; None: the node's default
    pod_memory_mib: Mib | None = None  # what the pod takes of the card at one time, where it is less than the sum
    pod_core_percent: Percent | None = None
    card: Annotated[str, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE})?\Z")] = ""  # of a MIG instance; the node knows it


class Vf(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    bdf: Address
    pf: Address | None = None
    ifname: str | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    gpus: list[Gpu] = []
    vfs: list[Vf] = []


class Sharing(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The sharing labels, without the namespace: that is always the pod's own."""

    affinity: Label = ""
    anti_affinity: Label = ""
    exclusion: Label = ""


class Quota(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The labels of the pod that say which quota it belongs to."""

    name: Label = ""
    preemptible: bool = True


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    v: Literal[1]
    pod: Annotated[str, msgspec.Meta(min_length=1)]
    node: Annotated[str, msgspec.Meta(min_length=1)]
    gen: Annotated[int, msgspec.Meta(ge=0, le=MAX_GEN)]
    containers: dict[str, Container]
    quota: Quota | None = None  # as the pod said when it was bound; None: there was no quota then
    sharing: Sharing | None = None  # as the pod asked when it was bound; what it says since is not in force
    gang: str | None = None  # with which the pod was bound; empty: with none; None: not written, by an older central
