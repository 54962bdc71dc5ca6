"""Describe the answer to kube-scheduler's filter call, and what the answer changes in central's state.

`Scheduler.decide` returns a `Decision` and changes nothing. `Scheduler.apply` carries out its effect.

Tests: tests/unit/central/decide/test_scheduler.py
"""

from collections.abc import Sequence
from dataclasses import dataclass

from central.decide.filtered import Filtered
from central.decide.yielding import Yielding
from central.gang.answers import MemberCall, PlannedNode, Refused
from central.ledger.model import PodLoad
from central.quota.checks import QuotaRefusal
from central.state.pending import Pending
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Stop to wait for the pod, and end its prediction: the pod has ended, or its request is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distrust:
    """Requeue the pod if it turns out not to be bound: kube-scheduler did not name the node to which the pod is bound."""

    pod: Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Record that the pod, which requests no devices, waits for nothing."""

    pod: Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDevices:
    """Hold the pod's devices on the node for a moment, after the claims in `ending` have ended."""

    pod: Pending
    node: str
    ending: Sequence[Yielding] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Record that the pod fits on no node. `undecided`: some nodes were not judged."""

    pod: Pending
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseByQuota:
    """Record that the pod waits for its quota."""

    pod: Pending
    refusal: QuotaRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMember:
    """Record a call about a gang member, and its answer."""

    pod: Pending
    call: MemberCall
    answer: PlannedNode | Refused


PodEffect = Accept | HoldDevices | Refuse | RefuseByQuota | AnswerMember  # only for a pod that still waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Hold the answer to filter, and its effect. No other decision is made before `Scheduler.apply` has this one."""

    uid: PodUid
    answer: Filtered
    effect: Drop | Distrust | PodEffect | None = None  # None: nothing changes
    incomplete: bool = False  # some nodes were not judged, and are judged for this request later


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Hold the answer to prioritize, and its effect: the cpu and memory that the pod is expected to use there for a moment."""

    node: str | None = None  # None: central prefers no node
    load: PodLoad | None = None  # None: nothing changes
