from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from hooks.attach.plan import (
    Act,
    LiveSandboxes,
    ObservedDevices,
    Stuck,
    choose_ifname,
    decide_act,
    describe_release,
    find_orphans,
    first_return,
    has_ended,
    is_own,
    names_in_pod,
    next_in,
    next_out,
    parking_name,
    reset_of,
)
from hooks.ledger.reconcile import GRACE_S
from hooks.model.attachment import (
    Attachment,
    Link,
    MacOwner,
    Netdev,
    RdmaDevice,
    Step,
    VfConfig,
    VfLinkState,
    VfSettings,
    VlanProtocol,
)
from lading.vocabulary import PciAddress, SandboxId
from tests.unit.hooks.ledger.test_attachment import FULL

IN = [Step.RECORDED, Step.ADDRESSING, Step.CONFIGURING, Step.MOVING, Step.RDMA_MOVING, Step.RAISING, Step.ATTACHED]
OUT = [Step.RDMA_RETURNING, Step.RETURNING, Step.RESTORING]
HERE = Link(index=7, name="ens1v1", mac="02:00:00:00:00:01", mtu=1500, up=True, parent=str(FULL.bdf))
THERE = replace(HERE, name=FULL.ifname)
STRANDED = HERE
IBDEV = RdmaDevice(5, FULL.vf.ibdev)


def at(step: Step, **changes: Any) -> Attachment:
    return replace(FULL, step=step, failure="", **changes)


# ---- the order of steps


def walk(row: Attachment) -> list[Step]:
    steps = [row.step]
    while row.step is not Step.ATTACHED:
        row = replace(row, step=next_in(row))
        steps.append(row.step)
    return steps


def walk_back(row: Attachment) -> list[Step]:
    steps = []
    step = first_return(row)
    while step is not None:
        steps.append(step)
        step = next_out(replace(row, step=step))
    return steps


@pytest.mark.parametrize(
    ("row", "steps", "back"),
    [
        (at(Step.RECORDED), IN, OUT),
        (at(Step.RECORDED, rdma=False), [s for s in IN if s is not Step.RDMA_MOVING], OUT[1:]),
        (at(Step.RECORDED, mac_owner=MacOwner.UNKNOWN), [s for s in IN if s is not Step.ADDRESSING], OUT),
        (at(Step.RECORDED, netdev=None), [IN[0], IN[2], IN[4], IN[6]], [OUT[0], OUT[2]]),
        (at(Step.RECORDED, netdev=None, rdma=False), [IN[0], IN[2], IN[6]], [OUT[2]]),
    ],
)
def test_the_steps_are_those_that_concern_the_vf(row: Attachment, steps: list[Step], back: list[Step]) -> None:
    assert walk(row) == steps
    assert walk_back(replace(row, step=Step.ATTACHED)) == back


@pytest.mark.parametrize(
    ("step", "back"),
    [
        (Step.RECORDED, []),
        (Step.ADDRESSING, OUT[2:]),
        (Step.CONFIGURING, OUT[2:]),
        (Step.MOVING, OUT[1:]),
        (Step.RDMA_MOVING, OUT),
        (Step.RAISING, OUT),
        (Step.RETURNING, OUT[1:]),
        (Step.RESTORING, OUT[2:]),
    ],
)
def test_a_release_undoes_what_may_have_been_done(step: Step, back: list[Step]) -> None:
    assert walk_back(at(step)) == back


# ---- what brings a step about


@pytest.mark.parametrize(
    ("step", "seen", "act"),
    [
        (Step.ADDRESSING, ObservedDevices(netns=True, host=HERE), Act.ADDRESS),
        (Step.ADDRESSING, ObservedDevices(netns=True, pod=THERE), None),
        (Step.CONFIGURING, ObservedDevices(netns=True, host=HERE), Act.CONFIGURE),
        (Step.CONFIGURING, ObservedDevices(netns=True, pod=THERE), None),
        (Step.MOVING, ObservedDevices(netns=True, host=HERE), Act.MOVE_IN),
        (
            Step.MOVING,
            ObservedDevices(netns=True, host=HERE, pod=THERE),
            Act.MOVE_IN,
        ),  # the pod has one of that name, of its own
        (Step.MOVING, ObservedDevices(netns=True, pod=THERE), Act.NOTHING),
        (Step.MOVING, ObservedDevices(netns=True, pod=STRANDED), Act.MOVE_IN),
        (Step.MOVING, ObservedDevices(netns=True), None),
        (Step.RDMA_MOVING, ObservedDevices(netns=True, pod=THERE, rdma_host=IBDEV), Act.RDMA_MOVE_IN),
        (Step.RDMA_MOVING, ObservedDevices(netns=True, pod=THERE, rdma_pod=IBDEV), Act.NOTHING),
        (Step.RDMA_MOVING, ObservedDevices(netns=True, pod=THERE), None),
        (Step.RAISING, ObservedDevices(netns=True, pod=THERE, rdma_pod=IBDEV), Act.RAISE),
        (Step.RAISING, ObservedDevices(netns=True, host=HERE), None),
        (Step.RDMA_RETURNING, ObservedDevices(netns=True, pod=THERE, rdma_pod=IBDEV), Act.RDMA_MOVE_OUT),
        (Step.RDMA_RETURNING, ObservedDevices(rdma_host=IBDEV), Act.NOTHING),
        (Step.RDMA_RETURNING, ObservedDevices(), None),
        (Step.RETURNING, ObservedDevices(netns=True, pod=THERE), Act.MOVE_OUT),
        (Step.RETURNING, ObservedDevices(netns=True, pod=STRANDED), Act.MOVE_OUT),
        (Step.RETURNING, ObservedDevices(host=HERE), Act.NOTHING),
        (Step.RETURNING, ObservedDevices(host=replace(HERE, name=parking_name(FULL.bdf))), Act.NOTHING),
        (Step.RETURNING, ObservedDevices(host=THERE), Act.PARK),
        (Step.RETURNING, ObservedDevices(host=replace(HERE, altnames=("ens1v2",))), Act.PARK),
        (Step.RETURNING, ObservedDevices(netns=True), None),
        (Step.RETURNING, ObservedDevices(), None),
        (Step.RESTORING, ObservedDevices(host=HERE), Act.RESTORE),
        (Step.RESTORING, ObservedDevices(netns=True, pod=THERE), None),
    ],
)
def test_an_act_follows_from_where_the_devices_are(step: Step, seen: ObservedDevices, act: Act | None) -> None:
    decided = decide_act(at(step), seen)
    assert decided == act if act is not None else isinstance(decided, Stuck)


@pytest.mark.parametrize("step", [Step.CONFIGURING, Step.MOVING, Step.RDMA_MOVING, Step.RAISING])
def test_nothing_is_brought_to_a_namespace_that_is_deleted(step: Step) -> None:
    assert isinstance(decide_act(at(step), ObservedDevices(host=HERE, rdma_host=IBDEV)), Stuck)


@pytest.mark.parametrize("step", [Step.CONFIGURING, Step.RESTORING])
def test_what_has_no_network_device_has_its_pf_all_the_same(step: Step) -> None:
    assert isinstance(decide_act(at(step, netdev=None), ObservedDevices(netns=True)), Act)


# ---- whose a device is


@pytest.mark.parametrize(
    ("recorded", "link", "own"),
    [
        (str(FULL.bdf), THERE, True),
        (str(FULL.bdf), replace(THERE, mac="02:00:00:00:00:66"), True),
        (str(FULL.bdf), replace(THERE, parent=""), False),
        (str(FULL.bdf), replace(THERE, parent="0000:3b:00.7"), False),
        ("", replace(THERE, parent=""), True),
        ("", replace(STRANDED, parent=""), True),
        ("", replace(STRANDED, parent="", mac=str(FULL.settings.config.mac)), True),
        ("", replace(STRANDED, parent="", mac="02:00:00:00:00:66"), False),  # the pod's own, of the name that ours had
    ],
)
def test_a_device_is_the_vfs_by_its_parent_else_by_its_name(recorded: str, link: Link, own: bool) -> None:
    assert FULL.netdev is not None
    assert is_own(at(Step.MOVING, netdev=replace(FULL.netdev, parent=recorded)), link) is own


def test_a_device_can_be_in_the_pod_under_two_names() -> None:
    assert names_in_pod(FULL) == ("rdma0", "ens1v1")
    assert names_in_pod(replace(FULL, netdev=None)) == ()


# ---- names


@pytest.mark.parametrize("vf", ["0000:3b:00.2", "ffffffff:ff:1f.7"])
def test_a_parked_device_has_a_name_that_linux_takes(vf: str) -> None:
    assert len(parking_name(PciAddress(vf))) <= 15
    assert parking_name(PciAddress(vf)).isalnum()


def test_vfs_are_parked_separate() -> None:
    names = {
        parking_name(PciAddress(f"{domain}:{bus}:00.{f}")) for domain in ("0000", "0001") for bus in ("3b", "3c") for f in "12"
    }
    assert len(names) == 8


def test_the_lowest_free_name_is_chosen() -> None:
    assert choose_ifname([]) == "rdma0"
    assert choose_ifname(["rdma1", "rdma0", "eth0", "rdma3"]) == "rdma2"


# ---- what is reset


def test_only_what_was_changed_is_reset_to_what_it_was() -> None:
    row = replace(
        FULL, settings=VfSettings(config=VfConfig(vlan=5, trust=True)), config=VfConfig(vlan=7, trust=False, spoofchk=True)
    )
    assert reset_of(row) == VfConfig(vlan=7, trust=False)
    assert reset_of(replace(FULL, settings=VfSettings(mtu=9000))).values == {}


def test_what_was_not_reported_becomes_neutral() -> None:
    reset = reset_of(replace(FULL, config=VfConfig()))
    assert reset == VfConfig(
        mac="00:00:00:00:00:00",
        vlan=0,
        vlan_qos=0,
        vlan_proto=VlanProtocol.DOT1Q,
        min_tx_rate=0,
        max_tx_rate=0,
        spoofchk=True,
        trust=False,
        link_state=VfLinkState.AUTO,
    )


# ---- who has lost its sandbox

NOW = FULL.since + GRACE_S
S0 = FULL.sandbox
KNOWN = frozenset({FULL.generation})


@pytest.mark.parametrize(
    ("row", "how", "orphan"),
    [
        (at(Step.ATTACHED), {"ready": {S0}}, False),
        (at(Step.ATTACHED), {"live": {S0}}, False),
        (at(Step.ATTACHED), {}, True),
        (at(Step.ATTACHED), {"now": NOW - 1}, False),
        (at(Step.ATTACHED), {"now": FULL.since - GRACE_S}, True),  # the clock was set back
        (at(Step.ATTACHED), {"known": ()}, False),  # the clock was set since it was begun, which is after the lists
        (at(Step.ATTACHED), {"ready": {S0}, "stopped": {S0}, "now": NOW - 1}, True),
        (at(Step.ATTACHED), {"ready": {S0}, "unheld": {FULL.generation}, "now": NOW - 1}, True),
        (at(Step.ATTACHED), {"ready": {S0}, "boot_id": "another"}, True),
        (at(Step.RESTORING), {"ready": {S0}, "now": NOW - 1}, True),
        (at(Step.MOVING), {"ready": {S0}, "now": NOW - 1}, False),
        (at(Step.MOVING), {"ready": {S0}, "live": {S0}}, True),
    ],
)
def test_orphans_are_released(row: Attachment, how: dict[str, Any], orphan: bool) -> None:
    stopped: set[SandboxId] = how.get("stopped", set())
    ready, live, known = (frozenset(how.get(name, among)) for name, among in (("ready", ()), ("live", ()), ("known", KNOWN)))
    alive = LiveSandboxes(ready=ready, live=live, at=how.get("now", NOW), known=known)
    orphans = find_orphans(
        [row], alive, stopped=stopped.__contains__, unheld=how.get("unheld", set()), boot_id=how.get("boot_id", FULL.boot_id)
    )
    assert orphans == ((row,) if orphan else ())


@pytest.mark.parametrize(
    ("ready", "live", "stopped", "known", "ended"),
    [
        (set(), set(), False, KNOWN, True),
        (set(), set(), False, (), False),  # the lists may be from before it was
        ({S0}, set(), False, KNOWN, False),
        ({S0}, set(), True, KNOWN, True),
        (set(), {S0}, False, KNOWN, False),
        ({S0}, {S0}, True, KNOWN, False),  # killing its containers failed
        (set(), set(), True, (), False),
    ],
)
def test_a_sandbox_has_ended_when_nothing_of_it_is_left(
    ready: set[SandboxId], live: set[SandboxId], stopped: bool, known: Collection[int], ended: bool
) -> None:
    alive = LiveSandboxes(ready=frozenset(ready), live=frozenset(live), at=FULL.since, known=frozenset(known))
    assert has_ended(FULL, alive, stopped=stopped) is ended


def test_nothing_is_known_before_the_first_lists() -> None:
    assert not has_ended(FULL, None, stopped=True)


# ---- in words


@pytest.mark.parametrize(
    ("row", "said", "unsaid"),
    [
        (at(Step.ATTACHED), ["mlx5_7", FULL.netns, "rdma0", "vlan 0", "ens1v1", "1500", "train-0"], []),
        (at(Step.ATTACHED, rdma=False), ["rdma0", "ens1v1"], ["mlx5_7"]),
        (at(Step.CONFIGURING), ["vlan 0", "ens1v1"], ["mlx5_7", "rdma0"]),
        (at(Step.RECORDED), [FULL.bdf], ["ens1v1"]),
        (at(Step.ATTACHED, netdev=None), ["mlx5_7", "vlan 0"], ["rdma0", "1500"]),
        (at(Step.ATTACHED, netdev=Netdev(name="ib0", mac="", mtu=2044, up=True)), ["ib0", "2044"], ["MAC"]),
    ],
)
def test_a_release_is_described_by_what_it_would_do(row: Attachment, said: list[str], unsaid: list[str]) -> None:
    message = " ".join(describe_release(row))
    assert [text for text in said if text not in message] == []
    assert [text for text in unsaid if text in message] == []
