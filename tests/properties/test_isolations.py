"""Check that a node grants every assignment of central with isolations, though both count independently."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from central.decide.scheduler import Reservation
from central.request.model import Policy
from hooks.forms.signed import parse_central
from hooks.grant.choose import choose
from hooks.model.assignment import Assignment, Form, GrantedDevices
from hooks.model.grant import Holding
from hooks.model.inventory import Inventory
from lading.devices.isolation import IsolationName
from lading.vocabulary import ASSIGNMENT, GpuUuid, PciAddress
from tests.fakes.capacities import CARD_MIB
from tests.fakes.kube_objects import gpu_uuid, share
from tests.unit.central.world import World, uid_of
from tests.unit.hooks.inventories import gpu, inventory

NONE, TOKENS = IsolationName.NONE, IsolationName.TOKENS
CARDS = 2
offers = st.sampled_from([(NONE,), (NONE, TOKENS), (TOKENS, NONE), (TOKENS,)])
requested = st.sampled_from([{}, {}, {"lading.dev/isolation": "tokens"}, {"lading.dev/isolation": "none"}])
limits = st.sampled_from([share("1Gi"), share(core=1), {"lading.dev/gpu": "2"} | share("1Gi"), {"lading.dev/gpu": "1"}])
pods = st.tuples(limits, requested, st.sampled_from([1, 1, 1, 9, 18]))  # so many alike
steps = st.lists(pods | st.integers(0, 99), max_size=8)  # a number: one of the pods ends


def node_with(isolations: tuple[IsolationName, ...]) -> Inventory:
    cards = tuple(
        replace(
            gpu(number),
            uuid=GpuUuid(gpu_uuid("n1", number)),
            bdf=PciAddress(f"0000:{0x10 + number:02x}:00.0"),
            memory_mib=CARD_MIB,
            reserved_mib=0,
        )
        for number in range(CARDS)
    )
    return replace(inventory(gpus=cards), isolations=isolations)


@given(offers, steps, st.sampled_from(Policy))
def test_the_node_grants_what_central_assigns(
    isolations: tuple[IsolationName, ...], told: list[tuple[dict[str, str], dict[str, str], int] | int], policy: Policy
) -> None:
    made, node = World(policy=policy), node_with(isolations)
    made.node("n1", CARDS, isolations=() if isolations == (NONE,) else isolations)
    held: dict[str, Holding] = {}
    count = 0
    for step in told:
        if isinstance(step, int):
            if held:
                name = list(held)[step % len(held)]
                del held[name]
                made.deleted(name)
            continue
        wanted, annotations, alike = step
        for name in (f"p{number}" for number in range(count, count + alike)):
            count += 1
            made.show(name, wanted, annotations=annotations if "gpu-" in str(wanted) else {})
            if not made.filter(name).fitting:
                made.deleted(name)
                continue
            reserved = made.scheduler.reserve(uid_of(name), "n1")
            assert isinstance(reserved, Reservation)
            made.scheduler.confirm(reserved)
            made.show(name, wanted, node="n1", annotations={**annotations, ASSIGNMENT: reserved.assignment})
            read = parse_central(reserved.assignment, pod=uid_of(name), node="n1", form=Form.UNSIGNED)
            assert isinstance(read, Assignment), read
            (request,) = read.containers.values()
            devices = choose(request, node, pod=uid_of(name), held=list(held.values()), unmanaged={})
            assert isinstance(devices, GrantedDevices), devices
            held[name] = Holding(pod=uid_of(name), pod_name=f"default/{name}", container="main", devices=devices)
            written = json.loads(reserved.assignment)["containers"]["main"]["gpus"]
            for gpu_written, granted in zip(written, devices.gpus, strict=True):
                assert granted.isolation == gpu_written.get("isolation", "none")
