"""Test that a pod takes of its node the most that its containers use at one time, by acting out its start step by step."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from central.assignment.annotation import OwnAssignment, name_vfs, parse_own, render_assignment
from central.assignment.model import PlacedContainer, PlacedGpu
from central.assignment.phases import add_up, take
from central.request.model import Role, Sharing
from hooks.forms.signed import parse_central
from hooks.grant.choose import choose
from hooks.model.assignment import Assignment, ContainerRequest, Form, GpuRequest, GrantedDevices, GrantedGpu, Refusal
from hooks.model.grant import Holding
from lading.devices.assignment import LABEL
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.vocabulary import PodUid
from tests.unit.central.placed import instance, share, uuid, vf, whole
from tests.unit.hooks.inventories import gpu as gpu_of
from tests.unit.hooks.inventories import inventory

POD, NODE = PodUid("5f0d2c61-0000-4000-8000-000000000001"), "n1"
Roles = list[tuple[str, Role]]
Placed = dict[str, PlacedContainer]

# Seven containers of 12 % fit a card: central places nothing that does not.
shares = st.builds(share, st.sampled_from("AB"), st.integers(0, 5000), st.integers(0, 12))
isolated = st.builds(
    lambda gpu, limit, isolation: replace(gpu, core_limit_percent=limit, isolation=isolation),
    st.builds(share, st.sampled_from("AB"), st.integers(1, 5000), st.integers(0, 12)),
    st.none() | st.integers(12, 100),
    st.none() | st.sampled_from(IsolationName),
)
gpus = shares | isolated | st.builds(whole, st.sampled_from("BC")) | st.builds(instance, st.just("D"), st.integers(1, 3))
containers = st.builds(
    PlacedContainer,
    gpus=st.lists(gpus, max_size=3, unique_by=lambda gpu: gpu.mig_uuid or gpu.uuid).map(tuple),
    vfs=st.lists(st.builds(vf, st.integers(1, 20)), max_size=3, unique=True).map(tuple),
)


@st.composite
def pods(draw: st.DrawFn) -> tuple[Roles, Placed]:
    first = draw(st.lists(st.sampled_from([Role.INIT, Role.SIDECAR]), max_size=4))
    every = [*first, *[Role.APP] * draw(st.integers(1, 3))]
    roles = [(f"c{number}", role) for number, role in enumerate(every)]
    return roles, {name: draw(containers) for name, _ in roles if draw(st.booleans())}


def start(roles: Roles) -> list[list[str]]:
    """Return who runs, after each thing that happens while kubelet starts the pod."""
    running: list[str] = []
    observed = [running]
    for name, role in roles:
        running = [*running, name]
        observed.append(running)
        if role is Role.INIT:  # kubelet waits for its end
            running = running[:-1]
            observed.append(running)
    return observed


def used(card: str, moment: list[str], placed: Placed) -> tuple[int, int]:
    on_card = [gpu for name in moment if name in placed for gpu in placed[name].gpus if gpu.uuid == card]
    return sum(gpu.memory_mib or 0 for gpu in on_card), sum(gpu.core_percent or 0 for gpu in on_card)


@given(pods())
def test_the_most_at_one_time(pod: tuple[Roles, Placed]) -> None:
    roles, placed = pod
    taken = take(roles, placed)
    everything = [gpu for container in placed.values() for gpu in container.gpus]
    assert taken.gpus.keys() == {gpu.uuid for gpu in everything}
    total = add_up(placed.values())
    for card, part in taken.gpus.items():
        moments = [used(card, moment, placed) for moment in start(roles)]
        assert part.memory_mib == max(mib for mib, _ in moments)
        assert part.core_percent == max(core for _, core in moments)
        assert part.whole == any(gpu.whole for gpu in everything if gpu.uuid == card)
        its = {gpu.isolation for gpu in everything if gpu.uuid == card and gpu.isolation}
        assert part.isolation == tuple(sorted(its - {IsolationName.NONE}))
        assert part.mig == {gpu.mig_uuid for gpu in everything if gpu.uuid == card and gpu.mig_uuid}
        if card in total:
            assert part.memory_mib <= total[card].memory_mib
            assert part.core_percent <= total[card].core_percent
        else:
            assert part[:2] == (0, 0)
    assert taken.vfs == {vf.bdf for container in placed.values() for vf in container.vfs}


def requested(gpu: PlacedGpu) -> tuple[object, ...]:
    amounts = gpu.memory_mib, gpu.core_percent, gpu.core_limit_percent
    return gpu.mig_uuid or gpu.uuid, gpu.bdf, *amounts, gpu.isolation


words = st.just("") | st.from_regex(LABEL, fullmatch=True)
labels = st.builds(Sharing, namespace=st.just("team"), affinity=words, anti_affinity=words, exclusion=words)


@given(pods(), st.integers(0, 2**63 - 1), st.none() | labels)
def test_the_node_and_central_read_what_central_wrote(pod: tuple[Roles, Placed], gen: int, said: Sharing | None) -> None:
    roles, placed = pod
    text = render_assignment(POD, NODE, gen, placed, roles, said)
    something = {name: container for name, container in placed.items() if container != PlacedContainer()}
    own = parse_own(text, roles, namespace="team")
    assert isinstance(own, OwnAssignment), own
    assert (own.pod, own.node, own.gen, own.placed, own.taken) == (POD, NODE, gen, something, take(roles, something, said))
    assert render_assignment(POD, NODE, gen, own.placed, roles, said) == text
    read = parse_central(text, pod=POD, node=NODE, form=Form.UNSIGNED)
    assert isinstance(read, Assignment), read
    assert read.gen == gen
    assert list(read.containers) == [name for name, _ in roles if name in something]
    named = name_vfs(placed, roles)
    assert len(set(named.values())) == len(named)
    for name, container in something.items():
        request = read.containers[name]
        read_gpus = [
            (gpu.name, gpu.bdf, gpu.memory_mib, gpu.core_percent, gpu.core_limit_percent, gpu.isolation) for gpu in request.gpus
        ]
        assert read_gpus == [requested(gpu) for gpu in container.gpus]
        assert [(vf.name, vf.pf, vf.ifname) for vf in request.vfs] == [(vf.bdf, vf.pf, named[vf.bdf]) for vf in container.vfs]


CARD = replace(gpu_of(0), uuid=uuid("A"), bdf=share("A", 1).bdf)
OTHER, THIRD = PodUid("other"), PodUid("third")


def part_of_card(mib: int, core: int) -> GrantedDevices:
    if not mib and not core:
        return GrantedDevices()
    return GrantedDevices(gpus=(GrantedGpu(uuid=CARD.uuid, memory_mib=mib or None, core_percent=core or None),))


def hold(pod: PodUid, name: str, devices: GrantedDevices) -> Holding:
    return Holding(pod=pod, pod_name=f"ns/{pod}", container=name, devices=devices)


one_share = st.builds(share, st.just("A"), st.integers(1, 5000), st.integers(0, 12))


@given(pods(), st.data())
def test_the_node_counts_what_central_counted(pod: tuple[Roles, Placed], data: st.DataObject) -> None:
    """Check a card that this pod fills to the last MiB: each of its containers gets its share, and no other pod fits."""
    roles, placed = pod
    placed = {name: PlacedContainer(gpus=(data.draw(one_share),)) for name in placed}
    read = parse_central(render_assignment(POD, NODE, 1, placed, roles), pod=POD, node=NODE, form=Form.UNSIGNED)
    assert isinstance(read, Assignment), read
    part = take(roles, placed).gpus.get(CARD.uuid)
    mib, core = (part.memory_mib, part.core_percent) if part else (0, 0)
    node = inventory(gpus=(CARD,))
    held = [hold(OTHER, "c", part_of_card(CARD.usable_mib - mib, 100 - core))]
    for name, request in read.containers.items():
        devices = choose(request, node, pod=POD, held=held, unmanaged={})
        assert isinstance(devices, GrantedDevices), devices
        held.append(hold(POD, name, devices))
    for more in (GpuRequest(name=CARD.uuid, memory_mib=1), GpuRequest(name=CARD.uuid, core_percent=1)):
        refused = choose(ContainerRequest(gpus=(more,)), node, pod=THIRD, held=held, unmanaged={})
        assert isinstance(refused, Refusal), refused
        assert refused.reason == Reason.CAPACITY_EXCEEDED
