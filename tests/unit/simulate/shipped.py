"""Build the shipped profiles of nodes as clusters for a replay, and judge placements by their files alone."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from central.request.model import PartitionPolicy, RdmaPolicy, Scope
from simnode.reported import FILES
from simulate.cluster import Placed
from simulate.cluster_file import Described, read_cluster
from simulate.trace import TracePod

PROFILES = sorted(path.stem for path in FILES.glob("*.json"))
CLUSTERS = FILES.parent / "clusters"


def pod(
    gpus: int = 0, vfs: int = 0, rdma: str = "nearest", scope: str = "any", milli: int = 1000, cpu: int = 1_000
) -> TracePod:
    return TracePod(
        cpu_milli=cpu,
        memory_mib=1_024,
        gpus=gpus,
        gpu_milli=milli if gpus else 0,
        vfs=vfs,
        rdma_policy=RdmaPolicy(rdma),
        scope=Scope(scope),
    )


PODS = (
    *[pod(1, milli=milli) for milli in (10, 300, 550)],
    *[pod(1, 1, milli=300), pod(1, 1, scope="switch", milli=500), pod(1, 1, "per-switch", milli=250)],
    *[pod(gpus) for gpus in (1, 1, 2, 4)],
    *[pod(1, 1), pod(1, 1, "nearest", "switch"), pod(2, 3), pod(8, 8)],
    *[pod(2, 1, "per-switch"), pod(2, 1, "per-switch", "numa"), pod(4, 1, "per-switch", "socket"), pod(1, 2, "per-switch")],
    *[pod(2, scope="switch"), pod(2, 2, "count", "numa"), pod(3, scope="numa"), pod(4, 2, "count", "socket")],
    *[pod(1, scope="socket")],
    *[pod(0, 1), pod(0, 2, "count", "switch"), pod(0, 1, "per-pf"), pod(1, 1, "per-pf")],
    pod(cpu=2_000),
)


def entry(profile: str, count: int, *, cpu_milli: int = 200_000) -> dict[str, Any]:
    devices = str(FILES / f"{profile}.json")
    return {"name": profile, "count": count, "devices": devices, "cpu_milli": cpu_milli, "memory_mib": 1_048_576}


def described(folder: Path, *entries: Mapping[str, Any], partition: str = "prefer") -> Described:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"nodes": entries, "nvswitch_partition": partition}))
    return read_cluster(path)


class Judge:
    """Judge one node by its profile's file and the rules of docs/reference.md, without central's code."""

    def __init__(self, profile: str, partition: PartitionPolicy) -> None:
        self.report: dict[str, Any] = json.loads((FILES / f"{profile}.json").read_text())
        self._honored = partition is PartitionPolicy.HONOR and "partitions" in self.report
        self._milli: Counter[int] = Counter()
        self._given: set[str] = set()
        self._pf_of = {vf["bdf"]: pf for pf in self.report.get("pfs", []) for vf in pf.get("vfs", [])}

    @property
    def vfs(self) -> int:
        return len(self._pf_of)

    @property
    def given(self) -> int:
        return len(self._given)

    def take(self, requested: TracePod, placed: Placed) -> None:
        cards = [self.report["gpus"][card] for card in placed.cards]
        vfs = list(placed.vfs)
        assert len(set(placed.cards)) == len(placed.cards) == requested.gpus
        assert not any(card.get("migEnabled") for card in cards)
        self._milli.update(dict.fromkeys(placed.cards, requested.gpu_milli))
        assert all(self._milli[card] <= 1000 for card in placed.cards)
        assert len(set(vfs)) == len(vfs)
        assert set(vfs) <= self._pf_of.keys() - self._given
        self._given |= set(vfs)
        self._check_number(requested, cards, vfs)
        self._check_scope(requested.scope, [*cards, *(self._pf_of[vf] for vf in vfs)])
        if self._honored and requested.whole:
            partitions = [set(partition["modules"]) for partition in self.report["partitions"]]
            assert {card["moduleId"] for card in cards} in partitions

    def _check_number(self, requested: TracePod, cards: Sequence[Mapping[str, Any]], vfs: Collection[str]) -> None:
        """Check the number of VFs by RDMA policy. A switch is a root port here: no profile has two switches below one."""
        switches = Counter(tuple(self._pf_of[vf]["place"]["path"][:2]) for vf in vfs)
        match requested.rdma_policy:
            case RdmaPolicy.PER_SWITCH:
                assert switches == {tuple(card["place"]["path"][:2]): requested.vfs for card in cards}
            case RdmaPolicy.PER_PF:
                ports = {pf["bdf"] for pf in self._pf_of.values()}
                assert Counter(self._pf_of[vf]["bdf"] for vf in vfs) == dict.fromkeys(ports, requested.vfs)
            case RdmaPolicy.NEAREST | RdmaPolicy.COUNT:
                assert len(vfs) == requested.vfs

    @staticmethod
    def _check_scope(scope: Scope, functions: Sequence[Mapping[str, Any]]) -> None:
        places = [one["place"] for one in functions]
        match scope:
            case Scope.SWITCH:
                assert len({tuple(place["path"][:2]) for place in places}) == 1
            case Scope.NUMA | Scope.SOCKET:
                known = {place.get(scope.value, f"unknown to {number}") for number, place in enumerate(places)}
                assert len(known) == 1
            case Scope.ANY:
                pass
