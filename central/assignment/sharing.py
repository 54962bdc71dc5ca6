"""Decide which pods may share a card: the rules of share-affinity, share-anti-affinity and share-exclusion.

It takes the labels of pods, each a sorted tuple of Sharing: empty for a pod without labels, more than one value where its
claims differ in them (then all are in force). It returns whether two pods may be on one card, and the groups that must be.

Anti-affinity and exclusion are between two pods, and the same in both directions. A pod without an exclusion label is like one
with an empty label: it shares only with such pods. Affinity concerns all cards of the cluster, and is checked where they are
known (ledger/groups.py).

Source: KubeShare (HPDC'20), algorithm 1, and pkg/scheduler/filters.go of its v1; there labels are the cluster's, here the
namespace's.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from central.request.model import Sharing

Labels = tuple[Sharing, ...]
Claimed = TypeVar("Claimed", Sharing, str)
UNLABELLED: Labels = ()


class Group(NamedTuple):
    """Identify the pods of one namespace with one affinity label."""

    namespace: str
    affinity: str


def groups_of(labels: Iterable[Sharing]) -> tuple[Group, ...]:
    return tuple(Group(one.namespace, one.affinity) for one in labels if one.affinity)


def together(one: Labels, other: Labels) -> bool:
    """Return whether shares of two different pods with these labels may be on one card."""
    return _exclusions(one) == _exclusions(other) and not _anti_affinities(one) & _anti_affinities(other)


def union(one: tuple[Claimed, ...], other: tuple[Claimed, ...]) -> tuple[Claimed, ...]:
    """Return what either of two claims says of a share."""
    if one == other or not other:
        return one
    return tuple(sorted(set(one).union(other)))


def _exclusions(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset((one.namespace, one.exclusion) for one in labels if one.exclusion)


def _anti_affinities(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset((one.namespace, one.anti_affinity) for one in labels if one.anti_affinity)
