"""kube-scheduler's extender protocol as JSON (k8s.io/kube-scheduler/extender/v1, v1.36: no JSON tags, so keys are capitalised).

With `nodeCacheCapable` requests carry node names and no Node objects. Unknown keys are ignored.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from central.ask.pod import Pod


class ExtenderArgs(msgspec.Struct, frozen=True):
    """filter and prioritize."""

    Pod: Pod
    NodeNames: list[str] | None = None


class FilterResult(msgspec.Struct, frozen=True, omit_defaults=True):
    NodeNames: Sequence[str] = ()
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class BindArgs(msgspec.Struct, frozen=True):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class BindResult(msgspec.Struct, frozen=True, omit_defaults=True):
    Error: str = ""


class MetaPod(msgspec.Struct, frozen=True):
    UID: str


class MetaVictims(msgspec.Struct, frozen=True):
    Pods: list[MetaPod] | None = None  # Go's empty list may be null
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True):
    """With nodeCacheCapable, victims are named by uid only."""

    Pod: Pod
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None


class PreemptResult(msgspec.Struct, frozen=True):
    NodeNameToMetaVictims: dict[str, MetaVictims] = {}


MAX_SCORE: Final = 10  # MaxExtenderPriority


class HostPriority(msgspec.Struct, frozen=True):
    Host: str
    Score: int


def name_winner(winner: str | None) -> list[HostPriority]:
    """The answer to prioritize: one node named. kube-scheduler gives 0 to a node that is not in the list; to say so of 5,000
    would take longer than everything else."""
    return [] if winner is None else [HostPriority(Host=winner, Score=MAX_SCORE)]
