"""Check a node against its cluster: the node's name, other device plugins, the rights of the node's reporter.

Take kubelet's plugin sockets, the node's names, and answers of the API server. Return verdicts.

Source: Kubernetes "Device Plugins" (/var/lib/kubelet/device-plugins), SelfSubjectAccessReview (authorization.k8s.io/v1).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lading.checks.model import Finding, failed, ok, skipped, warning

PLUGINS: Final = "var/lib/kubelet/device-plugins"
# Sockets of NVIDIA's plugin and its forks (nvidia-gpu.sock, hami), and of Mellanox' and its operator's (rdma-shared…, sriov…).
_OURS: Final = re.compile(r"nvidia|gpu|rdma|sriov|mlnx|mellanox|hca|vgpu|hami", re.IGNORECASE)


# ---- other device plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsReading:
    sockets: tuple[str, ...]  # names of device plugins' sockets with a listener
    coexist: bool  # setting `coexist` of hooks.toml


def decide_plugins(reading: PluginsReading) -> Iterator[Finding]:
    rivals = [name for name in reading.sockets if _OURS.search(name)]
    if not rivals:
        yield ok("no other device plugin for GPUs or RDMA")
    elif reading.coexist:
        yield ok(f"{', '.join(rivals)} also serve this node; with coexist = true Lading leaves their devices alone")
    else:
        what = f"{', '.join(rivals)} in /{PLUGINS}: a device plugin also assigns devices on this node, and coexist is false"
        away = "remove the plugin's DaemonSet from this node (kubectl get ds -A | grep -i -e device -e plugin)"
        mend = f"{away}; or coexist = true, if only one of both assigns each device"
        yield failed(what, mend=mend)


# ---- the node's name


@dataclass(frozen=True, slots=True, kw_only=True)
class NameReading:
    configured: str  # setting `node_name` of hooks.toml
    kubelets: str  # name that kubelet uses: --hostname-override, or the host's name


def decide_name(reading: NameReading) -> Iterator[Finding]:
    if not reading.configured:
        yield skipped("node_name is empty: assignments are not compared with it")
    elif reading.configured != reading.kubelets:
        what = f"node_name is {reading.configured}, and kubelet would call this node {reading.kubelets}"
        yield warning(
            what, mend="kubectl get nodes -o wide; node_name in hooks.toml (a cloud provider may name nodes otherwise)"
        )
    else:
        yield ok(f"{reading.configured}, as kubelet says")


# ---- the API server


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReading:
    node_name: str
    asked: bool = True  # False with `report = false`: no call was made
    node: bool = False  # whether the Node exists
    served: bool = False  # whether the API server serves NodeDevices
    denied: tuple[str, ...] = ()  # rights that the reporter lacks, as verb and resource


def decide_api(reading: ApiReading) -> Iterator[Finding]:
    if not reading.asked:
        yield skipped(
            "report = false: this node reports nothing to central", mend="report = true in hooks.toml, where central assigns"
        )
        return
    if not reading.node:
        what = f"the API server has no Node {reading.node_name}"
        yield failed(what, mend="node_name in hooks.toml: as `kubectl get nodes` shows this machine")
    if not reading.served:
        yield failed("the API server does not know NodeDevices", mend="kubectl apply -f deploy/crds/nodedevices.yaml")
    if reading.denied:
        yield failed(f"not allowed: {', '.join(reading.denied)}", mend="kubectl apply -f deploy/rbac/reporter.yaml")
    if reading.node and reading.served and not reading.denied:
        yield ok(f"Node {reading.node_name} and NodeDevices exist, and this node may report")
