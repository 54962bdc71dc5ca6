"""Define the schema of the annotation `lading.dev/assignment`, which central writes and the node reads.

Amounts are MiB and percent of one card's compute. Unknown keys are ignored, because a newer central may write more; an
incompatible change has another `v`. A person may add the settings of a VF (`hooks.forms.netdev`).

Source: docs/reference.md, "Assignments".

Tests: tests/unit/hooks/isolation/test_mps.py
"""

from typing import Annotated, Final, Literal

import msgspec

from lading.devices.identity import GPU_SHAPE, MIG_SHAPE, PCI_SHAPE
from lading.devices.isolation import IsolationName

VERSION: Final = 1
MAX_GEN: Final = 2**63 - 1  # largest integer of the ledger
MAX_MEMORY_MIB: Final = 2**31 - 1
LABEL: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"  # value of a Kubernetes label, not empty

Address = Annotated[str, msgspec.Meta(pattern=rf"\A{PCI_SHAPE}\Z")]
Mib = Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)]
Percent = Annotated[int, msgspec.Meta(ge=1, le=100)]
Label = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{LABEL})?\Z")]


class AssignedGpu(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    uuid: Annotated[str, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE}|{MIG_SHAPE})\Z")]
    bdf: Address | None = None
    memory_mib: Mib | None = None  # memory of a share; if core_percent is None too, the whole card
    core_percent: Percent | None = None
    core_limit_percent: Percent | None = None  # compute that a share may use while others leave it; None: as its isolation does
    isolation: IsolationName | None = None  # isolation of a share; None: the node's default
    pod_memory_mib: Mib | None = None  # memory that the pod takes at one time, if less than its containers' sum
    pod_core_percent: Percent | None = None
    card: Annotated[str, msgspec.Meta(pattern=rf"\A(?:{GPU_SHAPE})?\Z")] = ""  # card of a MIG instance; the node knows it


class AssignedVf(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    bdf: Address
    pf: Address | None = None
    ifname: str | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    gpus: list[AssignedGpu] = []
    vfs: list[AssignedVf] = []


class Sharing(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Hold the sharing labels. Their namespace is always the pod's own."""

    affinity: Label = ""
    anti_affinity: Label = ""
    exclusion: Label = ""


class Quota(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Hold the labels of the pod that name its quota."""

    name: Label = ""
    preemptible: bool = True


class Assignment(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    v: Literal[1]
    pod: Annotated[str, msgspec.Meta(min_length=1)]
    node: Annotated[str, msgspec.Meta(min_length=1)]
    gen: Annotated[int, msgspec.Meta(ge=0, le=MAX_GEN)]
    containers: dict[str, Container]
    quota: Quota | None = None  # quota of the pod when it was bound; None: there was no quota then
    sharing: Sharing | None = None  # sharing labels when the pod was bound; later changes are not in force
    gang: str | None = None  # gang with which the pod was bound; empty: no gang; None: an older central did not write it
