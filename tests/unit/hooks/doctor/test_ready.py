from hooks.daemon.readiness import decide_ready
from hooks.doctor.ready import MENDS
from hooks.node.bypass import Bypassed
from lading.vocabulary import ContainerId, PodUid


def test_every_condition_has_its_mend() -> None:
    bypassed = Bypassed(id=ContainerId("i"), container="c", pod=PodUid("u"), namespace="n", pod_name="p")
    conditions = decide_ready(
        inventory_age_s=float("inf"),
        inventory_interval_s=1,
        reconcile_age_s=float("inf"),
        reconcile_interval_s=1,
        ledger="full",
        socket="gone",
        bypassed=[bypassed],
        driver_files="gone",
        unwell=["GPU"],
        denied=["/x"],
        report_stale_s=1e6,
        report_failure="refused",
    )
    assert not any(condition.ok for condition in conditions)
    assert {condition.name for condition in conditions} == set(MENDS)
