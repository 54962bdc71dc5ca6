"""Test what a pod asks of its node's cpu and memory, as kube-scheduler counts it."""

from typing import Any

import msgspec
import pytest

from central.request.cpu_memory import MOST, allocatable_of, cpu_memory_of
from central.request.model import CpuMemory
from central.request.pod import Pod

Json = dict[str, Any]


def container(cpu: Any = None, memory: Any = None, *, limits: Json | None = None, always: bool = False) -> Json:
    requests = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount is not None}
    text: Json = {"name": "c", "resources": {"requests": requests, "limits": limits or {}}}
    return text | ({"restartPolicy": "Always"} if always else {})


def requested(*apps: Json, inits: tuple[Json, ...] = (), **spec: Any) -> CpuMemory:
    body = {"metadata": {}, "spec": {"containers": list(apps), "initContainers": list(inits), **spec}}
    return cpu_memory_of(msgspec.convert(body, Pod))


def test_containers_add_up_and_the_sum_is_rounded_up() -> None:
    assert requested(container("500m", "1Gi"), container("1", "1")) == CpuMemory(1500, 1025)
    assert requested(container("100u", "1"), container("100u", "1")) == CpuMemory(1, 1)


def test_init_containers_take_turns() -> None:
    assert requested(container("1", "1Gi"), inits=(container("3", "1Mi"), container("2", "2Gi"))) == CpuMemory(3000, 2048)
    assert requested(container("4", "4Gi"), inits=(container("3", "1Gi"),)) == CpuMemory(4000, 4096)


def test_sidecars_run_beside_all_later_containers() -> None:
    sidecar = container("1", "1Gi", always=True)
    assert requested(container("2", "2Gi"), inits=(sidecar,)) == CpuMemory(3000, 3072)
    assert requested(container("2", "2Gi"), inits=(sidecar, container("4", "1Gi"))) == CpuMemory(5000, 3072)
    assert requested(container("2", "2Gi"), inits=(container("4", "1Gi"), sidecar)) == CpuMemory(4000, 3072)


def test_the_pods_own_amount_comes_first_and_overhead_on_top() -> None:
    own, overhead = {"requests": {"cpu": "8"}}, {"cpu": "250m", "memory": "120Mi"}
    assert requested(container("1", "1Gi"), resources=own, overhead=overhead) == CpuMemory(8250, 1144)


def test_a_limit_alone_is_a_request() -> None:
    assert requested(container(limits={"cpu": "2", "memory": "1Gi"})) == CpuMemory(2000, 1024)
    assert requested(container("1", limits={"cpu": "2"})) == CpuMemory(1000, 0)


@pytest.mark.parametrize("amount", ["", "a lot", "1.5.5", "-3", "1e999", "9" * 60, 0.25, 7])
def test_an_odd_amount_keeps_the_sum_within_bounds(amount: str | float) -> None:
    cpu_milli, memory_mib = requested(container(amount, amount), container("1", "1Mi"))
    assert 1000 <= cpu_milli < 2**61
    assert 1 <= memory_mib < 2**61


def test_no_pod_requests_more_than_a_column_can_hold() -> None:
    assert requested(*[container("1P", "1E")] * 20) == CpuMemory(MOST, MOST)


def test_a_malformed_quantity_counts_as_nothing() -> None:
    assert requested(container("a lot", "-3"), container("1", "1Mi")) == CpuMemory(1000, 1)


def test_allocatable_is_rounded_down() -> None:
    assert allocatable_of({"cpu": "63850m", "memory": "527858876Ki", "pods": "110"}) == CpuMemory(63850, 515487)
    assert allocatable_of({"cpu": "100u", "memory": "1048577"}) == CpuMemory(0, 1)


@pytest.mark.parametrize("amounts", [{}, {"cpu": "4"}, {"memory": "4Gi"}])
def test_a_node_without_cpu_or_memory_has_unknown_amounts(amounts: dict[str, str]) -> None:
    assert allocatable_of({**amounts}) is None


# ---- a resize under way, as k8s.io/component-helpers counts it (KEP-1287)


def resized(
    spec: str, actual: str, allocated: str, *, reason: str = "", where: str = "containers", always: bool = False
) -> CpuMemory:
    """Return what a pod takes whose one container has these amounts of cpu. `reason`: why the resize waits."""
    one = {"name": "c", "resources": {"requests": {"cpu": spec}}} | ({"restartPolicy": "Always"} if always else {})
    status = {"name": "c", "resources": {"requests": {"cpu": actual}}, "allocatedResources": {"cpu": allocated}}
    statuses = {"containers": "containerStatuses", "initContainers": "initContainerStatuses"}[where]
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    body = {
        "metadata": {},
        "spec": {where: [one], "nodeName": "n1"},
        "status": {statuses: [status], "conditions": [pending] if reason else []},
    }
    return cpu_memory_of(msgspec.convert(body, Pod))


def test_a_resize_under_way_counts_the_largest_amount() -> None:
    assert resized("8", "1", "1").cpu_milli == 8000
    assert resized("1", "8", "8").cpu_milli == 8000
    assert resized("1", "1", "8").cpu_milli == 8000
    assert resized("1", "2", "1").cpu_milli == 2000


def test_a_deferred_resize_counts_the_wanted_amount() -> None:
    assert resized("8", "1", "1", reason="Deferred").cpu_milli == 8000


def test_a_resize_that_is_infeasible_does_not_count() -> None:
    assert resized("200", "1", "1", reason="Infeasible").cpu_milli == 1000
    assert resized("200", "1", "2", reason="Infeasible").cpu_milli == 2000


def test_a_sidecar_is_resized_and_an_init_container_is_not() -> None:
    assert resized("1", "8", "8", where="initContainers", always=True).cpu_milli == 8000
    assert resized("1", "8", "8", where="initContainers").cpu_milli == 1000


def test_a_pod_is_resized_as_a_whole() -> None:
    spec = {"containers": [container("1")], "resources": {"requests": {"cpu": "2"}}}
    status = {"resources": {"requests": {"cpu": "4"}}, "allocatedResources": {"cpu": "3"}}
    assert cpu_memory_of(msgspec.convert({"metadata": {}, "spec": spec, "status": status}, Pod)).cpu_milli == 4000


def test_a_container_without_a_status_counts_the_wanted_amount() -> None:
    statuses: Json = {"containerStatuses": [{"name": "c"}]}
    body: Json = {"metadata": {}, "spec": {"containers": [container("3")]}, "status": statuses}
    assert cpu_memory_of(msgspec.convert(body, Pod)).cpu_milli == 3000
    body["status"] = {"containerStatuses": [{"name": "other", "resources": {"requests": {"cpu": "9"}}}]}
    assert cpu_memory_of(msgspec.convert(body, Pod)).cpu_milli == 3000
    body["status"] = {"containerStatuses": None, "initContainerStatuses": None}
    assert cpu_memory_of(msgspec.convert(body, Pod)).cpu_milli == 3000
