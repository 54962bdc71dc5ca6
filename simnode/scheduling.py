"""Run scheduling on a control plane: replicas of `lading-central` behind their Service, and a kube-scheduler that asks them.

The input is a control plane and the folder of manifests. The CRD, the rights and the admission policies of `deploy/` are
created, and each process gets the rights of its service account only. kube-scheduler has the deployed configuration with other
addresses. A test can stop, kill and start replicas and scheduler; the end of the block ends them by their pids.

A first leader waits 15 s: a lease that is not there may have been deleted under another (central.daemon.lease).
"""

import http.client
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from lading.errors import HostError
from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE
from simnode.child import Block, Child
from simnode.control_plane import ControlPlane, free_port
from simnode.daemons import render_flat_toml
from simnode.service import Service

SCHEDULER: Final = "lading-scheduler"
KEY_ID: Final = "central-1"
PARTS: Final = ("crds", "rbac", "admission")  # folders of deploy/: everything but workloads
NO_MORE: Final[Mapping[str, Any]] = {}
LEAD_S: Final = 60.0  # 15 s of a lease, and time for a busy machine


class SigningKey:
    """Hold the paths of central's key pair: `private` for central, `public` for the nodes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.private, self.public = folder / "private.pem", folder / "public.pem"
        key = Ed25519PrivateKey.generate()
        self.private.touch(mode=0o600)
        self.private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


class Replica(Child):
    """Run one lading-central. It serves kube-scheduler on `port` of `address`, and the page on `page_port`."""

    def __init__(
        self,
        name: str,
        *,
        folder: Path,
        kubeconfig: Path,
        key: SigningKey,
        address: str = "127.0.0.1",
        service: str = "",
        more: Mapping[str, Any] = NO_MORE,
    ) -> None:
        """Prepare the replica. With a `service`, the leader sets it to `address`, which then must not be the loopback
        address. `more`: settings."""
        self.address, self.port, self.page_port = address, free_port(), free_port()
        config = folder / f"{name}.toml"
        settings = {
            "listen": f"{address}:{self.port}",
            "page_listen": f"{address}:{self.page_port}",
            "service": service,
            "advertise": address if service else "",
            "metrics": "127.0.0.1:0",
            "kubeconfig": str(kubeconfig),
            "signing_key": str(key.private),
            "key_id": KEY_ID,
            "identity": name,
            **more,
        }
        config.write_text(render_flat_toml(settings))
        program = Path(sys.executable).with_name(CENTRAL)  # beside this Python: .venv/bin
        super().__init__([str(program), "--config", str(config)], log=config.with_suffix(".log"))

    @property
    def leads(self) -> bool:
        return self.running and self.get("/v1/why/absent/absent")[0] == http.client.NOT_FOUND

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a path on the page's port; status 0 if the server does not answer."""
        connection = http.client.HTTPConnection(self.address, self.page_port, timeout=10.0)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()


class Scheduling(Block):
    def __init__(
        self, plane: ControlPlane, *, deploy: Path, key: SigningKey, replicas: int = 2, settings: Mapping[str, Any] = NO_MORE
    ) -> None:
        """Prepare replicas and scheduler. The control plane must have the namespace and the rights of `deploy/` already: see
        `install`. `settings`: additional settings of central."""
        self._plane = plane
        self._deploy = deploy
        kubeconfig = plane.sign_in_account(CENTRAL, SYSTEM_NAMESPACE, CENTRAL)
        self.replicas = [
            Replica(
                f"{CENTRAL}-{n}",
                folder=plane.folder,
                kubeconfig=kubeconfig,
                key=key,
                address=plane.address,
                service=CENTRAL,
                more=settings,
            )
            for n in range(replicas)
        ]
        self.logs = [replica.log for replica in self.replicas]

    def _begin(self) -> None:
        for replica in self.replicas:
            self._ends.callback(replica.stop)
            replica.start()
        service = self._ends.enter_context(Service(self._plane.api, namespace=SYSTEM_NAMESPACE, name=CENTRAL))
        self.scheduler = self._plane.start_scheduler(self._config(service.port), name=SCHEDULER)
        self._ends.callback(self.scheduler.stop, grace_s=5.0)
        self.await_leader()

    @property
    def leader(self) -> Replica:
        """Return the leader. Raises HostError where there is none now."""
        for replica in self.replicas:
            if replica.leads:
                return replica
        raise HostError("cannot name the leader: no replica of lading-central leads")

    def await_leader(self) -> None:
        self._plane.eventually(lambda: any(replica.leads for replica in self.replicas), "a leader", within_s=LEAD_S)

    def restart_ended(self) -> None:
        """Restart processes that have ended, as kubelet would: a kube-scheduler that loses its lease ends."""
        for child in (*self.replicas, self.scheduler):
            if not child.running:
                child.start()

    def _config(self, port: int) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load((self._deploy / "scheduler/config.yaml").read_text())
        for extender in config["extenders"]:
            extender["urlPrefix"] = f"http://127.0.0.1:{port}"
            del extender["enableHTTPS"], extender["tlsConfig"]
        config["clientConnection"]["kubeconfig"] = str(self._plane.sign_in_account(SCHEDULER, SYSTEM_NAMESPACE, SCHEDULER))
        return config


def install(plane: ControlPlane, deploy: Path, *, parts: Sequence[str] = PARTS) -> None:
    """Apply what `kubectl apply -k` makes of deploy/, without the workloads, which run here as processes. May be called
    again."""
    for text in [("-f", str(deploy / "namespace.yaml")), *(("-k", str(deploy / part)) for part in parts)]:
        done = plane.kubectl("apply", "--server-side", *text)
        if done.returncode:
            raise HostError(f"cannot apply {text[1]}: {done.stderr.strip()}")
    plane.eventually(lambda: plane.api.has("/apis/devices.lading.dev/v1alpha1/nodedevices"), "the API of NodeDevices")
