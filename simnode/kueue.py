"""Run a real Kueue beside a control plane: its manager as a process, with its service account's rights and its webhooks.

The input is a running control plane, and a folder with the program `kueue` and the file `kueue.yaml`: the manifests of a
release, or the output of `kubectl kustomize config/default` in Kueue's source. CRDs, rights and the manager's configuration are
those of the manifests, except for addresses, the election and the integrations. The API server calls the webhooks on the
loopback address. The end of the `with` block deletes the webhooks first, so that pods can be created, then the CRDs with all
objects, then ends the process. This needs root: the manager reads the certificate of its metrics from a folder of /etc, which
is made in a mount namespace of its own.

Source: Kueue's cmd/kueue/main.go and Configuration config.kueue.x-k8s.io/v1beta2, as of Kueue 0.19.
"""

import base64
import contextlib
import http.client
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from lading.errors import HostError
from simnode.child import Block, Child
from simnode.control_plane import ControlPlane, free_port

PROGRAM: Final = "kueue"
MANIFESTS: Final = "kueue.yaml"
SYSTEM: Final = "kueue-system"
ACCOUNT: Final = "kueue-controller-manager"

_KINDS: Final = "CustomResourceDefinition"
_WEBHOOKS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_RIGHTS: Final = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
_CONFIG: Final = "controller_manager_config.yaml"

Json = dict[str, Any]


def missing(assets: Path) -> list[str]:
    """Return what the folder lacks."""
    return [name for name in (PROGRAM, MANIFESTS) if not (assets / name).is_file()]


class Kueue(Block):
    """Run Kueue's manager. A test may stop and start `manager`; no job and no pod can be created while it is stopped."""

    def __init__(self, plane: ControlPlane, *, assets: Path) -> None:
        self._plane = plane
        self._assets = assets
        self._folder = plane.folder / "kueue"
        self._port, self._health = free_port(), free_port()
        self._etc = self._folder / "etc"
        self._certificates = self._etc / "kueue/metrics/certs"  # below /etc the path is fixed in Kueue's code
        self.log = self._folder / "kueue.log"

    def _begin(self) -> None:
        absent = missing(self._assets)
        if absent:
            raise HostError(f"cannot start Kueue: {self._assets} has no {', '.join(absent)}")
        if os.geteuid() != 0:
            raise HostError("cannot start Kueue: it needs root")
        self._make_certificates()
        with (self._assets / MANIFESTS).open() as file:
            objects: list[Json] = [one for one in yaml.load_all(file, Loader=yaml.CSafeLoader) if one is not None]
        self._point_at_loopback(objects)
        kinds, webhooks = _of(objects, _KINDS), _of(objects, *_WEBHOOKS)
        self._apply("kinds", [*kinds, *_of(objects, *_RIGHTS)])
        self._plane.eventually(lambda: all(map(self._served, kinds)), "Kueue's kinds")
        self.manager = Child(self._argv(_of(objects, "ConfigMap")), log=self.log)
        self._ends.callback(self.manager.stop, grace_s=10.0)
        self.start()
        self._ends.callback(self._remove, kinds)
        self._ends.callback(self._run)  # the manager must run to remove its finalizers
        self._ends.callback(self._remove, webhooks)
        self._apply("webhooks", webhooks)

    def start(self) -> None:
        """Start the manager, and wait until it serves."""
        self.manager.start()
        self.manager.wait_until(self._serves, "a manager that is ready")

    def _run(self) -> None:
        if not self.manager.running:
            self.start()

    def _argv(self, maps: list[Json]) -> list[str]:
        (text,) = [one["data"][_CONFIG] for one in maps if _CONFIG in one["data"]]
        config: Json = yaml.safe_load(text)
        config |= {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "127.0.0.1:0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
            "featureGates": {"VisibilityOnDemand": False},  # an API server of its own, with a fixed port
        }
        path = self._folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        kubeconfig = self._plane.sign_in_account(ACCOUNT, SYSTEM, ACCOUNT)
        program = str(self._assets / PROGRAM)
        inside = 'mount --bind "$1" /etc && shift && exec "$@"'
        flags = [f"--config={path}", f"--kubeconfig={kubeconfig}"]
        return ["unshare", "--mount", "sh", "-c", inside, PROGRAM, str(self._etc), program, *flags]

    def _make_certificates(self) -> None:
        self._certificates.mkdir(parents=True)
        pair = self._plane.pki.sign(ACCOUNT, ACCOUNT, addresses=["127.0.0.1"])
        shutil.copy(pair.certificate, self._certificates / "tls.crt")
        shutil.copy(pair.key, self._certificates / "tls.key")

    def _point_at_loopback(self, objects: list[Json]) -> None:
        bundle = base64.b64encode(self._plane.pki.certificate.read_bytes()).decode()
        for client in _client_configs(objects):
            path = client.pop("service")["path"]
            client |= {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": bundle}

    def _apply(self, name: str, objects: list[Json]) -> None:
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.dump_all(objects, Dumper=yaml.CSafeDumper))
        done = self._plane.kubectl("apply", "--server-side", "-f", str(path))
        if done.returncode:
            raise HostError(f"cannot apply Kueue's {name}: {done.stderr.strip()}")

    def _remove(self, objects: list[Json]) -> None:
        names = [f"{one['kind']}/{one['metadata']['name']}" for one in objects]
        done = self._plane.kubectl("delete", "--ignore-not-found", "--timeout=60s", *names, deadline_s=90.0)
        if done.returncode:
            raise HostError(f"cannot delete {', '.join(names)}: {done.stderr.strip()}")

    def _served(self, kind: Json) -> bool:
        spec = kind["spec"]
        paths = [f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}" for version in spec["versions"]]
        return all(map(self._plane.api.has, paths))

    def _serves(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._health, timeout=2.0)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/readyz")
                return connection.getresponse().status == http.client.OK
            except OSError:
                return False


def _of(objects: list[Json], *kinds: str) -> list[Json]:
    return [one for one in objects if one["kind"] in kinds]


def _client_configs(objects: list[Json]) -> Iterator[Json]:
    """Yield how the API server reaches each webhook and each conversion."""
    for one in objects:
        if one["kind"] in _WEBHOOKS:
            yield from (webhook["clientConfig"] for webhook in one["webhooks"])
        elif one["kind"] == _KINDS and one["spec"].get("conversion", {}).get("strategy") == "Webhook":
            yield one["spec"]["conversion"]["webhook"]["clientConfig"]
