"""Take Lading off nodes: who holds devices, and the label by which `lading-remove` cleans a node."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from kubectl_lading.install.credentials import NODES as NAMESPACE
from kubectl_lading.lists import NotInstalledError, read_all, read_list
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.resource import NODE_DEVICES, NODES, PODS
from lading.nodedevices import NodeDevices

LABEL: Final = "lading.dev/front-end"
REMOVER: Final = "lading-remove"
CHOSEN: Final = "nri"
REMOVED: Final = "removed"
_AGAIN_S: Final = 2.0


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


async def find_holders(client: KubeClient) -> list[str]:
    """Return the pods that hold devices by the nodes' reports. Raise KubeError."""
    with Progress("reading the nodes' reports") as progress:
        try:
            reports, _ = await read_list(client, NODE_DEVICES, NodeDevices, progress)
        except NotInstalledError:
            return []
    grants = {
        (grant.namespace, grant.pod_name, one.metadata.name)
        for one in reports
        if isinstance(one, NodeDevices)
        for grant in one.status.grants
    }
    return [f"{namespace}/{pod} on {node}" for namespace, pod, node in sorted(grants)]


async def find_chosen(client: KubeClient) -> list[str]:
    """Return the nodes that the DaemonSets are on, or that are being cleaned."""
    nodes = await read_all(client, NODES.path(), _Node)
    return sorted(one.metadata.name for one in nodes if LABEL in one.metadata.labels)


async def clean(
    client: KubeClient,
    nodes: list[str],
    *,
    timeout_s: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[str, str]:
    """Have `lading-remove` clean the nodes. Take the label from those that are clean; return why others are not, by node."""
    for node in nodes:
        await label(client, node, REMOVED)
    until, left = clock() + timeout_s, dict.fromkeys(nodes, "lading-remove has not run")
    while left:
        for pod in await read_all(client, PODS.path(NAMESPACE), dict[str, Any]):
            node = pod.get("spec", {}).get("nodeName", "")
            if node in left and pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == REMOVER:
                if _is_ready(pod):
                    await label(client, node, None)
                    del left[node]
                else:
                    left[node] = _said(pod) or left[node]
        if not left or clock() + _AGAIN_S > until:
            break
        tell(f"waiting: {len(left)} nodes are being cleaned")
        await sleep(_AGAIN_S)
    return left


async def label(client: KubeClient, node: str, value: str | None) -> None:
    """Set the label; None takes it away."""
    await client.merge(NODES.path(name=node), {"metadata": {"labels": {LABEL: value}}})


def _is_ready(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _said(pod: Any) -> str:
    """Return what the container that removes said when it failed."""
    for status in pod.get("status", {}).get("initContainerStatuses", []):
        for state in ("state", "lastState"):
            if message := status.get(state, {}).get("terminated", {}).get("message", ""):
                return str(message).strip()
    return ""
