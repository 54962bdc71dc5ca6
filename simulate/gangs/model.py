"""The requests and the answers of a replay with gangs, as values."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from simulate.trace import TracePod


class Rules(StrEnum):
    """The ways of starting gangs; simulate/gangs/rules.py and central.py."""

    LADING = "lading"
    GREEDY = "greedy"
    KOORDINATOR = "koordinator"
    KUEUE = "kueue"


class Job(NamedTuple):
    """Equal pods that start and end together; one pod alone is a job too. Times in seconds."""

    number: int  # in the order of arrival, from 1
    at: float
    kind: int  # of its pods, by their number in the replay
    pod: TracePod
    members: int
    runs: float
    tenant: str

    @property
    def milli(self) -> int:
        """Return the milli of cards of all its pods."""
        return self.members * self.pod.milli

    @property
    def label(self) -> str:
        """Return the class of jobs under which waits are reported."""
        if self.members > 1:
            return f"gangs of {self.members}"
        return "pods alone" if self.pod.gpus else "cpu only"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStay:
    """The figures of one replay, without its warm-up. Percentages of the GPUs are means over time."""

    rules: Rules
    seed: int
    running: float  # percent of the GPUs, of jobs of which all pods are placed
    idle: float  # percent, held by pods whose gang is not whole
    queued: float  # percent, that jobs ask for which do not run
    waits: Mapping[str, tuple[float, ...]]  # minutes until all pods were placed, by class of job
    had: Mapping[str, float]  # percent of the GPUs, of jobs that run, by tenant
    wanted: Mapping[str, float]  # what its jobs would have had without waits
    given_back: int  # how often a gang gave back what it held, because it was not whole in time

    @property
    def served(self) -> Mapping[str, float]:
        """Return what each tenant had, as a part of what it wanted."""
        return {tenant: self.had[tenant] / wanted for tenant, wanted in self.wanted.items() if wanted}

    @property
    def of_due(self) -> Mapping[str, float]:
        """Return what each tenant had, as a part of what it would have had if all that tenants had were divided fairly."""
        due = divide_fairly(sum(self.had.values()), self.wanted)
        return {tenant: self.had[tenant] / amount for tenant, amount in due.items() if amount}

    @property
    def spread(self) -> float:
        return _most_by_least(self.served.values())

    @property
    def unfairness(self) -> float:
        """Return by how much the best treated tenant is treated better than the worst: 1 is fair."""
        return _most_by_least(self.of_due.values())


def divide_fairly(total: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """Return equal parts, but to no tenant more than it wants: what is left by those is divided among the others."""
    parts: dict[str, float] = {}
    for number, tenant in enumerate(sorted(wanted, key=lambda tenant: wanted[tenant])):
        parts[tenant] = min(wanted[tenant], (total - sum(parts.values())) / (len(wanted) - number))
    return parts


def _most_by_least(parts: Collection[float]) -> float:
    least = min(parts)
    return max(parts) / least if least else float("inf")
