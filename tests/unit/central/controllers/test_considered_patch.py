"""Test the patch that requeues a pod: it changes a condition of the pod's status each time, and no other pod."""

import asyncio
import itertools
from pathlib import Path

import msgspec
import pytest

from central.controllers.considered_patch import CONDITION, ConsideredPatch
from central.request.model import DeviceRequest
from central.request.parse import parse_request
from central.request.pod import Pod
from central.state.pending import Pending, pending_of
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import ConflictError, NotFoundError
from tests.fakes.kube_objects import pod, pod_path
from tests.fakes.kube_server import FakeKubeServer


def pending(body: bytes) -> Pending:
    shown = msgspec.json.decode(body, type=Pod)
    ask = parse_request(shown)
    assert isinstance(ask, DeviceRequest)
    return pending_of(shown, ask)


def test_every_touch_is_a_new_version_and_no_other_pod_is_touched(tmp_path: Path) -> None:
    async def story() -> None:
        async with FakeKubeServer() as server:
            access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig"))
            async with KubeClient(access, user_agent="test") as client:
                times = itertools.count()
                touch = ConsideredPatch(client, now=lambda: f"2026-11-21T00:00:{next(times):02}.000000Z")
                await server.put(pod_path("a"), pod("a"))
                known = pending(await client.get(pod_path("a")))
                known.refused_at = 1.0
                first = msgspec.json.decode(await touch(known))
                known.refused_at = None
                second = msgspec.json.decode(await touch(known))
                assert first["metadata"]["resourceVersion"] != second["metadata"]["resourceVersion"]
                conditions = [one["status"]["conditions"][0] for one in (first, second)]
                assert [one["type"] for one in conditions] == [CONDITION, CONDITION]
                assert [one["reason"] for one in conditions] == ["RoomAppeared", "BindingUnclear"]
                assert conditions[0]["message"] != conditions[1]["message"]
                await server.put(pod_path("a"), {**pod("a"), "metadata": {"uid": "another"}})
                with pytest.raises(ConflictError):
                    await touch(known)
                await server.remove(pod_path("a"))
                with pytest.raises(NotFoundError):
                    await touch(known)

    asyncio.run(story())
