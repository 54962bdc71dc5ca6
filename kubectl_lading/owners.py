"""The owner of a pod, and whether the pod leaves its node at all. Pure.

A pod of a DaemonSet that is deleted is made again for the same node; a static pod is its kubelet's own, and its object in the
API server (the mirror pod) only shows it. So their end frees no capacity.

Source: k8s.io/apimachinery metav1.OwnerReference; "Create static Pods": the annotation kubernetes.io/config.mirror.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from central.ask import pod as ask

MIRROR: Final = "kubernetes.io/config.mirror"
_BOUND_TO_ITS_NODE: Final = frozenset({"DaemonSet", "Node"})


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    controller: bool = False


class Metadata(ask.Metadata, frozen=True, kw_only=True):
    owner_references: tuple[Owner, ...] = ()


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""


class Spec(ask.Spec, frozen=True, kw_only=True):
    scheduling_gates: tuple[Gate, ...] = ()


class Pod(ask.Pod, frozen=True, kw_only=True):
    """A pod as central reads it, its owner, and what keeps schedulers from it."""

    metadata: Metadata
    spec: Spec = Spec()


def controller_of(owners: Iterable[Owner]) -> Owner | None:
    return next((owner for owner in owners if owner.controller), None)


def why_bound_to_its_node(annotations: Mapping[str, str], owners: Iterable[Owner]) -> str:
    """Return why the pod is bound to its node; empty for a pod that can run on any node."""
    owner = controller_of(owners)
    if MIRROR in annotations:
        return "it is a static pod of its node"
    return f"it belongs to {owner.kind} {owner.name}" if owner is not None and owner.kind in _BOUND_TO_ITS_NODE else ""


def stays(pod: Pod) -> bool:
    return bool(why_bound_to_its_node(pod.metadata.annotations, pod.metadata.owner_references))
