import asyncio
from pathlib import Path

import pytest

from hooks.host.lists import parse_lists, read_lists
from hooks.model.grant import GrantKey
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.runtime import RuntimeClient
from lading.vocabulary import ContainerId, PodUid, SandboxId
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
    ("sandboxes", "labels", "pod"),
    [([SANDBOX], LABELS, "u"), ([SANDBOX], {}, "u"), ([], LABELS, "by-label"), ([], {}, "")],
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


def test_the_sandboxes_are_listed_first(sockets: Path) -> None:
    """A container that is created in between is then known by its label."""
    asked: list[str] = []

    def answer(call: Call) -> bytes:
        asked.append(call.method)
        return b""

    async def read(path: Path) -> Lists:
        async with RuntimeClient(path) as runtime:
            return await read_lists(runtime)

    with RawServer(sockets / "runtime.sock", answer, workers=1):
        assert asyncio.run(read(sockets / "runtime.sock")) == Lists()
    assert asked == ["ListPodSandbox", "ListContainers"]
