"""Render the status of quotas for ElasticQuota objects, in the keys that each system's own scheduler writes.

Koordinator: annotations with lists of resources as JSON, and `status.used`. scheduler-plugins: `status.used`. The status has
only resources that Lading counts and that the quota limits.

Source: Koordinator a7a1b76, apis/extension/elastic_quota.go, pkg/scheduler/plugins/elasticquota (controller.go).

Tests: tests/unit/central/controllers/test_quota_status.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from central.quota.amounts import render_amounts
from central.quota.model import KOORDINATOR_PREFIX, Amounts, Quota
from central.quota.objects import ElasticQuota
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.runtime import least_requested

RUNTIME: Final = f"{KOORDINATOR_PREFIX}runtime"
REQUEST: Final = f"{KOORDINATOR_PREFIX}request"
CHILD_REQUEST: Final = f"{KOORDINATOR_PREFIX}child-request"
FIXED: Final = f"{KOORDINATOR_PREFIX}non-preemptible-used"
WRITTEN: Final = (RUNTIME, REQUEST, CHILD_REQUEST, FIXED)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStatus:
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
    return QuotaStatus(annotations={name: _json(of) for name, of in amounts.items()}, used=used)


def _json(amounts: Amounts) -> str:
    return msgspec.json.encode(render_amounts(amounts)).decode()
