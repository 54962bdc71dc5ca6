"""Remove Lading from nodes: find the pods that hold devices, and label nodes so that a DaemonSet of deploy/node cleans them.

Tests: tests/unit/kubectl_lading/install/test_install.py
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kubectl_lading.installation.daemonset_checks import PROXY_REMOVER, REMOVER
from kubectl_lading.lists import NotInstalledError, read_all, read_list
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.objects import Object
from lading.kube.resource import NODE_DEVICES, NODES, PODS
from lading.nodedevices import NodeDevices
from lading.vocabulary import FRONT_END, NODES_NAMESPACE

_PROXY: Final = ("proxy", "proxy-removed")
_REMOVERS: Final = {"removed": REMOVER, "proxy-removed": PROXY_REMOVER}
_AGAIN_S: Final = 2.0


async def find_holders(client: KubeClient) -> list[str]:
    """Return the pods that hold devices according to the nodes' reports, as `NAMESPACE/POD on NODE`. Raise KubeError."""
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


async def find_chosen(client: KubeClient) -> dict[str, str]:
    """Return the value of the label lading.dev/front-end by node: Lading runs there, or is being removed."""
    nodes = await read_all(client, NODES.path(), Object)
    return {one.metadata.name: one.metadata.labels[FRONT_END] for one in nodes if FRONT_END in one.metadata.labels}


async def clean(
    client: KubeClient,
    nodes: Mapping[str, str],
    *,
    timeout_s: float,
    announce: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[str, str]:
    """Have a DaemonSet clean the nodes. Remove the label of clean nodes; return why others are not clean, by node. `nodes`: the
    label's current value, by node."""
    requests = {node: "proxy-removed" if value in _PROXY else "removed" for node, value in nodes.items()}
    for node, value in requests.items():
        await label(client, node, value)
    until, left = clock() + timeout_s, {node: f"{_REMOVERS[value]} has not run" for node, value in requests.items()}
    while left:
        for pod in await read_all(client, PODS.path(NODES_NAMESPACE), dict[str, Any]):
            node = pod.get("spec", {}).get("nodeName", "")
            name = pod["metadata"].get("labels", {}).get("app.kubernetes.io/name")
            if node in left and name == _REMOVERS[requests[node]]:
                if _is_ready(pod):
                    await label(client, node, None)
                    del left[node]
                else:
                    left[node] = _termination_message(pod) or left[node]
        if not left or clock() + _AGAIN_S > until:
            break
        announce(f"waiting: {len(left)} nodes are being cleaned")
        await sleep(_AGAIN_S)
    return left


async def label(client: KubeClient, node: str, value: str | None) -> None:
    """Set the node's label lading.dev/front-end; None removes it."""
    await client.merge(NODES.path(name=node), {"metadata": {"labels": {FRONT_END: value}}})


def _is_ready(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _termination_message(pod: Any) -> str:
    """Return the termination message of the init container that removes Lading, if any."""
    for status in pod.get("status", {}).get("initContainerStatuses", []):
        for state in ("state", "lastState"):
            if message := status.get(state, {}).get("terminated", {}).get("message", ""):
                return str(message).strip()
    return ""
