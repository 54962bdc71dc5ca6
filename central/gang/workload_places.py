"""Reserve devices in the ledger for pods that do not exist yet: the pods of a Workload that Kueue is about to start.

The places of a plan are claimed under made-up uids, all or none. A place becomes the nomination of a pod of its pod set in one
step, when the pod appears. The pod, or its gang, gets the place when kube-scheduler calls central. Places that no pod uses are
released after HELD_S.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from central.ledger.ledger import Ledger
from central.ledger.model import Conflict, Holder, OwnClaim
from lading.vocabulary import PodUid

# The seconds count from the answer Ready, and again from the admission, until all pods must exist; then until a pod is bound.
HELD_S: Final = 120.0


@dataclass(slots=True, kw_only=True)
class _Reserved:
    namespace: str
    until: float
    admitted: bool = False
    left: dict[str, list[OwnClaim]] = field(default_factory=dict)  # places without a pod, by pod set
    came: set[PodUid] = field(default_factory=set)


def place_uid(workload: str, pod_set: str, index: int) -> PodUid:
    """Return a made-up uid, under which a place for a future pod is claimed. No pod has such a uid."""
    return PodUid(f"workload/{workload}/{pod_set}/{index}")


class WorkloadPlaces:
    def __init__(self, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._reserved: dict[str, _Reserved] = {}  # keys are uids of Workloads

    def __contains__(self, workload: str) -> bool:
        return workload in self._reserved

    def workloads(self) -> Collection[str]:
        """Return the uids of the Workloads with reserved places."""
        return {*self._reserved}

    def hold(self, workload: str, holder: Holder, places: Mapping[str, Sequence[OwnClaim]]) -> Conflict | None:
        """Reserve the places of each pod set. Return the conflict if there is one; then nothing is reserved."""
        self.release(workload)
        conflict = self._ledger.claims.plan([claim for claims in places.values() for claim in claims])
        if conflict is None:
            left = {pod_set: [*claims] for pod_set, claims in places.items()}
            self._reserved[workload] = _Reserved(namespace=holder.namespace, until=self._clock() + HELD_S, left=left)
        return conflict

    def admit(self, workload: str) -> None:
        """Restart the time limit of the Workload's places, because Kueue starts the job now."""
        reserved = self._reserved.get(workload)
        if reserved is not None and not reserved.admitted:
            reserved.admitted, reserved.until = True, self._clock() + HELD_S

    def give(self, pod: Holder, mark: str, *, bound: bool) -> None:
        """Give a new pod a place of its pod set; a repeated call for the pod does nothing. A bound pod needs no place, so that
        one place of its set is released."""
        workload, _, pod_set = mark.partition("/")
        reserved = self._reserved.get(workload)
        if (
            reserved is None
            or reserved.namespace != pod.namespace
            or pod.pod in reserved.came
            or not reserved.left.get(pod_set)
        ):
            return
        reserved.came.add(pod.pod)
        place = reserved.left[pod_set].pop(0)
        self._ledger.claims.forget_plan(place.holder.pod)
        if not bound:
            until = self._clock() + HELD_S
            self._ledger.claims.nominate(
                pod.pod, place.node, place.taken, until, pod, evicts=False, cpu_memory=place.cpu_memory
            )

    def release(self, workload: str) -> None:
        """Release the places that no pod used."""
        reserved = self._reserved.pop(workload, None)
        for claims in reserved.left.values() if reserved is not None else ():
            for claim in claims:
                self._ledger.claims.forget_plan(claim.holder.pod)

    def expire(self) -> None:
        now = self._clock()
        for workload in [workload for workload, reserved in self._reserved.items() if now >= reserved.until]:
            self.release(workload)
