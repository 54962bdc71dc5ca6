"""Follow the objects of a collection as a real client's informer does: a list, then a watch that begins again when it ends.

Source: Kubernetes "API concepts": a server ends a watch after some minutes; the client continues with the newest version that
it got, and lists again where the server no longer has that version.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from lading.kube.client import KubeClient
from lading.kube.errors import GoneError, KubeError

AGAIN_S: Final = 1.0  # after a failure


async def follow(client: KubeClient, path: str, *, watch_s: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
    """Yield each object as it is now, and after each change, until cancelled. Deletions are left out. `watch_s`: the length of
    a watch that the server is asked for."""
    version = ""
    while True:
        try:
            if not version:
                async for page in client.list_pages(path):
                    for item in page.items:
                        yield msgspec.json.decode(item)
                version = page.resource_version
            async with contextlib.aclosing(client.watch(path, resource_version=version, watch_s=watch_s)) as watch:
                async for event in watch:
                    changed = msgspec.json.decode(event.object)
                    version = changed["metadata"]["resourceVersion"]
                    if event.type in ("ADDED", "MODIFIED"):
                        yield changed
        except GoneError:
            version = ""
        except KubeError as e:
            print(e, file=sys.stderr, flush=True)
            await asyncio.sleep(AGAIN_S)
