"""What a replay is asked for and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from central.ask.model import Policy


class Baseline(StrEnum):
    RANDOM = "random"
    BEST_FIT = "best-fit"
    FGD = "fgd"


class Prior(StrEnum):
    """What the policy fragmentation knows of the pods that will come."""

    WORKLOAD = "workload"  # how often each kind comes, from the first pod on
    ONLINE = "online"  # what has come so far


AnyPolicy = Policy | Baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """In percent of the capacity."""

    asked: float  # by all pods that have arrived
    allocated: float
    fragments: float  # free, and of no use to typical pods (fragments.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    policy: AnyPolicy
    seed: int
    at_capacity: float  # percent allocated when arrivals had asked for 100 %; at the end where they never do
    at_end: float
    arrived: Mapping[str, int]  # by class of pod
    failed: Mapping[str, int]
    curve: tuple[Point, ...]
    decision_s: float  # of one pod, on average
    vf_allocation: float | None = None  # percent of the VFs, at the end; None if no pod requests one
