"""Test the simulated API server over HTTP, with the client that the daemons use."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import ConflictError, GoneError, NotFoundError
from lading.kube.resource import NODES, PODS
from simnode.api_server import ApiServer, write_kubeconfig

Story = Callable[[ApiServer, KubeClient], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Story], None]:
    async def play_one(story: Story) -> None:
        async with ApiServer() as server:
            access = open_access(write_kubeconfig(tmp_path / "kubeconfig", server.url))
            async with KubeClient(access, user_agent="lading-test", timeout_s=5.0) as client, asyncio.timeout(20):
                await story(server, client)

    return lambda story: asyncio.run(play_one(story))


def test_a_watch_tells_what_came_before_it_and_what_comes(play: Callable[[Story], None]) -> None:
    async def story(server: ApiServer, client: KubeClient) -> None:
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

    play(story)


def test_refusals_are_statuses(play: Callable[[Story], None]) -> None:
    async def story(server: ApiServer, client: KubeClient) -> None:
        with pytest.raises(NotFoundError) as absent:
            await client.get(PODS.path("default", "a"))
        assert absent.value.reason == "NotFound"
        pod = server.store.put(PODS.path("default", "a"), {})
        with pytest.raises(ConflictError):
            await client.delete(PODS.path("default", "a"), uid=pod["metadata"]["uid"] + "x")
        server.store.compact()
        with pytest.raises(GoneError):
            await anext(client.watch(PODS.path(), resource_version="1"))

    play(story)
