"""Define the policies, priors and results of a replay, as values.

Tests: tests/unit/simulate/test_report.py
"""

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
    """Name the initial knowledge of the policy fragmentation about the pods that will arrive."""

    WORKLOAD = "workload"  # the frequency of each kind, and whether pods end, are known from the first pod on
    ONLINE = "online"  # only the pods that have arrived and ended so far
    OTHER = "other"  # at first the frequencies of another workload, then more and more as with ONLINE


AnyPolicy = Policy | Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Represent a point of a run's curve, in percent of the capacity."""

    requested: float  # requested by all pods that have arrived
    allocated: float
    fragments: float  # free GPU capacity that typical pods cannot use (fragments.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    policy: AnyPolicy
    seed: int
    at_end: float  # percent allocated
    arrived: Mapping[str, int]  # number of pods, by class of pod
    failed: Mapping[str, int]
    curve: tuple[Point, ...]  # one point for each requested percent
    decision_s: float  # mean seconds for the decision about one pod
    vf_allocation: float | None = None  # percent of the VFs, at the end; None if no pod requests one

    def at(self, requested: int) -> float:
        """Return the percentage allocated when arrived pods had requested so many percent; if they never do, the percentage at
        the end."""
        return self.curve[requested].allocated if requested < len(self.curve) else self.at_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Represent a point of a curve over time: percentages of the capacity, at a time in units."""

    at: float
    allocated: float
    queued: float  # requested by waiting pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Hold the figures of one replay with departures, without its warm-up."""

    policy: AnyPolicy
    seed: int
    allocated: float  # percent of the GPUs, mean over time
    queued: float  # percent of the GPUs that waiting pods request, mean over time
    waits: Mapping[str, tuple[float, ...]]  # units that pods waited, by class of pod
    curve: tuple[Moment, ...]
    evicted: int = 0  # number of pods evicted for pods of higher priority
