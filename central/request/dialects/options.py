"""Define the settings of central that decide which other systems' pods central reads, and how.

Tests: tests/golden/test_dialects.py
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from lading.settings import Setting

ANY_SCHEDULER: Final = "*"


class DialectName(StrEnum):
    NVIDIA = "nvidia"  # NVIDIA's device plugin
    HAMI = "hami"
    GPUSHARE = "gpushare"
    KOORDINATOR = "koordinator"
    VOLCANO = "volcano"  # Volcano vGPU
    KAI = "kai"
    KUBESHARE = "kubeshare"  # KubeShare 2
    VF_POOLS = "vf-pools"  # SR-IOV and shared RDMA device plugins


class MemoryUnit(StrEnum):
    GIB = "GiB"
    MIB = "MiB"


class DialectOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    enabled: Annotated[tuple[DialectName, ...], Setting("systems whose pods central places")] = ()
    nvidia_gpu: Annotated[
        dict[str, DialectName],
        Setting('who reads nvidia.com/gpu: schedulerName = system; "*" for other names. Not needed for one such system'),
    ] = {}
    nvidia_replicas: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=2, le=100)]],
        Setting("nvidia: resources of the device plugin that are replicas of cards: name = replicas of a card"),
    ] = {}
    gpushare_unit: Annotated[MemoryUnit, Setting("gpushare: unit of aliyun.com/gpu-mem: GiB or MiB")] = MemoryUnit.GIB
    gpushare_ack: Annotated[
        bool, Setting("gpushare: read the label aliyun.com/gpu-count and aliyun.com/gpu-core.percentage, as ACK does")
    ] = False
    koordinator_vf: Annotated[
        bool, Setting("koordinator: koordinator.sh/rdma without vfSelector requests a VF in place of the PF")
    ] = False
    vf_pools: Annotated[
        tuple[str, ...], Setting("vf-pools: resources of the SR-IOV and shared RDMA device plugins that request VFs")
    ] = ()


NO_OPTIONS: Final = DialectOptions()
