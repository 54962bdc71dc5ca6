"""List systems whose pods central never reads, so that their pods are refused by name.

Source: HAMi v2.10.0, pkg/device; Koordinator v1.8.0, apis/extension/device_share.go.

Tests: tests/golden/test_dialects.py
"""

from dataclasses import dataclass
from typing import Final

from central.request.dialects.dialect import ClaimedKeys, Dialect
from central.request.model import MalformedRequest


@dataclass(frozen=True, slots=True, eq=False)
class UnreadSystem:
    """Hold a system whose pods central does not read, and what to do instead."""

    name: str
    claims: ClaimedKeys
    instead: str

    def refuse(self, key: str) -> MalformedRequest:
        return MalformedRequest(message=f"cannot use {key}: central does not read {self.name}; {self.instead}", unread=True)


OTHER_MAKERS: Final = UnreadSystem(
    "requests for cards of this maker",
    ClaimedKeys(
        prefixes=(
            "amd.com/gpu",
            "aws.amazon.com/neuron",
            "birentech.com/",
            "cambricon.com/",
            "dcu.com/",
            "enflame.com/",
            "gpu.intel.com/",
            "habana.ai/",
            "huawei.com/",
            "hygon.com/",
            "iluvatar.ai/",
            "koordinator.sh/fpga",
            "koordinator.sh/npu",
            "kunlunxin.com/",
            "metax-tech.com/",
            "mthreads.com/",
            "vastaitech.com/",
        )
    ),
    "only NVIDIA's cards are given; let the maker's scheduler place the pod, or remove it",
)
SHARE_PODS: Final = UnreadSystem(
    "SharePods of KubeShare 1",
    ClaimedKeys(keys=("kubeshare/gpu_request", "kubeshare/gpu_limit")),
    "write lading.dev/gpu-core and lading.dev/gpu-core-limit",
)
UNREAD: Final = (OTHER_MAKERS, SHARE_PODS)


def switch_off(dialect: Dialect) -> UnreadSystem:
    """Return the system of a dialect that is not enabled."""
    instead = f"write lading.dev/ resources, or add {dialect.name} to enabled in [dialects] of central.toml"
    return UnreadSystem(f"pods of {dialect.name}", dialect.claims, instead)
