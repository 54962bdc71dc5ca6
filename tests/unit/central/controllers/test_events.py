"""Test Kubernetes Events: each is sent once and in order, and none delays other work."""

import asyncio
from pathlib import Path

from central.controllers.events import WAITING, EventRecorder
from central.ledger.model import Holder
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.log import Event
from lading.vocabulary import PodUid
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.records import Records

POD = Holder(pod=PodUid("uid-a"), namespace="ns", name="a")


async def send(folder: Path, faults: list[Fault], count: int, *, pod: Holder = POD) -> tuple[FakeKubeServer, Records]:
    """Record so many events about the pod, and give central a minute to send them."""
    records = Records()
    async with FakeKubeServer() as server:
        access = open_access(server.write_kubeconfig(folder / "kubeconfig"))
        async with KubeClient(access, user_agent="test") as client:
            recorder = EventRecorder(client, now=lambda: "2026-11-21T00:00:00Z", log=records.log)
            for fault in faults:
                server.fail(fault)
            for number in range(count):
                recorder.record(pod, "NoAssignment", f"number {number}")
            running = asyncio.create_task(recorder.run())
            await asyncio.sleep(60)
            running.cancel()
            await asyncio.wait([running])
    return server, records


async def test_an_event_names_its_pod(tmp_path: Path) -> None:
    server, records = await send(tmp_path, [], 2)
    first, second = (request.body for request in server.calls("POST"))
    assert first["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "ns", "uid": "uid-a"}
    assert (first["reason"], first["message"], first["type"], first["count"]) == ("NoAssignment", "number 0", "Warning", 1)
    assert first["source"]["component"] == "lading-central"
    assert first["metadata"]["namespace"] == "ns"
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert records.seen == []


async def test_an_event_that_fails_is_dropped_and_logged_once(tmp_path: Path) -> None:
    server, records = await send(tmp_path, [Fault(status=500), Fault(hang=True), Fault(status=403)], 5)
    assert [request.body["message"][-1] for request in server.calls("POST")] == ["0", "1", "2", "3", "4"]
    assert records.count(Event.TELL_FAILED) == 1


async def test_events_beyond_the_queue_are_dropped(tmp_path: Path) -> None:
    server, records = await send(tmp_path, [], WAITING + 50)
    assert len(server.calls("POST")) == WAITING
    assert records.count(Event.TELL_FAILED) == 1


async def test_the_name_of_an_event_is_valid_for_the_longest_pod_name(tmp_path: Path) -> None:
    server, _ = await send(tmp_path, [], 1, pod=Holder(pod=PodUid("u"), namespace="ns", name="a" * 253))
    (request,) = server.calls("POST")
    assert len(request.body["metadata"]["name"]) <= 253
    assert request.body["involvedObject"]["name"] == "a" * 253
