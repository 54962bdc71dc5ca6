import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from hooks.ledger.reconcile import GRACE_S, Actions, ProblemKind, held_twice, rebuild, reconcile
from hooks.model.attachment import Attachment
from hooks.model.grant import Grant, HeldBy, render_annotation
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.vocabulary import PciAddress, PodUid, SandboxId
from tests.fakes.holders import BOOT, LONG_AGO, NOW, container, grant, row, sandbox, share, vf_bdf, vfs, whole

EXITED = ContainerState.EXITED
ENDED = sandbox(ready=False)
OTHER = sandbox("pod-other")  # something else runs on this node


def settle(
    grants: Collection[Grant] = (),
    sandboxes: Sequence[ListedSandbox] = (),
    containers: Sequence[ListedContainer] = (),
    *,
    tombstones: Mapping[SandboxId, int] | None = None,
    busy: Collection[PodUid] = (),
    stopped: Collection[PodUid] = (),
    attached: Collection[tuple[PodUid, PciAddress]] = (),
    now: int = NOW,
) -> Actions:
    lists = Lists(sandboxes=sandboxes, containers=containers)
    return reconcile(grants, tombstones or {}, lists, now=now, boot_id=BOOT, busy=busy, stopped=stopped, not_back=attached)


def kinds(actions: Actions) -> list[ProblemKind]:
    return [p.kind for p in actions.problems]


def is_quiet(actions: Actions) -> bool:
    return actions == Actions(problems=actions.problems)


@pytest.mark.parametrize(("grants", "containers"), [([grant()], []), ([], [container(wears=grant())])])
def test_an_empty_list_of_sandboxes_beside_holders_does_nothing(grants: list[Grant], containers: list[ListedContainer]) -> None:
    actions = settle(grants, [], containers)
    assert is_quiet(actions)
    assert kinds(actions) == [ProblemKind.LIST_EMPTY]


def test_an_empty_node_is_in_order() -> None:
    assert settle([], [], []) == Actions()


def test_a_grant_of_a_pod_that_is_deleted_is_released() -> None:
    deleted = grant()
    assert settle([deleted], [OTHER], [container("x", pod="pod-other")]).release == (deleted.key,)


def test_the_last_container_of_a_node_may_end() -> None:
    assert settle([grant()], [ENDED], []).release == (grant().key,)


@pytest.mark.parametrize("state", [ContainerState.CREATED, ContainerState.RUNNING])
def test_a_container_that_outlives_its_sandbox_keeps_its_devices(state: ContainerState) -> None:
    """Check it, because kubelet stops a sandbox also after it failed to kill a container in it."""
    assert is_quiet(settle([grant()], [ENDED], [container(state=state)]))


def test_a_restart_keeps_the_grant() -> None:
    assert is_quiet(settle([grant()], [sandbox()], [container(state=EXITED)]))
    assert is_quiet(settle([grant()], [sandbox()], []))


def test_a_sandbox_made_again_keeps_the_grant() -> None:
    assert is_quiet(settle([grant()], [ENDED, sandbox(id="pod-1-s1")], [container(state=EXITED)]))


def test_each_container_of_an_ended_pod_is_judged_alone() -> None:
    held, free = grant(container="held"), grant(container="free")
    containers = [container("c0", name="held"), container("c1", name="free", state=EXITED)]
    assert settle([held, free], [ENDED], containers).release == (free.key,)


def test_a_container_of_that_name_in_another_pod_says_nothing() -> None:
    assert settle([grant()], [ENDED, OTHER], [container(pod="pod-other")]).release == (grant().key,)


def test_a_container_whose_sandbox_is_not_listed_counts() -> None:
    assert is_quiet(settle([grant()], [OTHER], [container(sandbox="unlisted")]))


@pytest.mark.parametrize(
    ("age", "released"), [(0, False), (GRACE_S - 1, False), (GRACE_S, True), (-1, False), (-GRACE_S, True)]
)
def test_a_brand_new_grant_is_left_alone(age: int, released: bool) -> None:
    """Check that the CreateContainer call of a new grant may be under way, and that a clock that jumped far back does not keep
    the grant for ever."""
    actions = settle([grant(granted_at=NOW - age)], [OTHER], [container("x", pod="pod-other")])
    assert bool(actions.release) is released


def test_the_last_pod_of_a_node_may_end() -> None:
    """Check a pod whose stop was observed, and which was removed before the lists were made: they are empty."""
    young = grant(granted_at=NOW)
    assert settle([young], [], [], stopped={young.pod}) == Actions(release=(young.key,))
    beside = grant("pod-2", devices=whole(1))
    assert kinds(settle([young, beside], [], [], stopped={young.pod})) == [ProblemKind.LIST_EMPTY]


def test_a_pod_that_was_observed_to_stop_has_no_grace_and_every_other_right() -> None:
    young = grant(granted_at=NOW)
    assert settle([young], [ENDED], [container(state=EXITED)], stopped={young.pod}).release == (young.key,)
    assert is_quiet(settle([young], [ENDED], [container()], stopped={young.pod}))
    assert is_quiet(settle([young], [ENDED, sandbox(id="pod-1-s1")], [], stopped={young.pod}))
    assert is_quiet(settle([young], [ENDED], [], stopped={young.pod}, busy={young.pod}))
    assert is_quiet(settle([young], [ENDED], [], stopped={PodUid("pod-other")}))


def test_a_tombstone_ends_the_grace() -> None:
    """Check a grant whose writer may have been killed before the stop of the sandbox reached it."""
    young = grant(granted_at=NOW)
    grave = {young.sandbox: NOW}
    assert settle([young], [OTHER], [], tombstones=grave).release == (young.key,)
    assert settle([young], [ENDED], [container(state=EXITED)], tombstones=grave).release == (young.key,)
    assert is_quiet(settle([young], [ENDED], [container()], tombstones=grave))
    assert is_quiet(settle([young], [sandbox()], [], tombstones=grave))
    assert is_quiet(settle([replace(young, sandbox=SandboxId("pod-1-s1"))], [OTHER], [], tombstones=grave))


def test_a_busy_pod_is_left_alone() -> None:
    """Check a pod for which the lists may be older than its last answer."""
    old = grant(containers={"gone": "pod-1-s0"})
    wearing = [container("c9", wears=grant(devices=whole(7)))]
    assert is_quiet(settle([old], [OTHER], (), busy={PodUid("pod-1")}))
    assert is_quiet(settle([old], [ENDED], (), busy={PodUid("pod-1")}))
    assert settle([], [sandbox()], wearing, busy={PodUid("pod-1")}) == Actions()


# adopt


def test_a_container_that_carries_a_grant_which_the_ledger_lacks_is_adopted() -> None:
    lost = grant(devices=share(2))
    (adopted,) = settle([], [sandbox()], [container("c3", wears=lost, created_at=1_234_567)]).adopt
    assert adopted == replace(lost, granted_at=1_234_567, containers=(HeldBy(id="c3", sandbox=lost.sandbox),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ready", "state", "adopted"),
    [(True, ContainerState.RUNNING, 1), (False, ContainerState.RUNNING, 1), (True, EXITED, 1), (False, EXITED, 0)],
)
def test_what_has_ended_is_not_adopted(ready: bool, state: ContainerState, adopted: int) -> None:
    assert len(settle([], [sandbox(ready=ready)], [container(wears=grant(), state=state)]).adopt) == adopted


def test_the_attempts_of_one_container_are_one_grant_of_the_newest() -> None:
    old, new = grant(devices=whole(0)), grant(devices=whole(1))
    actions = settle(
        [],
        [sandbox()],
        [
            container("c0", wears=old, state=EXITED, created_at=10),
            container("c1", wears=new, state=EXITED, created_at=20),
            container("c2", wears=new, created_at=15),
        ],
    )
    (adopted,) = actions.adopt
    assert adopted.devices == whole(1)
    assert [c.id for c in adopted.containers] == ["c1", "c2"]
    assert not actions.problems  # the first attempt held something else once


def test_what_runs_is_believed_before_what_ended_later() -> None:
    running, ended = grant(devices=whole(0)), grant(devices=whole(1))
    containers = [container("c0", wears=running, created_at=10), container("c1", wears=ended, state=EXITED, created_at=20)]
    (adopted,) = settle([], [sandbox()], containers).adopt
    assert adopted.devices == whole(0)


def test_a_container_that_the_ledger_did_not_see_is_noted() -> None:
    known = grant(containers={"c0": "pod-1-s0"})
    actions = settle([known], [sandbox()], [container("c0", wears=known), container("c1", wears=known)])
    assert [(key, c.id) for key, c in actions.add_containers] == [(known.key, "c1")]
    assert not actions.adopt


def test_a_container_that_the_runtime_removed_is_forgotten() -> None:
    known = grant(containers={"c0": "pod-1-s0", "c1": "pod-1-s0"})
    assert settle([known], [sandbox()], [container("c1", wears=known)]).forget_containers == ("c0",)


@pytest.mark.parametrize("text", ["not json", "{}", render_annotation(grant()) + " ", "[" * 70_000])
def test_an_annotation_that_is_not_ours_is_a_problem(text: str) -> None:
    actions = settle([], [sandbox()], [container(wears=text)])
    assert is_quiet(actions)
    assert kinds(actions) == [ProblemKind.ANNOTATION_UNREADABLE]


@pytest.mark.parametrize("other", [grant("pod-2"), grant(container="side")])
def test_a_copied_annotation_is_a_problem(other: Grant) -> None:
    actions = settle([], [sandbox(), sandbox("pod-2")], [container(wears=other)])
    assert is_quiet(actions)
    assert kinds(actions) == [ProblemKind.ANNOTATION_MISPLACED]


def test_a_running_container_with_other_devices_than_its_grant_is_a_problem() -> None:
    actions = settle([grant(devices=whole(0))], [sandbox()], [container(wears=grant(devices=whole(1)))])
    assert is_quiet(actions)
    assert kinds(actions) == [ProblemKind.GRANT_DIFFERS]


def test_an_exited_one_with_other_devices_is_none() -> None:
    actions = settle([grant(devices=whole(0))], [sandbox()], [container(wears=grant(devices=whole(1)), state=EXITED)])
    assert actions == Actions()


# one device, two pods


MIG_A, MIG_B = "MIG-00000000-0000-0000-0000-00000000000a", "MIG-00000000-0000-0000-0000-00000000000b"


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        (whole(0), whole(0), True),
        (whole(0), share(0), True),
        (share(0), share(0), False),
        (whole(0), whole(1), False),
        (vfs(1, 2), vfs(2, 3), True),
        (vfs(1), vfs(2), False),
        (share(0, mig_uuid=MIG_A), share(0, mig_uuid=MIG_A), True),
        (share(0, mig_uuid=MIG_A), share(0, mig_uuid=MIG_B), False),
        (share(0, mig_uuid=MIG_A), whole(0), True),
        (share(0, mig_uuid=MIG_A), share(0), True),
    ],
)
def test_two_pods_on_one_device_are_reported_and_left(one: object, other: object, problem: bool) -> None:
    first, second = grant(devices=one), grant("pod-2", devices=other)  # type: ignore[arg-type]
    sandboxes = [sandbox(), sandbox("pod-2")]
    for grants, containers in (
        ([first, second], [container("c0"), container("c1", pod="pod-2")]),
        ([first], [container("c0"), container("c1", pod="pod-2", wears=second)]),
        ([], [container("c0", wears=first), container("c1", pod="pod-2", wears=second)]),
    ):
        actions = settle(grants, sandboxes, containers)
        assert not actions.release
        assert len(actions.adopt) == 2 - len(grants)  # a running container is written down, even one that should not run
        assert kinds(actions) == ([ProblemKind.DEVICE_HELD_TWICE] if problem else [])
        assert all(set(p.pods) == {"pod-1", "pod-2"} for p in actions.problems)


def test_containers_of_one_pod_may_share_a_device() -> None:
    assert not settle([grant(), grant(container="side")], [sandbox()], []).problems


def test_a_released_grant_is_in_nobodys_way() -> None:
    actions = settle([grant("pod-2"), grant()], [sandbox()], [container("c0")])
    assert [key.pod for key in actions.release] == ["pod-2"]
    assert not actions.problems


# tombstones


def test_a_tombstone_is_forgotten_when_the_sandbox_is_removed_and_not_before() -> None:
    tombstones = {SandboxId("pod-1-s0"): LONG_AGO, SandboxId("gone"): LONG_AGO, SandboxId("just-now"): NOW - 1}
    assert settle([], [ENDED], [], tombstones=tombstones).forget == ("gone",)


# rebuild


def test_rebuild_is_what_the_containers_say() -> None:
    one, two = grant(), grant("pod-2", devices=vfs(1))
    containers = [container("c0", wears=one), container("c1", pod="pod-2", wears=two), container("c2", name="bare")]
    actions = rebuild(Lists(sandboxes=[sandbox(), sandbox("pod-2")], containers=containers), now=NOW, boot_id=BOOT)
    assert {(g.key, g.devices) for g in actions.adopt} == {(g.key, g.devices) for g in (one, two)}


# VFs in pods' network namespaces


@pytest.mark.parametrize(("whose", "kept"), [("pod-1", True), ("pod-2", False)])
def test_a_grant_stays_while_a_vf_of_it_is_not_back(whose: str, kept: bool) -> None:
    """Check a stop that was observed too: the kernel has not moved the VF back yet. Another pod's VF with that address does not
    count."""
    over = grant(devices=vfs(1, 2))
    away = {(PodUid(whose), vf_bdf(2))}
    actions = settle([over], [ENDED, OTHER], [], stopped={over.pod}, attached=away)
    assert actions.release == (() if kept else (over.key,))


def test_what_is_adopted_brings_its_vfs_back() -> None:
    held = grant(devices=vfs(1, 2))
    rows = (row(1, generation=7), row(2, generation=8))
    actions = settle([], [sandbox()], [container(wears=held, attached=rows)])
    assert [g.key for g in actions.adopt] == [held.key]
    assert actions.restore == rows
    listed = Lists(sandboxes=[sandbox()], containers=[container(wears=held, attached=rows)])
    assert rebuild(listed, now=NOW, boot_id=BOOT).restore == rows
    assert is_quiet(settle(actions.adopt, [sandbox()], [container(wears=held, attached=rows)]))


def test_old_annotations_of_what_the_ledger_knows_bring_nothing_back() -> None:
    """Check a VF that a person released by force, or that the pod gave up: the container still has its first annotation."""
    held = grant(devices=vfs(1), containers={"c0": "pod-1-s0"})
    assert settle([held], [sandbox()], [container(wears=held, attached=[row(1)])]).restore == ()
    now = grant(devices=vfs(2))
    before = container("c0", wears=grant(devices=vfs(1)), attached=[row(1)], state=EXITED)
    actions = settle([], [sandbox()], [before, container("c1", wears=now, attached=[row(2)], created_at=LONG_AGO + 9)])
    assert actions.restore == (row(2),)


@pytest.mark.parametrize(
    "wrong", [row(3), row(1, sandbox="another"), row(1, "pod-2", sandbox="pod-1-s0")], ids=["vf", "sandbox", "pod"]
)
def test_an_attachment_of_something_else_is_not_believed(wrong: Attachment) -> None:
    actions = settle([], [sandbox()], [container(wears=grant(devices=vfs(1)), attached=[wrong])])
    assert actions.restore == ()
    assert kinds(actions) == [ProblemKind.ANNOTATION_MISPLACED]
    assert len(actions.adopt) == 1


def test_attachments_that_cannot_be_read_do_not_hide_the_grant() -> None:
    actions = settle([], [sandbox()], [container(wears=grant(devices=vfs(1)), attached="[{}]")])
    assert kinds(actions) == [ProblemKind.ANNOTATION_UNREADABLE]
    assert len(actions.adopt) == 1


def test_a_pod_with_thousands_of_containers_is_compared_in_bounded_time() -> None:
    grants = [grant("pod-1", f"c{number}", whole(0)) for number in range(6000)]
    started = time.process_time()
    assert held_twice(grants) == ()
    assert time.process_time() - started < 5  # milliseconds; half a minute if each pair of them is looked at
