"""Test which pods a manifest makes, and their priority as the API server gives it."""

from typing import Any

import msgspec
import pytest

from central.request.pod import Pod, PodMetadata
from kubectl_lading.plans.manifests import LOWER, Manifest, PriorityClass, RefusedPod, Wanted, admit, parse_manifest
from lading.errors import ConfigError

POD = """
apiVersion: v1
kind: Pod
metadata: {name: a, annotations: {lading.dev/policy: spread}}
spec: {schedulerName: lading, containers: [{name: main, resources: {limits: {lading.dev/gpu: 1, cpu: 0.5}}}]}
"""


def parsed(text: str) -> Manifest:
    return parse_manifest(text, "x.yaml", namespace="team")


def of_kind(kind: str, spec: str) -> list[str]:
    made = parsed(f"kind: {kind}\nmetadata: {{name: x, namespace: own}}\nspec: {{{spec}}}")
    return [f"{draft.pod.metadata.namespace}/{draft.pod.metadata.name}" for draft in made.pods]


def test_a_pod_with_what_is_asked_of_it() -> None:
    (pod,) = [draft.pod for draft in parsed(POD).pods]
    assert (pod.metadata.namespace, pod.metadata.name) == ("team", "a")
    assert pod.metadata.annotations == {"lading.dev/policy": "spread"}
    assert pod.spec.containers[0].resources.limits == {"lading.dev/gpu": 1, "cpu": 0.5}


TEMPLATE = "template: {spec: {containers: [{name: main}]}}"


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Deployment", f"replicas: 3, {TEMPLATE}", 3),
        ("Deployment", TEMPLATE, 1),
        ("Deployment", f"replicas: null, {TEMPLATE}", 1),
        ("StatefulSet", f"replicas: 0, {TEMPLATE}", 0),
        ("Job", f"parallelism: 4, completions: 2, {TEMPLATE}", 2),
        ("Job", f"parallelism: 4, {TEMPLATE}", 4),
        ("CronJob", f"jobTemplate: {{spec: {{parallelism: 2, {TEMPLATE}}}}}", 2),
    ],
)
def test_as_many_as_would_run_at_one_time(kind: str, spec: str, count: int) -> None:
    assert of_kind(kind, spec) == [f"own/x-{number}" for number in range(count)]


def test_other_kinds_are_named() -> None:
    made = parsed(f"{POD}\n---\n---\nkind: Service\nmetadata: {{name: s}}\n---\nkind: DaemonSet\nspec: {{{TEMPLATE}}}")
    assert (len(made.pods), made.passed_over) == (1, ("Service/s", "DaemonSet"))


def test_a_list_and_several_documents() -> None:
    document = "\n".join(f"    {line}" for line in POD.strip().splitlines())
    made = parsed(f"kind: List\nitems:\n  -\n{document}\n---{POD}")
    assert [draft.pod.metadata.name for draft in made.pods] == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "line 1"),
        ("just words", "document 1"),
        ("kind: Pod\nspec: {containers: 7}", "containers"),
        (POD + "---\nspec: {}", "document 2"),
        ("kind: Pod\nmetadata: x", "document 1"),
        ("kind: Pod\nmetadata: {annotations: [x]}", "annotations"),
        ("kind: Deployment\nspec: {template: {metadata: x}}", "metadata"),
        ("kind: CronJob\nspec: {jobTemplate: x}", "jobTemplate"),
        ("kind: Deployment\nspec: {replicas: some, template: {spec: {}}}", "some"),
        ("kind: Job\nmetadata: {name: x}\nspec: {parallelism: 5000, template: {spec: {}}}", "1000"),
    ],
)
def test_a_malformed_manifest_is_refused_with_its_place(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parsed(text)


BARE = Pod(metadata=PodMetadata(name="p"))


def a_class(name: str, value: int, **options: Any) -> PriorityClass:
    return msgspec.convert({"metadata": {"name": name}, "value": value, **options}, PriorityClass)


TRAINING = a_class("training", 1000)
CLASSES = (TRAINING, a_class("batch", -5, preemptionPolicy="Never"))


def priority(classes: tuple[PriorityClass, ...] | None, **wanted: Any) -> tuple[int, str]:
    made = admit(BARE, msgspec.convert(wanted, Wanted), classes)
    assert isinstance(made, Pod)
    return made.spec.priority, made.spec.preemption_policy


def refusal(**wanted: Any) -> str:
    made = admit(BARE, msgspec.convert(wanted, Wanted), CLASSES)
    assert isinstance(made, RefusedPod)
    return made.why


def test_the_priority_is_that_of_the_priority_class() -> None:
    assert priority(CLASSES, priorityClassName="training") == (1000, LOWER)
    assert priority(CLASSES, priorityClassName="batch") == (-5, "Never")
    assert priority(CLASSES, priorityClassName="training", priority=1000, preemptionPolicy=LOWER) == (1000, LOWER)


def test_the_lowest_default_priority_class_counts() -> None:
    default = a_class("default", 7, globalDefault=True)
    assert priority((a_class("none", 9, globalDefault=None),)) == (0, LOWER)
    assert priority((*CLASSES, default)) == (7, LOWER)
    assert priority((*CLASSES, default, a_class("other", 3, globalDefault=True, preemptionPolicy="Never"))) == (3, "Never")
    assert priority((*CLASSES, default), priorityClassName="training") == (1000, LOWER)


def test_without_any() -> None:
    assert priority(()) == priority(CLASSES) == priority(CLASSES, priorityClassName="") == (0, LOWER)
    assert priority((), priority=0) == (0, LOWER)


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"priorityClassName": "trainng"}, "training"),
        ({"priorityClassName": "training", "priority": 5}, "1000"),
        ({"priorityClassName": "training", "priority": 0}, "1000"),
        ({"priority": 5}, "5"),
        ({"priorityClassName": "training", "preemptionPolicy": "Never"}, LOWER),
        ({"preemptionPolicy": "Never"}, LOWER),
    ],
)
def test_a_priority_that_the_api_server_refuses_is_an_error(wanted: dict[str, Any], named: str) -> None:
    assert named in refusal(**wanted)


def test_where_the_classes_are_not_known_what_is_written_counts() -> None:
    assert priority(None, priorityClassName="x", priority=5, preemptionPolicy="Never") == (5, "Never")
    assert priority(None) == (0, "")
