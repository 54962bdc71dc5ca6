"""An API server that costs little: generated pods, nodes and NodeDevices, watches that tell of Bindings, a lease that is free.

What a real one would add is not what is measured: central's Binding is answered at once with 201 and shown to the watch, as the
real one does. Pages are rendered before the first request. Pods look as kubelet and controllers leave them, some 4 KB each.

    python -m bench.api_server PORT NODES HOLDING OTHERS
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from aiohttp import web

GPUS: Final = 8
PFS: Final = 8
VFS: Final = 16
PAGE: Final = 1000
_MIB: Final = 81_559
_DEVICES: Final = "/apis/devices.lading.dev/v1alpha1/nodedevices"


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}"


def gpu_uuid(node: int, card: int) -> str:
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def nodes(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "metadata": {"name": node_name(number), "uid": f"node-{number}", "resourceVersion": "10"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }


def reports(count: int) -> Iterator[dict[str, Any]]:
    """Eight cards and eight ports, two of each below a switch, four switches."""
    for number in range(count):
        gpus, pfs = [], []
        for card in range(GPUS):
            switch = {"path": ["pci0000:17", f"0000:{card // 2 + 1:02x}:00.0"], "numa": card // 4, "socket": card // 4}
            bdf = f"0000:{card + 0x10:02x}:00.0"
            uuid = gpu_uuid(number, card)
            gpus.append({"uuid": uuid, "bdf": bdf, "model": "NVIDIA H100 80GB HBM3", "memoryMiB": _MIB, "place": switch})
            vfs = [{"bdf": f"0000:{card + 0x40:02x}:00.{vf + 1}", "driver": "mlx5_core"} for vf in range(VFS // PFS)]
            pfs.append({"bdf": f"0000:{card + 0x40:02x}:00.0", "driver": "mlx5_core", "place": switch, "vfs": vfs})
        status = {"reporter": "0.1.0", "bootID": "b", "reconciled": True, "gpus": gpus, "pfs": pfs}
        yield {"metadata": {"name": node_name(number), "uid": f"devices-{number}", "resourceVersion": "11"}, "status": status}


def pods(node_count: int, holding: int, others: int) -> Iterator[dict[str, Any]]:
    """`holding` pods of one card each, over all nodes alike; `others` have nothing of ours."""
    for number in range(holding):
        node = number % node_count
        card = number // node_count
        pod = render_pod(
            f"train-{number:06d}", f"{number:08x}-aaaa-4000-8000-000000000000", node_name(node), {"lading.dev/gpu": "1"}
        )
        gpu = {"uuid": gpu_uuid(node, card), "bdf": f"0000:{card + 0x10:02x}:00.0"}
        assignment = {
            "v": 1,
            "pod": pod["metadata"]["uid"],
            "node": node_name(node),
            "gen": 1,
            "containers": {"train": {"gpus": [gpu]}},
        }
        pod["metadata"]["annotations"]["lading.dev/assignment"] = json.dumps(assignment, separators=(",", ":"))
        yield pod
    for number in range(others):
        yield render_pod(f"web-{number:06d}", f"{number:08x}-bbbb-4000-8000-000000000000", node_name(number % node_count), {})


def render_pod(name: str, uid: str, node: str, limits: dict[str, str]) -> dict[str, Any]:
    env = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(12)]
    container = {
        "name": "train",
        "image": "registry.example/team/train:v1.2.3",
        "env": env,
        "resources": {"limits": {"cpu": "8", "memory": "32Gi", **limits}, "requests": {"cpu": "8", "memory": "32Gi", **limits}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    fields = {"f:metadata": {"f:labels": {f"f:label-{i}": {} for i in range(10)}}, "f:spec": {"f:containers": {"f:env": {}}}}
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-20T10:00:00Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "12",
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": {f"label-{i}": f"value-{i}" for i in range(10)},
            "annotations": {"kubernetes.io/config.seen": "2026-11-20T10:00:00Z", "checksum/config": "0" * 64},
            "managedFields": [{"manager": manager, "fieldsV1": fields} for manager in ("kube-controller-manager", "kubelet")],
        },
        "spec": {
            "nodeName": node,
            "schedulerName": "lading",
            "containers": [container],
            "priority": 0,
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Running", "conditions": conditions, "hostIP": "10.0.0.1", "podIP": "10.1.0.1"},
    }


class Server:
    def __init__(self, node_count: int, holding: int, others: int) -> None:
        self.pages = {
            "/api/v1/nodes": _pages(nodes(node_count)),
            _DEVICES: _pages(reports(node_count)),
            "/api/v1/pods": _pages(pods(node_count, holding, others)),
        }
        self.version = 1000
        self.watching: set[web.StreamResponse] = set()
        self.lease: dict[str, dict[str, Any]] = {
            "metadata": {"name": "lading-central", "namespace": "lading-system", "uid": "l", "resourceVersion": "1"},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1},  # released: to be had at once
        }
        self.binding_s = 0.0

    async def list_or_watch(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        pages = self.pages[request.path]
        number = int(request.query.get("continue") or 0)
        following = str(number + 1) if number + 1 < len(pages) else ""
        head = f'{{"metadata":{{"resourceVersion":"1000","continue":"{following}"}},"items":['.encode()
        return web.Response(body=head + pages[number] + b"]}", content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if request.path == "/api/v1/pods":
            self.watching.add(response)
        try:
            await asyncio.sleep(3600)
        finally:
            self.watching.discard(response)
        return response

    async def bind(self, request: web.Request) -> web.Response:
        began = time.perf_counter()
        metadata = (await request.json())["metadata"]
        self.version += 1
        pod = render_pod(metadata["name"], metadata["uid"], "", {"lading.dev/gpu": "1"})
        pod["metadata"] |= {"resourceVersion": str(self.version), "annotations": metadata["annotations"]}
        pod["spec"]["nodeName"] = json.loads(metadata["annotations"]["lading.dev/assignment"])["node"]
        event = json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"
        for watch in self.watching:
            await watch.write(event)
        self.binding_s += time.perf_counter() - began
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async def read_lease(self, request: web.Request) -> web.Response:
        return web.json_response(self.lease)

    async def write_lease(self, request: web.Request) -> web.Response:
        change = await request.json()
        self.version += 1
        self.lease["spec"] = self.lease["spec"] | change.get("spec", {})
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return web.json_response(self.lease)


def _pages(objects: Iterator[dict[str, Any]]) -> Sequence[bytes]:
    pages = []
    while batch := list(islice(objects, PAGE)):
        pages.append(b",".join(json.dumps(one, separators=(",", ":")).encode() for one in batch))
    return pages or [b""]


def serve(port: int, node_count: int, holding: int, others: int) -> None:
    server = Server(node_count, holding, others)
    app = web.Application()
    for path in server.pages:
        app.router.add_get(path, server.list_or_watch)
    app.router.add_post("/api/v1/namespaces/{namespace}/pods/{name}/binding", server.bind)
    lease = "/apis/coordination.k8s.io/v1/namespaces/lading-system/leases/lading-central"
    app.router.add_get(lease, server.read_lease)
    app.router.add_route("*", lease, server.write_lease)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, handle_signals=True)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:5]))
