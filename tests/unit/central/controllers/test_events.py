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
from tests.fakes.simulated_time import run_simulated

POD = Holder(pod=PodUid("uid-a"), namespace="ns", name="a")


def play(folder: Path, faults: list[Fault], tells: int, *, pod: Holder = POD) -> tuple[FakeKubeServer, Records]:
    records = Records()
    server = FakeKubeServer()

    async def story() -> None:
        async with server:
            access = open_access(server.write_kubeconfig(folder / "kubeconfig"))
            async with KubeClient(access, user_agent="test") as client:
                recorder = EventRecorder(client, now=lambda: "2026-11-21T00:00:00Z", log=records.log)
                for fault in faults:
                    server.fail(fault)
                for number in range(tells):
                    recorder.record(pod, "NoAssignment", f"number {number}")
                running = asyncio.create_task(recorder.run())
                await asyncio.sleep(60)
                running.cancel()
                await asyncio.wait([running])

    run_simulated(story())
    return server, records


def test_an_event_names_its_pod(tmp_path: Path) -> None:
    server, records = play(tmp_path, [], 2)
    first, second = (request.body for request in server.calls("POST"))
    assert first["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": "ns", "uid": "uid-a"}
    assert (first["reason"], first["message"], first["type"], first["count"]) == ("NoAssignment", "number 0", "Warning", 1)
    assert first["source"]["component"] == "lading-central"
    assert first["metadata"]["namespace"] == "ns"
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert records.seen == []


def test_what_fails_is_dropped_and_reported_once(tmp_path: Path) -> None:
    server, records = play(tmp_path, [Fault(status=500), Fault(hang=True), Fault(status=403)], 5)
    assert [request.body["message"][-1] for request in server.calls("POST")] == ["0", "1", "2", "3", "4"]
    assert records.count(Event.TELL_FAILED) == 1


def test_of_too_many_the_rest_is_dropped(tmp_path: Path) -> None:
    server, records = play(tmp_path, [], WAITING + 50)
    assert len(server.calls("POST")) == WAITING
    assert records.count(Event.TELL_FAILED) == 1


def test_a_name_stays_a_name(tmp_path: Path) -> None:
    server, _ = play(tmp_path, [], 1, pod=Holder(pod=PodUid("u"), namespace="ns", name="a" * 253))
    (request,) = server.calls("POST")
    assert len(request.body["metadata"]["name"]) <= 253
    assert request.body["involvedObject"]["name"] == "a" * 253
