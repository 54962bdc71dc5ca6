"""Test calls, watches and leases against a real API server: it has to behave as the fake one does."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.api.watch import Reflector
from central.daemon.lease import Election, KubeLease, LeaseTerms
from central.request.pod import Pod
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnclearError,
    UnreachableError,
)
from lading.kube.resource import LEASES, NODES, PODS
from simnode.control_plane import ControlPlane
from simnode.patience import await_until
from tests.fakes.kube_objects import deep_fields
from tests.fakes.records import Records

NAMESPACE = "api-test"
TERMS = LeaseTerms(duration_s=3, renew_deadline_s=2.0, retry_s=0.3, request_timeout_s=0.8)


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.create_namespace(NAMESPACE)
    yield control_plane
    for pod in control_plane.api.call("GET", PODS.path(NAMESPACE))["items"]:
        control_plane.api.call("DELETE", PODS.path(NAMESPACE, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})


@contextlib.asynccontextmanager
async def connect(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    async with KubeClient(open_access(kubeconfig), user_agent="lading-test") as client:
        yield client
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def client(server: ControlPlane) -> AsyncIterator[KubeClient]:
    async with connect(server.admin_conf) as client:
        yield client


def manifest(name: str) -> dict[str, Any]:
    container = {"name": "train", "image": "pause"}
    spec = {"containers": [container], "schedulerName": "nobody", "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


async def create(client: KubeClient, name: str, **metadata: Any) -> Pod:
    pod = manifest(name)
    pod["metadata"] |= metadata
    return msgspec.json.decode(await client.create(PODS.path(NAMESPACE), pod), type=Pod)


async def bind(client: KubeClient, pod: Pod, *, uid: str = "", version: str = "") -> None:
    await client.bind(
        namespace=NAMESPACE,
        name=pod.metadata.name,
        uid=uid or pod.metadata.uid,
        resource_version=version or pod.metadata.resource_version,
        node="some-node",
        annotations={"example.com/a": "b"},
    )


async def test_a_binding_is_for_one_uid_and_version_and_brings_its_annotations(client: KubeClient) -> None:
    pod = await create(client, "bound")
    with pytest.raises(ConflictError):
        await bind(client, pod, uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises(ConflictError):
        await bind(client, pod, version="1")
    await bind(client, pod)
    path = PODS.path(NAMESPACE, "bound")
    bound = msgspec.json.decode(await client.get(path), type=Pod)
    assert bound.spec.node_name == "some-node"
    assert bound.metadata.annotations["example.com/a"] == "b"
    with pytest.raises(ConflictError):
        await bind(client, bound)
    with pytest.raises(ConflictError):
        await client.delete(path, uid="00000000-0000-4000-8000-000000000000")
    await client.delete(path, uid=pod.metadata.uid, grace_s=0)
    with pytest.raises(NotFoundError):
        await bind(client, bound)


async def test_an_eviction_ends_a_pod(client: KubeClient) -> None:
    pod = await create(client, "evicted")
    await client.evict(namespace=NAMESPACE, name="evicted", uid=pod.metadata.uid, grace_s=0)
    with pytest.raises(NotFoundError):
        await client.get(PODS.path(NAMESPACE, "evicted"))


async def test_apply_and_merge_patches_are_refused_on_conflict(client: KubeClient) -> None:
    path = NODES.path(name="api-test")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "api-test", "labels": {"a": "1"}}}
    try:
        await client.apply(path, node, manager="one")
        with pytest.raises(ConflictError):
            await client.apply(path, {**node, "metadata": {"name": "api-test", "labels": {"a": "2"}}}, manager="two")
        await client.merge(path, {"metadata": {"labels": {"b": "3"}}})
        with pytest.raises(ConflictError):
            await client.merge(path, {"metadata": {"resourceVersion": "1", "labels": {"b": "4"}}})
        with pytest.raises(InvalidError):
            await client.merge(path, {"metadata": {"labels": {"not a key": "x"}}})
    finally:
        await client.delete(path)


async def test_a_forbidden_and_an_unknown_user_get_different_errors(server: ControlPlane) -> None:
    account = server.sign_in_account("api-account", NAMESPACE, "default")
    async with connect(account) as client:
        with pytest.raises(ForbiddenError):
            await client.get(NODES.path())
    config = json.loads(account.read_text())
    config["users"][0]["user"]["token"] += "x"
    other = server.folder / "api-unknown.conf"
    other.write_text(json.dumps(config))
    async with connect(other) as client:
        with pytest.raises(UnauthorizedError):
            await client.get(NODES.path())


async def test_a_server_with_another_certificate_is_unreachable(server: ControlPlane) -> None:
    config = json.loads(server.admin_conf.read_text())
    config["clusters"][0]["cluster"]["tls-server-name"] = "another.example"
    other = server.folder / "api-another.conf"
    other.write_text(json.dumps(config))
    async with connect(other) as client:
        with pytest.raises(UnreachableError):
            await client.get(NODES.path())


async def test_a_call_beyond_its_timeout_has_an_unclear_outcome(client: KubeClient) -> None:
    await client.get(NODES.path())  # so that there is a connection
    with pytest.raises(UnclearError):
        await client.get(NODES.path(), timeout_s=0.0001)


class Heard:
    """Receive the changes of a watch, and keep the names in the test's namespace, in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()

    def replaced(self, objects: Sequence[Pod | Unreadable], version: str) -> None:
        names = sorted(o.metadata.name for o in objects if o.metadata.namespace == NAMESPACE)
        self.told.put_nowait("=" + ",".join(names))

    def changed(self, obj: Pod | Unreadable) -> None:
        if obj.metadata.namespace == NAMESPACE:
            assert isinstance(obj, Pod)
            self.told.put_nowait(f"+{obj.metadata.name}{'@' + obj.spec.node_name if obj.spec.node_name else ''}")

    def removed(self, deleted: Ident, version: str) -> None:
        if deleted.namespace == NAMESPACE:
            self.told.put_nowait(f"-{deleted.name}")


@contextlib.asynccontextmanager
async def reflected(client: KubeClient) -> AsyncIterator[Heard]:
    heard = Heard()
    running = asyncio.create_task(Reflector(client, PODS, Pod, heard, log=Records().log).run())
    try:
        yield heard
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_objects_are_listed_and_watched(client: KubeClient) -> None:
    await create(client, "before")
    async with reflected(client) as heard:
        assert await heard.told.get() == "=before"
        pod = await create(client, "later")
        assert await heard.told.get() == "+later"
        await bind(client, pod)
        assert await heard.told.get() == "+later@some-node"
        await client.delete(PODS.path(NAMESPACE, "later"), grace_s=0)
        assert [await heard.told.get() for _ in range(2)] == ["+later@some-node", "-later"]
        await create(client, "later")
        assert await heard.told.get() == "+later"
        for name in ("before", "later"):
            await client.delete(PODS.path(NAMESPACE, name), grace_s=0)


async def test_a_deeply_nested_pod_is_listed_watched_got_and_patched(server: ControlPlane, client: KubeClient) -> None:
    """Create such a pod, as any user with the right to create pods can; the API server stores it unchanged."""
    path = PODS.path(NAMESPACE, "deep")

    async def check(client: KubeClient) -> None:
        async with reflected(client) as heard:
            assert await heard.told.get() == "=deep"
            merged = await client.merge(path, {"metadata": {"labels": {"a": "b"}}})
            assert msgspec.json.decode(merged, type=Pod).metadata.name == "deep"
            assert await heard.told.get() == "+deep"
            await bind(client, msgspec.json.decode(await client.get(path), type=Pod))
            assert await heard.told.get() == "+deep@some-node"

    await create(client, "deep", **deep_fields())
    try:
        stored = server.kubectl("get", "pod", "deep", "-n", NAMESPACE, "--show-managed-fields", "-o", "json")
        assert stored.stdout.count('"f:a"') > 8_000
        await check(client)
    finally:
        await client.delete(path, grace_s=0)


async def test_a_list_in_pages(client: KubeClient) -> None:
    for i in range(3):
        await create(client, f"page-{i}")
    sizes = []
    async with contextlib.aclosing(client.list_pages(PODS.path(NAMESPACE), limit=2)) as pages:
        async for page in pages:
            sizes.append((len(page.items), page.first))
    assert sizes == [(2, True), (1, False)]
    for i in range(3):
        await client.delete(PODS.path(NAMESPACE, f"page-{i}"), grace_s=0)


async def test_a_watch_from_a_future_version_sends_nothing(client: KubeClient) -> None:
    """Check that the reflector notices the silence: an API server whose store was restored from a backup sends no error and no
    event."""
    async with contextlib.aclosing(client.watch(PODS.path(), resource_version=str(10**12), watch_s=3)) as events:
        changing = asyncio.create_task(create(client, "unseen"))
        assert [event.type async for event in events] == []
    await changing
    await client.delete(PODS.path(NAMESPACE, "unseen"), grace_s=0)


async def until(holds: Callable[[], bool]) -> float:
    """Wait until it holds. Return for how many seconds it did not."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await await_until(holds, "the expected leader")
    return loop.time() - began


async def test_a_single_candidate_leads_at_a_time(server: ControlPlane, client: KubeClient) -> None:
    calls: list[str] = []

    def candidate(name: str) -> Election:
        return Election(
            KubeLease(client, namespace=NAMESPACE, name="leader"),
            name=name,
            terms=TERMS,
            gained=lambda: calls.append(f"{name} gained"),
            lost=lambda: calls.append(f"{name} lost"),
            log=Records().log,
        )

    them = [candidate(name) for name in ("a", "b", "c")]
    running = {one.identity: asyncio.create_task(one.run()) for one in them}

    def leaders() -> list[Election]:
        return [one for one in them if one.is_leader()]

    async def stop(one: Election) -> None:
        running[one.identity].cancel()
        await asyncio.wait([running[one.identity]])

    assert await until(lambda: len(leaders()) == 1) >= TERMS.duration_s  # no lease was there
    (first,) = leaders()
    await asyncio.sleep(2 * TERMS.duration_s)  # two terms, in which no other may lead
    assert leaders() == [first]

    await stop(first)
    await first.release()
    assert await until(lambda: len(leaders()) == 1) < TERMS.duration_s - 1
    (second,) = leaders()
    lease = server.api.call("GET", LEASES.path(NAMESPACE, "leader"))
    assert lease["spec"]["holderIdentity"] == second.identity
    assert lease["spec"]["leaseTransitions"] == 2

    await stop(second)  # without a word
    third = next(one for one in them if one not in (first, second))
    assert await until(third.is_leader) > TERMS.duration_s - TERMS.renew_deadline_s
    assert not second.is_leader()
    await stop(third)
    assert len(calls) == 3
