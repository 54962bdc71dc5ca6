"""Wait until the pods of Deployments and DaemonSets are up to date and ready.

Tests: tests/unit/kubectl_lading/install/test_install.py
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from kubectl_lading.install.apply import path_of, read
from kubectl_lading.install.manifests import Manifest, pod_spec
from lading.kube.client import KubeClient

AGAIN_S: Final = 2.0


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
