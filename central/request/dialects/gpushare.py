"""Read requests to gpushare: an amount of one card's memory. With `gpushare_ack` also the forms of Alibaba Cloud's ACK.

The containers of a pod have their shares on one card. The unit of the amounts is a flag of gpushare's device plugin, and stands
nowhere in the cluster. `aliyun.com/gpu-count` is a node's number of cards; as a limit of a pod it gives no card there either.

Source: AliyunContainerService/gpushare-scheduler-extender c0b6141, gpushare-device-plugin 45fb8b8; ACK's documentation.

Tests: tests/golden/test_dialects.py
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from central.request.amounts import Resource, shown
from central.request.check import MAX_SHARED, Keys
from central.request.dialects.dialect import ClaimedKeys, on_one_card, read_pod, refuse
from central.request.dialects.options import DialectName, DialectOptions, MemoryUnit
from central.request.model import ContainerRequest, DeviceRequest, Share
from central.request.pod import Container, Pod
from lading.vocabulary import RESOURCE_GPU

_MEMORY: Final = "aliyun.com/gpu-mem"
_CORE: Final = "aliyun.com/gpu-core.percentage"
_COUNT: Final = "aliyun.com/gpu-count"  # a label in ACK; a resource of nodes
_PLACEMENT: Final = "ack.gpushare.placement"
_MIB_OF: Final = {MemoryUnit.GIB: 1024, MemoryUnit.MIB: 1}
_MOST_GIB: Final = 1024  # no card has more memory
_INTEGER_DIGITS: Final = 4


class Gpushare:
    name: Final = DialectName.GPUSHARE

    def __init__(self, options: DialectOptions) -> None:
        unit, self._ack = options.gpushare_unit, options.gpushare_ack
        most = _MOST_GIB * 1024 // _MIB_OF[unit]
        self._mib = _MIB_OF[unit]
        right = f"a whole number of {unit} without a unit, 1 to {most} (the unit is gpushare_unit of central.toml)"
        self._known = {
            _MEMORY: Resource(right, most),
            _CORE: Resource("a whole number of percent of each card's compute, 1 to 100", 100),
            _COUNT: Resource("0", 2**31 - 1),
        }
        self.claims = ClaimedKeys(resources={_MEMORY, _CORE}, prefixes=("aliyun.com/gpu",))

    def parse(self, pod: Pod) -> DeviceRequest | None:
        labels = pod.metadata.labels

        def read(container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
            return self._read(container, amounts, labels)

        def refine(request: DeviceRequest) -> DeviceRequest:
            if self._ack and labels.get(_PLACEMENT):
                raise refuse(_PLACEMENT, "central has no such placement of a share", f"write {RESOURCE_GPU}, or remove it")
            if not on_one_card(request):
                return request
            if any(one.share and one.share.cards > 1 for one in request.containers):
                raise refuse(_COUNT, "several containers ask, for the same cards", "let one container ask, or remove it")
            return replace(request, same_card=True)

        return read_pod(pod, self._known, self.claims, read, refine, Keys(gpus=_COUNT, share=_MEMORY))

    def _read(self, container: Container, amounts: Mapping[str, int], labels: Mapping[str, str]) -> ContainerRequest:
        if _COUNT in amounts:
            instead = f"write {_MEMORY}, or {RESOURCE_GPU} for whole cards"
            raise refuse(f"{_COUNT} of container {container.name}", "as a limit it gives no card in gpushare either", instead)
        if _CORE in amounts and not self._ack:
            raise refuse(_CORE, "gpushare has no such resource; ACK has", "set gpushare_ack in central.toml, or remove it")
        if _MEMORY not in amounts:
            raise refuse(f"{_CORE} of container {container.name}", f"it is without {_MEMORY}", f"add {_MEMORY}")
        cards = _cards(labels.get(_COUNT, "0")) if self._ack else 1
        if amounts[_MEMORY] % cards:
            reason = f"{amounts[_MEMORY]} is no multiple of the label {_COUNT}, which is {cards}"
            raise refuse(f"{_MEMORY} of container {container.name}", reason, "write a multiple")
        mib = amounts[_MEMORY] // cards * self._mib
        share = Share(memory_mib=mib, core_percent=amounts.get(_CORE), cards=cards)
        return ContainerRequest(name=container.name, share=share)


def _cards(written: str) -> int:
    """Return the number of cards in the label; 0 counts as absent."""
    if not (written.isdecimal() and written.isascii() and len(written) <= _INTEGER_DIGITS and int(written) <= MAX_SHARED):
        raise refuse(_COUNT, f"it is {shown(written)}", f"write a number of cards, 1 to {MAX_SHARED}")
    return int(written) or 1
