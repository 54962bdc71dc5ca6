"""Kueue's Workloads on a real API server: central answers its check by server-side apply, and keeps room for the pods.

The kinds have the fields and list types of Kueue's that central reads and writes. Kueue's side is played by the test.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from lading.vocabulary import WORKLOAD
from simnode.kube_api import KubeError
from tests.cluster.pods import Pods
from tests.cluster.scheduling.world import MERGE, World

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

GROUP: Final = "kueue.x-k8s.io"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API: Final = f"/apis/{GROUP}/v1beta2"
CHECK: Final = f"{API}/admissionchecks/fits"
WORKLOADS: Final = f"{API}/namespaces/default/workloads"

OPEN: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXT: Final = {"type": "string"}


def by(key: str, *, required: list[str], **fields: object) -> dict[str, Any]:
    """A list that is a map by this key of its entries."""
    items = {"type": "object", "required": required, "properties": dict.fromkeys(required, TEXT) | fields}
    return {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key], "items": items}


CONDITIONS: Final = by("type", required=["type", "status", "reason", "message", "lastTransitionTime"])
NUMBER: Final = {"type": "integer", "format": "int32", "minimum": 0}
UPDATES: Final = {"type": "array", "x-kubernetes-list-type": "atomic", "items": OPEN}
CHECKS: Final = by(
    "name",
    required=["name", "state", "lastTransitionTime", "message"],
    requeueAfterSeconds=NUMBER,
    retryCount=NUMBER,
    podSetUpdates=UPDATES,
)
KINDS: Final = {
    "AdmissionCheck": ("Cluster", {"conditions": CONDITIONS}),
    "ResourceFlavor": ("Cluster", {}),
    "Workload": ("Namespaced", {"conditions": CONDITIONS, "admission": OPEN, "admissionChecks": CHECKS}),
}


@pytest.fixture(autouse=True)
def kueue(world: World) -> Iterator[None]:
    """The kinds come while central runs: it asks for them once a minute."""
    for kind, (scope, status) in KINDS.items():
        plural = f"{kind.lower()}s"
        schema = {"type": "object", "properties": {"spec": OPEN, "status": {"type": "object", "properties": status}}}
        version = {"name": "v1beta2", "served": True, "storage": True, "subresources": {"status": {}}}
        spec = {
            "group": GROUP,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        }
        world.api.call("POST", CRDS, {"metadata": {"name": f"{plural}.{GROUP}"}, "spec": spec})
    yield
    for kind in KINDS:
        world.api.call("DELETE", f"{CRDS}/{kind.lower()}s.{GROUP}")


def create(world: World, collection: str, body: dict[str, Any]) -> None:
    def created() -> bool:
        try:
            world.api.call("POST", collection, body)
        except KubeError:  # the kind is not served yet
            return False
        return True

    world.cluster.eventually(created, collection)


def reserve(world: World, name: str, count: int, known: Mapping[str, Any] | None = None) -> None:
    """Reserve quota, as Kueue does, and wait for central's check. `known`: what is in the check's entry already."""
    quota = {
        "type": "QuotaReserved",
        "status": "True",
        "reason": "QuotaReserved",
        "message": "",
        "lastTransitionTime": "2026-11-21T00:00:00Z",
    }
    check = {"name": "fits", "state": "Pending", "lastTransitionTime": "2026-11-21T00:00:00Z", "message": ""}
    status = {
        "conditions": [quota],
        "admission": {"podSetAssignments": [{"name": "main", "count": count}]},
        "admissionChecks": [{**(known or {}), **check}],
    }
    world.api.call("PATCH", f"{WORKLOADS}/{name}/status", {"status": status}, content_type=MERGE)


def submit(world: World, name: str, count: int, gpu: int) -> None:
    limits = {"lading.dev/gpu": str(gpu)}
    template = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    body = {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"active": True, "podSets": [{"name": "main", "count": count, "template": template}]},
    }
    create(world, WORKLOADS, body)
    reserve(world, name, count)


def answered(world: World, name: str, state: str, within_s: float = 60.0) -> dict[str, Any]:
    """Wait for central's answer. Return the check's entry."""
    found: dict[str, Any] = {}

    def there() -> bool:
        (entry,) = world.api.call("GET", f"{WORKLOADS}/{name}")["status"]["admissionChecks"]
        found.update({"now": entry})
        return bool(entry["state"] == state)

    world.cluster.eventually(there, f"{state} of {name}", within_s=within_s)
    entry: dict[str, Any] = found["now"]
    return entry


def active(world: World) -> bool:
    conditions = world.api.call("GET", CHECK).get("status", {}).get("conditions", [])
    return any(one["type"] == "Active" and one["status"] == "True" for one in conditions)


def test_a_workload_gets_its_room_another_waits_for_it_and_one_that_is_too_large_is_rejected(world: World, pods: Pods) -> None:
    check = {"apiVersion": f"{GROUP}/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "fits"}}
    create(world, f"{API}/admissionchecks", check | {"spec": {"controllerName": "lading.dev/fits"}})
    world.cluster.eventually(lambda: active(world), "an active check", within_s=150)
    submit(world, "train", 2, 4)  # all cards of the node
    entry = answered(world, "train", "Ready", within_s=150)
    ((update,),) = [entry["podSetUpdates"]]
    assert (update["name"], list(update["annotations"])) == ("main", [WORKLOAD])

    submit(world, "next", 2, 4)
    sent_back = answered(world, "next", "Retry")
    assert sent_back["requeueAfterSeconds"] == 30
    submit(world, "huge", 3, 4)
    assert answered(world, "huge", "Rejected")["message"] == "of 3 pods that start together, 2 would have room on empty nodes"

    world.create(pods, "other", gpu=1)
    world.await_refused("other")
    members = ["train0", "train1"]
    for name in members:
        world.create(pods, name, gpu=4, annotations=update["annotations"])
    for name in members:
        pods.wait_ready(name)
    assert not world.bound("other")
    world.check(pods, *members)

    pods.delete("other")
    for name in members:
        pods.delete(name)
    reserve(world, "next", 2, sent_back | {"retryCount": 1})
    ready = answered(world, "next", "Ready")
    assert (ready["retryCount"], "requeueAfterSeconds" in ready) == (1, False)
