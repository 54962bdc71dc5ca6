"""Read who holds what, and what is held twice, from the pods' assignments, the nodes' reports and a node's own ledger.

Reads and adds up by itself, on purpose: central's and the node's own arithmetic is what is on trial here.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hooks.model.grant import Grant
from lading.nodedevices import NodeDevices
from lading.vocabulary import ASSIGNMENT
from simnode.kube_api import KubeApi
from tests.cluster.scheduling.looking import Looking

NODE_DEVICES: Final = "/apis/devices.lading.dev/v1alpha1/nodedevices"
WHOLE: Final = 100  # percent
SCAN_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Represent the part of one card that a pod has. A whole card is 100 % of the compute and no number of MiB."""

    whole: bool
    memory_mib: int = 0
    core_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    node: str
    cards: Mapping[str, Share]
    vfs: frozenset[str]


Books = Mapping[str, Holding]  # pod uid → what the pod holds


def by_assignment(pods: Iterable[Any]) -> dict[str, Holding]:
    """Return what the pods that did not end hold, each by its own assignment."""
    books = {}
    for pod in pods:
        text = pod["metadata"].get("annotations", {}).get(ASSIGNMENT)
        if text is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
            continue
        written = json.loads(text)
        uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
        if (written["pod"], written["node"]) == (uid, node):
            books[uid] = _holding(node, written["containers"].values())
    return books


def by_report(objects: Iterable[NodeDevices]) -> dict[str, Holding]:
    books: dict[str, Holding] = {}
    for node in objects:
        pods = defaultdict(list)
        for grant in node.status.grants:
            gpus = [
                {key: value for key, value in msgspec.structs.asdict(gpu).items() if value is not None} for gpu in grant.gpus
            ]
            pods[grant.pod].append({"gpus": gpus, "vfs": [{"bdf": bdf} for bdf in grant.vfs]})
        books.update({uid: _holding(node.metadata.name, containers) for uid, containers in pods.items()})
    return books


def by_ledger(node: str, grants: Iterable[Grant]) -> dict[str, Holding]:
    pods: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for grant in grants:
        gpus = [
            {
                key: value
                for key in ("uuid", "memory_mib", "core_percent", "pod_memory_mib", "pod_core_percent")
                if (value := getattr(gpu, key)) is not None
            }
            for gpu in grant.devices.gpus
        ]
        pods[grant.pod].append({"gpus": gpus, "vfs": [{"bdf": vf.bdf} for vf in grant.devices.vfs]})
    return {uid: _holding(node, containers) for uid, containers in pods.items()}


def _holding(node: str, containers: Iterable[Mapping[str, Any]]) -> Holding:
    """Return what each pod has of each card: a whole card belongs to one pod; shares add up, unless the assignment states the
    pod's total."""
    entries = defaultdict(list)
    vfs: set[str] = set()
    for container in containers:
        vfs.update(vf["bdf"] for vf in container.get("vfs", ()))
        for gpu in container.get("gpus", ()):
            entries[gpu["uuid"]].append(gpu)
    return Holding(node=node, cards={uuid: _share(parts) for uuid, parts in entries.items()}, vfs=frozenset(vfs))


def _share(parts: list[Mapping[str, Any]]) -> Share:
    if any("memory_mib" not in part and "core_percent" not in part for part in parts):
        return Share(whole=True)

    def amount(of: str) -> int:
        for_pod = [part[f"pod_{of}"] for part in parts if f"pod_{of}" in part]
        return for_pod[0] if for_pod else sum(part.get(of, 0) for part in parts)

    return Share(whole=False, memory_mib=amount("memory_mib"), core_percent=amount("core_percent"))


def held_twice(books: Books, usable_mib: Mapping[str, int]) -> list[str]:
    """Return a sentence for each device that two pods hold and cannot share. `usable_mib`: usable memory of each card."""
    result = []
    cards: dict[str, dict[str, Share]] = defaultdict(dict)
    vfs: Counter[tuple[str, str]] = Counter()
    for uid, holding in books.items():
        vfs.update((holding.node, bdf) for bdf in holding.vfs)
        for uuid, share in holding.cards.items():
            cards[uuid][uid] = share
    result += [f"VF {bdf} of {node}: {pods} pods" for (node, bdf), pods in vfs.items() if pods > 1]
    for uuid, shares in cards.items():
        who = ", ".join(sorted(shares))
        if len(shares) > 1 and any(share.whole for share in shares.values()):
            result.append(f"{uuid} is whole and another's: {who}")
        if (memory := sum(share.memory_mib for share in shares.values())) > usable_mib[uuid]:
            result.append(f"{uuid} has {usable_mib[uuid]} MiB, and {memory} are held: {who}")
        if (core := sum(share.core_percent for share in shares.values())) > WHOLE:
            result.append(f"{uuid}: {core} % are held: {who}")
    return result


class Auditor(Looking):
    """Record in `found` each device that had two holders in any reading."""

    def __init__(self, api: KubeApi, ledgers: Callable[[], Books] = dict) -> None:
        """Read the API server and `ledgers`, the ledger files of real nodes."""
        super().__init__(every_s=SCAN_S)
        self._api = api
        self._ledgers = ledgers
        self.found: set[str] = set()

    def scan(self) -> None:
        reports = read_reports(self._api)
        usable: dict[str, int] = {gpu.uuid: gpu.usable_mib for node in reports for gpu in node.status.gpus}
        pods = self._api.call("GET", "/api/v1/pods")["items"]
        sources = {"assignments": by_assignment(pods), "reports": by_report(reports), "ledgers": self._ledgers()}
        self.found |= {f"{name}: {problem}" for name, books in sources.items() for problem in held_twice(books, usable)}


def read_reports(api: KubeApi) -> list[NodeDevices]:
    return [msgspec.convert(item, NodeDevices) for item in api.call("GET", NODE_DEVICES)["items"]]
