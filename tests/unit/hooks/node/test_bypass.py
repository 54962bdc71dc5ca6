"""Test containers that run bare although their pod's annotations give them devices."""

from collections.abc import Mapping

import pytest

from hooks.forms.annotations import parse_assignment
from hooks.model.assignment import Assignment, Form, Refusal, Trust
from hooks.model.lists import ContainerState, Lists
from hooks.node import bypass
from hooks.node.bypass import find_bypassed
from lading.vocabulary import PodUid
from tests.fakes import holders

MANUAL = Trust(accepted=frozenset({Form.MANUAL}))


def found(
    annotations: dict[str, str],
    *,
    state: ContainerState = ContainerState.RUNNING,
    grant: str | None = None,
    trust: Trust = MANUAL,
) -> list[str]:
    container = holders.container(state=state, wears=grant)
    lists = Lists(sandboxes=[holders.sandbox(annotations=annotations)], containers=[container])
    return [one.container for one in find_bypassed(lists, node="n1", trust=trust)]


@pytest.mark.parametrize("state", [ContainerState.RUNNING, ContainerState.CREATED])
def test_a_live_container_without_its_grant_is_found(state: ContainerState) -> None:
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
    states = {"bare": ContainerState.RUNNING, "granted": ContainerState.RUNNING, "ended": ContainerState.EXITED}
    sandboxes = [holders.sandbox(pod, annotations={"lading.dev/gpus": "0"}) for pod in states]
    containers = [
        holders.container(f"{pod}-{number}", pod=pod, state=state, wears="{}" if pod == "granted" else None)
        for pod, state in states.items()
        for number in range(40)
    ]
    assert len(find_bypassed(Lists(sandboxes=sandboxes, containers=containers), node="n1", trust=MANUAL)) == 40
    assert read == ["bare"]


def test_others_are_not() -> None:
    assert found({"lading.dev/gpus": "0"}, grant="{}") == []
    assert found({"lading.dev/gpus": "0"}, state=ContainerState.EXITED) == []
    assert found({"lading.dev/gpus.side": "0"}) == []
    assert found({"lading.dev/later": "x", "other.dev/gpus": "0"}) == []
    assert found({}) == []
