"""The requests and the answers of a replay, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from central.request.model import Policy


class Baseline(StrEnum):
    RANDOM = "random"
    FIRST_FIT = "first-fit"
    BEST_FIT = "best-fit"
    DOT_PRODUCT = "dot-product"
    FGD = "fgd"


class Prior(StrEnum):
    """The knowledge that the policy fragmentation has of the pods that will come."""

    WORKLOAD = "workload"  # how often each kind comes, and whether pods end, from the first pod on
    ONLINE = "online"  # what has come and ended so far
    OTHER = "other"  # at first how often each kind of another workload comes, then more and more what has come and ended


AnyPolicy = Policy | Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a run, in percent of the capacity."""

    asked: float  # by all pods that have arrived
    allocated: float
    fragments: float  # free, and of no use to typical pods (fragments.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    policy: AnyPolicy
    seed: int
    at_end: float  # percent allocated
    arrived: Mapping[str, int]  # by class of pod
    failed: Mapping[str, int]
    curve: tuple[Point, ...]  # one for each percent that was asked for
    decision_s: float  # of one pod, on average
    vf_allocation: float | None = None  # percent of the VFs, at the end; None if no pod requests one

    def at(self, asked: int) -> float:
        """Return the percentage allocated when arrivals had asked for so many percent; at the end where they never do."""
        return self.curve[asked].allocated if asked < len(self.curve) else self.at_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of a curve over time: percentages of the capacity, at a time in units."""

    at: float
    allocated: float
    queued: float  # what waiting pods ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """The figures of one replay with departures, without its warm-up."""

    policy: AnyPolicy
    seed: int
    allocated: float  # percent of the GPUs, mean over time
    queued: float  # the same of what waiting pods ask for
    waits: Mapping[str, tuple[float, ...]]  # units that pods waited, by class of pod
    curve: tuple[Moment, ...]
    evicted: int = 0  # pods, for others of higher priority
