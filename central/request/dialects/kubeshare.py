"""Read shares that pods of KubeShare 2 request by labels: a guaranteed part of one card's time, a limit, and memory.

The labels request one share for all containers of the pod together, which a node of Lading cannot give to several containers.

Source: NTHU-LSALAB/KubeShare 2.0 (a862311), pkg/scheduler/pod.go.

Tests: tests/golden/test_dialects.py
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from central.request.amounts import MIB, shown
from central.request.check import MAX_DEVICES, Keys, check_request
from central.request.dialects.dialect import ClaimedKeys, refuse
from central.request.dialects.options import DialectName
from central.request.model import ContainerRequest, DeviceRequest, Share
from central.request.pod import Pod
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName
from lading.vocabulary import GANG, GPU_MODEL

_REQUEST: Final = "sharedgpu/gpu_request"
_LIMIT: Final = "sharedgpu/gpu_limit"
_MEMORY: Final = "sharedgpu/gpu_mem"
_INSTEAD: Final = {
    "sharedgpu/gpu_model": f"write {GPU_MODEL} and lading.dev/ resources, or remove it",
    **dict.fromkeys(
        ("sharedgpu/group_name", "sharedgpu/group_headcount", "sharedgpu/group_threshold"),
        f"write {GANG} and lading.dev/ resources, or remove it",
    ),
}
# KubeShare's own pattern, without the forms that Go's ParseFloat refuses after it.
_NUMBER: Final = re.compile(r"0+\.[0-9]+|[1-9][0-9]*\.0+|[1-9]+")
_DIGITS: Final = re.compile(r"[0-9]{1,15}")


class Kubeshare:
    name: Final = DialectName.KUBESHARE
    claims: Final = ClaimedKeys(keys=(_LIMIT, _REQUEST))

    def parse(self, pod: Pod) -> DeviceRequest | None:
        return _parse(pod)


def _parse(pod: Pod) -> DeviceRequest | None:
    labels = pod.metadata.labels
    if _LIMIT not in labels:
        raise refuse(_REQUEST, f"it is without {_LIMIT}", f"add {_LIMIT}")
    limit, requested = _number(labels, _LIMIT), _number(labels, _REQUEST)
    if requested > limit:
        raise refuse(_REQUEST, f"it is {shown(labels[_REQUEST])}, above {_LIMIT}", f"write up to {shown(labels[_LIMIT])}")
    if limit == 0:
        return None
    if not requested:
        raise refuse(_LIMIT, f"without {_REQUEST} nothing is guaranteed to the pod", f"write {_REQUEST} above 0")
    for key, instead in _INSTEAD.items():
        if labels.get(key):
            raise refuse(key, "central does not read it", instead)
    if len(pod.spec.containers) != 1:
        reason = f"the pod has {len(pod.spec.containers)} containers, and the labels mean one share for all"
        raise refuse(_LIMIT, reason, "write lading.dev/gpu-core in the container that needs it")
    name = pod.spec.containers[0].name
    if limit > 1:
        if requested != limit or limit.denominator != 1 or limit > MAX_DEVICES:
            raise refuse(_LIMIT, f"it is {shown(labels[_LIMIT])}", f"above 1, write whole cards, and the same in {_REQUEST}")
        return _checked(DeviceRequest(containers=(ContainerRequest(name=name, gpus=int(limit)),)))
    core = max(1, int(requested * 100))
    share = Share(memory_mib=_memory(labels), core_percent=core, core_limit_percent=max(core, int(limit * 100)))
    containers = (ContainerRequest(name=name, share=share),)
    return _checked(DeviceRequest(containers=containers, isolation=IsolationName.TOKENS))


def _checked(request: DeviceRequest) -> DeviceRequest:
    return check_request(request, Keys(gpus=_LIMIT, share=_LIMIT, isolation=_LIMIT))


def _number(labels: Mapping[str, str], key: str) -> Fraction:
    written = labels.get(key, "0.0")  # a label has 63 characters at most
    if not _NUMBER.fullmatch(written):
        raise refuse(key, f"it is {shown(written)}", "write a part of a card as 0.5, or whole cards as 2.0")
    return Fraction(written)


def _memory(labels: Mapping[str, str]) -> int | None:
    written = labels.get(_MEMORY, "0")
    if not _DIGITS.fullmatch(written) or int(written) > MAX_MEMORY_MIB * MIB:
        raise refuse(_MEMORY, f"it is {shown(written)}", "write a number of bytes without a unit, as 1073741824")
    return -(-int(written) // MIB) or None
