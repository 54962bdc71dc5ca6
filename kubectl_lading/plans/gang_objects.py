"""Read the objects that define how many pods start together, as central does: PodGroups, and Workloads of Kubernetes.

Take the cluster's objects, and documents of manifests. A kind that the cluster does not have is treated as empty.

Tests: tests/unit/kubectl_lading/plans/test_simulate.py
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from central.api.pod_groups import GANG_KINDS, GangKind, PodGroup
from central.controllers.gangs import GangObjectFeed
from central.gang.starts import Starts
from kubectl_lading.lists import read_permitted
from lading.errors import ConfigError
from lading.kube.client import KubeClient
from lading.kube.errors import NotFoundError

_KINDS: Final = {"podgroups": "PodGroup", "workloads": "Workload"}
_UNREAD: Final = (
    "you may not read {plural}.{group}, so gangs that name one wait here: ClusterRole lading-reader (deploy/rbac/reader.yaml) "
    "gives that right"
)

GangObjects = tuple[GangKind, Sequence[PodGroup]]


def find_kind(document: Mapping[str, Any]) -> GangKind | None:
    """Return the kind of a document that defines a gang; None for every other document."""
    version, kind = document.get("apiVersion"), document.get("kind")
    return next((one for one in GANG_KINDS if version == _version(one) and kind == _KINDS[one.resource.plural]), None)


def parse_object(document: Mapping[str, Any], source: str, *, namespace: str) -> PodGroup:
    """Parse a document that defines a gang. `namespace`: used if the document has none. Raises ConfigError."""
    metadata = document.get("metadata") or {}
    named = {"namespace": namespace, "uid": f"{source}/{metadata.get('name')}"} | metadata
    try:
        return msgspec.convert({**document, "metadata": named}, PodGroup)
    except msgspec.ValidationError as e:
        raise ConfigError(f"cannot use {source}: {document['kind']}: {e}") from e


async def read_gang_objects(client: KubeClient) -> list[GangObjects]:
    """Return the cluster's objects that define gangs. A kind that the user may not read is empty, after a warning. Raises
    KubeError."""
    gang_objectses: list[GangObjects] = []
    for kind in GANG_KINDS:
        resource = kind.resource
        warning = _UNREAD.format(plural=resource.plural, group=resource.group)
        try:
            gang_objectses.append((kind, await read_permitted(client, resource.path(), PodGroup, warning) or ()))
        except NotFoundError:
            continue
    return gang_objectses


def add_objects(starts: Starts, objects: Sequence[GangObjects]) -> None:
    """Pass the objects to the gangs of `starts`. If two objects have the same name, the last one counts."""
    for kind, groups in objects:
        feed = GangObjectFeed(starts, kind)
        for group in groups:
            feed.changed(group)


def _version(kind: GangKind) -> str:
    return f"{kind.resource.group}/{kind.resource.version}"
