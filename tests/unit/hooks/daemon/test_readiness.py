from typing import Any

import pytest

from hooks.daemon.readiness import decide_ready
from hooks.node.bypass import Bypassed
from lading.vocabulary import ContainerId, PodUid

NEVER = float("inf")
READY: dict[str, Any] = {
    "inventory_age_s": 9.0,
    "inventory_interval_s": 10.0,
    "reconcile_age_s": 59.0,
    "reconcile_interval_s": 60.0,
    "ledger": "",
    "socket": "",
    "bypassed": (),
}


def bypassed(name: str) -> Bypassed:
    return Bypassed(id=ContainerId("c"), container="train", pod=PodUid("u"), namespace="ns", pod_name=name)


def failed(**changed: Any) -> dict[str, str]:
    return {c.name: c.why for c in decide_ready(**{**READY, **changed}) if not c.ok}


def test_ready() -> None:
    assert failed() == {}
    names = [c.name for c in decide_ready(**READY) if c.required]
    assert names == ["inventory", "reconciled", "ledger", "socket", "no-bypass", "driver-files"]


@pytest.mark.parametrize(
    ("changed", "name", "named"),
    [
        ({"inventory_age_s": NEVER}, "inventory", "never"),
        ({"inventory_age_s": 61.0}, "inventory", "61"),
        ({"reconcile_age_s": NEVER}, "reconciled", "never"),
        ({"reconcile_age_s": 211.0}, "reconciled", "211"),
        ({"ledger": "disk full"}, "ledger", "disk full"),
        ({"socket": "/x.sock is gone"}, "socket", "/x.sock"),
        ({"front_ends": {"nri": "cannot connect", "other": ""}}, "nri", "cannot connect"),
        ({"bypassed": [bypassed("p")]}, "no-bypass", "ns/p/train"),
        ({"driver_files": "no libcuda.so.1"}, "driver-files", "libcuda"),
        ({"cdi": "containerd 1.6 ignores CDI devices"}, "cdi", "1.6"),
        ({"denied": ["/root/k (kubeconfig)"]}, "files", "/root/k"),
    ],
)
def test_one_thing_is_wrong(changed: dict[str, Any], name: str, named: str) -> None:
    problems = failed(**changed)
    assert list(problems) == [name]
    assert named in problems[name]


def test_cdi_is_a_condition_where_cards_are_given_by_it() -> None:
    assert failed(cdi="") == {}
    assert "cdi" in [c.name for c in decide_ready(**READY, cdi="")]


def test_a_report_that_does_not_arrive_is_shown_and_not_required() -> None:
    (*others, reported) = decide_ready(**READY, report_stale_s=61.0, report_failure="connection refused")
    assert [c.name for c in others] == [c.name for c in decide_ready(**READY)]
    assert (reported.name, reported.ok, reported.required) == ("reported", False, False)
    assert "connection refused" in reported.why
    assert decide_ready(**READY, report_stale_s=59.0, report_failure="connection refused")[-1].ok
    assert decide_ready(**READY, report_stale_s=0.0)[-1].ok


def test_a_device_that_became_unhealthy_under_a_container_is_shown_and_not_required() -> None:
    (*_, held, _) = decide_ready(**READY, unhealthy=["0000:3b:00.2, of ns/p/train: no driver is bound to it"])
    assert (held.name, held.ok, held.required) == ("held-devices", False, False)
    assert "ns/p/train" in held.why
    assert decide_ready(**READY)[-1].ok


def test_many_bypassed_containers_are_counted_not_listed() -> None:
    reason = failed(bypassed=[bypassed(f"p{i}") for i in range(500)])["no-bypass"]
    assert "497" in reason
    assert "p3" not in reason
