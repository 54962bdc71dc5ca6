"""Check properties of the ledger's reconciliation on random nodes with few pods, so that conflicts are frequent."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hooks.ledger.reconcile import GRACE_S, Actions, ProblemKind, held_twice, rebuild, reconcile
from hooks.model.assignment import GrantedDevices
from hooks.model.grant import Grant, GrantKey
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.vocabulary import PodUid, SandboxId
from tests.fakes.holders import BOOT, LONG_AGO, NOW, container, grant, sandbox, share, vfs, whole

PODS = [f"pod-{n}" for n in range(4)]
NAMES = ["train", "side"]

numbers = st.integers(0, 3)
devices = st.one_of(st.builds(whole, numbers), st.builds(share, numbers), st.builds(vfs, numbers), st.just(GrantedDevices()))
keys = st.builds(GrantKey, st.sampled_from(PODS).map(PodUid), st.sampled_from(NAMES))


@st.composite
def grants(draw: st.DrawFn) -> list[Grant]:
    return [
        grant(
            key.pod,
            key.container,
            what,
            granted_at=draw(st.sampled_from([LONG_AGO, NOW - GRACE_S, NOW - 1, NOW, NOW + 1])),
            containers={f"{key}-{c}": "s" for c in draw(st.sets(st.sampled_from(["c0", "c1", "gone"])))},
        )
        for key, what in draw(st.dictionaries(keys, devices)).items()
    ]


@st.composite
def sandboxes(draw: st.DrawFn) -> list[ListedSandbox]:
    return [
        sandbox(pod, id=f"{pod}-s{attempt}", ready=draw(st.booleans()))
        for pod in draw(st.sets(st.sampled_from(PODS)))
        for attempt in range(draw(st.integers(1, 2)))
    ]


@st.composite
def containers(draw: st.DrawFn) -> list[ListedContainer]:
    listed = []
    for key, attempt in draw(st.sets(st.tuples(keys, st.integers(0, 1)), max_size=8)):
        worn = draw(st.one_of(devices, st.sampled_from([None, "junk"])))
        wears = grant(*key, worn) if isinstance(worn, GrantedDevices) else worn
        state = draw(st.sampled_from(ContainerState))
        listed.append(
            container(f"{key}-c{attempt}", pod=key.pod, name=key.container, state=state, wears=wears, created_at=attempt)
        )
    return listed


tombstones = st.dictionaries(
    st.sampled_from([f"{p}-s{n}" for p in PODS for n in range(2)]).map(SandboxId), st.sampled_from([LONG_AGO, NOW])
)
busy = st.sets(st.sampled_from(PODS).map(PodUid), max_size=2)


def settle(
    held: list[Grant],
    stopped: dict[SandboxId, int],
    boxes: list[ListedSandbox],
    listed: list[ListedContainer],
    pods: set[PodUid],
) -> Actions:
    return reconcile(held, stopped, Lists(sandboxes=boxes, containers=listed), now=NOW, boot_id=BOOT, busy=pods)


def applied(actions: Actions, held: list[Grant]) -> list[Grant]:
    """Return what the ledger does with the actions, on values."""
    after = {g.key: g for g in held if g.key not in actions.release}
    for key, by in actions.add_containers:
        after[key] = replace(after[key], containers=(*after[key].containers, by))
    for key, g in after.items():
        after[key] = replace(g, containers=tuple(c for c in g.containers if c.id not in actions.forget_containers))
    return [*after.values(), *actions.adopt]


@given(grants(), tombstones, sandboxes(), containers(), busy)
def test_nothing_that_is_used_is_released(
    held: list[Grant],
    stopped: dict[SandboxId, int],
    boxes: list[ListedSandbox],
    listed: list[ListedContainer],
    pods: set[PodUid],
) -> None:
    actions = settle(held, stopped, boxes, listed, pods)
    ready = {s.pod for s in boxes if s.ready}
    live = {c.key for c in listed if c.state in (ContainerState.CREATED, ContainerState.RUNNING)}
    young = {g.key for g in held if abs(NOW - g.granted_at) < GRACE_S and g.sandbox not in stopped}
    for key in actions.release:
        assert key.pod not in ready
        assert key not in live
        assert key.pod not in pods
        assert key not in young
        assert boxes


@given(grants(), tombstones, sandboxes(), containers(), busy)
def test_all_that_is_not_used_is_released(
    held: list[Grant],
    stopped: dict[SandboxId, int],
    boxes: list[ListedSandbox],
    listed: list[ListedContainer],
    pods: set[PodUid],
) -> None:
    boxes = [*boxes, sandbox("pod-other")]
    actions = settle(held, stopped, boxes, listed, pods)
    ready = {s.pod for s in boxes if s.ready}
    live = {c.key for c in listed if c.state in (ContainerState.CREATED, ContainerState.RUNNING)}
    for g in held:
        if g.granted_at == LONG_AGO and g.pod not in ready and g.key not in live and g.pod not in pods:
            assert g.key in actions.release


@given(grants(), tombstones, sandboxes(), containers(), busy)
def test_it_settles(
    held: list[Grant],
    stopped: dict[SandboxId, int],
    boxes: list[ListedSandbox],
    listed: list[ListedContainer],
    pods: set[PodUid],
) -> None:
    """Apply the actions, and reconcile again with the same lists: the problems are the same, and no action is left."""
    first = settle(held, stopped, boxes, listed, pods)
    left = {i: at for i, at in stopped.items() if i not in first.forget}
    second = settle(applied(first, held), left, boxes, listed, pods)
    assert replace(second, problems=()) == Actions()
    assert {p.kind for p in second.problems} == {p.kind for p in first.problems}


@given(grants(), sandboxes(), containers(), busy)
def test_two_pods_on_one_device_are_always_reported(
    held: list[Grant], boxes: list[ListedSandbox], listed: list[ListedContainer], pods: set[PodUid]
) -> None:
    actions = settle(held, {}, [*boxes, sandbox("pod-other")], listed, pods)
    text = {frozenset(p.pods) for p in actions.problems if p.kind is ProblemKind.DEVICE_HELD_TWICE}
    after = applied(actions, held)
    assert text == {frozenset(p.pods) for p in held_twice(after)}
    for one in after:
        for other in after:
            if one.pod != other.pod and set(one.devices.vfs) & set(other.devices.vfs):
                assert {one.pod, other.pod} in text


@given(grants())
def test_a_lost_ledger_is_rebuilt_from_the_containers(held: list[Grant]) -> None:
    boxes = [sandbox(pod) for pod in {g.pod for g in held}]
    listed = [container(str(n), pod=g.pod, name=g.container, wears=g, created_at=g.granted_at) for n, g in enumerate(held)]
    rebuilt = rebuild(Lists(sandboxes=boxes, containers=listed), now=NOW, boot_id=BOOT).adopt
    assert {g.key: replace(g, containers=()) for g in rebuilt} == {g.key: replace(g, containers=()) for g in held}
