"""Count what central did since the process began, over all its terms: plain numbers, which metrics read at each scrape."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from central.loop.faults import Work
from central.request.reasons import Coded


class BindOutcome(StrEnum):
    """Say how a Binding ended."""

    BOUND = "bound"
    REFUSED = "refused"
    UNCLEAR = "unclear"  # not known; later it counts once more, as one of the other outcomes
    FOUND_BOUND = "found-bound"
    FOUND_NOT_BOUND = "found-not-bound"


class EvictOutcome(StrEnum):
    """Say how the API server answered an eviction."""

    EVICTED = "evicted"
    SPARED = "spared"  # by a disruption budget
    UNCLEAR = "unclear"  # or refused otherwise; it is asked for again


@dataclass(slots=True, kw_only=True)
class Counts:
    refused: Counter[Coded] = field(default_factory=Counter)  # answers to filter that name no node, by what is true of most
    bound: Counter[BindOutcome] = field(default_factory=Counter)
    evicted: Counter[tuple[str, EvictOutcome]] = field(default_factory=Counter)  # by the Event's reason
    nominated: int = 0  # plans of preemption that were begun
    woken: int = 0
    exceptions: Counter[Work] = field(default_factory=Counter)  # about one object each, which was set aside
