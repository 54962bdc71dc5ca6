"""Test what a person's release does: it takes what ended pods left, and leaves what a running pod can use."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from hooks.ledger.listing import LedgerContent
from hooks.model.assignment import GrantedDevices, GrantedGpu, GrantedVf
from hooks.model.attachment import Attachment, Step
from hooks.model.grant import Grant, GrantKey
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from hooks.node.release_decision import Alive, HeldDevice, Release, decide_release, find_alive, find_device, waiting_for
from lading.errors import ConfigError
from lading.vocabulary import PodUid
from tests.fakes import holders
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

NODE = inventory(gpus=(gpu(0), mig_gpu(1)), vfs=(vf(0), vf(1)))
BOTH = GrantedDevices(gpus=(GrantedGpu(uuid=holders.gpu_uuid(0)),), vfs=(GrantedVf(bdf=holders.vf_bdf(1)),))
NO_ONE = Alive()
CARD = HeldDevice(gpu=holders.gpu_uuid(0))
FUNCTION = HeldDevice(vf=holders.vf_bdf(1))


def decided(
    device: HeldDevice, grants: Sequence[Grant] = (), rows: Sequence[Attachment] = (), alive: Alive = NO_ONE
) -> Release:
    return decide_release(device, LedgerContent(grants=grants, attachments=rows), alive)


def living(sandboxes: Sequence[ListedSandbox], containers: Sequence[ListedContainer] = ()) -> Alive:
    return find_alive(Lists(sandboxes=sandboxes, containers=containers))


def ready(*pods: str) -> Alive:
    return living([holders.sandbox(pod) for pod in pods])


# ---- which device


@pytest.mark.parametrize(
    ("text", "device"),
    [
        (gpu(0).uuid.upper().replace("GPU", "gpu"), HeldDevice(gpu=uuid(0))),
        (gpu(0).bdf, HeldDevice(gpu=uuid(0))),
        ("00000000:10:00.0", HeldDevice(gpu=uuid(0))),
        (mig_uuid(10), HeldDevice(mig=mig_uuid(10))),
        (vf(1).bdf.upper(), HeldDevice(vf=vf(1).bdf)),
    ],
)
def test_a_device_of_the_node_by_any_of_its_names(text: str, device: HeldDevice) -> None:
    assert find_device(text, NODE, LedgerContent()) == device


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, text) for text in ("0", "mlx5_1", "GPU-1", "all", "0000:ff:00.1", str(holders.gpu_uuid(9)))),
        ("", "''"),
        ("a\x1bb", r"a\x1bb"),
    ],
)
def test_what_is_no_device_of_the_node_is_reported(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as e:
        find_device(text, NODE, LedgerContent())
    assert said in e.value.message


def test_what_is_deleted_can_be_released_while_someone_holds_it() -> None:
    content = LedgerContent(grants=[holders.grant(devices=holders.whole(9))], attachments=[holders.row(9)])
    assert find_device(holders.gpu_uuid(9), NODE, content) == HeldDevice(gpu=holders.gpu_uuid(9))
    assert find_device(holders.vf_bdf(9), NODE, content) == HeldDevice(vf=holders.vf_bdf(9))


# ---- who is alive


def test_a_ready_sandbox_and_a_container_that_has_not_exited_are_alive() -> None:
    for state, alive in (
        (ContainerState.CREATED, True),
        (ContainerState.RUNNING, True),
        (ContainerState.UNKNOWN, True),
        (ContainerState.EXITED, False),
    ):
        result = living([holders.sandbox(ready=False)], [holders.container(state=state)])
        assert bool(result.uses(holders.grant())) is alive
        assert bool(result.uses_vf(holders.row())) is alive
    assert ready("pod-1").uses(holders.grant())
    assert ready("pod-1").uses_vf(holders.row())
    assert not ready("pod-2").uses(holders.grant())
    assert not ready("pod-2").uses_vf(holders.row())


def test_a_container_is_known_by_its_pod_or_its_id() -> None:
    running = holders.container("c9")
    of_no_pod = structs.replace(running, key=GrantKey(PodUid(""), running.name))
    assert living([], [running]).uses(holders.grant())
    assert not living([], [of_no_pod]).uses(holders.grant())
    assert living([], [of_no_pod]).uses(holders.grant(containers={"c9": "pod-1-s0"}))


# ---- what is done


def test_of_a_pod_that_is_deleted_the_vf_comes_back_before_the_grant_is_freed() -> None:
    grant, row = holders.grant(devices=BOTH), holders.row(1)
    for device in (CARD, FUNCTION):
        release = decided(device, [grant], [row])
        assert (release.attachments, release.grants, release.in_use) == ((row,), (grant,), ())
        back, freed = release.steps.index(next(s for s in release.steps if row.netns in s)), len(release.steps) - 1
        assert back < freed
        for name in (holders.gpu_uuid(0), holders.vf_bdf(1), "train", "name-of-pod-1"):
            assert name in release.steps[freed]


def test_what_no_one_holds_is_no_work() -> None:
    others = holders.grant("other", devices=holders.whole(3))
    assert decided(CARD, [others], [holders.row(3)]) == Release(device=str(CARD))


def test_an_attachment_without_a_grant_is_brought_back() -> None:
    assert decided(FUNCTION, rows=[holders.row(1)]).attachments == (holders.row(1),)


def test_what_a_live_pod_has_is_not_taken() -> None:
    grant, row = holders.grant(devices=BOTH), holders.row(1)
    for device in (CARD, FUNCTION):
        release = decided(device, [grant], [row], ready("pod-1"))
        assert (release.attachments, release.grants, release.steps) == ((), (), [])
        assert release.in_use
        assert all("name-of-pod-1" in text for text in release.in_use)


def test_of_sharers_the_dead_go_and_the_living_stay() -> None:
    dead, alive = holders.grant("dead", devices=holders.share(0)), holders.grant("alive", devices=holders.share(0))
    release = decided(CARD, [dead, alive], alive=ready("alive"))
    assert release.grants == (dead,)
    assert [("name-of-alive" in text, "name-of-dead" in text) for text in release.in_use] == [(True, False)]


def test_a_card_is_released_with_its_instances_and_an_instance_alone() -> None:
    a, b = (holders.grant(pod, devices=holders.share(0, mig_uuid=mig_uuid(n))) for n, pod in enumerate(("a", "b")))
    assert decided(CARD, [a, b]).grants == (a, b)
    assert decided(HeldDevice(mig=mig_uuid(1)), [a, b]).grants == (b,)


def test_a_vf_comes_back_from_the_older_sandbox_of_a_pod_that_lives_and_its_grant_stays() -> None:
    grant = holders.grant(devices=BOTH, sandbox="pod-1-s1")
    newer = living([holders.sandbox(id="pod-1-s1"), holders.sandbox(ready=False)])
    release = decided(FUNCTION, [grant], [holders.row(1)], newer)
    assert release.attachments == (holders.row(1),)
    assert release.grants == ()
    assert release.in_use


def test_the_grants_of_a_pod_with_a_container_that_cannot_be_killed_all_stay() -> None:
    exited, running = holders.grant(devices=BOTH), holders.grant(container="side", devices=holders.vfs(1))
    alive = living([holders.sandbox(ready=False)], [holders.container("c9", name="side")])
    release = decided(CARD, [exited, running], [holders.row(1)], alive)
    assert (release.attachments, release.grants) == ((), ())
    assert release.in_use


def test_a_grant_waits_for_a_vf_that_cannot_come_back_now() -> None:
    grant, row = holders.grant(devices=BOTH), holders.row(1, sandbox="pod-1-s9")
    alive = replace(NO_ONE, sandboxes={row.sandbox: "its container x has not exited"})
    release = decided(CARD, [grant], [row], alive)
    assert (release.attachments, release.grants) == ((), ())
    assert any(row.bdf in text for text in release.in_use)


def test_another_pods_vf_of_the_same_name_is_not_waited_for() -> None:
    grant = holders.grant(devices=BOTH)
    assert list(waiting_for(grant, [holders.row(1, "other"), holders.row(2)])) == []
    assert list(waiting_for(grant, [holders.row(1, step=Step.RETURNING)])) == [holders.vf_bdf(1)]
