from typing import Any

import pytest

from central.ask.model import Ask, ContainerAsk, Policy, RdmaPolicy, Role, Scope, Share
from central.ask.parse import MAX_DEVICES, MAX_MEMORY_MIB, BadAsk, parse_ask
from central.ask.pod import Amount, Container, Metadata, Pod, Resources, Spec
from lading.vocabulary import PodUid


def container(name: str, limits: dict[str, Amount] | None = None, **more: Any) -> Container:
    return Container(name=name, resources=Resources(limits=ours(limits or {}), requests=ours(more.pop("requests", {}))), **more)


def ours(amounts: dict[str, Amount]) -> dict[str, Amount]:
    """`gpu` is lading.dev/gpu; a name with a slash, or of the node's own, is as it is."""
    return {name if "/" in name or name in {"cpu", "memory"} else f"lading.dev/{name}": amounts[name] for name in amounts}


def pod(*apps: Container, init: tuple[Container, ...] = (), annotations: dict[str, str] | None = None) -> Pod:
    metadata = Metadata(name="p", namespace="n", uid=PodUid("u"), annotations=ours_text(annotations or {}))
    return Pod(metadata=metadata, spec=Spec(containers=apps, init_containers=init))


def ours_text(annotations: dict[str, str]) -> dict[str, str]:
    return {key if "/" in key else f"lading.dev/{key}": value for key, value in annotations.items()}


def asked(limits: dict[str, Amount], **annotations: str) -> Ask:
    """The ask of a pod with one container."""
    result = parse_ask(pod(container("c", limits), annotations={key.replace("_", "-"): v for key, v in annotations.items()}))
    assert isinstance(result, Ask), result
    return result


def one(limits: dict[str, Amount]) -> ContainerAsk:
    (only,) = asked(limits).containers
    return only


def bad(wrong: Pod, *named: str) -> None:
    result = parse_ask(wrong)
    assert isinstance(result, BadAsk), result
    for text in named:
        assert text in result.message
    assert len(result.message) < 400
    assert result.message.isprintable()


def test_each_resource() -> None:
    assert one({"gpu": "2"}) == ContainerAsk(name="c", gpus=2)
    assert one({"gpu-memory": "8Gi"}) == ContainerAsk(name="c", share=Share(memory_mib=8192))
    assert one({"gpu-core": "30"}) == ContainerAsk(name="c", share=Share(core_percent=30))
    assert one({"rdma": "3"}) == ContainerAsk(name="c", vfs=3)
    both = Share(memory_mib=4096, core_percent=100)
    assert one({"gpu-memory": "4Gi", "gpu-core": "100", "rdma": "1"}) == ContainerAsk(name="c", share=both, vfs=1)
    assert one({"gpu": "1", "rdma": "1"}) == ContainerAsk(name="c", gpus=1, vfs=1)


def test_memory_is_rounded_up_to_a_mib() -> None:
    for written, mib in (("1Mi", 1), ("8G", 7630), ("1.5Gi", 1536), (2**20 + 1, 2), ("8138Mi", 8138), ("1e9", 954)):
        assert one({"gpu-memory": written}).share == Share(memory_mib=mib)


def test_numbers_without_quotes_and_other_ways_to_write_a_number() -> None:
    for two in (2, "2", "2000m", "2e0", "+2", "0.002k"):
        assert one({"gpu": two}).gpus == 2


def test_a_pod_that_asks_for_nothing_of_ours() -> None:
    assert parse_ask(pod()) is None
    assert parse_ask(pod(container("c", {"cpu": "1", "nvidia.com/gpu": "1", "lading.device/x": "1"}))) is None
    assert parse_ask(pod(container("c"), annotations={"gpus": "0", "x.dev/policy": "binpack"})) is None  # by hand: the node's


def test_zero_is_absent() -> None:
    zeros: dict[str, Amount] = {"gpu": 0, "gpu-memory": "0Gi", "gpu-core": "0m", "rdma": "0"}
    assert parse_ask(pod(container("c", zeros, requests=zeros))) is None
    assert parse_ask(pod(container("c", requests=zeros))) is None
    assert one({**zeros, "gpu": 1}) == ContainerAsk(name="c", gpus=1)
    assert one({**zeros, "gpu-core": 1}) == ContainerAsk(name="c", share=Share(core_percent=1))
    bad(pod(container("c", zeros), annotations={"policy": "spread"}), "lading.dev/policy")


def test_containers_are_in_starting_order_with_their_roles() -> None:
    result = parse_ask(
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
    assert isinstance(result, Ask)
    assert [(ask.name, ask.role) for ask in result.containers] == [
        ("i", Role.INIT),
        ("s", Role.SIDECAR),
        ("j", Role.INIT),
        ("a", Role.APP),
        ("b", Role.APP),
    ]


def test_pods_of_one_template_ask_the_same() -> None:
    asks = [
        parse_ask(Pod(metadata=Metadata(name=name, uid=PodUid(name)), spec=pod(container("c", {"gpu": 1})).spec))
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
        ("gpu", "0.5"),
        ("gpu", "1500m"),
        ("gpu", MAX_DEVICES + 1),
        ("rdma", "0.5"),
        ("rdma", MAX_DEVICES + 1),
        ("gpu-core", 101),
        ("gpu-core", "30.5"),
        ("gpu-core", "1Ki"),
        ("gpu-memory", 8138),  # bytes: meant as MiB
        ("gpu-memory", 2**20 - 1),
        ("gpu-memory", f"{MAX_MEMORY_MIB + 1}Mi"),
    ],
)
def test_an_amount_that_can_not_be_given(resource: str, amount: Amount) -> None:
    bad(pod(container("side", {resource: amount})), f"lading.dev/{resource} of", "side", repr(amount))


def test_the_largest_amounts() -> None:
    assert one({"gpu": MAX_DEVICES, "rdma": MAX_DEVICES}).vfs == MAX_DEVICES
    assert one({"gpu-memory": f"{MAX_MEMORY_MIB}Mi"}).share == Share(memory_mib=MAX_MEMORY_MIB)


def test_a_card_whole_and_in_part() -> None:
    bad(pod(container("c", {"gpu": 1, "gpu-memory": "1Gi"})), "lading.dev/gpu", "lading.dev/gpu-memory", "c")
    bad(pod(container("c", {"gpu": 1, "gpu-core": 5})), "lading.dev/gpu", "lading.dev/gpu-core", "c")
    assert isinstance(parse_ask(pod(container("a", {"gpu": 1}), container("b", {"gpu-core": 5}))), Ask)


def test_requests_are_the_limits() -> None:
    assert isinstance(parse_ask(pod(container("c", {"gpu-memory": "8Gi"}, requests={"gpu-memory": "8192Mi"}))), Ask)
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
    plain = asked({"gpu": 1, "rdma": 1})
    assert (plain.policy, plain.gpu_model, plain.rdma_policy, plain.scope) == (None, "", RdmaPolicy.NEAREST, Scope.ANY)
    assert asked({"rdma": 1}, policy="binpack").policy is Policy.BINPACK
    assert asked({"rdma": 1}, policy="spread").policy is Policy.SPREAD
    assert asked({"rdma": 1}, rdma_policy="count").rdma_policy is RdmaPolicy.COUNT
    assert asked({"rdma": 1}, rdma_policy="nearest").rdma_policy is RdmaPolicy.NEAREST
    assert asked({"gpu": 1}, topology="any").scope is Scope.ANY
    assert asked({"gpu-core": 1}, gpu_model=" NVIDIA H100 ").gpu_model == "NVIDIA H100"


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("policy", "pack", "binpack"),
        ("policy", "", "spread"),
        ("policy", "Spread", "spread"),
        ("policy", "fragmentation", "binpack"),
        ("rdma-policy", "close", "nearest"),
        ("rdma-policy", "per-switch", "nearest"),
        ("rdma-policy", "per-pf", "count"),
        ("topology", "rack", "any"),
        ("topology", "switch", "any"),
        ("topology", "numa", "any"),
        ("topology", "socket", "any"),
        ("gpu-model", " ", "empty"),
        ("policy", "\x1b[31m" * 500, "binpack"),
    ],
)
def test_an_annotation_that_this_version_does_not_understand(key: str, value: str, right: str) -> None:
    bad(pod(container("c", {"gpu": 1, "rdma": 1}), annotations={key: value}), f"lading.dev/{key}", right)


def test_an_annotation_that_refines_nothing() -> None:
    for key in ("policy", "gpu-model", "rdma-policy", "topology"):
        bad(pod(container("c", {"cpu": 1}), annotations={key: "any"}), f"lading.dev/{key}")
    bad(pod(container("c", {"rdma": 1}), annotations={"gpu-model": "NVIDIA H100"}), "lading.dev/gpu-model")
    bad(pod(container("c", {"gpu": 1}), annotations={"rdma-policy": "nearest"}), "lading.dev/rdma-policy")


def test_annotations_that_the_node_would_refuse_beside_an_assignment() -> None:
    for key in ("gpus", "gpus.c", "vfs", "vfs.c", "grant"):
        bad(pod(container("c", {"gpu": 1}), annotations={key: "0"}), f"lading.dev/{key}")
    assert asked({"gpu": 1}, gpusx="0", other="1") == asked({"gpu": 1})
