"""Install `deploy/node` on a simulated node, with a kustomization that names this machine's folders, and read what its pods do.

What differs from a real node are paths and ports: of a containerd below a folder of its own, of a simulated /sys, /proc, /dev
and driver, and of an API server that is no Service of a cluster network. Containers, rights and rollout are those of deploy/.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from central.daemon.keys import write_pair
from lading.vocabulary import NOT_READY
from simnode.build import LIBRARIES, SimNode
from simnode.cluster import Cluster
from simnode.containerd import PrivateContainerd
from simnode.control_plane import free_port
from simnode.daemons import render_flat_toml
from simnode.nvml import compile_fake_nvml
from tests.cluster.conftest import DEPLOY, NODE

NODES: Final = "lading-nodes"
LABEL: Final = "lading.dev/front-end"
PARTS: Final = ("crds", "rbac", "admission", "node")


@dataclass(kw_only=True)
class NodeSite:
    folder: Path
    cluster: Cluster
    runtime: PrivateContainerd
    node: SimNode
    tag: str = ""  # an image tag instead of the one in deploy/
    parts: Sequence[str] = PARTS
    ports: Mapping[str, int] = field(default_factory=lambda: {"hooks": free_port(), "shares": free_port()})

    @property
    def state(self) -> Path:
        return self.folder / "var-lib/lading"

    @property
    def libraries(self) -> Path:
        return self.state / "libraries"

    @property
    def run(self) -> Path:
        return self.folder / "run/lading"

    @property
    def plugins(self) -> Path:
        """Return the runtime's folder of NRI plugins."""
        return self.runtime.layout.nri / "plugins"

    def write(self, **settings: object) -> Path:
        """Write the kustomization, with these settings of lading-hooks beside those of the site; return its folder."""
        library = self.node.root / LIBRARIES / "libnvidia-ml.so.1"
        library.unlink(missing_ok=True)
        shutil.copy(compile_fake_nvml(self.node.nvml_state.parent), library)
        overlay = self.folder / "overlay"
        overlay.mkdir(parents=True, exist_ok=True)
        for folder in (self.libraries, self.run.parent):
            folder.mkdir(parents=True, exist_ok=True)
        theirs = tomllib.loads((DEPLOY / "node/hooks.toml").read_text())
        keys = theirs.pop("keys")
        ours: dict[str, object] = {
            "host_root": str(self.node.root),
            "driver_root": str(self.node.root),
            "assignments": ["manual"],
            "netdev": False,
            "share_libraries": str(self.libraries),  # the runtime uses its files by their paths on the host
            "metrics": f"127.0.0.1:{self.ports['hooks']}",
        }
        written = {**theirs, **ours, **settings}
        of_central = f"[keys]\n{render_flat_toml(keys)}" if written["assignments"] != ["manual"] else ""
        (overlay / "hooks.toml").write_text(render_flat_toml(written) + of_central)
        (overlay / "shares.toml").write_text(f'metrics = "127.0.0.1:{self.ports["shares"]}"\n')
        shutil.copy(DEPLOY / "namespace.yaml", overlay / "namespace.yaml")
        bases = [os.path.relpath(DEPLOY / part, overlay.resolve()) for part in self.parts]
        files = ["hooks.toml", "shares.toml"]
        config = {"name": "lading-node-config", "namespace": NODES, "behavior": "replace", "files": files}
        if not (overlay / "central-1.pem").exists():
            write_pair(overlay, "central-1")
        keys = {"name": "lading-public-keys", "namespace": NODES, "files": ["central-1.pub.pem"]}
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["namespace.yaml", *bases],
            "configMapGenerator": [config, {**keys, "options": {"disableNameSuffixHash": True}}],
            "images": [{"name": "lading-node", "newTag": self.tag}] if self.tag else [],
            "patches": [{"patch": json.dumps(patch)} for patch in self._patches()],
        }
        (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
        return overlay

    def apply(self, **settings: object) -> None:
        done = self.cluster.kubectl("apply", "--server-side", "-k", str(self.write(**settings)))
        assert done.returncode == 0, done.stderr

    def label(self, value: str) -> None:
        done = self.cluster.kubectl("label", "node", NODE, "--overwrite", f"{LABEL}={value}")
        assert done.returncode == 0, done.stderr

    def keep_away(self, name: str, away: bool = True) -> None:
        """Take a DaemonSet's pod from the node, or let it come again."""
        selector = {"test/away": "true" if away else None}
        change = json.dumps({"spec": {"template": {"spec": {"nodeSelector": selector}}}})
        done = self.cluster.kubectl("patch", "-n", NODES, "daemonset", name, "--type=merge", "--patch", change)
        assert done.returncode == 0, done.stderr
        if away:
            self.cluster.eventually(lambda: not self.pods(name), f"the end of the pod of {name}", within_s=90.0)

    def tainted(self) -> bool:
        return any(taint["key"] == NOT_READY for taint in self.cluster.api.node(NODE)["spec"].get("taints", []))

    def pods(self, name: str) -> list[Any]:
        path = f"/api/v1/namespaces/{NODES}/pods?labelSelector=app.kubernetes.io/name={name}"
        return list(self.cluster.api.call("GET", path)["items"])

    def ready(self, name: str, *, but: str = "") -> bool:
        """Return whether the DaemonSet's pod is ready, and is not the pod with the uid `but`."""
        return any(
            pod["metadata"]["uid"] != but
            and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
            for pod in self.pods(name)
        )

    def await_ready(self, *names: str) -> None:
        for name in names:
            self.cluster.eventually(lambda name=name: self.ready(name), f"a ready pod of {name}", within_s=180.0)  # type: ignore[misc]

    def in_hooks(self, *text: str) -> str:
        """Return what a command prints in the container of lading-hooks."""
        done = self.cluster.kubectl("exec", "-n", NODES, "daemonset/lading-node", "-c", "hooks", "--", *text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def remove_all(self) -> None:
        self.cluster.kubectl("delete", "--wait=false", "--ignore-not-found", "-k", str(self.folder / "overlay"))
        self.cluster.eventually(
            lambda: not self.cluster.api.call("GET", f"/api/v1/namespaces/{NODES}/pods")["items"],
            "the end of Lading's pods",
            within_s=120.0,
        )

    def _patches(self) -> list[dict[str, Any]]:
        address = self.cluster.control_plane.server_address
        layout = self.runtime.layout
        folders = {"state": self.state, "run": self.run, "nri": layout.nri, "containerd": layout.folder}
        volumes = [_volume(name, path) for name, path in folders.items()]
        observed = {"sim": self.node.root, "netns-of-runtime": layout.state, "libraries": self.libraries}  # at their own paths
        hooks = {
            "env": [
                {"name": "KUBERNETES_SERVICE_HOST", "value": address[0]},
                {"name": "KUBERNETES_SERVICE_PORT", "value": str(address[1])},
                {"name": "FAKE_NVML_STATE", "value": str(self.node.nvml_state)},
            ],
            "volumeMounts": [
                {"name": name, "mountPath": str(path), "mountPropagation": "HostToContainer"} for name, path in observed.items()
            ],
            **{probe: {"httpGet": {"port": self.ports["hooks"]}} for probe in _PROBES},
        }
        shares = {"livenessProbe": {"httpGet": {"port": self.ports["shares"]}}}
        containers = [{"name": "hooks", **hooks}, {"name": "shares", **shares}]
        node = {
            "containers": containers,
            "volumes": [
                *volumes,
                *(_volume(name, path) for name, path in observed.items()),
                _volume("driver", self.node.root),
                _volume("driver-container", self.folder / "run/nvidia"),
            ],
        }
        plugins = _volume("plugins", self.plugins)
        states, runs = _volume("states", self.state.parent), _volume("runs", self.run.parent)
        remove = {"volumes": [states, runs, *(one for one in volumes if one["name"] == "containerd"), plugins]}
        guard = {"volumes": [*(one for one in volumes if one["name"] in ("run", "nri")), plugins]}
        return [_patch("lading-node", node), _patch("lading-guard", guard), _patch("lading-remove", remove)]


_PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def _volume(name: str, path: Path) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": str(path)}}


def _patch(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NODES}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {"template": {"spec": spec}}}
