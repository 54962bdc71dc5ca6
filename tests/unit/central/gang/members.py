"""Make the members of gangs in tests, and read what became of them."""

from collections.abc import Mapping
from typing import Any

from central.gang.gang import Gang
from central.ledger.model import Claim
from lading.vocabulary import GANG, GANG_MIN, RESOURCE_GPU
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led, is_binding


async def put_member(cluster: Led, name: str, gang: str, least: str, *, age: int = 0, gpus: int = 1, **message: Any) -> None:
    """Create a member. `age`: seconds after the oldest one."""
    text = {GANG: gang, GANG_MIN: least, **message.pop("says", {})}
    limits: Mapping[str, str] = message.pop("limits", {RESOURCE_GPU: str(gpus)})
    await cluster.put_pod(name, limits, annotations=text, created=created(age), **message)


def created(age: int) -> str:
    return f"2026-11-21T00:{age // 60:02d}:{age % 60:02d}Z"


async def put_gang(cluster: Led, gang: str, size: int, *, least: int = 0, **options: Any) -> list[str]:
    names = [f"{gang}{number}" for number in range(size)]
    for name in names:
        await put_member(cluster, name, gang, str(least or size), **options)
    return names


def bound(cluster: Led) -> list[str]:
    """Return the bound pods that are not being deleted."""
    pods = [path.rpartition("/")[2] for path in cluster.server.objects if path.startswith(pod_path(""))]
    return [name for name in pods if cluster.bound_to(name) and "deletionTimestamp" not in cluster.json(name)["metadata"]]


def nodes_of(cluster: Led, *names: str) -> list[str]:
    return [cluster.bound_to(name) for name in names]


def claims(cluster: Led) -> int:
    """Return the number of plans of any kind in the ledger."""
    return sum(
        len([kind for kind in own if kind is not Claim.RESERVED]) for own in cluster.leadership.ledger.snapshot().own.values()
    )


def bindings(cluster: Led) -> int:
    return sum(map(is_binding, cluster.server.requests))


def reasons(scheduler: KubeScheduler, name: str) -> set[str]:
    """Return the reason codes of the pod's last refusal."""
    return {refusal.rpartition("(")[2].rstrip(")") for refusal in scheduler.refusals[name]}


def gang_of(cluster: Led, name: str) -> Gang:
    result = cluster.leadership.gangs.of(cluster.uid(name))
    assert result is not None
    return result[0]


async def end_evicted(cluster: Led) -> list[str]:
    """End the pods that are being deleted, as their nodes do. Return their names."""
    pods = [path.rpartition("/")[2] for path in cluster.server.objects if path.startswith(pod_path(""))]
    going = [name for name in pods if "deletionTimestamp" in cluster.json(name)["metadata"]]
    for name in going:
        await cluster.server.remove(pod_path(name))
    await cluster.pause()
    return going
