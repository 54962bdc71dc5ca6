from typing import Any

import msgspec
import pytest

from central.request.check import MAX_CONTAINERS, MAX_DEVICES, MAX_INIT_CONTAINERS, MAX_SHARED
from central.request.model import (
    ContainerRequest,
    DeviceRequest,
    MalformedRequest,
    PartitionPolicy,
    Policy,
    RdmaPolicy,
    Role,
    Scope,
    Share,
    Sharing,
)
from central.request.parse import parse_request
from central.request.pod import Amount, Container, Pod, PodMetadata, PodSpec, Resources
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName
from lading.vocabulary import PodUid

MISSPELT = {
    "toplogy": "topology",
    "share-antiaffinity": "share-anti-affinity",
    "nvswitch-partitions": "nvswitch-partition",
    "gpu-models": "gpu-model",
    "GPU-Model": "gpu-model",
    "mig": "mig-profile",
}


def container(name: str, limits: dict[str, Amount] | None = None, **more: Any) -> Container:
    return Container(name=name, resources=Resources(limits=ours(limits or {}), requests=ours(more.pop("requests", {}))), **more)


def ours(amounts: dict[str, Amount]) -> dict[str, Amount]:
    """Return the resource's full name: `gpu` is lading.dev/gpu; a name with a slash, or a native one, stays as it is."""
    return {name if "/" in name or name in {"cpu", "memory"} else f"lading.dev/{name}": amounts[name] for name in amounts}


def pod(*apps: Container, init: tuple[Container, ...] = (), annotations: dict[str, str] | None = None) -> Pod:
    metadata = PodMetadata(name="p", namespace="n", uid=PodUid("u"), annotations=ours_text(annotations or {}))
    return Pod(metadata=metadata, spec=PodSpec(containers=apps, init_containers=init))


def ours_text(annotations: dict[str, str]) -> dict[str, str]:
    return {key if "/" in key else f"lading.dev/{key}": value for key, value in annotations.items()}


def requested(limits: dict[str, Amount], **annotations: str) -> DeviceRequest:
    """Return the request of a pod with one container."""
    result = parse_request(
        pod(container("c", limits), annotations={key.replace("_", "-"): v for key, v in annotations.items()})
    )
    assert isinstance(result, DeviceRequest), result
    return result


def one(limits: dict[str, Amount]) -> ContainerRequest:
    (only,) = requested(limits).containers
    return only


def bad(wrong: Pod, *named: str) -> None:
    result = parse_request(wrong)
    assert isinstance(result, MalformedRequest), result
    for text in named:
        assert text in result.message
    assert len(result.message) < 400
    assert result.message.isprintable()


def test_each_resource() -> None:
    assert one({"gpu": "2"}) == ContainerRequest(name="c", gpus=2)
    assert one({"gpu-memory": "8Gi"}) == ContainerRequest(name="c", share=Share(memory_mib=8192))
    assert one({"gpu-core": "30"}) == ContainerRequest(name="c", share=Share(core_percent=30))
    assert one({"rdma": "3"}) == ContainerRequest(name="c", vfs=3)
    both = Share(memory_mib=4096, core_percent=100)
    assert one({"gpu-memory": "4Gi", "gpu-core": "100", "rdma": "1"}) == ContainerRequest(name="c", share=both, vfs=1)
    assert one({"gpu": "1", "rdma": "1"}) == ContainerRequest(name="c", gpus=1, vfs=1)


def test_a_percentage_of_memory() -> None:
    assert one({"gpu-memory-percent": "50"}).share == Share(memory_percent=50)
    assert one({"gpu": 2, "gpu-memory-percent": 100, "gpu-core": 30}).share == Share(
        memory_percent=100, core_percent=30, cards=2
    )
    bad(pod(container("c", {"gpu-memory-percent": 50, "gpu-memory": "1Gi"})), "gpu-memory-percent of container c", "keep one")
    bad(pod(container("c", {"gpu-memory-percent": 101})), "gpu-memory-percent of container c", "1 to 100")


def test_memory_is_rounded_up_to_a_mib() -> None:
    for written, mib in (("1Mi", 1), ("8G", 7630), ("1.5Gi", 1536), (2**20 + 1, 2), ("8138Mi", 8138), ("1e9", 954)):
        assert one({"gpu-memory": written}).share == Share(memory_mib=mib)


def test_numbers_without_quotes_and_other_ways_to_write_a_number() -> None:
    for two in (2, "2", "2000m", "2e0", "+2", "0.002k"):
        assert one({"gpu": two}).gpus == 2


def test_a_pod_that_requests_no_device_of_lading() -> None:
    assert parse_request(pod()) is None
    assert parse_request(pod(container("c", {"cpu": "1", "nvidia.com/gpu": "1", "lading.device/x": "1"}))) is None
    assert (
        parse_request(pod(container("c"), annotations={"gpus": "0", "x.dev/policy": "binpack"})) is None
    )  # an annotation for the node, set by hand


def test_zero_is_absent() -> None:
    zeros: dict[str, Amount] = {"gpu": 0, "gpu-memory": "0Gi", "gpu-core": "0m", "rdma": "0"}
    assert parse_request(pod(container("c", zeros, requests=zeros))) is None
    assert parse_request(pod(container("c", requests=zeros))) is None
    assert one({**zeros, "gpu": 1}) == ContainerRequest(name="c", gpus=1)
    assert one({**zeros, "gpu-core": 1}) == ContainerRequest(name="c", share=Share(core_percent=1))
    bad(pod(container("c", zeros), annotations={"policy": "spread"}), "lading.dev/policy")


def test_containers_are_in_starting_order_with_their_roles() -> None:
    result = parse_request(
        pod(
            container("a", {"gpu": 1}),
            container("nothing", {"cpu": 1}),
            container("b", {"gpu-memory": "1Gi"}),
            init=(
                container("i", {"rdma": 1}),
                container("quiet", restart_policy="Always"),
                container("s", {"gpu-core": 5}, restart_policy="Always"),
                container("j", {"gpu": 1}, restart_policy="OnFailure"),
            ),
        )
    )
    assert isinstance(result, DeviceRequest)
    assert [(ask.name, ask.role) for ask in result.containers] == [
        ("i", Role.INIT),
        ("s", Role.SIDECAR),
        ("j", Role.INIT),
        ("a", Role.APP),
        ("b", Role.APP),
    ]


def test_pods_of_one_template_ask_the_same() -> None:
    asks = [
        parse_request(Pod(metadata=PodMetadata(name=name, uid=PodUid(name)), spec=pod(container("c", {"gpu": 1})).spec))
        for name in "ab"
    ]
    assert asks[0] == asks[1]
    assert hash(asks[0]) == hash(asks[1])


@pytest.mark.parametrize("resource", ["gpu", "rdma", "gpu-core", "gpu-memory"])
@pytest.mark.parametrize(
    "amount", ["", "two", "-1", "1.5Gib", "1 Gi", 0.5, 1.0, -1, "1e999999999", "9" * 200, 10**30, "x\ny\x1b[0m"]
)
def test_an_amount_that_is_none(resource: str, amount: Amount) -> None:
    bad(pod(container("side", {resource: amount})), f"lading.dev/{resource} of", "side", repr(amount)[:30])


@pytest.mark.parametrize(
    ("resource", "amount"),
    [
        *(("gpu", "0.5"), ("gpu", "1500m"), ("gpu", MAX_DEVICES + 1), ("rdma", "0.5"), ("rdma", MAX_DEVICES + 1)),
        *(("gpu-core", 101), ("gpu-core", "30.5"), ("gpu-core", "1Ki")),
        ("gpu-memory", 8138),  # bytes: meant as MiB
        ("gpu-memory", 2**20 - 1),
        ("gpu-memory", f"{MAX_MEMORY_MIB + 1}Mi"),
    ],
)
def test_an_amount_that_cannot_be_given(resource: str, amount: Amount) -> None:
    bad(pod(container("side", {resource: amount})), f"lading.dev/{resource} of", "side", repr(amount))


def test_the_largest_amounts() -> None:
    assert one({"gpu": MAX_DEVICES, "rdma": MAX_DEVICES}).vfs == MAX_DEVICES
    assert one({"gpu-memory": f"{MAX_MEMORY_MIB}Mi"}).share == Share(memory_mib=MAX_MEMORY_MIB)


def test_a_card_whole_and_in_part() -> None:
    assert isinstance(parse_request(pod(container("a", {"gpu": 1}), container("b", {"gpu-core": 5}))), DeviceRequest)


def test_a_share_of_each_of_several_cards() -> None:
    assert one({"gpu": 1, "gpu-core": 30}) == one({"gpu-core": 30})
    assert one({"gpu": 2, "gpu-memory": "8Gi"}) == ContainerRequest(name="c", share=Share(memory_mib=8192, cards=2))
    most = one({"gpu": MAX_SHARED, "gpu-core": 30}).share
    assert most == Share(core_percent=30, cards=MAX_SHARED)
    bad(pod(container("c", {"gpu": MAX_SHARED + 1, "gpu-core": 30})), "lading.dev/gpu of container c", f"1 to {MAX_SHARED}")
    assert requested({"gpu": 2, "gpu-core": 30}, share_exclusion="x").sharing is not None
    for gpus, is_refused in ((1, False), (2, True)):
        one_card = pod(container("c", {"gpu": gpus, "gpu-core": 30}), annotations={"share-affinity": "x"})
        assert isinstance(parse_request(one_card), MalformedRequest) is is_refused
    bad(pod(container("c", {"gpu": 2, "gpu-core": 30}), annotations={"share-affinity": "x"}), "lading.dev/share-affinity")
    bad(pod(container("c", {"gpu": 2, "gpu-core": 30}), annotations={"mig-profile": "1g.10gb"}), "lading.dev/mig-profile")


def test_requests_are_the_limits() -> None:
    assert isinstance(
        parse_request(pod(container("c", {"gpu-memory": "8Gi"}, requests={"gpu-memory": "8192Mi"}))), DeviceRequest
    )
    bad(pod(container("c", {"gpu": 2}, requests={"gpu": 1})), "lading.dev/gpu", "2", "1")
    bad(pod(container("c", {"gpu": 2}, requests={"gpu": 0})), "lading.dev/gpu")
    bad(pod(container("c", requests={"gpu": 1})), "lading.dev/gpu", "no limit")
    bad(pod(container("c", {"gpu": 2}, requests={"gpu": "x"})), "lading.dev/gpu", "'x'")


@pytest.mark.parametrize("name", ["gpus", "gpu-mem", "vf", "GPU", "rdma-policy", ""])
def test_a_resource_that_does_not_exist(name: str) -> None:
    for wrong in (container("c", {name: 1}), container("c", {name: 0}), container("c", {"gpu": 1}, requests={name: 1})):
        bad(pod(wrong), f"lading.dev/{name}", "lading.dev/gpu-memory")
    bad(pod(container("a", {"gpu": 1}), init=(container("i", {name: 1}),)), "container i")


def test_annotations_refine() -> None:
    plain = requested({"gpu": 1, "rdma": 1})
    assert (plain.policy, plain.gpu_models, plain.rdma_policy, plain.scope) == (None, (), RdmaPolicy.NEAREST, Scope.ANY)
    assert requested({"rdma": 1}, policy="binpack").policy is Policy.BINPACK
    assert requested({"rdma": 1}, policy="spread").policy is Policy.SPREAD
    assert requested({"rdma": 1}, rdma_policy="count").rdma_policy is RdmaPolicy.COUNT
    assert requested({"rdma": 1}, rdma_policy="nearest").rdma_policy is RdmaPolicy.NEAREST
    assert requested({"rdma": 1}, rdma_policy="per-pf").rdma_policy is RdmaPolicy.PER_PF
    assert requested({"gpu": 1, "rdma": 1}, rdma_policy="per-switch").rdma_policy is RdmaPolicy.PER_SWITCH
    for scope in Scope:
        assert requested({"gpu": 1}, topology=scope.value).scope is scope
    assert plain.partition is None
    assert requested({"gpu": 1}, nvswitch_partition="honor").partition is PartitionPolicy.HONOR
    assert requested({"gpu": 1}, nvswitch_partition="prefer").partition is PartitionPolicy.PREFER
    assert requested({"gpu-core": 1}, gpu_model=" NVIDIA H100 ").gpu_models == ("NVIDIA H100",)
    for alternatives in ("V100M32|V100M16", " V100M16, V100M32 ", "V100M16|V100M32,V100M16"):
        assert requested({"gpu": 1}, gpu_model=alternatives).gpu_models == ("V100M16", "V100M32")


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        *(("policy", "pack", "binpack"), ("policy", "", "spread"), ("policy", "Spread", "spread")),
        *(("policy", "fragment", "fragmentation"), ("rdma-policy", "close", "nearest")),
        ("rdma-policy", "per_switch", "per-switch"),
        ("topology", "rack", "socket"),
        ("topology", "Switch", "switch"),
        ("nvswitch-partition", "always", "honor or prefer"),
        ("nvswitch-partition", "", "prefer"),
        ("gpu-model", " ", "empty"),
        ("gpu-model", "A10||T4", "position 2"),
        ("policy", "\x1b[31m" * 500, "binpack"),
    ],
)
def test_a_value_that_does_not_exist(key: str, value: str, right: str) -> None:
    bad(pod(container("c", {"gpu": 1, "rdma": 1}), annotations={key: value}), f"lading.dev/{key}", right)


def test_an_annotation_that_refines_nothing() -> None:
    for key in ("policy", "gpu-model", "rdma-policy", "topology"):
        bad(pod(container("c", {"cpu": 1}), annotations={key: "any"}), f"lading.dev/{key}")
    bad(pod(container("c", {"rdma": 1}), annotations={"gpu-model": "NVIDIA H100"}), "lading.dev/gpu-model")
    bad(pod(container("c", {"gpu": 1}), annotations={"rdma-policy": "nearest"}), "lading.dev/rdma-policy")
    for limits, more in (({"gpu-core": 5}, {}), ({"rdma": 1}, {}), ({"gpu": 1}, {"mig-profile": "1g.10gb"})):
        annotations = {"nvswitch-partition": "prefer", **more}
        bad(pod(container("c", dict(limits)), annotations=annotations), "lading.dev/nvswitch-partition", "lading.dev/gpu")


def test_annotations_that_contradict_one_another() -> None:
    per_switch = {"rdma-policy": "per-switch"}
    with_gpu = container("train", {"gpu": 1, "rdma": 1})
    assert isinstance(
        parse_request(pod(with_gpu, container("b", {"gpu-core": 5, "rdma": 1}), annotations=per_switch)), DeviceRequest
    )
    bad(pod(with_gpu, container("side", {"rdma": 1}), annotations=per_switch), "lading.dev/rdma-policy", "per-switch", "side")
    per_pf = {"rdma-policy": "per-pf", "topology": "any"}
    assert isinstance(parse_request(pod(with_gpu, annotations=per_pf)), DeviceRequest)
    bad(pod(with_gpu, annotations={**per_pf, "topology": "numa"}), "lading.dev/topology", "numa", "per-pf")


def test_annotations_that_the_node_would_refuse_beside_an_assignment() -> None:
    for key in ("gpus", "gpus.c", "vfs", "vfs.c", "grant"):
        bad(pod(container("c", {"gpu": 1}), annotations={key: "0"}), f"lading.dev/{key}")


@pytest.mark.parametrize("key", ["grant", "attachments"])
def test_an_annotation_that_only_the_node_writes(key: str) -> None:
    bad(pod(container("c", {"gpu": 1}), annotations={key: ""}), f"lading.dev/{key}", "only the node writes it")


@pytest.mark.parametrize(("written", "meant"), MISSPELT.items())
def test_an_annotation_that_does_not_exist_is_refused_with_the_nearest_that_does(written: str, meant: str) -> None:
    bad(pod(container("c", {"gpu-core": 30}), annotations={written: "x"}), f"lading.dev/{written}", f"lading.dev/{meant}")


def test_annotations_of_other_systems_are_not_checked() -> None:
    with_gpu = container("c", {"gpu": 1})
    other = pod(with_gpu)
    annotated = msgspec.structs.replace(other.metadata, annotations={"example.com/toplogy": "switch"})
    assert parse_request(msgspec.structs.replace(other, metadata=annotated)) == parse_request(other)


def test_with_whom_a_share_is_shared() -> None:
    share: dict[str, Amount] = {"gpu-core": "30"}
    assert requested(share).sharing is None
    assert requested(share, share_affinity="team-a").sharing == Sharing(namespace="n", affinity="team-a")
    three = requested(share, share_affinity="x", share_anti_affinity="Y_2.b", share_exclusion="a" * 63).sharing
    assert three == Sharing(namespace="n", affinity="x", anti_affinity="Y_2.b", exclusion="a" * 63)
    mixed = pod(container("a", {"gpu": 1}), container("b", share), annotations={"share-exclusion": "x"})
    assert isinstance(parse_request(mixed), DeviceRequest)


@pytest.mark.parametrize("rule", ["affinity", "anti-affinity", "exclusion"])
@pytest.mark.parametrize("value", ["", " ", "-x", "x.", "a b", "a/b", "a" * 64, "ü", "x\n", "\x1b[31m" * 500])
def test_a_sharing_label_that_is_none(rule: str, value: str) -> None:
    bad(pod(container("c", {"gpu-memory": "1Gi"}), annotations={f"share-{rule}": value}), f"lading.dev/share-{rule}", "63")


@pytest.mark.parametrize("rule", ["affinity", "anti-affinity", "exclusion"])
@pytest.mark.parametrize("limits", [{"gpu": 1}, {"rdma": 1}, {"cpu": 1}])
def test_a_sharing_label_without_a_share(rule: str, limits: dict[str, Amount]) -> None:
    bad(pod(container("c", limits), annotations={f"share-{rule}": "x"}), f"lading.dev/share-{rule}", "lading.dev/gpu-core")


# Isolations


def test_an_isolation_of_the_shares() -> None:
    assert requested({"gpu-core": "30"}).isolation is None
    for name in IsolationName:  # whether there is a node that offers it is not asked here
        assert requested({"gpu-core": "30"}, isolation=name).isolation is name
    mixed = pod(container("a", {"gpu": 1}), container("b", {"gpu-memory": "1Gi"}), annotations={"isolation": "tokens"})
    assert isinstance(parse_request(mixed), DeviceRequest)


def test_mps_gives_a_container_one_card() -> None:
    two: dict[str, Amount] = {"gpu": 2, "gpu-memory": "1Gi"}
    assert requested(two, isolation="tokens").isolation is IsolationName.TOKENS
    bad(pod(container("c", two), annotations={"isolation": "mps"}), "lading.dev/isolation", "container c", "lading.dev/gpu: 1")


@pytest.mark.parametrize("written", ["", "Tokens", "token", "tokens,none", " tokens", "x" * 500])
def test_an_isolation_that_does_not_exist(written: str) -> None:
    bad(pod(container("c", {"gpu-core": 5}), annotations={"isolation": written}), "lading.dev/isolation", "none or tokens")


def limits_of(wanted: Pod) -> dict[str, int | None]:
    result = parse_request(wanted)
    assert isinstance(result, DeviceRequest), result
    return {one.name: one.share.core_limit_percent for one in result.containers if one.share}


def test_a_limit_for_all_shares_and_one_for_a_container() -> None:
    share: dict[str, Amount] = {"gpu-core": 30}
    containers = container("a", share), container("b", {"gpu-memory": "1Gi"}), container("c", {"gpu": 1}), container("d")
    init = (container("i", share),)
    for annotations, limits in (
        ({}, (None, None, None)),
        ({"gpu-core-limit": "60"}, (60, 60, 60)),
        ({"gpu-core-limit": "60", "gpu-core-limit.b": "1", "gpu-core-limit.i": "100"}, (100, 60, 1)),
        ({"gpu-core-limit.a": "30"}, (None, 30, None)),
        ({"gpu-core-limit": "20", "gpu-core-limit.a": "30", "gpu-core-limit.i": "40"}, (40, 30, 20)),
    ):
        assert limits_of(pod(*containers, init=init, annotations=annotations)) == dict(zip("iab", limits, strict=True))


def test_pods_that_differ_in_the_limit_ask_for_different_things() -> None:
    assert requested({"gpu-core": "30"}, gpu_core_limit="60") != requested({"gpu-core": "30"}, gpu_core_limit="61")


@pytest.mark.parametrize("key", ["gpu-core-limit", "gpu-core-limit.c"])
@pytest.mark.parametrize("written", ["", "0", "101", "030", "50%", "1.5", "-1", " 5", "5\n", "٣", "9" * 500])
def test_a_limit_that_is_no_percentage(key: str, written: str) -> None:
    bad(pod(container("c", {"gpu-memory": "1Gi"}), annotations={key: written}), f"lading.dev/{key}:", "1 to 100")


@pytest.mark.parametrize(
    ("limits", "key", "named"),
    [
        ({"gpu": 1}, "isolation", ["lading.dev/gpu-core"]),
        ({"rdma": 1}, "isolation", ["lading.dev/gpu-core"]),
        ({"cpu": 1}, "isolation", ["no device"]),
        ({"gpu": 1}, "gpu-core-limit", ["lading.dev/gpu-core"]),
        ({"cpu": 1}, "gpu-core-limit", ["no device"]),
        ({"cpu": 1}, "gpu-core-limit.c", ["no device"]),
        ({"gpu-core": 80}, "gpu-core-limit", ["60", "container c", "80"]),
        ({"gpu-core": 80}, "gpu-core-limit.c", ["60", "container c", "80"]),
        ({"gpu-core": 5}, "gpu-core-limit.b", ["no container 'b'"]),
        ({"gpu-core": 5}, "gpu-core-limit.", ["no container ''"]),
        ({"gpu-core": 5}, "gpu-core-limits", ["lading.dev/gpu-core-limit"]),
    ],
)
def test_an_isolation_or_a_limit_of_no_share(limits: dict[str, Amount], key: str, named: list[str]) -> None:
    value = "tokens" if key == "isolation" else "60"
    bad(pod(container("c", limits), annotations={key: value}), f"lading.dev/{key}", *named)


def test_a_limit_for_a_container_that_has_no_share() -> None:
    for limits in ({"gpu": 1}, {}):
        other = container("b", dict[str, Amount](limits))
        bad(pod(container("c", {"gpu-core": 5}), other, annotations={"gpu-core-limit.b": "60"}), "gpu-core-limit.b", "no share")


# MIG


def test_a_profile_makes_gpus_instances() -> None:
    for written in ("1g.10gb", "3g.40gb", "1c.2g.20gb", "1g.10gb+me", "1g.24gb-me", " 1g.5gb "):
        assert requested({"gpu": "2"}, mig_profile=written).mig_profile == written.strip()
    assert requested({"gpu": "2"}).mig_profile == ""
    assert requested({"gpu": "2"}, mig_profile="1g.10gb").containers == (ContainerRequest(name="c", gpus=2),)


@pytest.mark.parametrize("written", ["", "1g", "10gb", "1g.10GB", "mig-1g.10gb", "1g.10gb.me", "0g.10gb", "1g.10gb,2g.20gb"])
def test_a_malformed_mig_profile_is_refused_with_a_valid_example(written: str) -> None:
    bad(pod(container("c", {"gpu": "1"}), annotations={"mig-profile": written}), "mig-profile", repr(written), "1g.10gb")


def test_a_profile_refines_whole_gpus_only() -> None:
    profile = {"mig-profile": "1g.10gb"}
    bad(pod(container("c", {"rdma": "1"}), annotations=profile), "mig-profile", "lading.dev/gpu")
    bad(pod(container("c", {"gpu-memory": "1Gi"}), annotations=profile), "mig-profile", "'c'")
    both = pod(container("a", {"gpu": "1"}), container("b", {"gpu-core": "10"}), annotations=profile)
    bad(both, "mig-profile", "'b'")
    bad(pod(container("c"), annotations=profile), "mig-profile")


@pytest.mark.parametrize(("inits", "apps"), [(0, MAX_CONTAINERS), (MAX_INIT_CONTAINERS, MAX_CONTAINERS - MAX_INIT_CONTAINERS)])
def test_as_many_containers_as_may_ask_for_devices(inits: int, apps: int) -> None:
    assert isinstance(parse_request(crowd(inits, apps)), DeviceRequest)
    plain = tuple(container(f"p{number}") for number in range(1000))  # containers without devices
    assert isinstance(parse_request(pod(*crowd(0, 1).spec.containers, init=plain)), DeviceRequest)


@pytest.mark.parametrize(("inits", "apps"), [(0, MAX_CONTAINERS + 1), (MAX_INIT_CONTAINERS + 1, 1), (MAX_CONTAINERS, 0)])
def test_more_containers_that_ask_for_devices_are_refused(inits: int, apps: int) -> None:
    bad(crowd(inits, apps), str(MAX_INIT_CONTAINERS if inits else MAX_CONTAINERS))


def crowd(inits: int, apps: int) -> Pod:
    asking = [container(f"c{number}", {"gpu": "1"}) for number in range(inits + apps)]
    return pod(*asking[inits:], init=tuple(asking[:inits]))
