"""Run two daemons with one lease: a stopped leader loses leadership, another takes over later, and no card is assigned
twice."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from central.daemon.lease import LeaseTerms
from lading.kube.resource import LEASES
from simnode.control_plane import free_port
from simnode.patience import await_until
from tests.coroutines import LoopFactory
from tests.fakes.kube_objects import Json, devices, devices_path, node, node_path, pod, pod_path
from tests.fakes.kube_server import FakeKubeServer

NAMESPACE, NAME = "lading-system", "lading-central"
LEASE = LEASES.path(NAMESPACE, NAME)
LEADS, WAITS = 200, 503


@dataclass
class Central:
    process: asyncio.subprocess.Process
    port: int
    page_port: int
    session: aiohttp.ClientSession

    async def ask(self, verb: str, body: Json) -> tuple[int, Json]:
        """Return the status and the answer; status 0 if no daemon answers."""
        try:
            limit = aiohttp.ClientTimeout(total=10)
            async with self.session.post(f"http://127.0.0.1:{self.port}/{verb}", json=body, timeout=limit) as answer:
                text = await answer.text()
                return answer.status, json.loads(text) if answer.status == LEADS else {}
        except (aiohttp.ClientError, TimeoutError):
            return 0, {}

    async def filter(self, shown: Json) -> tuple[int, list[str]]:
        status, answer = await self.ask("filter", {"Pod": shown, "NodeNames": ["n1"]})
        return status, answer.get("NodeNames", [])

    async def until(self, status: int, within_s: float) -> float:
        """Wait until filter answers this status, and return the seconds."""

        async def answers() -> bool:
            return (await self.filter(pod("not-shown", {"cpu": "1"}, version=1)))[0] == status

        began = time.monotonic()
        await await_until(answers, f"status {status}")
        took_s = time.monotonic() - began
        assert took_s < within_s
        return took_s

    async def bind(self, shown: Json) -> tuple[int, str]:
        metadata = shown["metadata"]
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        status, answer = await self.ask("bind", {**names, "Node": "n1"})
        return status, answer.get("Error", "")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@contextlib.asynccontextmanager
async def central(folder: Path, server: FakeKubeServer, name: str) -> AsyncIterator[Central]:
    port, page_port = free_port(), free_port()
    flags = {
        "kubeconfig": server.write_kubeconfig(folder / "kubeconfig"),
        "config": folder / "none.toml",
        "listen": f"127.0.0.1:{port}",
        "page-listen": f"127.0.0.1:{page_port}",
        "metrics": "",
        "identity": name,
        "lease-namespace": NAMESPACE,
        "lease-name": NAME,
    }
    (folder / "none.toml").write_text("")
    program = Path(sys.executable).with_name("lading-central")
    with (folder / f"{name}.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            program, *(f"--{key}={value}" for key, value in flags.items()), stderr=log, stdout=log
        )
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        try:
            yield Central(process, port, page_port, session)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[FakeKubeServer]:
    """Serve one node with one card, and a released lease: the first daemon may lead at once."""
    async with FakeKubeServer() as server:
        await server.put(node_path("n1"), node("n1"))
        await server.put(devices_path("n1"), devices("n1"))
        await server.put(LEASE, {"spec": {"leaseDurationSeconds": 1}})
        yield server


def reads_of_the_lease(server: FakeKubeServer) -> int:
    """Return how often the lease was read: the leader only writes it."""
    return sum(request.path == LEASE for request in server.calls("GET"))


async def test_a_suspended_leader_loses_leadership_and_assigns_no_card_twice(tmp_path: Path) -> None:
    terms = LeaseTerms()
    async with cluster() as server, central(tmp_path, server, "first") as first:
        await first.until(LEADS, 20)
        async with central(tmp_path, server, "second") as second:
            await second.until(WAITS, 20)
            reads = reads_of_the_lease(server)
            await server.until(lambda: reads_of_the_lease(server) > reads)  # the second has seen the lease, too
            await server.put(pod_path("a"), pod("a"))
            await server.put(pod_path("b"), pod("b"))
            assert await first.filter(server.objects[pod_path("a")]) == (LEADS, ["n1"])
            first.signal(signal.SIGSTOP)
            waited_s = await second.until(LEADS, terms.duration_s + 4 * terms.retry_s)
            assert waited_s >= terms.renew_deadline_s - terms.retry_s
            assert await second.bind(server.objects[pod_path("b")]) == (LEADS, "")
            first.signal(signal.SIGCONT)
            assert (await first.bind(server.objects[pod_path("a")]))[0] == WAITS
            assert (await first.filter(server.objects[pod_path("a")]))[0] == WAITS
            assert await second.filter(server.objects[pod_path("a")]) == (LEADS, [])
            assert "nodeName" not in server.objects[pod_path("a")]["spec"]
            assert server.objects[pod_path("b")]["spec"]["nodeName"] == "n1"


async def test_a_leader_that_stops_in_order_hands_over_at_once(tmp_path: Path) -> None:
    async with cluster() as server, central(tmp_path, server, "first") as first:
        await first.until(LEADS, 20)
        async with central(tmp_path, server, "second") as second:
            await second.until(WAITS, 20)
            first.signal(signal.SIGTERM)
            await second.until(LEADS, 2 * LeaseTerms().retry_s + 2)
            assert await asyncio.wait_for(first.process.wait(), 5) == 0


async def test_the_port_that_binds_has_no_page_and_the_page_binds_nothing(tmp_path: Path) -> None:
    async with cluster() as server, central(tmp_path, server, "first") as first:
        await first.until(LEADS, 20)
        await server.put(pod_path("a"), pod("a"))
        people = replace(first, port=first.page_port)
        assert await people.bind(server.objects[pod_path("a")]) == (404, "")
        assert await first.bind(server.objects[pod_path("a")]) == (LEADS, "")
        answers = []
        for port in (first.port, first.page_port):
            async with first.session.get(f"http://127.0.0.1:{port}/v1/cluster") as answer:
                answers.append((answer.status, f"127.0.0.1:{first.page_port}" in await answer.text()))
        assert answers == [(421, True), (200, False)]
