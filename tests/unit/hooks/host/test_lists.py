import asyncio
import json
from pathlib import Path

import pytest

from hooks.host.lists import Annotations, has_ended, parse_configured, parse_lists, read_lists
from hooks.model.grant import GrantKey
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.runtime import RuntimeClient
from lading.vocabulary import PREFIX, ContainerId, PodUid, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.fakes.raw_server import Call, RawServer

SANDBOX = cri.PodSandbox(
    id="s",
    metadata=cri.PodSandboxMetadata(name="p", namespace="n", uid="u"),
    state=cri.SANDBOX_READY,
    annotations={"lading.dev/gpus": "0"},
)
LABELS = {"io.kubernetes.pod.uid": "by-label"}


def container(*, labels: dict[str, str] | None = None, state: int = cri.CONTAINER_RUNNING) -> cri.Container:
    return cri.Container(
        id="c",
        pod_sandbox_id="s",
        metadata=cri.ContainerMetadata(name="train"),
        state=state,  # type: ignore[arg-type]
        created_at=7,
        labels=labels,
        annotations={"lading.dev/grant": "{}", "lading.dev/attachments": "[]"},
    )


def test_what_a_decision_uses_is_there() -> None:
    assert parse_lists([SANDBOX], [container()]) == Lists(
        sandboxes=(
            ListedSandbox(
                id=SandboxId("s"),
                pod=PodUid("u"),
                namespace="n",
                pod_name="p",
                ready=True,
                annotations={"lading.dev/gpus": "0"},
            ),
        ),
        containers=(
            ListedContainer(
                id=ContainerId("c"),
                sandbox=SandboxId("s"),
                key=GrantKey(PodUid("u"), "train"),
                state=ContainerState.RUNNING,
                created_at=7,
                grant="{}",
                attachments="[]",
            ),
        ),
    )


def test_a_sandbox_that_is_not_ready() -> None:
    (listed,) = parse_lists([cri.PodSandbox(state=cri.SANDBOX_NOTREADY)], []).sandboxes
    assert not listed.ready


@pytest.mark.parametrize(
    ("sandboxes", "labels", "pod"), [([SANDBOX], LABELS, "u"), ([SANDBOX], {}, "u"), ([], LABELS, "by-label"), ([], {}, "")]
)
def test_the_pod_is_its_sandboxs_and_its_labels_where_that_is_not_listed(
    sandboxes: list[cri.PodSandbox], labels: dict[str, str], pod: str
) -> None:
    (listed,) = parse_lists(sandboxes, [container(labels=labels)]).containers
    assert listed.pod == pod


@pytest.mark.parametrize(
    ("state", "expected", "live"),
    [
        (cri.CONTAINER_CREATED, ContainerState.CREATED, True),
        (cri.CONTAINER_RUNNING, ContainerState.RUNNING, True),
        (cri.CONTAINER_EXITED, ContainerState.EXITED, False),
        (cri.CONTAINER_UNKNOWN, ContainerState.UNKNOWN, False),
        (99, ContainerState.UNKNOWN, False),
    ],
)
def test_a_state_of_a_later_runtime_is_unknown(state: int, expected: ContainerState, live: bool) -> None:
    (listed,) = parse_lists([SANDBOX], [container(state=state)]).containers
    assert (listed.state, listed.live) == (expected, live)


def configuration(annotations: object) -> dict[str, str]:
    return {"info": json.dumps({"runtimeSpec": {"annotations": annotations}})}


@pytest.mark.parametrize(
    ("info", "found"),
    [
        (configuration({"lading.dev/grant": "g", "other": "x"}), {"lading.dev/grant": "g"}),
        (configuration({"lading.dev/grant": 1}), {}),
        (configuration({}), {}),
        ({"info": '{"runtimeSpec": {}}'}, {}),
        ({"info": '{"runtimeSpec": null}'}, None),
        ({"info": "[" * 100_000}, None),
        ({"info": "no JSON"}, None),
        ({}, None),
    ],
)
def test_what_the_node_wrote_is_in_a_containers_configuration(info: dict[str, str], found: dict[str, str] | None) -> None:
    assert parse_configured(cri.ContainerStatusResponse(info=info)) == found


class Listing:
    """Act as a runtime whose lists do not have the annotations that a plugin of NRI wrote."""

    def __init__(self, *, guarded: bool = True, info: dict[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self._info = info if info is not None else configuration({"lading.dev/grant": "g", "lading.dev/attachments": "[]"})
        self._annotations = {"lading.dev/gpus": "0"} if guarded else {}
        self.containers = ["c"]

    def __call__(self, call: Call) -> bytes:
        self.asked.append(call.method)
        match call.method:
            case "ListPodSandbox":
                sandbox = cri.PodSandbox(id="s", annotations=self._annotations)
                return cri.ListPodSandboxResponse(items=[sandbox]).SerializeToString()
            case "ListContainers":
                result = [cri.Container(id=name, pod_sandbox_id="s") for name in self.containers]
                return cri.ListContainersResponse(containers=result).SerializeToString()
        return cri.ContainerStatusResponse(info=self._info).SerializeToString()


def read_twice(path: Path, listing: Listing, *between: str) -> list[Lists]:
    configured: dict[str, Annotations] = {}

    async def read() -> list[Lists]:
        async with RuntimeClient(path) as runtime:
            first = await read_lists(runtime, prefixes=(PREFIX,), configured=configured)
            listing.containers += between
            return [first, await read_lists(runtime, prefixes=(PREFIX,), configured=configured)]

    with RawServer(path, listing, workers=1):
        return asyncio.run(read())


def test_a_grant_that_nri_wrote_is_asked_for_once(short_folder: Path) -> None:
    listing = Listing()
    for lists in read_twice(short_folder / "runtime.sock", listing):
        (container,) = lists.containers
        assert (container.grant, container.attachments) == ("g", "[]")
    assert listing.asked.count("ContainerStatus") == 1


def test_containers_of_other_pods_are_not_asked_about(short_folder: Path) -> None:
    listing = Listing(guarded=False)
    for lists in read_twice(short_folder / "runtime.sock", listing):
        assert lists.containers[0].grant is None
    assert "ContainerStatus" not in listing.asked


def test_a_container_whose_configuration_is_deleted_is_neither_a_holder_nor_bypassed_and_is_asked_about_again(
    short_folder: Path,
) -> None:
    """Check a container whose configuration disappears while it is removed."""
    listing = Listing(info={"info": '{"runtimeSpec": null}'})
    for lists in read_twice(short_folder / "runtime.sock", listing):
        assert lists.containers[0].grant == ""
    assert listing.asked.count("ContainerStatus") == 2


def test_a_container_without_a_grant_in_its_configuration_has_none(short_folder: Path) -> None:
    for lists in read_twice(short_folder / "runtime.sock", Listing(info=configuration({"other": "x"})), "d"):
        assert {container.grant for container in lists.containers} == {None}


@pytest.mark.parametrize(("state", "ended"), [(cri.SANDBOX_READY, False), (cri.SANDBOX_NOTREADY, True)])
async def test_a_sandbox_that_is_not_ready_has_ended(short_folder: Path, state: cri.PodSandboxState, ended: bool) -> None:
    status = cri.PodSandboxStatusResponse(status=cri.PodSandboxStatus(state=state)).SerializeToString()

    async def ask() -> bool:
        async with RuntimeClient(short_folder / "runtime.sock") as runtime:
            return await has_ended(runtime, SandboxId("s"))

    with RawServer(short_folder / "runtime.sock", lambda _: status, workers=1):
        assert await ask() is ended
    assert await ask() is False  # nothing answers


async def test_the_sandboxes_are_listed_first(short_folder: Path) -> None:
    """Check a container that is created between both lists: its sandbox is known by its label."""
    asked: list[str] = []

    def answer(call: Call) -> bytes:
        asked.append(call.method)
        return b""

    path = short_folder / "runtime.sock"
    with RawServer(path, answer, workers=1):
        async with RuntimeClient(path) as runtime:
            assert await read_lists(runtime, prefixes=(PREFIX,)) == Lists()
    assert asked == ["ListPodSandbox", "ListContainers"]
