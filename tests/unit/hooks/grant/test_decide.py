"""Test the answer for one container."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hooks.grant.cards import UnassignedPolicy
from hooks.grant.decide import Rules, View, decide
from hooks.grant.rdma import NCCL_IB_HCA
from hooks.grant.unhealthy import Unhealthy
from hooks.model.assignment import (
    ContainerRequest,
    Form,
    GpuRequest,
    GrantedDevices,
    GrantedGpu,
    GrantedVf,
    Refusal,
    Trust,
    VfRequest,
)
from hooks.model.attachment import NetdevPolicy, VfConfig, VfSettings, WantedVf
from hooks.model.container import Adjustment, Answer, Container, EnvVar, Sandbox
from hooks.model.grant import Grant, HeldBy, Holding, parse_annotation
from hooks.vendors.nvidia.hide import VISIBLE_DEVICES, VOID
from hooks.vendors.nvidia.inject import GpuMode
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.reasons import Reason
from lading.signature import sign
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, GRANT, NOTHING, ContainerId, PodUid, SandboxId
from tests.fakes.holders import BOOT, NOW
from tests.unit.hooks.inventories import gpu, inventory, uuid, vf
from tests.unit.hooks.rules import RULES

POD = "11111111-2222-3333-4444-555555555555"
NODE = inventory(gpus=(gpu(0), gpu(1)), vfs=(vf(0), vf(1), vf(2)))
CENTRAL = replace(RULES, trust=Trust(accepted=frozenset({Form.UNSIGNED})))
VIEW = View(inventory=NODE, now=NOW, boot_id=BOOT)


def ask(
    annotations: Mapping[str, str] | None = None,
    view: View = VIEW,
    *,
    rules: Rules = RULES,
    name: str = "train",
    sandbox: str = "s0",
    privileged: bool = False,
    env: tuple[str, ...] = (),
) -> Answer | Refusal:
    pod = Sandbox(id=sandbox, name="p", namespace="default", uid=POD, annotations=annotations or {})
    names = tuple(EnvVar(one) for one in env)
    return decide(pod, Container(name=name, privileged=privileged, env=names), rules, view)


def answered(*args: object, **kwargs: object) -> Answer:
    answer = ask(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(answer, Answer), answer
    return answer


def granted(*args: object, **kwargs: object) -> Grant:
    grant = answered(*args, **kwargs).grant
    assert grant is not None
    return grant


def reason(*args: object, **kwargs: object) -> Reason:
    answer = ask(*args, **kwargs)  # type: ignore[arg-type]
    assert isinstance(answer, Refusal), answer
    return answer.reason


def env_of(answer: Answer) -> dict[str, str]:
    return {env.name: env.value for env in answer.adjustment.env}


def central(gen: int = 1, **containers: int) -> dict[str, str]:
    """Return an assignment, given the GPU's index by container."""
    assigned = {name: {"gpus": [{"uuid": uuid(index)}]} for name, index in containers.items()}
    return {"lading.dev/assignment": json.dumps({"v": 1, "pod": POD, "node": "n1", "gen": gen, "containers": assigned})}


# an inventory that may not be true any more

OLD = replace(VIEW, age_s=61.0)
STRICT = replace(RULES, max_age_s=60.0)


def test_nothing_new_is_granted_from_an_old_inventory() -> None:
    for annotations in ({"lading.dev/gpus": "1"}, {"lading.dev/vfs": "1"}):
        refusal = ask(annotations, OLD, rules=STRICT)
        assert isinstance(refusal, Refusal)
        assert (refusal.reason, refusal.transient) == (Reason.INVENTORY_UNAVAILABLE, True)
        assert answered(annotations, replace(OLD, age_s=60.0), rules=STRICT).grant
        assert answered(annotations, replace(OLD, own=granted(annotations)), rules=STRICT).grant


# a new grant


def test_the_key_that_signed_it_is_reported_with_the_answer() -> None:
    key = Ed25519PrivateKey.generate()
    text = central(train=0)[ASSIGNMENT]
    signed = {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: sign(key, "k1", text)}
    trust = Trust(accepted=frozenset({Form.SIGNED}), keys={"k1": key.public_key()})
    assert answered(signed, rules=replace(RULES, trust=trust)).key_id == "k1"
    assert answered({"lading.dev/gpus": "0"}).key_id == ""


def test_a_grant_says_what_is_recorded() -> None:
    answer = answered({"lading.dev/gpus": "1", "lading.dev/vfs": "mlx5_2"})
    assert answer.grant == Grant(
        pod=PodUid(POD),
        container="train",
        namespace="default",
        pod_name="p",
        sandbox=SandboxId("s0"),
        form=Form.MANUAL,
        gen=0,
        request=ContainerRequest(gpus=(GpuRequest(name="1", pod_wide=True),), vfs=(VfRequest(name="mlx5_2"),)),
        devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(1), pod_wide=True),), vfs=(GrantedVf(bdf=vf(1).bdf),)),
        granted_at=NOW,
        boot_id=BOOT,
    )
    assert not answer.reused
    devices = {device.container_path for device in answer.adjustment.devices}
    assert {"/dev/nvidia6", "/dev/nvidiactl", "/dev/infiniband/uverbs21", "/dev/infiniband/rdma_cm"} <= devices
    assert "/dev/nvidia7" not in devices


def test_the_grant_is_in_the_containers_annotations_and_can_be_read_back() -> None:
    answer = answered({"lading.dev/gpus": "0:memory=1Gi", "lading.dev/vfs": "2"})
    assert set(answer.adjustment.annotations) == {GRANT}
    text = answer.adjustment.annotations[GRANT]
    assert parse_annotation(text, sandbox=SandboxId("s0"), granted_at=NOW, boot_id=BOOT) == answer.grant


def test_vfs_without_a_gpu_still_hide_the_cards() -> None:
    answer = answered({"lading.dev/vfs": "1"})
    assert env_of(answer)[VISIBLE_DEVICES] == VOID
    assert env_of(answer)[NCCL_IB_HCA] == "=mlx5_1"
    rules = replace(RULES, unassigned=UnassignedPolicy(hide=False))
    assert VISIBLE_DEVICES not in env_of(answered({"lading.dev/vfs": "1"}, rules=rules))


def test_env_of_the_users_own_is_known() -> None:
    assert NCCL_IB_HCA not in env_of(answered({"lading.dev/vfs": "1"}, env=(NCCL_IB_HCA,)))


def test_a_container_that_the_assignment_does_not_name_sees_no_card() -> None:
    answer = answered(central(train=0), rules=CENTRAL, name="side")
    env = (EnvVar(VISIBLE_DEVICES, VOID),)
    assert answer == Answer(adjustment=Adjustment(env=env, annotations={GRANT: NOTHING}))
    bare = replace(CENTRAL, unassigned=UnassignedPolicy(hide=False))
    assert answered(central(train=0), rules=bare, name="side") == Answer(adjustment=Adjustment(annotations={GRANT: NOTHING}))


def test_a_container_that_could_not_be_found_again_is_refused() -> None:
    assert reason({"lading.dev/gpus": "0"}, name="") is Reason.CONTAINER_UNNAMED
    assert answered({"lading.dev/gpus.train": "0"}, name="").grant is None
    unknown = Sandbox(annotations={"lading.dev/gpus": "0"})
    answer = decide(unknown, Container(name="train"), RULES, VIEW)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.CONTAINER_UNNAMED


@pytest.mark.parametrize("view", [replace(VIEW, stopped=True), replace(VIEW, may_grant=False)])
def test_nothing_is_a_fit_answer_at_any_time(view: View) -> None:
    assert answered({"example.com/x": "y"}, view).grant is None


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"lading.dev/gpus": "9"}, Reason.DEVICE_UNKNOWN),
        ({"lading.dev/gpus": ""}, Reason.ANNOTATION_MALFORMED),
        ({"lading.dev/vfs": "4"}, Reason.CAPACITY_EXCEEDED),
        ({"lading.dev/gpus": "0", "lading.dev/topology": "numa"}, Reason.ANNOTATION_CONFLICT),
        (central(train=0), Reason.FORM_NOT_ACCEPTED),
    ],
)
def test_a_refusal_of_any_part_is_the_answer(annotations: dict[str, str], expected: Reason) -> None:
    assert reason(annotations) is expected


def test_what_others_hold_is_not_given() -> None:
    held = Holding(
        pod=PodUid("other"), pod_name="default/q", container="c", devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),))
    )
    assert reason({"lading.dev/gpus": "0"}, replace(VIEW, held=(held,))) is Reason.DEVICE_HELD
    assert reason({"lading.dev/gpus": "0"}, replace(VIEW, unmanaged={uuid(0): "process 1"})) is Reason.DEVICE_HELD


def test_a_pod_that_cannot_be_served() -> None:
    assert reason({"lading.dev/gpus": "0"}, privileged=True) is Reason.PRIVILEGED
    assert answered(central(train=0), rules=CENTRAL, name="side", privileged=True).grant is None


def test_a_device_that_cannot_be_injected_is_no_grant() -> None:
    """Check that nothing is recorded if the devices can be chosen and not injected."""
    rules = replace(RULES, vendors=(Nvidia(NvidiaSettings(gpu_mode=GpuMode.CDI)),), cdi_refusal="too old")
    assert reason({"lading.dev/gpus": "0"}, rules=rules) is Reason.CDI_UNAVAILABLE


# the moment


def test_a_stopped_sandbox_is_given_nothing() -> None:
    view = replace(VIEW, stopped=True)
    assert reason({"lading.dev/gpus": "0"}, view) is Reason.SANDBOX_STOPPED
    own = granted({"lading.dev/gpus": "0"})
    assert reason({"lading.dev/gpus": "0"}, replace(view, own=own)) is Reason.SANDBOX_STOPPED


def test_only_new_grants_wait_for_the_comparison_with_the_runtime() -> None:
    view = replace(VIEW, may_grant=False)
    assert reason({"lading.dev/gpus": "0"}, view) is Reason.NOT_RECONCILED
    own = granted({"lading.dev/gpus": "0"})
    assert answered({"lading.dev/gpus": "0"}, replace(view, own=own)).reused


@pytest.mark.parametrize(("gen", "pod_gen", "stale"), [(6, 7, True), (7, 7, False), (8, 7, False)])
def test_an_assignment_older_than_what_the_pod_was_granted_is_stale(gen: int, pod_gen: int, stale: bool) -> None:
    answer = ask(central(gen, train=0), replace(VIEW, pod_gen=pod_gen), rules=CENTRAL)
    assert (isinstance(answer, Refusal) and answer.reason is Reason.ASSIGNMENT_STALE) is stale


def test_what_a_person_writes_has_no_generation() -> None:
    assert granted({"lading.dev/gpus": "0"}, replace(VIEW, pod_gen=7)).gen == 0


# an existing grant


def test_an_existing_grant_wins_and_moves_to_the_newer_sandbox() -> None:
    """Check that a container keeps its granted VF in a newer sandbox, although another pod holds all other VFs."""
    own = granted({"lading.dev/vfs": "1"})
    rest = GrantedDevices(vfs=tuple(GrantedVf(bdf=one.bdf) for one in NODE.vfs[1:]))
    held = Holding(pod=PodUid("other"), pod_name="default/q", container="c", devices=rest)
    view = replace(VIEW, own=own, held=(held,), unmanaged={uuid(0): "x"}, now=NOW + 100, boot_id="later")
    again = answered({"lading.dev/vfs": "1"}, view, sandbox="s1")
    assert again.reused
    assert again.grant == replace(own, sandbox=SandboxId("s1"))


def test_a_newer_assignment_of_the_same_devices_is_remembered() -> None:
    own = granted(central(3, train=0), rules=CENTRAL)
    assert granted(central(5, train=0), replace(VIEW, own=own, pod_gen=3), rules=CENTRAL).gen == 5


@pytest.mark.parametrize(
    "annotations", [{"lading.dev/gpus": "1"}, {"lading.dev/gpus": "0:core=50"}, {"lading.dev/vfs": "1"}, {}]
)
def test_an_annotation_changed_or_removed_since_is_refused(annotations: dict[str, str]) -> None:
    own = granted({"lading.dev/gpus": "0"})
    refusal = ask(annotations, replace(VIEW, own=own))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.ASSIGNMENT_CHANGED
    assert uuid(0) in refusal.message


def test_an_assignment_that_no_longer_names_the_container_is_refused() -> None:
    own = granted(central(train=0), rules=CENTRAL)
    assert reason(central(2, side=0), replace(VIEW, own=own), rules=CENTRAL) is Reason.ASSIGNMENT_CHANGED


def test_a_granted_card_that_became_unhealthy_is_refused() -> None:
    own = granted({"lading.dev/gpus": "0"})
    ill = replace(VIEW, own=own, inventory=inventory(gpus=(gpu(0, unhealthy="lost"), gpu(1))))
    assert reason({"lading.dev/gpus": "0"}, ill) is Reason.DEVICE_UNHEALTHY


@pytest.mark.parametrize(
    "annotations",
    [{"lading.dev/gpus": "0"}, {"lading.dev/gpus": "all"}, {"lading.dev/vfs": "2"}, {"lading.dev/gpus.train": "0:core=3"}, {}],
)
def test_adjusting_twice_gives_the_same_answer(annotations: dict[str, str]) -> None:
    first = answered(annotations)
    others = Holding(
        pod=PodUid("other"), pod_name="default/q", container="c", devices=GrantedDevices(vfs=(GrantedVf(bdf=vf(2).bdf),))
    )
    second = answered(annotations, replace(VIEW, own=first.grant, held=(others,), now=NOW + 9))
    assert (second.adjustment, second.grant) == (first.adjustment, first.grant)


# network devices


def central_vf(**entry: object) -> dict[str, str]:
    assigned = {"train": {"vfs": [{"bdf": vf(0).bdf, **entry}]}}
    return {"lading.dev/assignment": json.dumps({"v": 1, "pod": POD, "node": "n1", "gen": 1, "containers": assigned})}


ATTACHES = replace(CENTRAL, netdev=NetdevPolicy(attaches=True, by_default=True))


def test_what_is_to_be_attached_stands_beside_the_grant() -> None:
    answer = answered(central_vf(ifname="net1", vlan=7), rules=ATTACHES)
    settings = VfSettings(config=VfConfig(vlan=7))
    assert answer.attach == (WantedVf(vf=vf(0), ifname="net1", settings=settings),)
    assert answer.grant is not None
    assert answer.grant.request.vfs[0].settings == settings


def test_a_restarted_container_has_its_vfs_attached_as_they_were_granted() -> None:
    own = granted(central_vf(vlan=7), rules=ATTACHES)
    again = answered(central_vf(vlan=7), replace(VIEW, own=own), rules=ATTACHES)
    assert [one.settings.config.vlan for one in again.attach] == [7]
    assert reason(central_vf(vlan=8), replace(VIEW, own=own), rules=ATTACHES) is Reason.ASSIGNMENT_CHANGED


def test_what_cannot_be_attached_is_no_grant() -> None:
    """Check that nothing is recorded if the devices can be chosen and injected, and not attached."""
    assert reason(central_vf(netdev=True), rules=CENTRAL) is Reason.ATTACH_FAILED


def test_a_container_without_vfs_has_nothing_to_wait_for() -> None:
    assert answered(central(train=0), rules=ATTACHES).attach == ()


# a device that became unhealthy

ILL = replace(VIEW, inventory=inventory(gpus=NODE.gpus, vfs=(vf(0, unhealthy="ill"), vf(1), vf(2))))


def test_by_default_it_is_waited_for() -> None:
    own = granted({"lading.dev/vfs": "1"})
    assert reason({"lading.dev/vfs": "1"}, replace(ILL, own=own)) is Reason.DEVICE_UNHEALTHY


def test_where_it_is_given_up_a_free_one_takes_its_place() -> None:
    gives_up = replace(RULES, unhealthy=Unhealthy.GIVE_UP)
    own = granted({"lading.dev/vfs": "1"})
    view = replace(ILL, own=replace(own, containers=(HeldBy(id=ContainerId("c0"), sandbox=own.sandbox),)), now=NOW + 100)
    answer = answered({"lading.dev/vfs": "1"}, view, rules=gives_up)
    assert answer.grant == replace(
        own, devices=GrantedDevices(vfs=(GrantedVf(bdf=vf(1).bdf, pod_wide=True),)), granted_at=NOW + 100, containers=()
    )
    assert not answer.reused
    assert answered({"lading.dev/vfs": "1"}, replace(ILL, own=answer.grant), rules=gives_up).reused


def test_a_named_one_cannot_become_another() -> None:
    gives_up = replace(RULES, unhealthy=Unhealthy.GIVE_UP)
    own = granted({"lading.dev/vfs": "mlx5_1"})
    assert reason({"lading.dev/vfs": "mlx5_1"}, replace(ILL, own=own), rules=gives_up) is Reason.DEVICE_UNHEALTHY
