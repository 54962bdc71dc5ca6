"""Test what a Binding carries, and an outcome that the API server tells, and no watch has shown."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from central.assignment.networks import VfNetwork
from central.controllers.binder import Binder
from central.ledger.model import Claim
from central.request.reasons import OfPod
from central.state.counts import BindOutcome
from central.state.pending import Pending
from lading.kube.errors import ConflictError, UnclearError
from lading.vocabulary import ASSIGNMENT, NETWORKS, RESOURCE_RDMA
from tests.fakes.kube_objects import WHOLE, pod
from tests.unit.central.world import World, uid_of


class Client:
    """Answer no Binding, although the pod is bound, by this Binding or by another one."""

    def __init__(self, by: str) -> None:
        self._by = by

    async def bind(self, *, annotations: dict[str, str], node: str, **_: Any) -> bytes:
        self.bound = pod("a", version=9, node=node, annotations=annotations)
        if self._by == "another text":
            self.bound["metadata"]["annotations"][ASSIGNMENT] += " "
        elif self._by == "another node":
            self.bound["spec"]["nodeName"] = "n2"
        raise UnclearError("no answer")

    async def touch(self, pod: Pending) -> bytes:
        return msgspec.json.encode(self.bound)


def binder_of(made: World, client: Any, **options: Any) -> Binder:
    log = made.records.log
    return Binder(made.scheduler, client, None, touch=client.touch, leads=lambda: True, log=log, **options)


@pytest.mark.parametrize("by", ["this Binding", "another text", "another node"])
async def test_a_pod_that_is_found_bound_counts_only_if_this_binding_did_it(by: str) -> None:
    made, client = World(), Client(by)
    made.node("n1", 1)
    made.show("a")
    binder = binder_of(made, client)
    args = uid_of("a"), "n1"
    assert await binder.bind(*args) != ""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await binder.close()
    reserved = made.ledger.own_claim(uid_of("a"), Claim.RESERVED)
    assert (reserved is not None and reserved.confirmed) is (by == "this Binding")
    result = BindOutcome.FOUND_BOUND if by == "this Binding" else BindOutcome.FOUND_NOT_BOUND
    assert made.scheduler.counts.bound == {BindOutcome.UNCLEAR: 1, result: 1}


class Merging:
    """Refuse as many patches as the test sets, each time because the pod has changed meanwhile."""

    def __init__(self, networks: list[str]) -> None:
        self._newer = networks
        self.sent: list[dict[str, str]] = []

    async def bind(self, *, annotations: dict[str, str], **_: Any) -> bytes:
        self.sent.append(annotations)
        if self._newer:
            raise ConflictError("another resourceVersion", status=409)
        return b""

    async def get(self, path: str, **_: Any) -> bytes:
        now = pod("a", version=20 - len(self._newer), annotations={NETWORKS: self._newer.pop(0)})
        return msgspec.json.encode(now)

    async def touch(self, pod: Pending) -> bytes:
        raise AssertionError(pod)


async def bound_with(own: str, *newer: str, vfs: int = 1) -> tuple[str, list[dict[str, str]], World]:
    made, client = World(), Merging(list(newer))
    made.node("n1", 1, vfs=2)
    limits = WHOLE | ({RESOURCE_RDMA: str(vfs)} if vfs else {})
    made.show("a", limits, annotations={NETWORKS: own} if own else {})
    reason = await binder_of(made, client, network=VfNetwork(namespace="vfs", name="vf-{vf}")).bind(uid_of("a"), "n1")
    return reason, client.sent, made


async def test_the_vfs_of_the_assignment_become_networks_of_the_pod() -> None:
    reason, (sent,), _ = await bound_with("storage", vfs=2)
    assert reason == ""
    (container,) = json.loads(sent[ASSIGNMENT])["containers"].values()
    storage, *ours = json.loads(sent[NETWORKS])
    assert storage == {"name": "storage"}
    assert [(one["deviceID"], one["interface"]) for one in ours] == [(vf["bdf"], vf["ifname"]) for vf in container["vfs"]]
    assert len(ours) == 2


async def test_a_pod_without_vfs_keeps_its_networks() -> None:
    _, (sent,), _ = await bound_with("storage", vfs=0)
    assert NETWORKS not in sent


async def test_networks_that_changed_meanwhile_are_kept() -> None:
    reason, sent, _ = await bound_with("storage", "backup")
    assert reason == ""
    assert [json.loads(annotations[NETWORKS])[0]["name"] for annotations in sent] == ["storage", "backup"]


@pytest.mark.parametrize("texts", [("[",), ("storage", "[")])
async def test_malformed_networks_are_refused_and_free_the_devices(texts: tuple[str, ...]) -> None:
    reason, sent, made = await bound_with(*texts)
    assert NETWORKS in reason
    assert OfPod.REQUEST_MALFORMED in reason
    assert len(sent) == len(texts) - 1
    assert made.ledger.own_claim(uid_of("a"), Claim.RESERVED) is None
    assert made.scheduler.counts.bound == {BindOutcome.REFUSED: 1}
