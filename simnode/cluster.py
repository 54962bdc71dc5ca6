"""Run a Kubernetes cluster of one node, whose kubelet speaks CRI to a given socket: a control plane and a kubelet.

The input is that of `simnode.control_plane`, with kubelet among the programs, a CRI socket, and the parent cgroup of the pods.
The result is a Ready node and an API client. The end of the `with` block deletes the pods, ends every process by its pid, and
restores the files that kubelet wrote outside its own folder. This needs root, and refuses a machine that has a kubelet.

Source: KubeletConfiguration v1beta1, Kubernetes 1.36.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lading.errors import HostError
from simnode import control_plane, leftovers
from simnode.child import Block, answers
from simnode.control_plane import ControlPlane, eventually, free_port
from simnode.kube_api import KubeApi
from simnode.patience import tail

PROGRAMS = (*control_plane.PROGRAMS, "kubelet")

# Fixed in kubelet's code, wherever its root folder is.
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_OUTSIDE = (_DEVICE_PLUGINS, _DEVICE_PLUGINS.parent, Path("/var/log/containers"))
_TUNABLES = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)


class Cluster(Block):
    """Run the cluster in a `with` block. A test may stop and start `kubelet` in the meantime."""

    def __init__(
        self, folder: Path, *, assets: Path, cri_socket: Path, cgroup_root: str, node_name: str, boot_id: Path | None = None
    ) -> None:
        """Take the programs and the runtime. `boot_id`: a file that kubelet reads in place of the kernel's, at its start."""
        self.folder = folder
        self._boot_id = boot_id
        self.node_name = node_name
        self.control_plane = ControlPlane(folder, assets=assets)
        self._assets = assets
        self._cri_socket = cri_socket
        self._cgroup_root = cgroup_root.strip("/")
        self.kubelet_folder = folder / "kubelet"
        self.static_pods = folder / "static-pods"

    def _begin(self) -> None:
        self._check()
        self._ends.enter_context(_host_unchanged())
        self.kubelet_folder.mkdir(parents=True)
        self.static_pods.mkdir()
        self._ends.callback(leftovers.remove_tree, self.kubelet_folder)
        _make_cgroup(self._cgroup_root)
        self._ends.enter_context(self.control_plane)
        self.control_plane.start_controller_manager()
        self.control_plane.start_scheduler()
        self.kubelet = self.control_plane.start("kubelet", self._kubelet_flags())
        self.eventually(self._usable, "a Ready node and a default service account")
        self._ends.callback(self._delete_pods)

    def power_off(self) -> None:
        """End kubelet as a loss of power does, and remove its mounts. The caller ends the runtime, before or after."""
        self.kubelet.kill()
        leftovers.unmount_below(self.kubelet_folder)

    def power_on(self) -> None:
        """Start kubelet after `power_off`. Its pods are still bound to the node."""
        _make_cgroup(self._cgroup_root)
        self.kubelet.start()

    @property
    def api(self) -> KubeApi:
        return self.control_plane.api

    @property
    def logs(self) -> list[Path]:
        return [self.folder / f"{program}.log" for program in PROGRAMS if program != "kubectl"]

    def ready(self) -> bool:
        return self.api.node_condition(self.node_name, "Ready").get("status") == "True"

    def kubectl_argv(self, *text: str) -> list[str]:
        return self.control_plane.kubectl_argv(*text)

    def kubectl(self, *text: str, deadline_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        return self.control_plane.kubectl(*text, deadline_s=deadline_s)

    def eventually(self, holds: Callable[[], bool], what: str, *, within_s: float = 60.0) -> None:
        """Wait until the condition holds. The error contains the end of kubelet's log: kubelet waits up to 15 s after a refused
        container."""
        eventually(holds, what, within_s=within_s, log=self.folder / "kubelet.log")

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise HostError("cannot start a kubelet: it needs root")
        if not (self._assets / "kubelet").is_file():
            raise HostError(f"cannot start a cluster: {self._assets} has no kubelet")
        if answers(_DEVICE_PLUGINS / "kubelet.sock"):
            raise HostError("cannot start a kubelet: one lives on this machine already")

    def _kubelet_flags(self) -> dict[str, str]:
        config = self.folder / "kubelet.yaml"
        config.write_text(json.dumps(self._kubelet_config()))
        return {
            "config": str(config),
            "kubeconfig": str(self._sign_in_kubelet()),
            "hostname-override": self.node_name,
            "node-ip": self.control_plane.address,
            "root-dir": str(self.kubelet_folder),
            "cert-dir": f"{self.folder}/pki",
            "v": "2",
            **({"boot-id-file": str(self._boot_id)} if self._boot_id else {}),
        }

    def _sign_in_kubelet(self) -> Path:
        addresses = [self.node_name, self.control_plane.address]  # the pair also serves kubelet's own API
        user = f"system:node:{self.node_name}"
        return self.control_plane.sign_in("kubelet", user, group="system:nodes", addresses=addresses)

    def _kubelet_config(self) -> dict[str, Any]:
        pki = self.folder / "pki"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            **dict.fromkeys(("containerRuntimeEndpoint", "imageServiceEndpoint"), f"unix://{self._cri_socket}"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup_root}",
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,  # from 1.35 on it refuses cgroup v1 by default
            "failSwapOn": False,
            "oomScoreAdj": 0,  # lowering it needs CAP_SYS_RESOURCE
            "makeIPTablesUtilChains": False,
            "port": free_port(),
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet.key"),
            "podLogsDir": str(self.folder / "pods"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "staticPodPath": str(self.static_pods),
            "fileCheckFrequency": "1s",
            "resolvConf": "",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "5s",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        }

    def _usable(self) -> bool:
        if not self.kubelet.running:
            raise HostError(f"cannot start kubelet: it ended\n{tail(self.kubelet.log)}")
        return self.ready() and self.api.has("/api/v1/namespaces/default/serviceaccounts/default")

    def _delete_pods(self) -> None:
        """Delete the pods while kubelet runs, so that it unmounts their volumes. The runtime's end removes what remains."""
        for pod in self.api.pods():
            self.api.delete_pod(pod["metadata"]["name"])
        with contextlib.suppress(HostError):
            self.eventually(lambda: not self.api.pods(), "the end of every pod", within_s=30.0)


@contextlib.contextmanager
def _host_unchanged() -> Iterator[None]:
    """Restore what a kubelet sets and leaves on its host."""
    sysctls = [Path("/proc/sys") / name for name in _TUNABLES]
    before = {path: path.read_text() for path in sysctls}
    absent = [path for path in _OUTSIDE if not path.exists()]
    try:
        yield
    finally:
        for path, value in before.items():
            if path.read_text() != value:
                path.write_text(value)
        for path in absent:
            leftovers.remove_tree(path)


def _make_cgroup(name: str) -> None:
    """Make the cgroup in every hierarchy: kubelet does not make its `cgroupRoot` itself."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            (Path(point) / name).mkdir(exist_ok=True)
