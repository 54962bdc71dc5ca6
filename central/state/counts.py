"""Count central's actions since the process began, over all of its leaderships. Metrics read the numbers at each scrape.

Tests: tests/unit/central/daemon/test_metrics.py
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from central.loop.faults import Work
from central.request.reasons import Coded


class BindOutcome(StrEnum):
    BOUND = "bound"
    REFUSED = "refused"
    UNCLEAR = "unclear"  # unknown; the Binding may count again later, as FOUND_BOUND or FOUND_NOT_BOUND
    FOUND_BOUND = "found-bound"
    FOUND_NOT_BOUND = "found-not-bound"


class EvictOutcome(StrEnum):
    """Represent the API server's answer to an eviction."""

    EVICTED = "evicted"
    SPARED = "spared"  # refused because of a disruption budget
    UNCLEAR = "unclear"  # unknown outcome or another refusal; the eviction is repeated


@dataclass(slots=True, kw_only=True)
class Counts:
    refused: Counter[Coded] = field(default_factory=Counter)  # answers to filter without a node, by the reason of most nodes
    bound: Counter[BindOutcome] = field(default_factory=Counter)
    evicted: Counter[tuple[str, EvictOutcome]] = field(default_factory=Counter)  # evictions by Event reason and outcome
    nominated: int = 0  # preemption plans that were started
    requeued: int = 0  # pods that were requeued
    exceptions: Counter[Work] = field(default_factory=Counter)  # each about one object, which was set aside
