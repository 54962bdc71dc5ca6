"""Containers that run bare although their pod's annotations give them devices."""

import pytest

from hooks.assignment.annotations import Trust
from hooks.assignment.model import Form
from hooks.ledger.bypass import find_bypassed
from lading.vocabulary import GRANT
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


def test_others_are_not() -> None:
    assert found({"lading.dev/gpus": "0"}, own={GRANT: "{}"}) == []
    assert found({"lading.dev/gpus": "0"}, state=cri.CONTAINER_EXITED) == []
    assert found({"lading.dev/gpus.side": "0"}) == []
    assert found({"lading.dev/later": "x", "other.dev/gpus": "0"}) == []
    assert found({}) == []
