"""Forecast the workload for the policy fragmentation, from a prior, from arrived pods, or from both.

The *turnover* is always learned from the numbers of bound and ended pods: the share of newly placed pods that replace ended
pods.

Each pod counts once, when it is first evaluated, and older pods count less: after HALF_LIFE more pods, a pod counts half. A
prior counts as if a fixed number of its pods had arrived before the first, and fades like them. Without a file, a small
built-in prior is used for the first few pods.

Take the shapes of pods as they arrive, and return a Workload. A new Workload means that all nodes are scored again. So a change
is considered only when the number of pods has doubled, later after fixed numbers of pods, and made only if the workload
differs.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Self

from central.ledger.load import Turnover
from central.rank.workload import MOST_KINDS, ExpectedWorkload, PodKind, kind_of, workload_of
from central.request.model import Shape
from lading.vocabulary import PodUid

HALF_LIFE: Final = 4000  # number of later pods after which a pod counts half
PRIOR_PODS: Final = 200.0  # number of pods that a prior from a file counts for
FIRST_PODS: Final = 5.0  # number of pods that the built-in prior counts for
FIRST_UPDATE: Final = 25  # learned pods until the first new workload; then twice as many each time
UPDATE_PODS: Final = 2000  # maximum number of pods between two new workloads
MIN_CHANGE: Final = (
    0.1  # minimum changed part of the pods, or of their requests: a smaller change is not worth a new score of all nodes
)
REMEMBERED: Final = 65_536  # maximum cached UIDs of counted pods: a waiting pod is evaluated again and again
_HEAVIEST: Final = 1e12
TURNOVER_HALF_LIFE: Final = 700  # number of later bound or ended pods after which a pod counts half
TURNOVER_PRIOR_PODS: Final = 50.0  # number of bound pods, and of ended pods, assumed before the first event
STEPS: Final = 4  # number of steps between the shares 0 and 1
_KEPT: Final = 0.5 ** (1 / TURNOVER_HALF_LIFE)
_AWAY: Final = 0.7  # minimum change, in steps, from the share in force to a new one
# The built-in prior, for no particular cluster: small pods are more frequent, and large ones need several free cards on a node.
OURS: Final[Mapping[PodKind, float]] = {
    PodKind(core_percent=25): 1.0,
    PodKind(core_percent=50): 1.0,
    PodKind(gpus=1): 4.0,
    PodKind(gpus=2): 1.0,
    PodKind(gpus=4): 1.0,
    PodKind(gpus=8): 1.0,
}


class Source(StrEnum):
    PRIOR = "prior"
    ONLINE = "online"
    BOTH = "both"


class TurnoverShare:
    """Estimate the turnover, from 0 (a cluster that is being filled, where no pod ends) to 1 (as many pods end as begin). Older
    pods count less: after TURNOVER_HALF_LIFE more events, a pod counts half. The share starts at 1, because clusters run for
    longer than they are filled. It has few values, because each new value means that all nodes are scored again."""

    def __init__(self, steps: int = STEPS, *, learns: bool = True) -> None:
        self.steps = steps  # the share in force, in steps of 1 / STEPS
        self._learns = learns
        self._observed: Turnover | None = None
        self._bound = self._ended = TURNOVER_PRIOR_PODS

    @property
    def share(self) -> float:
        return self.steps / STEPS

    def scan(self, now: Turnover) -> bool:
        """Update the estimate with the events since the last call. Return whether the share in force changed. Events before the
        first call, or of another ledger, are not in the estimate."""
        observed, self._observed = self._observed, now
        if not self._learns or observed is None or now == observed or now.bound < observed.bound or now.ended < observed.ended:
            return False
        bound, ended = now.bound - observed.bound, now.ended - observed.ended
        kept = _KEPT ** (bound + ended)
        self._bound, self._ended = self._bound * kept + bound, self._ended * kept + ended
        steps = STEPS * min(1.0, self._ended / self._bound) if self._bound else STEPS
        if abs(steps - self.steps) <= _AWAY:
            return False
        self.steps = round(steps)
        return True


class Forecast:
    def __init__(self, prior: Mapping[PodKind, float] | None = None, *, learns: bool = True) -> None:
        """Create a forecast. `prior` are weights by kind; None means the built-in ones. Without learning, the forecast keeps
        the prior."""
        self.learned = 0  # number of learned pods
        self.source = Source.PRIOR if not learns else Source.BOTH if prior else Source.ONLINE
        self._learns = learns
        self._prior = prior or OURS
        self._prior_pods = PRIOR_PODS if prior else FIRST_PODS
        self._observed: OrderedDict[PodUid, None] = OrderedDict()
        self._growth = 2.0 ** (1.0 / HALF_LIFE)
        self._weight = 1.0  # weight of the last pod; it grows with each pod, so that older ones count less
        self._weights: dict[PodKind, float] = {}
        self._recheck_at = FIRST_UPDATE
        self.workload = workload_of(self._prior)
        self.turnover = TurnoverShare()

    @classmethod
    def settled(cls, workload: ExpectedWorkload | None, turnover: int) -> Self:
        """Return a fixed forecast with the results of another one. A `workload` of None means the built-in one; `turnover` is
        in steps of TurnoverShare."""
        forecast = cls(learns=False)
        forecast.workload = workload or forecast.workload
        forecast.turnover = TurnoverShare(turnover, learns=False)
        return forecast

    def arrived(self, uid: PodUid, shape: Shape) -> bool:
        """Learn from an arrived pod, and return whether `workload` changed."""
        if not self._learns or uid in self._observed:
            return False
        self._observed[uid] = None
        if len(self._observed) > REMEMBERED:
            self._observed.popitem(last=False)
        self._learn(kind_of(shape))
        if self.learned < self._recheck_at:
            return False
        self._recheck_at = self.learned + min(self.learned, UPDATE_PODS)
        now = self._now()
        if _difference(self.workload, now) < MIN_CHANGE:
            return False
        self.workload = now
        return True

    def _learn(self, kind: PodKind) -> None:
        self.learned += 1
        self._weight *= self._growth
        self._prior_pods /= self._growth
        self._weights[kind] = self._weights.get(kind, 0.0) + self._weight
        if self._weight > _HEAVIEST or len(self._weights) > 2 * MOST_KINDS:
            kept = sorted(self._weights.items(), key=lambda one: -one[1])[:MOST_KINDS]
            self._weights = {kind: weight / self._weight for kind, weight in kept}
            self._weight = 1.0

    def _now(self) -> ExpectedWorkload:
        weights = {kind: weight / self._weight for kind, weight in self._weights.items()}
        whole = sum(self._prior.values())
        for kind, weight in self._prior.items():
            weights[kind] = weights.get(kind, 0.0) + weight / whole * self._prior_pods
        return workload_of(weights)


def _difference(one: ExpectedWorkload, other: ExpectedWorkload) -> float:
    """Return the part of the pods that differs in kind between the two workloads (total variation distance). If the differing
    part of their requested cards is higher, return that: a few pods of eight cards request more than many shares."""
    return max(_distance(one, other, lambda kind: 1.0), _distance(one, other, lambda kind: kind.cards))


def _distance(one: ExpectedWorkload, other: ExpectedWorkload, size: Callable[[PodKind], float]) -> float:
    had, has = ({kind: mass * size(kind) for kind, mass in workload.kinds} for workload in (one, other))
    all_had, all_has = sum(had.values()) or 1.0, sum(has.values()) or 1.0
    return sum(abs(had.get(kind, 0.0) / all_had - has.get(kind, 0.0) / all_has) for kind in had.keys() | has.keys()) / 2
