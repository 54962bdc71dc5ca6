"""Read central's decisions from pods: their requests and devices, and whether any device is held twice.

Pure: the input is pods of the API server, and node reports. The sums are computed without central's code, because they check
central.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from lading.nodedevices import Status
from lading.vocabulary import ASSIGNMENT, PREFIX, RESOURCE_GPU, RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY, RESOURCE_RDMA

_WHOLE: Final = 100  # percent


class GivenGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Represent a GPU that a pod holds: a whole card if no amount is set."""

    uuid: str
    bdf: str
    memory_mib: int = 0
    core_percent: int = 0
    pod_memory_mib: int | None = None  # the most that the pod takes at one time, if less than the sum of its containers
    pod_core_percent: int | None = None

    @property
    def whole(self) -> bool:
        return not self.memory_mib and not self.core_percent


class GivenVf(msgspec.Struct, frozen=True, kw_only=True):
    bdf: str
    pf: str


class DecidedContainer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    asks: str  # the request as text
    init: bool = False
    gpus: tuple[GivenGpu, ...] = ()
    vfs: tuple[GivenVf, ...] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hold the decision about a pod. `node` is empty for a pod that waits."""

    pod: str
    uid: str
    priority: int = 0
    refines: Mapping[str, str] = {}  # the pod's annotations for central
    node: str = ""
    containers: tuple[DecidedContainer, ...] = ()


def read_decision(pod: Mapping[str, Any]) -> Decision:
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = metadata.get("annotations", {})
    given = json.loads(annotations.get(ASSIGNMENT, '{"containers":{}}'))["containers"]
    containers = [(one, True) for one in spec.get("initContainers", [])] + [(one, False) for one in spec["containers"]]
    return Decision(
        pod=metadata["name"],
        uid=metadata["uid"],
        priority=spec.get("priority", 0),
        refines={k.removeprefix(PREFIX): v for k, v in annotations.items() if k.startswith(PREFIX) and "assignment" not in k},
        node=spec.get("nodeName", ""),
        containers=tuple(
            msgspec.convert({"name": one["name"], "asks": asks, "init": init, **given.get(one["name"], {})}, DecidedContainer)
            for one, init in containers
            if (asks := request_as_text(one.get("resources", {}).get("limits", {})))
        ),
    )


def request_as_text(limits: Mapping[str, Any]) -> str:
    text = []
    if count := int(limits.get(RESOURCE_GPU, 0)):
        text.append(f"{count} GPU{'s' * (count > 1)}")
    share = [str(limits[RESOURCE_GPU_MEMORY])] if RESOURCE_GPU_MEMORY in limits else []
    share += [f"{limits[RESOURCE_GPU_CORE]} %"] if RESOURCE_GPU_CORE in limits else []
    if share:
        text.append(f"{' '.join(share)} of a GPU")
    if count := int(limits.get(RESOURCE_RDMA, 0)):
        text.append(f"{count} VF{'s' * (count > 1)}")
    known = {RESOURCE_GPU, RESOURCE_GPU_MEMORY, RESOURCE_GPU_CORE, RESOURCE_RDMA}
    text += [f"{name}: {amount}" for name, amount in limits.items() if name.startswith(PREFIX) and name not in known]
    return ", ".join(text)


class Part(msgspec.Struct, frozen=True):
    pod: str
    memory_mib: int
    core_percent: int
    whole: bool


def parts_by_card(decisions: Iterable[Decision]) -> dict[tuple[str, str], list[Part]]:
    """Return the parts by node and card: a pod's containers together; if central says that they take turns, at one time."""
    parts: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for decision in decisions:
        by_card = defaultdict(list)
        for gpu in (gpu for container in decision.containers for gpu in container.gpus):
            by_card[gpu.uuid].append(gpu)
        for uuid, gpus in by_card.items():
            memory = next((g.pod_memory_mib for g in gpus if g.pod_memory_mib is not None), sum(g.memory_mib for g in gpus))
            core = next((g.pod_core_percent for g in gpus if g.pod_core_percent is not None), sum(g.core_percent for g in gpus))
            part = Part(decision.pod, memory, core, any(gpu.whole for gpu in gpus))
            parts[decision.node, uuid].append(part)
    return dict(parts)


def holders_by_vf(decisions: Iterable[Decision]) -> dict[tuple[str, str], list[str]]:
    """Return the pods' names by node and address, each once."""
    holders: dict[tuple[str, str], list[str]] = defaultdict(list)
    for decision in decisions:
        for bdf in dict.fromkeys(vf.bdf for container in decision.containers for vf in container.vfs):
            holders[decision.node, bdf].append(decision.pod)
    return dict(holders)


def find_clashes(decisions: Iterable[Decision], reports: Mapping[str, Status]) -> list[str]:
    """Return the devices that too many pods hold, as text."""
    decided = list(decisions)
    usable = {(node, str(gpu.uuid)): gpu.usable_mib for node, status in reports.items() for gpu in status.gpus}
    clashes = []
    for (node, uuid), parts in parts_by_card(decided).items():
        holders = ", ".join(part.pod for part in parts)
        if any(part.whole for part in parts) and len(parts) > 1:
            clashes.append(f"{uuid} on {node} is given whole, and to {holders}")
        if sum(part.memory_mib for part in parts) > usable.get((node, uuid), 0):
            clashes.append(f"{uuid} on {node} has less memory than {holders} have of it")
        if sum(part.core_percent for part in parts) > _WHOLE:
            clashes.append(f"{uuid} on {node} is given to more than 100 percent: {holders}")
    for (node, bdf), pods in holders_by_vf(decided).items():
        if len(pods) > 1:
            clashes.append(f"{bdf} on {node} is given to {', '.join(pods)}")
    return clashes
