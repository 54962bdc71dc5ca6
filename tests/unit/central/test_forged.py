"""Test a caller that reaches the extender and sends a pod's uid and name with another request than the pod's own."""

from pathlib import Path
from typing import Any

import aiohttp

from central.daemon.daemon import Replica
from central.extender.server import ExtenderServer
from lading.health import Address
from tests.fakes.kube_objects import Json, pod
from tests.fakes.led import Led
from tests.unit.central.daemon.test_daemon import Lease, played


async def post(url: str, verb: str, body: Json) -> Any:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/{verb}", json=body) as answer:
        return await answer.json()


def test_a_forged_request_changes_neither_what_a_pod_gets_nor_what_is_free(tmp_path: Path) -> None:
    async def story(one: Led, leadership: Replica, lease: Lease) -> None:
        await one.put_node("n1", 8)
        await one.put_pod("a")
        await one.put_pod("b")
        server = ExtenderServer(leadership.leader, answered=lambda *_: None, log=one.records.log)
        host, port = await server.start(Address("127.0.0.1", 0), None)
        try:
            forged = one.json("a")
            forged = {**forged, "spec": pod("a", {"lading.dev/gpu": "8"})["spec"]}
            invented = [pod(f"x{number}", version=1) for number in range(8)]
            for sent in (forged, *invented):
                await post(f"http://{host}:{port}", "filter", {"Pod": sent, "NodeNames": ["n1"]})
            assert await one.bind("a", "n1") == ""
            assert len(one.assigned("a")) == 1
            assert one.filter("b") == ["n1"]
        finally:
            await server.close()

    played(story, tmp_path)
