"""Read ElasticQuota objects of both kinds, and render their status. Koordinator's have labels and annotations, and those of
scheduler-plugins only min and max.

An object that contradicts itself becomes a quota with a `problem` text. The pods of an unreadable quota are refused, because
they would be unlimited without it.

Source: Koordinator a7a1b76, apis/extension/elastic_quota.go, pkg/scheduler/plugins/elasticquota (controller.go);
scheduler-plugins 903da7d, apis/scheduling/v1alpha1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import msgspec

from central.quota.amounts import parse_amounts, render_amounts
from central.quota.model import BUILT_IN, FLAT, KOORDINATOR_PREFIX, ROOT, Amounts, Quota, QuotaDialect, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.runtime import least_requested
from central.request.pod import Amount
from lading.kube.objects import AnnotatedMetadata, Wire

PARENT: Final = f"{KOORDINATOR_PREFIX}parent"
IS_PARENT: Final = f"{KOORDINATOR_PREFIX}is-parent"
LENDS: Final = f"{KOORDINATOR_PREFIX}allow-lent-resource"
TREE: Final = f"{KOORDINATOR_PREFIX}tree-id"
IS_ROOT: Final = f"{KOORDINATOR_PREFIX}is-root"
SEPARATE_TREE: Final = f"{KOORDINATOR_PREFIX}ignore-default-tree"
WEIGHT: Final = f"{KOORDINATOR_PREFIX}shared-weight"
NAMESPACES: Final = f"{KOORDINATOR_PREFIX}namespaces"
TOTAL: Final = f"{KOORDINATOR_PREFIX}total-resource"
UNSCHEDULABLE: Final = f"{KOORDINATOR_PREFIX}unschedulable-resource"
_SHOWN: Final = 60

Read = TypeVar("Read")


class QuotaSpec(Wire, frozen=True):
    min: dict[str, Amount] | None = None
    max: dict[str, Amount] | None = None


class WireStatus(Wire, frozen=True):
    used: dict[str, Amount] | None = None


class ElasticQuota(Wire, frozen=True):
    """Hold the fields that both kinds of objects have in common."""

    metadata: AnnotatedMetadata
    spec: QuotaSpec = QuotaSpec()
    status: WireStatus = WireStatus()


class _ProblemError(Exception):
    """Report an unreadable object; its text becomes the quota's problem."""


def read_quota(dialect: QuotaDialect, obj: ElasticQuota) -> Quota:
    quota = _named(dialect, obj.metadata)
    try:
        quota = _with_amounts(quota, obj.spec)
        return quota if dialect is QuotaDialect.SCHEDULER_PLUGINS else _with_annotations(quota, obj.metadata)
    except _ProblemError as e:
        return replace(quota, problem=str(e))


def unreadable_quota(dialect: QuotaDialect, namespace: str, name: str, reason: str) -> Quota:
    """Return a quota with a problem, for an object that cannot be decoded."""
    return replace(
        _named(dialect, AnnotatedMetadata(namespace=namespace, name=name)), problem=f"its object cannot be read: {reason}"
    )


def _named(dialect: QuotaDialect, metadata: AnnotatedMetadata) -> Quota:
    flat = dialect is QuotaDialect.SCHEDULER_PLUGINS
    labels = metadata.labels
    return Quota(
        id=QuotaId(f"{metadata.namespace}/{metadata.name}" if flat else metadata.name),
        dialect=dialect,
        namespace=metadata.namespace,
        name=metadata.name,
        created=metadata.creation_timestamp or "",
        parent=FLAT if flat else QuotaId(labels.get(PARENT) or ROOT),
        lends=flat or labels.get(LENDS) != "false",
        is_parent=not flat and labels.get(IS_PARENT) == "true",
        tree="" if flat else labels.get(TREE, ""),
    )


def _with_amounts(quota: Quota, spec: QuotaSpec) -> Quota:
    least, uncounted = _amounts("spec.min", spec.min or {})
    most, uncounted_too = _amounts("spec.max", spec.max or {})
    return replace(quota, min=least, max=most, uncounted=tuple(sorted({*uncounted, *uncounted_too})))


def _with_annotations(quota: Quota, metadata: AnnotatedMetadata) -> Quota:
    annotations = metadata.annotations
    weights, _ = _amounts(WEIGHT, _json(annotations, WEIGHT, dict[str, Amount], {}))
    namespaces = tuple(_json(annotations, NAMESPACES, list[str], []))
    total = _total(annotations) if metadata.labels.get(IS_ROOT) == "true" and quota.id not in BUILT_IN else None
    separate = metadata.labels.get(SEPARATE_TREE) == "true"
    return replace(quota, weights=weights, namespaces=namespaces, total=total, separate=separate)


def _total(annotations: Mapping[str, str]) -> Amounts:
    """Return the amounts that the tree below this quota divides. Raise _ProblemError."""
    if TOTAL not in annotations:
        raise _ProblemError(f"it is the root of a tree, and {TOTAL} does not say what the tree divides")
    total, _ = _amounts(TOTAL, _json(annotations, TOTAL, dict[str, Amount], {}))
    out_of_use, _ = _amounts(UNSCHEDULABLE, _json(annotations, UNSCHEDULABLE, dict[str, Amount], {}))
    return {key: max(0, amount - out_of_use.get(key, 0)) for key, amount in total.items()}


def _amounts(where: str, written: Mapping[str, Amount]) -> tuple[Amounts, tuple[str, ...]]:
    read = parse_amounts(written)
    if isinstance(read, str):
        raise _ProblemError(f"cannot use {where}: {read}")
    return read


def _json(annotations: Mapping[str, str], key: str, kind: type[Read], absent: Read) -> Read:
    if not (text := annotations.get(key, "")):
        return absent
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        raise _ProblemError(f"cannot use {key}: it is {text[:_SHOWN]!r}, and has to be JSON: {e}") from e


# ---- the status, in the keys that each system's own scheduler writes
RUNTIME: Final = f"{KOORDINATOR_PREFIX}runtime"
REQUEST: Final = f"{KOORDINATOR_PREFIX}request"
CHILD_REQUEST: Final = f"{KOORDINATOR_PREFIX}child-request"
FIXED: Final = f"{KOORDINATOR_PREFIX}non-preemptible-used"
WRITTEN: Final = (RUNTIME, REQUEST, CHILD_REQUEST, FIXED)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStatus:
    """Hold the status of one object, for the resources that Lading counts and that the quota limits. Koordinator: annotations
    with lists of resources as JSON, and `status.used`. scheduler-plugins: `status.used` only."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    used: Mapping[str, str] = field(default_factory=dict)


NO_STATUS: Final = QuotaStatus()


def read_status(obj: ElasticQuota) -> QuotaStatus:
    """Return the status in an object, whichever scheduler wrote it."""
    annotations = {key: value for key, value in obj.metadata.annotations.items() if key in WRITTEN}
    return QuotaStatus(annotations=annotations, used={key: str(value) for key, value in (obj.status.used or {}).items()})


def render_status(snapshot: QuotaSnapshot, quota: Quota) -> QuotaStatus:
    keys = sorted(quota.max)
    used = render_amounts({key: snapshot.used_of(quota.id, key) for key in keys})
    if quota.flat:
        return QuotaStatus(used=used)
    requested = {key: snapshot.requested_of(quota.id, key) for key in keys}
    amounts = {
        RUNTIME: {key: snapshot.runtime_of(quota, key) or 0 for key in keys},
        REQUEST: {key: least_requested(quota, key, amount) for key, amount in requested.items()},
        CHILD_REQUEST: requested,
        FIXED: {key: snapshot.fixed_of(quota.id, key) for key in keys},
    }
    annotations = {name: msgspec.json.encode(render_amounts(of)).decode() for name, of in amounts.items()}
    return QuotaStatus(annotations=annotations, used=used)
