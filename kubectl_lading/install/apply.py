"""Apply objects to the API server, or report what that would change; wait until their pods are ready; delete objects.

Objects are applied server-side. A field that another client has set is a conflict, and is overwritten only with `force`.
Namespaces and CustomResourceDefinitions are applied first, objects with pods last; deletion takes the opposite order.

Tests: tests/unit/kubectl_lading/install/test_install.py
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from kubectl_lading.install.manifests import Manifest, pod_spec
from lading.errors import LadingError
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, ForbiddenError, NotFoundError
from lading.kube.resource import Resource

MANAGER: Final = "kubectl-lading"
AGAIN_S: Final = 2.0  # seconds between two checks of a rollout
# Source: Helm, "Labels and Annotations"; helm.sh/helm pkg/action/validate.go.
_RELEASE: Final = "meta.helm.sh/release-name"
_NAMESPACE: Final = "meta.helm.sh/release-namespace"
_FIRST: Final = ("Namespace", "CustomResourceDefinition")
Announce = Callable[[str, int], None]


class What(StrEnum):
    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    ABSENT = "absent"


class Done(msgspec.Struct, frozen=True):
    """Hold the change of one object, or with `dry_run` the change that would be."""

    kind: str
    namespace: str
    name: str
    what: What
    fields: tuple[str, ...] = ()  # paths of the fields that change, such as spec.replicas; a list without its indexes
    dry_run: bool = False


def path_of(one: Manifest) -> str:
    group, _, version = one["apiVersion"].rpartition("/")
    kind = one["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return Resource(group, version, plural).path(one["metadata"].get("namespace", ""), one["metadata"]["name"])


def in_order(objects: Sequence[Manifest]) -> list[Manifest]:
    def rank(one: Manifest) -> int:
        return _FIRST.index(one["kind"]) if one["kind"] in _FIRST else len(_FIRST) + bool(pod_spec(one))

    return sorted(objects, key=rank)


async def read(client: KubeClient, path: str) -> Any | None:
    """Return the decoded object at the path; None if there is none. Raise KubeError."""
    try:
        return msgspec.json.decode(await client.get(path))
    except NotFoundError:
        return None


async def apply(
    client: KubeClient, objects: Sequence[Manifest], *, dry_run: bool, force: bool, announce: Announce
) -> list[Done]:
    """Apply the objects in the given order. Raise KubeError; LadingError if another client has set a field, or if rights are
    missing."""
    done = []
    for one in objects:
        live = await read(client, path_of(one))
        fields = () if live is None else tuple(dict.fromkeys(find_differences(one, live)))
        what = What.CREATED if live is None else What.CHANGED if fields else What.UNCHANGED
        if not dry_run:
            try:
                await client.apply(path_of(one), one, manager=MANAGER, force=force)
            except ConflictError as e:
                raise LadingError(e.message, hint="--force overwrites it; kustomize or the chart keeps changes of yours") from e
            except ForbiddenError as e:
                raise LadingError(e.message, hint="installing needs the rights of cluster-admin") from e
        done.append(_done(one, what, fields=fields, dry_run=dry_run))
        announce("objects", len(done))
    return done


async def delete(client: KubeClient, objects: Sequence[Manifest], *, dry_run: bool, announce: Announce) -> list[Done]:
    """Delete the objects in the opposite of the given order. An object that does not exist is no error."""
    done = []
    for one in reversed(objects):
        there = await read(client, path_of(one)) is not None
        if there and not dry_run:
            try:
                await client.delete(path_of(one))
            except NotFoundError:
                there = False
        done.append(_done(one, What.DELETED if there else What.ABSENT, dry_run=dry_run))
        announce("objects", len(done))
    return done


def find_differences(wanted: Any, live: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of wanted fields that the live object lacks or has with another value. Further fields, which the API
    server adds, are not compared."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        for key, value in wanted.items():
            yield from find_differences(value, live.get(key), f"{path}.{key}" if path else key)
    elif isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        for one, other in zip(wanted, live, strict=True):
            yield from find_differences(one, other, path)
    elif wanted != live:
        yield path


def _done(one: Manifest, what: What, *, fields: tuple[str, ...] = (), dry_run: bool) -> Done:
    metadata = one["metadata"]
    return Done(
        kind=one["kind"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        what=what,
        fields=fields,
        dry_run=dry_run,
    )


async def find_releases(client: KubeClient, objects: Sequence[Manifest]) -> list[str]:
    """Return the Helm releases that own some of the objects, as NAMESPACE/NAME. Raise KubeError."""
    there = [live for live in await asyncio.gather(*(read(client, path_of(one)) for one in objects)) if live is not None]
    annotations = [live["metadata"].get("annotations", {}) for live in there]
    return sorted({f"{one.get(_NAMESPACE, '')}/{one[_RELEASE]}" for one in annotations if _RELEASE in one})


def find_lack(live: Any) -> str:
    """Return why the object's rollout is not complete, as text such as "1 of 2 pods are ready"; empty if it is complete."""
    if live is None:
        return "is not there"
    status, generation = live.get("status", {}), live["metadata"].get("generation", 0)
    if status.get("observedGeneration", 0) < generation:
        return "its controller has not seen the change"
    if live["kind"] == "DaemonSet":
        wanted, updated, ready = (status.get(key, 0) for key in _OF_NODES)
    else:
        wanted = live["spec"].get("replicas", 1)
        updated, ready = (status.get(key, 0) for key in ("updatedReplicas", "readyReplicas"))
    least = min(updated, ready)
    return f"{least} of {wanted} pods are ready" if least < wanted else ""


_OF_NODES: Final = ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")


async def await_ready(
    client: KubeClient,
    objects: Sequence[Manifest],
    *,
    timeout_s: float,
    announce: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[str]:
    """Wait until all pods are ready. Return the objects that are not ready at the timeout, as text. `announce` gets changes of
    them."""
    until, printed = clock() + timeout_s, ""
    while True:
        result = {one["metadata"]["name"]: find_lack(await read(client, path_of(one))) for one in objects if pod_spec(one)}
        lacking = [f"{name}: {lack}" for name, lack in result.items() if lack]
        if not lacking or clock() + AGAIN_S > until:
            return lacking
        if (text := "; ".join(lacking)) != printed:
            announce(f"waiting: {text}")
            printed = text
        await sleep(AGAIN_S)
