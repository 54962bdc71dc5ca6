"""Test which conditions a pod gets about its devices: about those that it holds, once for each change, and mostly none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from central.assignment.model import Part, Taken
from central.controllers.conditions import Conditions, HealthChange, concerns, decide_health_changes
from central.controllers.event_reasons import EventReason
from central.ledger.capacity import card_capacities, inventory_of, vf_capacities
from central.ledger.model import Claim, Held, Holder, NodeCapacity
from central.ledger.usage import Usage
from central.request.pod import DEVICES_HEALTHY, Condition, Pod, PodMetadata, PodSpec, Status
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import Gpu, MigInstance, NodeDevices, Pf, Vf
from lading.nodedevices import Status as NodeStatus
from lading.vocabulary import PodUid
from tests.fakes.capacities import gpu_bdf, gpu_uuid, pf_bdf, vf_bdf

LOST = "NVML: GPU is lost"


def gpu(number: int, unhealthy: str = "", *, mig: Sequence[str] = ()) -> Gpu:
    parts = tuple(MigInstance(uuid=uuid, gpu_instance=1, compute_instance=0, memory_mib=1024) for uuid in mig)
    return Gpu(uuid=gpu_uuid(number), bdf=gpu_bdf(number), model="m", memory_mib=4096, mig=parts, unhealthy=unhealthy)


def port(unhealthy: str = "", *, vfs: Mapping[int, str]) -> Pf:
    parts = tuple(Vf(bdf=vf_bdf(number), unhealthy=reason) for number, reason in vfs.items())
    return Pf(bdf=pf_bdf(0), unhealthy=unhealthy, vfs=parts)


def capacity(*devices: Gpu | Pf, reported: bool = True) -> NodeCapacity:
    gpus = tuple(one for one in devices if isinstance(one, Gpu))
    pfs = tuple(one for one in devices if isinstance(one, Pf))
    report = NodeDevices(metadata=AnnotatedMetadata(name="n1"), status=NodeStatus(gpus=gpus, pfs=pfs))
    inventory, usage = inventory_of(report), Usage()
    cards, vfs = card_capacities(inventory, usage, None, ()), vf_capacities(inventory, usage, None, ())
    return NodeCapacity(name="n1", version=1, cards=cards, vfs=vfs, reported=reported)


def taken(gpus: Sequence[int] = (), vfs: Sequence[int] = (), *, mig: str = "") -> Taken:
    part = Part(mig=frozenset({mig})) if mig else Part(whole=True)
    return Taken(gpus={gpu_uuid(number): part for number in gpus}, vfs=frozenset(map(vf_bdf, vfs)))


def held(what: Taken, claim: Claim = Claim.BOUND, *, name: str = "a") -> Held:
    holder = Holder(pod=PodUid(f"uid-{name}"), namespace="ns", name=name)
    return Held(holder=holder, claims={claim: what}, taken=what)


def words(there: NodeCapacity, *holders: Held, conditions: Conditions | None = None) -> list[HealthChange]:
    """Return the changes of conditions. Only pods with a concerned device are in them."""
    known = conditions or Conditions()
    result = list(decide_health_changes(there, holders, known))
    assert concerns(there, [(one.holder.pod, one.taken) for one in holders], known) >= bool(result)
    return result


def shown(status: str, message: str, *, version: int = 1, name: str = "a") -> Pod:
    conditions = (Condition(type=DEVICES_HEALTHY, status=status, message=message),) if status else ()
    metadata = PodMetadata(name=name, uid=PodUid(f"uid-{name}"), resource_version=str(version))
    return Pod(metadata=metadata, spec=PodSpec(node_name="n1"), status=Status(conditions=conditions))


def after(word: HealthChange) -> Conditions:
    """Give the pod this condition, as the API server shows it."""
    conditions = Conditions()
    rendered = word.render_condition("2026-11-21T00:00:00Z")
    conditions.show(shown(rendered["status"], rendered["message"]))
    return conditions


# Whom, of what


@pytest.mark.parametrize("claim", [Claim.BOUND, Claim.GRANTED])
def test_a_pod_is_notified_which_device_on_which_node_and_why(claim: Claim) -> None:
    (word,) = words(capacity(gpu(0), gpu(1, LOST)), held(taken([0, 1]), claim))
    assert (word.pod.name, word.reason, word.healthy, word.turned) == ("a", EventReason.DEVICE_UNHEALTHY, False, True)
    assert all(part in word.message for part in (gpu_uuid(1), gpu_bdf(1), "n1", LOST))
    assert gpu_uuid(0) not in word.message


def test_nothing_is_reported_to_who_holds_something_else_or_only_in_a_plan_of_centrals() -> None:
    there = capacity(gpu(0), gpu(1, LOST))
    plans = [held(taken([1]), claim) for claim in Claim if claim not in (Claim.BOUND, Claim.GRANTED)]
    assert words(there, held(taken([0])), *plans) == []
    assert words(there, held(Taken(gpus={}, vfs=frozenset()))) == []


def test_while_all_is_well_no_one_is_of_concern() -> None:
    there = capacity(gpu(0), gpu(1, LOST), port(vfs={0: "", 1: "no driver"}))
    assert not concerns(there, [(PodUid("uid-a"), taken([0], [0]))], Conditions())


def test_a_pf_takes_the_health_of_its_vfs_with_it() -> None:
    there = capacity(port("no active port", vfs={0: "", 1: ""}))
    (word,) = words(there, held(taken(vfs=[1])))
    assert all(part in word.message for part in (vf_bdf(1), pf_bdf(0), "no active port"))
    assert vf_bdf(0) not in word.message


def test_a_vf_is_ill_alone() -> None:
    there = capacity(port(vfs={0: "", 1: "no driver"}))
    (word,) = words(there, held(taken(vfs=[0]), name="a"), held(taken(vfs=[1]), name="b"))
    assert (word.pod.name, "no driver" in word.message, pf_bdf(0) in word.message) == ("b", True, False)


def test_a_held_device_that_the_node_does_not_report_is_unhealthy() -> None:
    there = capacity(gpu(0, mig=["MIG-a"]))
    (deleted,) = words(there, held(taken([1], [0])))
    assert gpu_uuid(1) in deleted.message
    assert vf_bdf(0) in deleted.message
    (instance,) = words(there, held(taken([0], mig="MIG-b")))
    assert "MIG-b" in instance.message
    assert words(there, held(taken([0], mig="MIG-a"))) == []


def test_a_card_that_is_lost_has_no_instances_and_is_named_itself() -> None:
    (word,) = words(capacity(gpu(0, LOST)), held(taken([0], mig="MIG-a")))
    assert gpu_uuid(0) in word.message
    assert "MIG-a" not in word.message


def test_a_node_without_a_report_gives_no_condition() -> None:
    assert words(capacity(reported=False), held(taken([0]))) == []


def test_a_line_stays_a_line() -> None:
    there = replace(capacity(*(gpu(number, "x" * 1024) for number in range(16))), name="n" * 253)
    (word,) = words(there, held(taken(range(16))))
    assert len(word.message) <= 1024  # an Event's


# Once


def test_the_same_is_not_reported_again_and_another_device_or_reason_is() -> None:
    (word,) = words(capacity(gpu(0, LOST), gpu(1)), held(taken([0, 1])))
    conditions = after(word)
    assert words(capacity(gpu(0, LOST), gpu(1)), held(taken([0, 1])), conditions=conditions) == []
    for changed in (capacity(gpu(0, LOST), gpu(1, LOST)), capacity(gpu(0, "no node"), gpu(1))):
        (other,) = words(changed, held(taken([0, 1])), conditions=conditions)
        assert (other.healthy, other.turned) == (False, False)
        assert "lastTransitionTime" not in other.render_condition("2026-11-21T00:00:00Z")


def test_well_again_is_reported_once() -> None:
    (word,) = words(capacity(gpu(0, LOST)), held(taken([0])))
    (well,) = words(capacity(gpu(0)), held(taken([0])), conditions=after(word))
    assert (well.reason, well.healthy, well.turned) == (EventReason.DEVICE_HEALTHY, True, True)
    assert well.render_condition("now")["lastTransitionTime"] == "now"
    assert words(capacity(gpu(0)), held(taken([0])), conditions=after(well)) == []
    (ill,) = words(capacity(gpu(0, LOST)), held(taken([0])), conditions=after(well))
    assert (ill.healthy, ill.turned) == (False, True)


def test_a_pod_without_devices_keeps_its_last_condition() -> None:
    (word,) = words(capacity(gpu(0, LOST)), held(taken([0])))
    assert words(capacity(gpu(0)), conditions=after(word)) == []


# Texts of conditions


def test_a_late_check_a_pod_does_not_undo_what_was_reported() -> None:
    (word,) = words(capacity(gpu(0, LOST)), held(taken([0])))
    conditions = Conditions()
    conditions.put(word, version=7)
    conditions.show(shown("", "", version=6))
    assert conditions.is_written(word)
    assert conditions.take_changed() == ()
    conditions.show(shown("", "", version=8))  # someone took it away
    assert (conditions.is_written(word), conditions.take_changed(), conditions.take_changed()) == (False, ("n1",), ())


def test_conditions_of_deleted_pods_are_forgotten() -> None:
    conditions = Conditions()
    for name in ("a", "b", "c"):
        conditions.show(shown("False", "m", name=name))
    conditions.forget(PodUid("uid-a"))
    conditions.forget_all_but({PodUid("uid-c"), PodUid("uid-d")})
    assert [conditions.get(PodUid(f"uid-{name}")) is None for name in "abc"] == [True, True, False]


def test_only_the_condition_of_lading_is_read() -> None:
    ours, other = Condition(type=DEVICES_HEALTHY, status="True"), Condition(type="Ready", status="True")
    assert Status(conditions=(other, ours, other)).conditions == (ours,)
    assert Status(conditions=(other,)).conditions == ()
