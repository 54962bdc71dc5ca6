"""Keep room in the ledger for pods that do not exist yet: those of a Workload that Kueue is about to start.

A plan is held under made-up uids, all of it or nothing. When a pod of the Workload comes, one place of its set becomes the
pod's own, as a nomination, in one step: the pod, or the gang that it belongs to, gets it when kube-scheduler asks. What pods do
not come for is free again after HELD_S.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from central.ledger.ledger import Ledger
from central.ledger.model import Conflict, Holder, OwnClaim
from lading.vocabulary import PodUid

# From the answer Ready, and again from the admission, until all pods have to exist; for each pod from then until it is bound.
HELD_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class _Room:
    namespace: str
    until: float
    admitted: bool = False
    left: dict[str, list[OwnClaim]] = field(default_factory=dict)  # by pod set: places without a pod
    came: set[PodUid] = field(default_factory=set)


def place_uid(workload: str, pod_set: str, index: int) -> PodUid:
    """Return the uid under which the room of a pod is kept that does not exist: no pod has such a uid."""
    return PodUid(f"workload/{workload}/{pod_set}/{index}")


class WorkloadRooms:
    def __init__(self, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._rooms: dict[str, _Room] = {}  # by the uid of the Workload

    def __contains__(self, workload: str) -> bool:
        return workload in self._rooms

    def workloads(self) -> Collection[str]:
        """Return the uids of the Workloads for which room is kept."""
        return {*self._rooms}

    def hold(self, workload: str, holder: Holder, places: Mapping[str, Sequence[OwnClaim]]) -> Conflict | None:
        """Hold the places of each pod set. On a conflict nothing is held."""
        self.release(workload)
        conflict = self._ledger.claims.plan([claim for claims in places.values() for claim in claims])
        if conflict is None:
            left = {pod_set: [*claims] for pod_set, claims in places.items()}
            self._rooms[workload] = _Room(namespace=holder.namespace, until=self._clock() + HELD_S, left=left)
        return conflict

    def admit(self, workload: str) -> None:
        """Count the time from now: Kueue starts the job."""
        room = self._rooms.get(workload)
        if room is not None and not room.admitted:
            room.admitted, room.until = True, self._clock() + HELD_S

    def give(self, pod: Holder, mark: str, *, bound: bool) -> None:
        """Give a pod that came a place of its set. It may be called again for the same pod. A pod that is bound already needs
        none, but one less is needed then."""
        workload, _, pod_set = mark.partition("/")
        room = self._rooms.get(workload)
        if room is None or room.namespace != pod.namespace or pod.pod in room.came or not room.left.get(pod_set):
            return
        room.came.add(pod.pod)
        place = room.left[pod_set].pop(0)
        self._ledger.claims.forget_plan(place.holder.pod)
        if not bound:
            until = self._clock() + HELD_S
            self._ledger.claims.nominate(
                pod.pod, place.node, place.taken, until, pod, evicts=False, cpu_memory=place.cpu_memory
            )

    def release(self, workload: str) -> None:
        """End what is kept for pods that did not come."""
        room = self._rooms.pop(workload, None)
        for claims in room.left.values() if room is not None else ():
            for claim in claims:
                self._ledger.claims.forget_plan(claim.holder.pod)

    def expire(self) -> None:
        now = self._clock()
        for workload in [workload for workload, room in self._rooms.items() if now >= room.until]:
            self.release(workload)
