"""Read lists of the API server's objects, page by page.

Tests: tests/unit/kubectl_lading/test_cluster.py
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import quote

import msgspec

from central.api.decoded import Named, Unreadable, decode_object
from kubectl_lading.terminal.output import warn
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, KubeError, NotFoundError
from lading.kube.objects import Object
from lading.kube.resource import NODE_DEVICES, Resource

T = TypeVar("T")
N = TypeVar("N", bound=Named)

Listed = tuple[Sequence[N | Unreadable], str]  # the objects, and the list's resourceVersion


class NotInstalledError(KubeError):
    """Report that the API server has no resource NodeDevices: it answers 404 without more detail."""

    def __init__(self) -> None:
        name = f"{NODE_DEVICES.plural}.{NODE_DEVICES.group}"
        super().__init__(f"cannot list {name}: this cluster has no such resource: Lading is not installed here")
        self.hint = "kubectl lading install installs it; or is another cluster meant? (--context)"


async def read_all(client: KubeClient, path: str, kind: type[T]) -> list[T]:
    """Return all objects of a list, decoded as `kind`. Raises KubeError."""
    objects, _ = await _read(client, path, msgspec.json.Decoder(kind).decode)
    return objects


async def read_selected(client: KubeClient, path: str, selector: str) -> frozenset[str] | None:
    """Return the uids of the objects whose labels match, by the API server's own rules; None without a selector. Raises
    KubeError."""
    if not selector:
        return None
    selected = await read_all(client, f"{path}?labelSelector={quote(selector, safe='')}", Object)
    return frozenset(one.metadata.uid for one in selected)


async def read_permitted(client: KubeClient, path: str, kind: type[T], without: str) -> list[T] | None:
    """Return all objects of a list; None, after the warning `without`, if the user may not read it. Raises KubeError."""
    try:
        return await read_all(client, path, kind)
    except ForbiddenError as e:
        warn(without.format(e=e))
        return None


async def read_list(client: KubeClient, resource: Resource, kind: type[N], progress: Progress) -> Listed[N]:
    """Return all objects of a list, with an `Unreadable` for each that cannot be decoded. Raises NotInstalledError if this
    cluster has no NodeDevices resource, else KubeError."""
    decoder = msgspec.json.Decoder(kind)
    try:
        return await _read(
            client,
            resource.path(),
            lambda raw: decode_object(decoder, raw),
            lambda count: progress.show_count(resource.plural, count),
        )
    except NotFoundError as e:
        if resource != NODE_DEVICES:  # Node and Pod exist at every API server
            raise
        raise NotInstalledError from e


async def _read(
    client: KubeClient, path: str, parse: Callable[[msgspec.Raw], T], announce: Callable[[int], None] = lambda count: None
) -> tuple[list[T], str]:
    objects: list[T] = []
    version = ""
    async with contextlib.aclosing(client.list_pages(path)) as pages:
        async for page in pages:
            if page.first:
                objects.clear()
            objects += map(parse, page.items)
            version = page.resource_version
            announce(len(objects))
    return objects, version
