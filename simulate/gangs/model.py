"""Define the jobs, rules and results of a replay with gangs, as values.

Tests: tests/unit/simulate/gangs/test_replay.py
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from simulate.trace import TracePod


class Rules(StrEnum):
    """Name the rules of starting gangs (simulate/gangs/rules.py and central.py)."""

    LADING = "lading"
    GREEDY = "greedy"
    KOORDINATOR = "koordinator"
    KUEUE = "kueue"


class Job(NamedTuple):
    """Represent equal pods that start and end together, or one single pod. Times are in seconds."""

    number: int  # number in the order of arrival, from 1
    at: float
    kind: int  # number of the pods' kind in the replay
    pod: TracePod
    members: int
    runs: float
    tenant: str

    @property
    def milli(self) -> int:
        """Return the requested milli of cards of all pods of the job."""
        return self.members * self.pod.milli

    @property
    def label(self) -> str:
        """Return the class of jobs under which waits are reported."""
        if self.members > 1:
            return f"gangs of {self.members}"
        return "pods alone" if self.pod.gpus else "cpu only"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStay:
    """Hold the figures of one replay, without its warm-up. Percentages of the GPUs are means over time."""

    rules: Rules
    seed: int
    running: float  # percent of the GPUs that running jobs hold
    idle: float  # percent of the GPUs that pods of incomplete gangs hold
    queued: float  # percent of the GPUs that waiting jobs request
    waits: Mapping[str, tuple[float, ...]]  # minutes until all pods were placed, by class of job
    had: Mapping[str, float]  # percent of the GPUs that running jobs hold, by tenant
    wanted: Mapping[str, float]  # percent that the jobs would have held without waits, by tenant
    given_back: int  # number of times that an incomplete gang released its devices after a timeout

    @property
    def served(self) -> Mapping[str, float]:
        """Return the part of its wanted GPUs that each tenant had."""
        return {tenant: self.had[tenant] / wanted for tenant, wanted in self.wanted.items() if wanted}

    @property
    def of_due(self) -> Mapping[str, float]:
        """Return the part of its fair share of all held GPUs that each tenant had."""
        due = divide_fairly(sum(self.had.values()), self.wanted)
        return {tenant: self.had[tenant] / amount for tenant, amount in due.items() if amount}

    @property
    def spread(self) -> float:
        return _most_by_least(self.served.values())

    @property
    def unfairness(self) -> float:
        """Return the ratio of the best treated tenant's part of its fair share to the worst treated one's: 1 is fair."""
        return _most_by_least(self.of_due.values())


def divide_fairly(total: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """Return equal parts of the total, but to no tenant more than it wants: the remainder is divided among the others."""
    parts: dict[str, float] = {}
    for number, tenant in enumerate(sorted(wanted, key=lambda tenant: wanted[tenant])):
        parts[tenant] = min(wanted[tenant], (total - sum(parts.values())) / (len(wanted) - number))
    return parts


def _most_by_least(parts: Collection[float]) -> float:
    least = min(parts)
    return max(parts) / least if least else float("inf")
