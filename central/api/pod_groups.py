"""Read the objects that define how many pods of a gang start together: PodGroups of three API groups, and Workloads.

A cluster may have none, one or several of these four kinds. Each object becomes the settings of one gang or, for Koordinator's
groups of gangs, of one role. Keys are camelCase on the wire, and unknown keys are ignored.

Source: kubernetes-sigs/scheduler-plugins and koordinator.sh apis, scheduling/v1alpha1; k8s.io/api scheduling/v1alpha1 (1.35)
and v1alpha2 (1.36).

Tests: tests/unit/central/gang/test_dialects.py
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from central.request.gang import (
    MAX_MIN,
    NO_ROLES,
    GangDialect,
    GangKey,
    ObjectKey,
    Terms,
    group_key,
    koordinator_terms,
    parse_group,
)
from central.request.model import MalformedRequest
from lading.kube.objects import AnnotatedMetadata, Wire
from lading.kube.resource import Resource


class GangPolicy(Wire, frozen=True):
    min_count: int = 0


class SchedulingPolicy(Wire, frozen=True):
    """Hold the policy of a native PodGroup. Without `gang` its pods are scheduled one by one."""

    gang: GangPolicy | None = None


class TopologyConstraint(Wire, frozen=True):
    key: str = ""


class SchedulingConstraints(Wire, frozen=True):
    topology: tuple[TopologyConstraint, ...] = ()


class GroupOfWorkload(Wire, frozen=True):
    name: str = ""
    policy: SchedulingPolicy = SchedulingPolicy()


class GangSpec(Wire, frozen=True):
    """Hold the fields of all four kinds."""

    min_member: int = 0
    schedule_timeout_seconds: int | None = None
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    pod_groups: tuple[GroupOfWorkload, ...] = ()


class PodGroup(Wire, frozen=True):
    metadata: AnnotatedMetadata
    spec: GangSpec = GangSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class GangObject:
    """Hold the settings of a gang, or of a role, from one object."""

    key: ObjectKey
    gang: GangKey | None = None  # None: the gang that the pod names
    role: str = ""
    roles: tuple[str, ...] = ("",)
    terms: Terms = field(default_factory=Terms)
    wrong: str = ""  # the error in the object; empty: valid


class GangKind(NamedTuple):
    resource: Resource
    read: Callable[[PodGroup], Iterator[GangObject]]


def _read_coscheduling(group: PodGroup) -> Iterator[GangObject]:
    metadata, spec = group.metadata, group.spec
    terms = Terms(least=_least("", spec.min_member), wait_s=spec.schedule_timeout_seconds or None)
    yield GangObject(key=ObjectKey(GangDialect.COSCHEDULING, metadata.namespace, metadata.name), terms=terms)


def _read_koordinator(group: PodGroup) -> Iterator[GangObject]:
    metadata, spec = group.metadata, group.spec
    key = ObjectKey(GangDialect.KOORDINATOR, metadata.namespace, metadata.name)
    listed = parse_group(metadata.namespace, metadata.name, metadata.annotations)
    if isinstance(listed, MalformedRequest):
        yield GangObject(key=key, wrong=f"PodGroup {metadata.name}: {listed.message}")
        return
    role, roles = listed
    terms = koordinator_terms(metadata.annotations, _least(role, spec.min_member))
    if spec.schedule_timeout_seconds:
        terms = replace(terms, wait_s=float(spec.schedule_timeout_seconds))
    yield GangObject(key=key, gang=group_key(roles), role=role, roles=roles, terms=terms)


def _read_native(group: PodGroup) -> Iterator[GangObject]:
    metadata, spec = group.metadata, group.spec
    topology = next((constraint.key for constraint in spec.scheduling_constraints.topology), "")
    terms = Terms(least=_least_of(spec.scheduling_policy), required_topology=topology)
    yield GangObject(key=ObjectKey(GangDialect.KUBERNETES, metadata.namespace, metadata.name), terms=terms)


def _read_workload(workload: PodGroup) -> Iterator[GangObject]:
    metadata = workload.metadata
    for group in workload.spec.pod_groups:
        key = ObjectKey(GangDialect.KUBERNETES, metadata.namespace, f"{metadata.name}/{group.name}")
        yield GangObject(key=key, terms=Terms(least=_least_of(group.policy)))


GANG_KINDS: Final[Sequence[GangKind]] = (
    GangKind(Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups"), _read_coscheduling),
    GangKind(Resource("scheduling.sigs.k8s.io", "v1alpha1", "podgroups"), _read_koordinator),
    GangKind(Resource("scheduling.k8s.io", "v1alpha2", "podgroups"), _read_native),
    GangKind(Resource("scheduling.k8s.io", "v1alpha1", "workloads"), _read_workload),
)


def _least_of(policy: SchedulingPolicy | None) -> dict[str, int]:
    return _least("", policy.gang.min_count if policy is not None and policy.gang is not None else 0)


def _least(role: str, count: int) -> dict[str, int]:
    """Return the minimum by role; empty for pods that are scheduled one by one."""
    return {role: min(count, MAX_MIN)} if count > 0 else dict(NO_ROLES)
