import contextlib
from pathlib import Path

import pytest

from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.resource import PODS
from simnode.api_server import ApiServer, write_kubeconfig
from simnode.api_store import Changes, RefusedError
from simnode.following import follow


async def test_a_watch_that_the_server_ends_or_forgets_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    watches: list[int] = []
    async with ApiServer() as server:
        real = server.store.changes

        def changes(collection: str, version: int) -> Changes:
            watches.append(version)
            if len(watches) == 2:  # the first watch ended by its time
                server.store.put(PODS.path("default", "listed"), {})
                raise RefusedError(410, "Expired")
            if len(watches) == 3:
                server.store.put(PODS.path("default", "watched"), {})
            return real(collection, version)

        monkeypatch.setattr(server.store, "changes", changes)
        server.store.put(PODS.path("default", "before"), {})
        access = open_access(write_kubeconfig(tmp_path / "kubeconfig", server.url))
        async with (
            KubeClient(access, user_agent="lading-test") as client,
            contextlib.aclosing(follow(client, PODS.path(), watch_s=1)) as pods,
        ):
            while names[-1:] != ["watched"]:
                names.append((await anext(pods))["metadata"]["name"])
    assert names == ["before", "before", "listed", "watched"]
