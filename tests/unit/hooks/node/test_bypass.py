"""Containers that run bare although their pod's annotations give them devices."""

from collections.abc import Mapping

import pytest

from hooks.forms.annotations import parse_assignment
from hooks.model.assignment import Assignment, Form, Refusal
from hooks.model.trust import Trust
from hooks.node import bypass
from hooks.node.bypass import find_bypassed
from lading.vocabulary import GRANT, PodUid
from protos.cri.runtime.v1 import api_pb2 as cri

MANUAL = Trust(accepted=frozenset({Form.MANUAL}))


def found(
    annotations: dict[str, str],
    *,
    state: cri.ContainerState = cri.CONTAINER_RUNNING,
    own: dict[str, str] | None = None,
    trust: Trust = MANUAL,
) -> list[str]:
    sandbox = cri.PodSandbox(id="s", metadata=cri.PodSandboxMetadata(uid="u", name="p", namespace="n"), annotations=annotations)
    container = cri.Container(
        id="c", pod_sandbox_id="s", metadata=cri.ContainerMetadata(name="train"), state=state, annotations=own or {}
    )
    return [one.container for one in find_bypassed([sandbox], [container], node="n1", trust=trust)]


@pytest.mark.parametrize("state", [cri.CONTAINER_RUNNING, cri.CONTAINER_CREATED])
def test_a_live_container_without_its_grant_is_found(state: cri.ContainerState) -> None:
    assert found({"lading.dev/gpus": "0"}, state=state) == ["train"]
    assert found({"lading.dev/gpus.train": "0"}, state=state) == ["train"]


def test_what_should_have_been_refused_is_found_too() -> None:
    assert found({"lading.dev/assignment": "{"}) == ["train"]
    assert found({"lading.dev/gpus": "0"}, trust=Trust(accepted=frozenset({Form.SIGNED}))) == ["train"]


def test_annotations_are_read_once_for_all_containers_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(annotations: Mapping[str, str], *, pod: PodUid, node: str, trust: Trust) -> Assignment | Refusal | None:
        read.append(pod)
        return parse_assignment(annotations, pod=pod, node=node, trust=trust)

    monkeypatch.setattr(bypass, "parse_assignment", counted)
    sandboxes = [
        cri.PodSandbox(id=pod, metadata=cri.PodSandboxMetadata(uid=pod), annotations={"lading.dev/gpus": "0"})
        for pod in ("bare", "granted", "ended")
    ]
    states = {"bare": cri.CONTAINER_RUNNING, "granted": cri.CONTAINER_RUNNING, "ended": cri.CONTAINER_EXITED}
    containers = [
        cri.Container(
            id=f"{pod}-{number}", pod_sandbox_id=pod, state=state, annotations={GRANT: "{}"} if pod == "granted" else {}
        )
        for pod, state in states.items()
        for number in range(40)
    ]
    assert len(find_bypassed(sandboxes, containers, node="n1", trust=MANUAL)) == 40
    assert read == ["bare"]


def test_others_are_not() -> None:
    assert found({"lading.dev/gpus": "0"}, own={GRANT: "{}"}) == []
    assert found({"lading.dev/gpus": "0"}, state=cri.CONTAINER_EXITED) == []
    assert found({"lading.dev/gpus.side": "0"}) == []
    assert found({"lading.dev/later": "x", "other.dev/gpus": "0"}) == []
    assert found({}) == []
