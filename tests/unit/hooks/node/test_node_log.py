from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.model.assignment import GrantedDevices, GrantedGpu
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.node.bypass import Bypassed
from hooks.node.node_log import NodeLog, owner_fields
from lading.log import Event, Level, Log
from lading.vocabulary import ContainerId, PciAddress, PodUid
from tests.fakes import holders
from tests.fakes.records import Records
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

TWO_CARDS = inventory(gpus=(gpu(0), gpu(1)))
ILL = inventory(gpus=(gpu(0, unhealthy="XID 79"), gpu(1)))


@pytest.fixture
def node_log(log: Log) -> NodeLog:
    return NodeLog(log)


def holding(index: int, pod: str, container: str = "train") -> Grant:
    return holders.grant(pod, container, GrantedDevices(gpus=(GrantedGpu(uuid=uuid(index)),)))


def bypassed(number: int, container: str = "train") -> Bypassed:
    return Bypassed(
        id=ContainerId(f"{number:064x}"[::-1]),
        container=container,
        pod=PodUid("pod-1"),
        namespace="default",
        pod_name="name-of-pod-1",
    )


# ---- what is wrong: once, until it is over


def test_a_problem_is_an_error_with_its_fields_and_reported_once(node_log: NodeLog, records: Records) -> None:
    node_log.once(Event.HOLDER_FOREIGN, "a pod uses GPU-1", device="GPU-1")
    node_log.once(Event.HOLDER_FOREIGN, "a pod uses GPU-1", device="GPU-1")
    assert records.written == [(Level.ERROR, Event.HOLDER_FOREIGN, "a pod uses GPU-1", {"device": "GPU-1"})]


def test_what_is_over_is_reported_again_and_what_is_not_is_not(node_log: NodeLog, records: Records) -> None:
    problems = [(Event.LEDGER_FAILED, "cannot a"), (Event.LEDGER_FAILED, "cannot b"), (Event.INVENTORY_FAILED, "cannot a")]

    def said() -> list[tuple[Event, str]]:
        records.written.clear()
        for problem in problems:
            node_log.once(*problem)
        return [(event, message) for _, event, message, _ in records.written]

    assert said() == problems
    node_log.over(Event.LEDGER_FAILED, "cannot a")
    assert said() == problems[:1]
    node_log.over(Event.LEDGER_FAILED)
    assert said() == problems[:2]
    node_log.over(Event.LEDGER_FAILED, "not a")  # amid the message is not how it begins
    node_log.over(Event.HOLDER_FOREIGN)
    assert said() == []


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([Event.LEDGER_FAILED, Event.VF_UNKNOWN_HOLDER]), st.text("ab"))))
def test_nothing_is_lost_and_nothing_reported_twice(steps: list[tuple[bool, Event, str]]) -> None:
    records, known = Records(), set[tuple[Event, str]]()
    node_log, expected = NodeLog(Log(records)), []
    for over, event, message in steps:
        if over:
            node_log.over(event, message)
            known = {text for text in known if not (text[0] is event and text[1].startswith(message))}
        else:
            node_log.once(event, message)
            if (event, message) not in known:
                known.add((event, message))
                expected.append((event, message))
    assert [(event, message) for _, event, message, _ in records.written] == expected


def test_however_many_there_are_each_is_reported_and_they_do_not_pile_up(node_log: NodeLog, records: Records) -> None:
    texts = [f"problem {number}" for number in range(5000)]
    for text in texts:
        node_log.once(Event.LEDGER_FAILED, text)
    assert [message for _, _, message, _ in records.written] == texts
    node_log.once(Event.LEDGER_FAILED, texts[0])  # the oldest was forgotten: what is remembered is bounded
    assert len(records.written) == len(texts) + 1
    node_log.once(Event.LEDGER_FAILED, texts[0])
    assert len(records.written) == len(texts) + 1


# ---- devices: each change as it is seen


def test_at_first_there_are_numbers_and_what_is_wrong_already(node_log: NodeLog, records: Records) -> None:
    first = inventory(gpus=(gpu(0), gpu(1, unhealthy="XID 79")), vfs=(vf(0),))
    node_log.changes(Inventory(), replace(first, problems=("cannot read PF",)), ())
    assert records.written == [
        (Level.INFO, Event.INVENTORY_CHANGED, "", {"gpus": "2", "pfs": "1", "vfs": "1"}),
        (Level.WARNING, Event.DEVICE_UNHEALTHY, "XID 79", {"device": uuid(1), "change": "unhealthy"}),
        (Level.WARNING, Event.INVENTORY_CHANGED, "cannot read PF", {"change": "problem"}),
    ]


def test_where_nothing_changed_nothing_is_reported(node_log: NodeLog, records: Records) -> None:
    node_log.changes(ILL, ILL, [holding(0, "p1")])
    assert records.written == []


def test_what_comes_and_goes_later_is_reported_device_by_device(node_log: NodeLog, records: Records) -> None:
    before, after = inventory(gpus=(gpu(0),)), inventory(gpus=(gpu(1),))
    node_log.changes(before, after, ())
    assert records.written == [
        (Level.INFO, Event.INVENTORY_CHANGED, "", {"device": uuid(0), "change": "removed"}),
        (Level.INFO, Event.INVENTORY_CHANGED, "", {"device": uuid(1), "change": "added"}),
    ]


def test_a_device_that_falls_ill_again_and_again_is_reported_each_time(node_log: NodeLog, records: Records) -> None:
    for _ in range(2):
        node_log.changes(TWO_CARDS, ILL, ())
        node_log.changes(ILL, TWO_CARDS, ())
    expected = [(Level.WARNING, Event.DEVICE_UNHEALTHY), (Level.INFO, Event.DEVICE_HEALTHY)]
    assert [(level, event) for level, event, _, _ in records.written] == 2 * expected


def test_an_ill_device_is_reported_for_each_container_that_has_it_and_no_other(node_log: NodeLog, records: Records) -> None:
    node_log.changes(TWO_CARDS, ILL, [holding(0, "p1"), holding(0, "p2", "side"), holding(1, "p3")])
    common = {"device": uuid(0), "change": "unhealthy", "namespace": "default"}
    assert records.written == [
        (
            Level.WARNING,
            Event.DEVICE_UNHEALTHY,
            "XID 79",
            {**common, "pod_uid": "p1", "pod": "name-of-p1", "container": "train"},
        ),
        (
            Level.WARNING,
            Event.DEVICE_UNHEALTHY,
            "XID 79",
            {**common, "pod_uid": "p2", "pod": "name-of-p2", "container": "side"},
        ),
    ]


def test_an_instance_of_a_card_is_reported_with_its_own_holder(node_log: NodeLog, records: Records) -> None:
    whole = mig_gpu(0)
    mine = holders.grant("p1", devices=GrantedDevices(gpus=(GrantedGpu(uuid=whole.uuid, mig_uuid=mig_uuid(1)),)))
    node_log.changes(inventory(gpus=(whole,)), inventory(gpus=(replace(whole, unhealthy="XID 79"),)), [mine])
    owners = {fields["device"]: fields.get("pod_uid") for fields in records.fields(Event.DEVICE_UNHEALTHY)}
    assert owners == {whole.uuid: None, mig_uuid(0): None, mig_uuid(1): "p1"}


# ---- containers past the proxy, and VFs that are nowhere


def test_a_container_past_the_proxy_is_reported_once_with_whose_it_is(node_log: NodeLog, records: Records) -> None:
    one, other = bypassed(1), bypassed(2, "side")
    node_log.bypassed([one])
    node_log.bypassed([one, other])
    assert [(level, event) for level, event, _, _ in records.written] == 2 * [(Level.ERROR, Event.CONTAINER_BYPASSED)]
    assert one.id[:12] in records.written[0][2]
    owner = {"pod_uid": "pod-1", "namespace": "default", "pod": "name-of-pod-1"}
    assert records.fields(Event.CONTAINER_BYPASSED) == [{**owner, "container": "train"}, {**owner, "container": "side"}]


@given(st.lists(st.frozensets(st.sampled_from([vf(number).bdf for number in range(4)]))))
def test_a_stray_is_reported_each_time_it_goes_and_not_while_it_is_away(rounds: list[frozenset[PciAddress]]) -> None:
    records = Records()
    node_log, before, expected = NodeLog(Log(records)), frozenset[PciAddress](), []
    for away in rounds:
        node_log.missing(dict.fromkeys(away, "gone"))
        expected += sorted(away - before)
        before = away
    assert [fields["device"] for fields in records.fields(Event.VF_UNKNOWN_HOLDER)] == expected
    assert all(level is Level.ERROR for level, _, _, _ in records.written)


def test_strays_that_came_back_leave_what_else_was_reported(node_log: NodeLog, records: Records) -> None:
    node_log.once(Event.LEDGER_FAILED, "cannot write")
    node_log.missing({vf(0).bdf: "gone"})
    node_log.missing({})
    node_log.once(Event.LEDGER_FAILED, "cannot write")
    assert records.events() == [Event.LEDGER_FAILED, Event.VF_UNKNOWN_HOLDER]


def test_an_owner_is_reported_by_pod_and_container() -> None:
    assert owner_fields(holders.grant("p1", "side")) == {
        "pod_uid": "p1",
        "namespace": "default",
        "pod": "name-of-p1",
        "container": "side",
    }
