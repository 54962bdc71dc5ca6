"""An outcome that the API server tells, and no watch has shown."""

import asyncio
from typing import Any

import msgspec
import pytest

from central.bind.binder import Binder
from central.extender.wire import BindArgs
from central.ledger.model import Claim
from central.pending import Pending
from lading.kube.errors import UnclearError
from lading.vocabulary import ASSIGNMENT
from tests.fakes.kube_objects import NAMESPACE, pod
from tests.unit.central.world import World, uid_of


class Client:
    """Answers no Binding; the pod is bound all the same, by that one or another."""

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


@pytest.mark.parametrize("by", ["this Binding", "another text", "another node"])
def test_found_bound(by: str) -> None:
    made, client = World(), Client(by)
    made.node("n1", 1)
    made.show("a")

    async def story() -> None:
        binder = Binder(
            made.scheduler,
            client,  # type: ignore[arg-type]
            None,
            touch=client.touch,
            leads=lambda: True,
            log=made.records.log,
        )
        args = BindArgs(PodName="a", PodNamespace=NAMESPACE, PodUID=uid_of("a"), Node="n1")
        assert await binder.bind(args) != ""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await binder.close()

    asyncio.run(story())
    reserved = made.ledger.own_claim(uid_of("a"), Claim.RESERVED)
    assert (reserved is not None and reserved.confirmed) is (by == "this Binding")
