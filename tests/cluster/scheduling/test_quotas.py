"""Test quotas on a real control plane, as the kinds of Koordinator and of scheduler-plugins. The node has eight GPUs."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.cluster.pods import Pods
from tests.cluster.scheduling.kinds import allow_quota, is_created, served_kind
from tests.cluster.scheduling.world import World

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

VERSION: Final = "v1alpha1"
KOORDINATOR: Final = "scheduling.sigs.k8s.io"
PLUGINS: Final = "scheduling.x-k8s.io"
PREFIX: Final = "quota.scheduling.koordinator.sh"
GPU: Final = "lading.dev/gpu"
READ_S: Final = 150.0  # central asks for a kind that was missing once a minute

AMOUNT: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
AMOUNTS: Final = {"type": "object", "additionalProperties": AMOUNT}
PROPERTIES: Final = {
    "spec": {"type": "object", "properties": {"min": AMOUNTS, "max": AMOUNTS}},
    "status": {"type": "object", "properties": {"used": AMOUNTS}},
}


@pytest.fixture
def koordinators(world: World) -> Iterator[None]:
    with served_kind(world.api, KOORDINATOR, VERSION, "ElasticQuota", PROPERTIES):
        yield


@pytest.fixture
def plugins(world: World) -> Iterator[None]:
    with served_kind(world.api, PLUGINS, VERSION, "ElasticQuota", PROPERTIES, status=True):
        yield


def path(group: str, name: str = "") -> str:
    return f"/apis/{group}/{VERSION}/namespaces/default/elasticquotas{name and f'/{name}'}"


def give(world: World, group: str, name: str, least: int, most: int) -> None:
    kind = {"apiVersion": f"{group}/{VERSION}", "kind": "ElasticQuota", "metadata": {"name": name}}
    body = {**kind, "spec": {"min": {GPU: least}, "max": {GPU: most}}}
    world.cluster.eventually(lambda: is_created(world.api, path(group), body), f"the quota {name}")
    allow_quota(world.api, name)


def used(quota: dict[str, Any]) -> str:
    return str(quota.get("status", {}).get("used", {}).get(GPU, ""))


def await_used(world: World, group: str, name: str, amount: str) -> dict[str, Any]:
    """Wait until central says in the object that so many GPUs are used. Return the object."""
    result: list[dict[str, Any]] = []

    def says() -> bool:
        result[:] = [world.api.call("GET", path(group, name))]
        return used(result[0]) == amount

    world.cluster.eventually(says, f"{amount} used in {name}", within_s=READ_S)
    return result[0]


def of(quota: str) -> dict[str, Any]:
    return {"labels": {f"{PREFIX}/name": quota}}


@pytest.mark.usefixtures("koordinators")
def test_a_team_borrows_what_another_does_not_use_and_gives_it_back(world: World, pods: Pods) -> None:
    for name in ("vision", "speech"):
        give(world, KOORDINATOR, name, 4, 8)
        await_used(world, KOORDINATOR, name, "0")
    borrowers = [f"v{number}" for number in range(4)]
    world.run(pods, *borrowers, gpu=2, **of("vision"))
    annotations = await_used(world, KOORDINATOR, "vision", "8")["metadata"]["annotations"]
    assert json.loads(annotations[f"{PREFIX}/runtime"]) == {GPU: "8"}

    world.create(pods, "lender", gpu=3, **of("speech"))
    world.cluster.eventually(lambda: pods.ready("lender"), "a ready pod lender", within_s=READ_S)  # two pods end before
    kept = [name for name in borrowers if world.api.has(f"/api/v1/namespaces/default/pods/{name}")]
    assert len(kept) == 2  # two of two GPUs each make room for three, and leave the borrower its min
    world.check(pods, "lender", *kept)
    events = world.api.call("GET", "/api/v1/namespaces/default/events")["items"]
    assert sum(event["reason"] == "QuotaTakenBack" for event in events) == 2

    world.create(pods, "more", gpu=2, **of("vision"))
    assert "quota-exceeded" in world.await_refused("more")
    await_used(world, KOORDINATOR, "speech", "3")


@pytest.mark.usefixtures("plugins")
def test_a_namespace_uses_its_max_and_no_more(world: World, pods: Pods) -> None:
    """Check a quota of scheduler-plugins too, whose kind has its status as a subresource."""
    give(world, PLUGINS, "team", 4, 4)
    await_used(world, PLUGINS, "team", "0")
    world.run(pods, "first", gpu=3)
    await_used(world, PLUGINS, "team", "3")
    world.create(pods, "second", gpu=2)
    refusal = world.await_refused("second")
    assert "quota-exceeded" in refusal
    assert "team" in refusal
    pods.delete("first")
    pods.wait_ready("second")
    await_used(world, PLUGINS, "team", "2")
