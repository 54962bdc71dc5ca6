"""Test both kinds of ElasticQuota as the API server stores them."""

import msgspec
import pytest
import yaml

from central.quota.model import FLAT, ROOT, Quota, QuotaDialect
from central.quota.objects import ElasticQuota, read_quota
from central.request.cpu_memory import CPU, MEMORY
from lading.vocabulary import RESOURCE_GPU, RESOURCE_RDMA

KOORDINATOR = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: ElasticQuota
metadata:
  name: vision
  namespace: quotas
  creationTimestamp: "2026-05-01T00:00:00Z"
  labels:
    quota.scheduling.koordinator.sh/parent: research
    quota.scheduling.koordinator.sh/is-parent: "true"
    quota.scheduling.koordinator.sh/allow-lent-resource: "false"
    quota.scheduling.koordinator.sh/tree-id: gpu-pool
  annotations:
    quota.scheduling.koordinator.sh/shared-weight: '{"lading.dev/gpu": "3", "cpu": 40}'
    quota.scheduling.koordinator.sh/namespaces: '["vision-dev", "vision-prod"]'
spec:
  min: {lading.dev/gpu: 4, cpu: 64, memory: 256Gi}
  max: {lading.dev/gpu: 10, gpu.lading.dev/NVIDIA-H100-80GB-HBM3: 2.5, lading.dev/rdma: 8, cpu: 100500m, pods: 50, memory: 1Ti}
status:
  used: {cpu: 1}
"""


def read(text: str, dialect: QuotaDialect = QuotaDialect.KOORDINATOR) -> Quota:
    return read_quota(dialect, msgspec.convert(yaml.safe_load(text), ElasticQuota))


def test_koordinators() -> None:
    result = read(KOORDINATOR)
    assert (result.id, result.parent, result.tree) == ("vision", "research", "gpu-pool")
    assert (result.is_parent, result.lends, result.namespaces) == (True, False, ("vision-dev", "vision-prod"))
    assert result.min == {RESOURCE_GPU: 4000, CPU: 64_000, MEMORY: 256 * 1024}
    assert result.max == {
        RESOURCE_GPU: 10_000,
        "gpu.lading.dev/NVIDIA-H100-80GB-HBM3": 2500,
        RESOURCE_RDMA: 8,
        CPU: 100_500,
        MEMORY: 1024 * 1024,
    }
    assert result.uncounted == ("pods",)
    assert (result.weight_of(RESOURCE_GPU), result.weight_of(CPU)) == (3000, 40_000)
    assert result.weight_of(MEMORY) == result.max[MEMORY]  # the default


def test_scheduler_plugins() -> None:
    result = read(KOORDINATOR, QuotaDialect.SCHEDULER_PLUGINS)
    assert (result.id, result.parent, result.is_parent, result.lends) == ("quotas/vision", FLAT, False, True)
    assert result.weight_of(RESOURCE_GPU) == result.min[RESOURCE_GPU]


def test_an_object_with_nothing() -> None:
    result = read("metadata: {name: a, namespace: b}")
    assert (result.parent, result.min, result.max, result.lends, result.problem) == (ROOT, {}, {}, True, "")


def rooted(annotations: str) -> str:
    return f"""
metadata:
  name: root
  labels: {{quota.scheduling.koordinator.sh/is-root: "true", quota.scheduling.koordinator.sh/tree-id: t}}
  annotations: {annotations}
"""


def test_the_root_of_a_tree_of_its_own() -> None:
    total = '\'{"cpu": "10", "lading.dev/gpu": 8}\''
    out = "'{\"lading.dev/gpu\": 1}'"
    result = read(
        rooted(
            f"{{quota.scheduling.koordinator.sh/total-resource: {total}, "
            f"quota.scheduling.koordinator.sh/unschedulable-resource: {out}}}"
        )
    )
    assert result.total == {CPU: 10_000, RESOURCE_GPU: 7000}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (rooted("{}"), "it is the root of a tree, and quota.scheduling.koordinator.sh/total-resource does not say"),
        ("metadata: {name: a}\nspec: {min: {cpu: many}}", "cannot use spec.min: cpu is 'many'; write a quantity, 0 or more"),
        ("metadata: {name: a}\nspec: {max: {cpu: -1}}", "cannot use spec.max: cpu is '-1'; write a quantity, 0 or more"),
        (
            "metadata: {name: a, annotations: {quota.scheduling.koordinator.sh/namespaces: team}}",
            "cannot use quota.scheduling.koordinator.sh/namespaces: it is 'team', and has to be JSON",
        ),
        (
            'metadata: {name: a, annotations: {quota.scheduling.koordinator.sh/shared-weight: \'{"cpu": "x"}\'}}',
            "cannot use quota.scheduling.koordinator.sh/shared-weight: cpu is 'x'",
        ),
    ],
)
def test_a_malformed_quota_has_a_problem_that_says_why(text: str, why: str) -> None:
    assert read(text).problem.startswith(why)
