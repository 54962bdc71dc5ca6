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
    """Remove the pod from the pending pods, and end its prediction: the pod has ended, or its request is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distrust:
    """Requeue the pod if it turns out not to be bound: kube-scheduler did not name the node to which the pod is bound."""

    pod: Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Record that the pod does not wait for devices, because it requests none."""

    pod: Pending


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldDevices:
    """End the claims in `ending`, then hold the pod's devices on the node for a moment."""

    pod: Pending
    node: str
    ending: Sequence[Yielding] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Record that no judged node has enough free devices for the pod. `undecided`: some nodes were not judged."""

    pod: Pending
    undecided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseByQuota:
    """Record that the pod waits until its quota allows its devices."""

    pod: Pending
    refusal: QuotaRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMember:
    """Record kube-scheduler's call about a gang member, and the answer to that call."""

    pod: Pending
    call: MemberCall
    answer: PlannedNode | Refused


PodEffect = Accept | HoldDevices | Refuse | RefuseByQuota | AnswerMember  # only for a pod that still waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Hold the answer to kube-scheduler's filter call, and the effect of the answer on central's state. `Scheduler.apply` must
    get this decision before the next decision is made."""

    uid: PodUid
    answer: Filtered
    effect: Drop | Distrust | PodEffect | None = None  # None: central's state stays as it is
    incomplete: bool = False  # some nodes were not judged, and will be judged for this request later


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Hold the preferred node for kube-scheduler's prioritize call. `load` is the effect: the cpu and memory that the pod is
    expected to use on that node for a moment."""

    node: str | None = None  # None: central prefers no node
    load: PodLoad | None = None  # expected cpu and memory; None: central's state stays as it is
