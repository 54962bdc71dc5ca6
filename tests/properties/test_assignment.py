"""Check that any annotation gives an assignment or a refusal, and that no request gets a device that is already given."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hooks.forms.annotations import parse_assignment
from hooks.grant.choose import choose
from hooks.model.assignment import (
    Assignment,
    ContainerRequest,
    Form,
    GpuRequest,
    GrantedDevices,
    GrantedGpu,
    Refusal,
    Trust,
    VfRequest,
)
from hooks.model.grant import Holding
from hooks.model.inventory import Inventory
from lading.signature import sign
from lading.vocabulary import PciAddress, PodUid
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, mig_uuid, uuid, vf

POD = PodUid("5f0d2c61-0000-4000-8000-000000000001")
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TRUSTS = [
    Trust(accepted=frozenset({Form.SIGNED}), keys={"k1": KEY.public_key()}),
    Trust(accepted=frozenset({Form.UNSIGNED})),
    Trust(accepted=frozenset({Form.MANUAL})),
]
NODE = inventory(
    gpus=(gpu(0), gpu(1), mig_gpu(2), gpu(3, unhealthy="x")), vfs=(*(vf(i) for i in range(4)), vf(4, unhealthy="x"))
)


def parse(annotations: Mapping[str, str], trust: Trust) -> Assignment | Refusal | None:
    return parse_assignment(annotations, pod=POD, node="n1", trust=trust)


# Anything at all

any_text = st.text(st.characters(), max_size=60)  # lone surrogates too
grammar_text = st.lists(
    st.sampled_from(
        [",", ":", "0", "1", "all", "memory=", "core=", "8Gi", "30", "mlx5_1", "0000:3b:00.1", uuid(0), "/", "..", " "]
    ),
    max_size=12,
).map("".join)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.sampled_from([POD, "n1", uuid(0), "0000:3b:00.1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged_assignments(draw: st.DrawFn) -> str:
    """Draw a valid assignment with arbitrary JSON in one place, so that the parser is tested at every depth."""
    there = [
        draw(any_json) if draw(st.integers(0, 9)) == 0 else right for right in (1, POD, "n1", 7, uuid(0), 8138, 30, "rdma0")
    ]
    one_gpu = {"uuid": there[4], "memory_mib": there[5], "core_percent": there[6], draw(any_text): draw(any_json)}
    one_vf = {"bdf": draw(st.sampled_from(["0000:3b:00.1", "/", None, 1])), "ifname": there[7]}
    containers = {draw(st.sampled_from(["train", "", "A"]) | any_text): {"gpus": [one_gpu], "vfs": [one_vf]}}
    root = {"v": there[0], "pod": there[1], "node": there[2], "gen": there[3], "containers": containers}
    return json.dumps(root, ensure_ascii=draw(st.booleans()))


keys = st.sampled_from(
    [
        "lading.dev/assignment",
        "lading.dev/assignment-signature",
        "lading.dev/gpus",
        "lading.dev/gpus.train",
        "lading.dev/vfs",
        "lading.dev/topology",
        "lading.dev/grant",
    ]
)
any_key = keys | any_text.map(lambda text: "lading.dev/" + text) | any_text.map(lambda text: "lading.dev/gpus." + text)
any_value = any_text | grammar_text | any_json.map(json.dumps) | damaged_assignments()


def check(result: Assignment | Refusal | None) -> None:
    match result:
        case Refusal(message=message):
            assert message
            message.encode()  # can be put into a protobuf string
            assert len(message) < 1000
            assert message.isprintable()
        case Assignment():
            for request in (*result.containers.values(), result.every_container):
                assert all(g.memory_mib is None or g.memory_mib > 0 for g in request.gpus)
                assert all(g.core_percent is None or 1 <= g.core_percent <= 100 for g in request.gpus)
                assert not any("/" in name for name in [v.name for v in request.vfs])


@given(st.dictionaries(any_key, any_value, max_size=4), st.sampled_from(TRUSTS))
def test_any_annotations_are_answered(annotations: dict[str, str], trust: Trust) -> None:
    result = parse(annotations, trust)
    check(result)
    assert parse(annotations, trust) == result


@given(damaged_assignments() | any_json.map(json.dumps) | any_text)
def test_any_assignment_is_answered(text: str) -> None:
    unsigned = parse({"lading.dev/assignment": text}, TRUSTS[1])
    check(unsigned)
    written = sign(KEY, "k1", text)
    signed = parse({"lading.dev/assignment": text, "lading.dev/assignment-signature": written}, TRUSTS[0])
    if isinstance(unsigned, Assignment):
        assert signed == replace(unsigned, form=Form.SIGNED, key_id="k1")
    else:
        assert signed == unsigned


@given(grammar_text, st.sampled_from(["gpus", "vfs", "gpus.train"]))
def test_any_line_by_hand_is_answered(text: str, kind: str) -> None:
    check(parse({f"lading.dev/{kind}": text}, TRUSTS[2]))


# Reading what was written

gpu_names = st.sampled_from(["0", "1", "7", uuid(0), uuid(5), "0000:1b:00.0", "10000:e1:1f.7"])
shares = st.tuples(st.none() | st.integers(1, 200_000), st.none() | st.integers(1, 100))


@st.composite
def gpu_requests(draw: st.DrawFn, names: st.SearchStrategy[str]) -> tuple[GpuRequest, ...]:
    chosen = draw(st.lists(names, max_size=4, unique=True))
    given_shares = [draw(shares) for _ in chosen]
    return tuple(GpuRequest(name=n, memory_mib=m, core_percent=c) for n, (m, c) in zip(chosen, given_shares, strict=True))


def render_gpu(one: GpuRequest, space: str) -> str:
    options = [f"memory={one.memory_mib}Mi"] * (one.memory_mib is not None) + [f"core={one.core_percent}"] * (
        one.core_percent is not None
    )
    return one.name + (":" + f"{space},{space}".join(options) if options else "")


@given(gpu_requests(gpu_names).filter(bool), st.sampled_from(["", " ", "\n"]))
def test_the_manual_form_reads_what_it_says(wanted: tuple[GpuRequest, ...], space: str) -> None:
    text = space + f"{space},{space}".join(render_gpu(one, space) for one in wanted) + space
    result = parse({"lading.dev/gpus.train": text}, TRUSTS[2])
    assert isinstance(result, Assignment), result
    assert result.for_container("train") == ContainerRequest(gpus=wanted)


ifnames = {"0000:3b:00.1": "", "0000:3b:00.2": "rdma0", "10000:e1:1f.7": "rdma1"}  # one in all of a pod's containers
vf_requests = st.lists(
    st.builds(
        lambda name, pf: VfRequest(name=name, pf=pf, ifname=ifnames[name]),
        st.sampled_from(sorted(ifnames)),
        st.none() | st.just(PciAddress("0000:3b:00.0")),
    ),
    max_size=3,
    unique_by=lambda one: one.name,
).map(tuple)
requests = st.builds(ContainerRequest, gpus=gpu_requests(st.sampled_from([uuid(i) for i in range(8)])), vfs=vf_requests)


def render_container(request: ContainerRequest) -> dict[str, Any]:
    """Return one container of an assignment as central writes it, without absent values."""
    of_gpus = [{"uuid": g.name, "memory_mib": g.memory_mib, "core_percent": g.core_percent} for g in request.gpus]
    of_vfs = [{"bdf": v.name, "pf": v.pf, "ifname": v.ifname or None} for v in request.vfs]
    return {
        "gpus": [{k: v for k, v in one.items() if v is not None} for one in of_gpus],
        "vfs": [{k: v for k, v in one.items() if v is not None} for one in of_vfs],
    }


@given(st.dictionaries(st.sampled_from(["train", "side", "x-1"]), requests), st.integers(0, 2**63 - 1))
def test_centrals_form_reads_what_it_says(containers: dict[str, ContainerRequest], gen: int) -> None:
    root = {"v": 1, "pod": POD, "node": "n1", "gen": gen, "containers": {n: render_container(r) for n, r in containers.items()}}
    result = parse({"lading.dev/assignment": json.dumps(root)}, TRUSTS[1])
    assert result == Assignment(form=Form.UNSIGNED, pod=POD, node="n1", gen=gen, containers=containers)


# Holders

on_node = st.sampled_from(["0", "1", "2", "3", uuid(0), NODE.gpus[1].bdf, mig_uuid(20), mig_uuid(21), "all"])
node_share = st.sampled_from([(None, None), (None, None), (20_000, None), (20_000, 30), (None, 60), (81_000, None)])


@st.composite
def requested(draw: st.DrawFn) -> ContainerRequest:
    names = draw(st.lists(on_node, max_size=2, unique=True))
    of_gpus = []
    for name in names:
        mib, core = (None, None) if name == "all" or name.startswith("MIG-") else draw(node_share)
        of_gpus.append(GpuRequest(name=name, memory_mib=mib, core_percent=core, pod_wide=draw(st.booleans())))
    named_vfs = draw(st.lists(st.sampled_from(["mlx5_1", "mlx5_2", vf(0).bdf]), max_size=1))
    return ContainerRequest(
        gpus=tuple(of_gpus),
        vfs=tuple(VfRequest(name=name) for name in named_vfs),
        any_vfs=draw(st.integers(0, 2)),
        any_vfs_pod_wide=draw(st.booleans()),
    )


steps = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["init", "train", "side"]), requested()), max_size=12)


@given(steps)
def test_no_sequence_of_requests_gives_a_device_twice(sequence: list[tuple[str, str, ContainerRequest]]) -> None:
    held: dict[tuple[str, str], Holding] = {}
    for pod, container, request in sequence:
        others = [holding for key, holding in held.items() if key != (pod, container)]
        result = choose(request, NODE, pod=PodUid(pod), held=others, unmanaged={})
        again = choose(request, NODE, pod=PodUid(pod), held=list(reversed(others)), unmanaged={})
        if isinstance(result, Refusal):  # the message may name another holder of the same device
            assert isinstance(again, Refusal)
            assert again.reason is result.reason
        else:
            assert again == result
        held.pop((pod, container), None)
        if isinstance(result, GrantedDevices):
            held[pod, container] = Holding(pod=PodUid(pod), pod_name=f"ns/{pod}", container=container, devices=result)
            assert len(result.vfs) == len(request.vfs) + request.any_vfs
        check_holdings(list(held.values()), NODE)


def check_holdings(held: list[Holding], node: Inventory) -> None:
    pods_of_vf: dict[str, set[str]] = defaultdict(set)
    on_card: dict[str, list[tuple[Holding, GrantedGpu]]] = defaultdict(list)
    for holding in held:
        assert len({v.bdf for v in holding.devices.vfs}) == len(holding.devices.vfs)
        for one_vf in holding.devices.vfs:
            pods_of_vf[one_vf.bdf].add(holding.pod)
        for one_gpu in holding.devices.gpus:
            on_card[one_gpu.uuid].append((holding, one_gpu))
    assert all(len(pods) == 1 for pods in pods_of_vf.values())
    assert vf(4).bdf not in pods_of_vf
    assert uuid(3) not in on_card
    for card in node.gpus:
        users = on_card[card.uuid]
        if any(granted.whole for _, granted in users):
            assert len({holding.pod for holding, _ in users}) == 1
        for instance in card.mig:
            assert len({holding.pod for holding, granted in users if granted.mig_uuid == instance.uuid}) <= 1
        memory = core = 0
        for pod in {holding.pod for holding, _ in users}:
            of_pod = [granted for holding, granted in users if holding.pod == pod]
            own = [g for g in of_pod if not g.pod_wide]
            shared = {(g.memory_mib, g.core_percent) for g in of_pod if g.pod_wide}
            memory += sum(g.memory_mib or 0 for g in own) + sum(m or 0 for m, _ in shared)
            core += sum(g.core_percent or 0 for g in own) + sum(c or 0 for _, c in shared)
        assert memory <= card.usable_mib
        assert core <= 100
