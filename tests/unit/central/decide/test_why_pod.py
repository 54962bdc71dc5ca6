"""Test why a pod is not running: the same reasons as in its Events, with the nearest node."""

import pytest

from central.decide.scheduler import Reservation
from central.decide.why_pod import Why, why_pending
from central.request.describe import describe_request
from central.search.placement import Missing
from lading.amounts import format_mib
from lading.vocabulary import REQUEST_ANNOTATIONS
from tests.fakes.kube_objects import WHOLE, share, vfs
from tests.unit.central.world import World, uid_of


def why(made: World, name: str) -> Why:
    return why_pending(made.scheduler, made.pending_pod(name), made.now)


def test_a_pod_that_is_refused() -> None:
    made = World()
    for node in ("n1", "n2", "n3"):
        made.node(node, 1, cordon="all" if node == "n3" else "")
    made.bind("a", "n1")
    made.show("b", {"lading.dev/gpu": "1"})
    made.now = 10.0
    made.filter("b", "n1")
    made.now = 12.5
    text = why(made, "b")
    assert (text.state, text.refused_s, text.uid, text.node) == ("pending", 2.5, uid_of("b"), "")
    assert text.reasons == {Missing.TOO_FEW_FREE_GPUS.value: 1, "fits": 1, Missing.UNHEALTHY.value: 1}
    assert {node.node: bool(node.detail) for node in text.nodes} == {"n1": True, "n2": False, "n3": True}
    texts = {Missing.TOO_FEW_FREE_GPUS.text, Missing.UNHEALTHY.text, ""}
    assert {node.text for node in text.nodes} == texts


def test_a_pods_own_claims_do_not_make_it_wait() -> None:
    made = World.of(n1=1)
    made.bind("x", "n1", share("30Gi"))
    made.show("a", share("60Gi"))
    taken = made.scheduler.placement(made.pending_pod("a"), "n1")
    assert taken is None
    record = made.ledger.pod(uid_of("x"))
    assert record is not None
    assert record.taken is not None
    made.ledger.claims.nominate(uid_of("a"), "n1", record.taken, 100.0)
    (node,) = why(made, "a").nodes
    assert format_mib(81920 - 30 * 1024) in node.detail  # free without what is held for it
    assert why(made, "a").making_room_on == "n1"


def test_a_pod_that_is_being_bound() -> None:
    made = World.of(n1=1)
    made.show("a")
    assert isinstance(made.scheduler.reserve(uid_of("a"), "n1"), Reservation)
    text = why(made, "a")
    assert (text.state, text.node, text.refused_s) == ("reserved", "n1", None)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (WHOLE, ["1 whole GPU"]),
        ({"lading.dev/gpu": "2"}, ["2 whole GPUs"]),
        (share("1Gi", 30), ["1Gi", "30%"]),
        (share(core=30), ["30%"]),
        (WHOLE | vfs(2), ["1 whole GPU", "2 RDMA VFs"]),
    ],
)
def test_an_ask_in_words(limits: dict[str, str], words: list[str]) -> None:
    made = World()
    made.show("a", limits)
    text = describe_request(made.pending_pod("a").request)
    assert text.startswith("main: ")
    assert all(word in text for word in words)
    assert "None" not in text


@pytest.mark.parametrize(
    ("limits", "annotations", "words"),
    [
        (WHOLE, {"gpu-model": "H100|A100"}, ["A100 or H100"]),
        ({"lading.dev/gpu": "2"}, {"mig-profile": "1g.10gb"}, ["2 MIG instances 1g.10gb"]),
        (WHOLE, {"topology": "numa"}, ["topology numa"]),
        (WHOLE | vfs(1), {"rdma-policy": "per-switch"}, ["1 RDMA VF", "each switch", "per-switch"]),
        (WHOLE | vfs(2), {"rdma-policy": "per-pf"}, ["2 RDMA VFs", "each PF", "per-pf"]),
        (WHOLE | vfs(2), {"rdma-policy": "count"}, ["2 RDMA VFs", "count"]),
        (WHOLE, {"nvswitch-partition": "honor"}, ["nvswitch-partition honor"]),
        (WHOLE, {"policy": "spread"}, ["policy spread"]),
        (
            share("1Gi"),
            {"share-affinity": "x", "share-anti-affinity": "y", "share-exclusion": "z"},
            ["share-affinity x", "share-anti-affinity y", "share-exclusion z"],
        ),
        ({"lading.dev/gpu": "2"} | share("1Gi", 30), {}, ["a GPU share of 1Gi and 30% of each of 2 GPUs"]),
        (share("1Gi"), {"isolation": "tokens"}, ["isolation tokens"]),
        (share("1Gi"), {"gpu-core-limit": "60"}, ["a GPU share of 1Gi, limited to 60%"]),
    ],
)
def test_requests_by_annotation_are_described(limits: dict[str, str], annotations: dict[str, str], words: list[str]) -> None:
    made = World()
    made.show("a", limits, annotations={f"lading.dev/{key}": value for key, value in annotations.items()})
    text = describe_request(made.pending_pod("a").request)
    assert [word for word in words if word not in text] == []


def test_every_annotation_that_refines_an_ask_is_in_its_words() -> None:
    """Check that two pods with different requests have different descriptions."""
    values = {
        "gpu-model": "H100",
        "topology": "switch",
        "rdma-policy": "count",
        "nvswitch-partition": "prefer",
        "policy": "binpack",
        "mig-profile": "1g.10gb",
    }
    sharing = {"share-affinity": "x", "share-anti-affinity": "x", "share-exclusion": "x"}
    sharing |= {"isolation": "tokens", "gpu-core-limit": "60"}
    assert {f"lading.dev/{key}" for key in values | sharing} == REQUEST_ANNOTATIONS
    made = World()
    text = []
    for limits, some in ((WHOLE | vfs(1), values), (share("1Gi"), sharing)):
        for key, value in some.items():
            made.show(key, limits, annotations={f"lading.dev/{key}": value})
            text.append(describe_request(made.pending_pod(key).request))
        made.show("plain", limits)
        text.append(describe_request(made.pending_pod("plain").request))
    assert len(set(text)) == len(text)
