"""The pods of a manifest, as many as would run."""

import pytest

from kubectl_lading.plans.manifests import Manifest, parse_manifest
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
def test_what_can_not_be_used_is_refused_with_its_place(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parsed(text)
