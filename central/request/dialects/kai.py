"""Read fractions of cards that pods of KAI Scheduler request by annotations.

Most keys have no domain, so that a chart may use them for something else. Only `gpu-fraction` requests devices in every pod;
the others do so in pods of kai-scheduler.

Source: NVIDIA/KAI-Scheduler d5bc503a, pkg/binder/plugins/gpusharing and pkg/binder/common/gpu_access.go.

Tests: tests/golden/test_dialects.py
"""

import re
from typing import Final

from central.request.amounts import is_zero, shown
from central.request.check import MAX_SHARED, Keys, check_request
from central.request.dialects.dialect import ClaimedKeys, refuse
from central.request.dialects.nvidia import NVIDIA_GPU
from central.request.dialects.options import DialectName
from central.request.model import ContainerRequest, DeviceRequest, Role, Share
from central.request.pod import Pod, roles_of
from central.request.quantity import parse_quantity
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName

_FRACTION: Final = "gpu-fraction"
_MEMORY: Final = "gpu-memory"
_NUMBER: Final = "gpu-fraction-num-devices"
_CONTAINER: Final = "gpu-fraction-container-name"
_MPS: Final = "mps"
_FLOAT: Final = re.compile(r"(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?")
_DIGITS: Final = re.compile(r"[0-9]{1,10}")


class Kai:
    name: Final = DialectName.KAI
    claims: Final = ClaimedKeys(
        keys=(_FRACTION,),
        scheduler="kai-scheduler",
        keys_of_scheduler=(_MEMORY, _NUMBER, _MPS),
        annotations=(_FRACTION, _MEMORY, _MPS),
    )

    def parse(self, pod: Pod) -> DeviceRequest | None:
        return _parse(pod)


def _parse(pod: Pod) -> DeviceRequest:
    annotations = pod.metadata.annotations
    if not annotations.keys() & {_FRACTION, _MEMORY}:
        key = next(key for key in (_NUMBER, _MPS) if key in annotations)
        raise refuse(key, f"the pod has neither {_FRACTION} nor {_MEMORY}", "add one of these, or remove it")
    if {_FRACTION, _MEMORY} <= annotations.keys():
        raise refuse(_FRACTION, f"the pod has {_MEMORY} too", "keep one of the two")
    for one in (*pod.spec.init_containers, *pod.spec.containers):
        if not is_zero(one.resources.limits.get(NVIDIA_GPU, 0)):
            raise refuse(_FRACTION, f"container {one.name} has {NVIDIA_GPU} too", "keep one of the two")
    cards = _whole(_NUMBER, annotations.get(_NUMBER, "1"), f"a number of cards, 1 to {MAX_SHARED}", MAX_SHARED)
    if _FRACTION in annotations:
        share = Share(core_percent=_percent(annotations[_FRACTION]), cards=cards)
    else:
        right = "a number of MiB without a unit, as 2048"
        share = Share(memory_mib=_whole(_MEMORY, annotations[_MEMORY], right, MAX_MEMORY_MIB), cards=cards)
    name, role = _container(pod, annotations.get(_CONTAINER, ""))
    isolation = IsolationName.MPS if annotations.get(_MPS) == "true" else None
    request = DeviceRequest(containers=(ContainerRequest(name=name, role=role, share=share),), isolation=isolation)
    return check_request(request, Keys(gpus=_NUMBER, share=f"{_FRACTION} or {_MEMORY}", isolation=_MPS))


def _percent(written: str) -> int:
    value = parse_quantity(written) if _FLOAT.fullmatch(written) else None
    if value is None or not 0 < value < 1:
        raise refuse(_FRACTION, f"it is {shown(written)}", f"write a number below 1, as 0.5; {NVIDIA_GPU}: 1 is a whole card")
    if value * 100 < 1:
        raise refuse(_FRACTION, f"it is {shown(written)}, less than a percent", "write 0.01 or more")
    return int(value * 100)


def _whole(key: str, written: str, right: str, most: int) -> int:
    if not _DIGITS.fullmatch(written) or not 0 < int(written) <= most:
        raise refuse(key, f"it is {shown(written)}", f"write {right}")
    return int(written)


def _container(pod: Pod, name: str) -> tuple[str, Role]:
    """Return the name and role of the container that has the share: the first app container without a name."""
    if not pod.spec.containers:
        raise refuse(_FRACTION, "the pod has no container", "add one")
    roles = dict(roles_of(pod))
    wanted = name or pod.spec.containers[0].name
    if wanted not in roles:
        raise refuse(_CONTAINER, f"the pod has no container {shown(name)}", "name one, or remove it")
    return wanted, roles[wanted]
