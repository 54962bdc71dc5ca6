"""Test the simulated API server over HTTP, with the client that the daemons use."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import ConflictError, GoneError, NotFoundError
from lading.kube.resource import NODES, PODS
from simnode.api_server import ApiServer, write_kubeconfig


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    access = open_access(write_kubeconfig(tmp_path / "kubeconfig", server.url))
    async with KubeClient(access, user_agent="lading-test", timeout_s=5.0) as client:
        yield client


async def test_a_watch_sends_earlier_and_later_changes(server: ApiServer, client: KubeClient) -> None:
    server.store.put(PODS.path("default", "a"), {})
    observed = []
    async with contextlib.aclosing(client.watch(PODS.path(), resource_version="100")) as watch:
        async for event in watch:
            observed.append((event.type, msgspec.json.decode(event.object)["metadata"]["name"]))
            match len(observed):
                case 1:
                    server.store.put(NODES.path(name="n1"), {})
                    await client.create(PODS.path("default"), {"metadata": {"name": "b"}})
                case 2:
                    await client.delete(PODS.path("default", "a"))
                case 3:
                    break
    assert observed == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]


async def test_refusals_are_statuses(server: ApiServer, client: KubeClient) -> None:
    with pytest.raises(NotFoundError) as absent:
        await client.get(PODS.path("default", "a"))
    assert absent.value.reason == "NotFound"
    pod = server.store.put(PODS.path("default", "a"), {})
    with pytest.raises(ConflictError):
        await client.delete(PODS.path("default", "a"), uid=pod["metadata"]["uid"] + "x")
    server.store.compact()
    with pytest.raises(GoneError):
        await anext(client.watch(PODS.path(), resource_version="1"))
