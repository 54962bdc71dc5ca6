"""A second dialect: `cards.example.com/uuids: UUID,UUID` gives every container of the pod these cards."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from hooks.model.assignment import Assignment, ContainerRequest, FormName, GpuRequest, Refusal, Trust
from lading.devices.identity import parse_gpu_uuid, shown
from lading.reasons import Reason
from lading.vocabulary import PodUid

KEY = "cards.example.com/uuids"


class Cards:
    forms: ClassVar[tuple[FormName, ...]] = ("cards",)
    prefixes: ClassVar[tuple[str, ...]] = ("cards.example.com/",)
    text: ClassVar[str] = "of the cards dialect"

    def own(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if key == KEY]

    def parse(
        self, annotations: Mapping[str, str], keys: Sequence[str], *, pod: PodUid, node: str, trust: Trust
    ) -> Assignment | Refusal:
        if "cards" not in trust.accepted:
            return Refusal(reason=Reason.FORM_NOT_ACCEPTED, message=f"cannot use {KEY}: this node does not accept it")
        names = annotations[KEY].split(",")
        for name in names:
            if parse_gpu_uuid(name) is None:
                return Refusal(reason=Reason.ANNOTATION_MALFORMED, message=f"cannot use {KEY}: {shown(name)} is no UUID")
        gpus = tuple(GpuRequest(name=name, memory_mib=1000) for name in names)
        return Assignment(form="cards", every_container=ContainerRequest(gpus=gpus))
