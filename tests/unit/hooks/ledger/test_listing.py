"""Test the list of who holds what: one entry a device, each state from its cause, and every device that is held."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hooks.ledger.listing import Entry, Kind, LedgerContent, State, list_devices
from hooks.ledger.unmanaged import Unmanaged
from hooks.model.assignment import GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.attachment import Attachment, Step
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from lading.vocabulary import GpuUuid, PciAddress, SandboxId
from tests.fakes import holders
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

NODE = inventory(gpus=(gpu(0), mig_gpu(1)), vfs=(vf(0), vf(1)))
WHOLE = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),))
SHARE = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0), memory_mib=8138, core_percent=30),))
VF = GrantedDevices(vfs=(GrantedVf(bdf=vf(0).bdf),))


def mig(number: int, card: int = 1) -> GrantedDevices:
    return GrantedDevices(gpus=(GrantedGpu(uuid=uuid(card), mig_uuid=mig_uuid(number)),))


def row(step: Step = Step.ATTACHED, *, failure: str = "", pod: str = "pod-1") -> Attachment:
    return replace(holders.row(1, pod, step=step, failure=failure), vf=vf(0))


def listed(
    *grants: Grant, rows: Sequence[Attachment] = (), node: Inventory = NODE, stopped: Sequence[str] = (), **more: Any
) -> dict[str, Entry]:
    content = LedgerContent(grants=grants, attachments=rows, stopped={SandboxId(one): 1 for one in stopped})
    entries = list_devices(node, content, **{"unmanaged": Unmanaged(), **more})
    by_device = {entry.device: entry for entry in entries}
    assert len(by_device) == len(entries)
    return by_device


def test_a_node_of_which_no_one_holds_anything() -> None:
    entries = listed()
    assert list(entries) == [uuid(0), uuid(1), mig_uuid(10), mig_uuid(11), vf(0).bdf, vf(1).bdf]
    states = [entry.state for entry in entries.values()]
    assert states == [State.FREE, State.DIVIDED, State.FREE, State.FREE, State.FREE, State.FREE]
    assert [entry.why for entry in entries.values() if entry.state is State.FREE] == [""] * 5
    assert all(entry.since is None for entry in entries.values())


def test_until_when_a_pod_holds_of_which_the_runtime_does_not_know_is_shown() -> None:
    content = LedgerContent(grants=[holders.grant("a", devices=WHOLE)], empty_until=60 * 60 * 13 + 5)
    reason = {entry.device: entry.why for entry in list_devices(NODE, content, unmanaged=Unmanaged())}
    assert "free at 13:00:05 UTC" in reason[uuid(0)]


@pytest.mark.parametrize(("devices", "state"), [(WHOLE, State.HELD), (SHARE, State.SHARED)])
def test_a_card_is_held_whole_or_shared(devices: GrantedDevices, state: State) -> None:
    first, second = holders.grant("a", devices=devices, granted_at=5), holders.grant("b", devices=SHARE, granted_at=4)
    entry = listed(first, second)[uuid(0)]
    assert entry.state is state
    assert [holder.grant for holder in entry.holders] == [first, second]
    assert entry.since == 4
    for word in ("name-of-a", "name-of-b", "train"):
        assert word in entry.why


def test_an_instance_is_held_and_its_card_only_divided() -> None:
    entries = listed(holders.grant(devices=mig(10)))
    states = [entries[device].state for device in (uuid(1), mig_uuid(10), mig_uuid(11))]
    assert states == [State.DIVIDED, State.HELD, State.FREE]


def test_a_card_that_was_given_whole_before_it_was_divided_has_its_instances() -> None:
    entries = listed(holders.grant(devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1)),))))
    assert {entries[device].state for device in (uuid(1), mig_uuid(10), mig_uuid(11))} == {State.HELD}


@pytest.mark.parametrize(
    ("step", "state"),
    [
        *((step, State.ATTACHING) for step in (Step.RECORDED, Step.CONFIGURING, Step.MOVING, Step.RDMA_MOVING, Step.RAISING)),
        (Step.ATTACHED, State.ATTACHED),
        *((step, State.RETURNING) for step in (Step.RDMA_RETURNING, Step.RETURNING, Step.RESTORING)),
    ],
)
def test_a_vf_is_where_the_journal_has_it_with_a_grant_or_without(step: Step, state: State) -> None:
    for grants in ((), (holders.grant(devices=VF),)):
        entry = listed(*grants, rows=[row(step)])[vf(0).bdf]
        assert entry.state is state
        assert entry.attachment == row(step)
        assert entry.since == holders.LONG_AGO
        for word in ("pod-1-s0", "rdma1", "name-of-pod-1"):
            assert word in entry.why
        assert (step.value in entry.why) is (step is not Step.ATTACHED)


def test_why_a_vf_does_not_come_back_is_reported_once() -> None:
    """Check that the failure is shown once, although the overlay has it from the same row as the reason why the VF is
    unhealthy."""
    stuck = row(Step.RETURNING, failure="no answer from the firmware")
    node = inventory(vfs=(vf(0, unhealthy=stuck.failure),))
    assert listed(rows=[stuck], node=node)[vf(0).bdf].why.count(stuck.failure) == 1


def test_a_held_vf_without_a_network_device_is_held() -> None:
    assert listed(holders.grant(devices=VF))[vf(0).bdf].state is State.HELD


def test_what_cannot_be_given_is_unhealthy_with_the_reason() -> None:
    lost = "NVML: GPU is lost"
    bound = replace(vf(1), driver="vfio-pci", ibdev="", uverbs=None)
    node = inventory(gpus=(gpu(0, unhealthy=lost), replace(mig_gpu(1), unhealthy=lost)), vfs=(vf(0), bound))
    entries = listed(node=node)
    for device, word in ((uuid(0), lost), (uuid(1), lost), (mig_uuid(10), lost), (bound.bdf, "vfio-pci")):
        assert entries[device].state is State.UNHEALTHY
        assert word in entries[device].why
    held = listed(holders.grant(devices=WHOLE), node=node)[uuid(0)]
    assert held.state is State.HELD
    assert lost in held.why


def test_a_card_that_a_pod_uses_without_a_grant() -> None:
    used = Unmanaged(held={uuid(0): "process 42 of pod x", uuid(1): "process 43 of pod y"})
    entries = listed(unmanaged=used)
    assert [entries[d].state for d in (uuid(0), uuid(1), mig_uuid(10))] == [State.UNMANAGED] * 3
    for device, word in ((uuid(0), "process 42"), (uuid(1), "process 43"), (mig_uuid(10), "process 43")):
        assert word in entries[device].why
    beside = listed(holders.grant(devices=SHARE), unmanaged=used)[uuid(0)]
    assert beside.state is State.SHARED
    assert "process 42" in beside.why


def test_a_process_of_no_pod_is_reported_and_holds_nothing() -> None:
    entry = listed(unmanaged=Unmanaged(host={uuid(0): (7,)}))[uuid(0)]
    assert entry.state is State.FREE
    assert "7" in entry.why


def test_a_stray_has_an_unknown_holder() -> None:
    """Check that an unmanaged VF has an unknown holder, and the reason why it is unhealthy."""
    node = inventory(vfs=(vf(0, unhealthy="in another namespace"), vf(1, unhealthy="in another namespace")))
    entries = listed(node=node, strays={vf(0).bdf})
    assert [entry.state for entry in entries.values()] == [State.UNKNOWN_HOLDER, State.UNHEALTHY]
    assert all("in another namespace" in entry.why for entry in entries.values())


def test_that_the_sandbox_is_stopped_is_reported_of_what_is_still_held() -> None:
    grant = holders.grant(devices=VF)
    running, stopped = listed(grant)[vf(0).bdf], listed(grant, stopped=[grant.sandbox])[vf(0).bdf]
    assert [holder.stopped_at for holder in (*running.holders, *stopped.holders)] == [None, 1]
    assert running.why != stopped.why


@pytest.mark.parametrize(
    ("devices", "device", "kind"),
    [
        (holders.whole(7), holders.gpu_uuid(7), Kind.GPU),
        (mig(77, card=1), mig_uuid(77), Kind.MIG),
        (mig(77, card=7), mig_uuid(77), Kind.MIG),
        (holders.vfs(7), holders.vf_bdf(7), Kind.VF),
    ],
)
def test_what_is_held_and_deleted_is_listed(devices: GrantedDevices, device: GpuUuid | PciAddress | str, kind: Kind) -> None:
    entry = listed(holders.grant(devices=devices))[device]
    assert (entry.kind, entry.state) == (kind, State.HELD)
    assert entry.why


def test_a_vf_that_is_deleted_and_in_the_journal_is_listed_once() -> None:
    deleted = holders.row(5)
    for grants in ((), (holders.grant(devices=holders.vfs(5)),)):
        assert listed(*grants, rows=[deleted])[deleted.bdf].state is State.ATTACHED


def test_everything_at_once_is_there_once() -> None:
    """List a card with a whole grant, an instance of it that does not exist any more, and one that exists."""
    entries = listed(
        holders.grant("a", devices=mig(10)),
        holders.grant("b", devices=mig(99)),
        holders.grant("c", devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1)),))),
    )
    assert [len(entries[device].holders) for device in (uuid(1), mig_uuid(10), mig_uuid(11), mig_uuid(99))] == [1, 2, 1, 1]
