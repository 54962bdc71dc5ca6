"""Describe quotas to people: guaranteed, used, borrowed, lent and waiting amounts.

The result is a row for each quota, parents before their children, with the amounts of each resource that the quota limits:
cards and cores with fractions, VFs, MiB.

Tests: tests/unit/kubectl_lading/where/test_quota.py
"""

from collections.abc import Iterator

import msgspec

from central.quota.amounts import CARD, is_cards
from central.quota.model import FLAT, ROOT, Quota, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.runtime import least_requested
from central.request.cpu_memory import CPU
from central.state.quotas import Quotas


class QuotaAmount(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    min: float  # guaranteed
    max: float
    runtime: float  # amount that the quota may use now
    used: float  # amount held by pods, or planned for them
    borrowed: float  # used amount beyond the guarantee
    lent: float  # guaranteed amount that no pod requests
    waiting: float  # requested amount that is not used


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    quota: str  # name of Koordinator's quota; namespace/name of scheduler-plugins' quota
    kind: str  # the API group
    namespace: str  # namespace of the ElasticQuota object
    parent: str = ""  # name of the parent quota; empty: none
    level: int = 0  # 0: without a parent
    problem: str = ""  # reason why the quota is invalid, and its pods are refused
    uncounted: tuple[str, ...] = ()  # resources that Lading does not count
    amounts: tuple[QuotaAmount, ...] = ()


class QuotasView(msgspec.Struct, frozen=True, kw_only=True):
    quotas: tuple[QuotaView, ...] = ()
    totals: dict[str, float] = {}  # the cluster's amounts that its tree of quotas divides, by resource


def view_quotas(quotas: Quotas) -> QuotasView:
    """Return the view of all quotas; empty while no quotas are counted."""
    snapshot = quotas.snapshot()
    if snapshot is None:
        return QuotasView()
    by_id = {quota.id: quota for quota in quotas.quotas.values()}
    counted = [*_below(snapshot, ROOT), *_others(snapshot)]
    rows = [_view(snapshot, snapshot.tree.quotas[quota], level) for quota, level in counted]
    refused = [_refused(by_id.get(quota), quota, reason) for quota, reason in sorted(snapshot.tree.problems.items())]
    totals = snapshot.totals.get(ROOT, {})
    return QuotasView(quotas=(*rows, *refused), totals={key: _number(key, amount) for key, amount in sorted(totals.items())})


def _others(snapshot: QuotaSnapshot) -> Iterator[tuple[QuotaId, int]]:
    """Yield quotas that are in no group below the root, with their levels: quotas of namespaces, separate trees, and
    Koordinator's own quotas."""
    yield from _below(snapshot, FLAT)
    for quota in sorted(snapshot.tree.quotas.keys() - snapshot.tree.dividing):
        yield quota, 0
        yield from _below(snapshot, quota, 1)


def _below(snapshot: QuotaSnapshot, group: QuotaId, level: int = 0) -> Iterator[tuple[QuotaId, int]]:
    for member in snapshot.tree.groups.get(group, ()):
        yield member, level
        yield from _below(snapshot, member, level + 1)


def _view(snapshot: QuotaSnapshot, quota: Quota, level: int) -> QuotaView:
    keys = sorted(quota.max, key=lambda key: (not is_cards(key), key))
    return QuotaView(
        quota=quota.id,
        kind=quota.dialect.value,
        namespace=quota.namespace,
        parent=quota.parent if level else "",
        level=level,
        uncounted=quota.uncounted,
        amounts=tuple(_amount(snapshot, quota, key) for key in keys),
    )


def _refused(quota: Quota | None, name: QuotaId, reason: str) -> QuotaView:
    kind, namespace = (quota.dialect.value, quota.namespace) if quota is not None else ("", name.partition("/")[0])
    return QuotaView(quota=name, kind=kind, namespace=namespace, problem=reason)


def _amount(snapshot: QuotaSnapshot, quota: Quota, key: str) -> QuotaAmount:
    used, requested, least = snapshot.used_of(quota.id, key), snapshot.requested_of(quota.id, key), quota.min.get(key, 0)
    return QuotaAmount(
        resource=key,
        min=_number(key, least),
        max=_number(key, quota.max[key]),
        runtime=_number(key, snapshot.runtime_of(quota, key) or 0),
        used=_number(key, used),
        borrowed=_number(key, max(0, used - least)),
        lent=_number(key, max(0, least - max(used, least_requested(quota, key, requested)))),
        waiting=_number(key, max(0, requested - used)),
    )


def _number(key: str, amount: int) -> float:
    return amount / CARD if is_cards(key) or key == CPU else float(amount)
