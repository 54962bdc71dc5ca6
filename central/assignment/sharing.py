"""Decide which pods may share a card: the rules of share-affinity, share-anti-affinity and share-exclusion.

Take the labels of pods, each a sorted tuple of Sharing. The tuple is empty for a pod without labels; it has several values if
the pod's claims differ, and all of them apply. Return whether two pods may be on one card, and the affinity groups of pods.

Anti-affinity and exclusion are rules between two pods, in both directions. A pod without an exclusion label shares a card only
with pods without such a label. Affinity concerns all cards of the cluster, and is checked in ledger/groups.py.

Source: KubeShare (HPDC'20), algorithm 1, and pkg/scheduler/filters.go of its v1. KubeShare's labels apply in the cluster,
Lading's in a namespace.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from central.request.model import Sharing

Labels = tuple[Sharing, ...]
Claimed = TypeVar("Claimed", Sharing, str)
UNLABELLED: Labels = ()


class AffinityGroup(NamedTuple):
    """Identify the pods of one namespace with one affinity label."""

    namespace: str
    affinity: str


def groups_of(labels: Iterable[Sharing]) -> tuple[AffinityGroup, ...]:
    return tuple(AffinityGroup(one.namespace, one.affinity) for one in labels if one.affinity)


def together(one: Labels, other: Labels) -> bool:
    """Return whether shares of two different pods with these labels may be on one card."""
    return _exclusions(one) == _exclusions(other) and not _anti_affinities(one) & _anti_affinities(other)


def union(one: tuple[Claimed, ...], other: tuple[Claimed, ...]) -> tuple[Claimed, ...]:
    """Return the sorted values of both claims on a share, without duplicates."""
    if one == other or not other:
        return one
    return tuple(sorted(set(one).union(other)))


def _exclusions(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset((one.namespace, one.exclusion) for one in labels if one.exclusion)


def _anti_affinities(labels: Labels) -> frozenset[tuple[str, str]]:
    return frozenset((one.namespace, one.anti_affinity) for one in labels if one.anti_affinity)
