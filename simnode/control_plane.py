"""Run a Kubernetes API without nodes: etcd and kube-apiserver as child processes, and optional controllers and schedulers.

The input is a folder with the programs, in compatible versions (none is in a package registry), and a folder for state and
logs. The result is a ready API server after about two seconds, a client, and credentials for any user, group or service
account. The end of the `with` block ends every process by its pid. This needs neither root nor containerd.

Without `start_controller_manager` no controller makes service accounts, ends namespaces or collects garbage. So create a
namespace for pods with `create_namespace`. Nodes and nodes' reports are objects that a test creates.

Source: "PKI certificates and requirements", `kube-apiserver --help`, KubeSchedulerConfiguration v1, Kubernetes 1.36.
"""

import json
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lading.errors import HostError
from simnode.child import Block, Child
from simnode.kube_api import KubeApi, Token
from simnode.patience import wait_until
from simnode.pki import Authority, KeyPair, write_key

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
ADMINISTRATORS: Final = "system:masters"


class ControlPlane(Block):
    """Run a control plane in a `with` block. `api` has an administrator's rights; `api_of` and `api_of_account` have those of
    any other user. A test may stop and start `server`."""

    def __init__(self, folder: Path, *, assets: Path, gates: Sequence[str] = (), apis: Sequence[str] = ()) -> None:
        """Prepare the control plane. `gates`: features of API server and schedulers to switch on. `apis`: additional APIs to
        serve, as group/version."""
        self.folder = folder
        self._gates = {"feature-gates": ",".join(f"{gate}=true" for gate in gates)} if gates else {}
        self._apis = {"runtime-config": ",".join(f"{api}=true" for api in apis)} if apis else {}
        self.address = own_address()
        self.logs: list[Path] = [folder / "etcd.log", folder / "kube-apiserver.log"]
        self._assets = assets
        self._port = free_port()
        self._accounts_key = folder / "pki/accounts.key"

    def _begin(self) -> None:
        missing = [program for program in PROGRAMS if not (self._assets / program).is_file()]
        if missing:
            raise HostError(f"cannot start a control plane: {self._assets} has no {', '.join(missing)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pki = Authority(self.folder / "pki")
        self._start_server()

    # ---- users

    @property
    def server_address(self) -> tuple[str, int]:
        """Return the address at which processes of this machine reach the API server: there is no cluster network."""
        return "127.0.0.1", self._port

    @property
    def admin_conf(self) -> Path:
        return self.folder / "admin.conf"

    def sign_in(self, name: str, user: str, *, group: str = "", addresses: Sequence[str] = ()) -> Path:
        """Make a new key pair `pki/<name>` of the user, and the kubeconfig `<name>.conf` that has it."""
        pair = self.pki.sign(name, user, group=group, addresses=addresses)
        return self._write_kubeconfig(name, _tls("client-certificate", "client-key", pair))

    def sign_in_account(self, name: str, namespace: str, account: str, *, bound_to: Mapping[str, Any] | None = None) -> Path:
        """Make the kubeconfig `<name>.conf` of a service account, with a token for an hour, bound as in `api_of_account`."""
        return self._write_kubeconfig(name, {"token": self._token(namespace, account, bound_to)})

    def api_of(self, user: str, *, group: str = "") -> KubeApi:
        name = f"as-{user}-{group}".replace(":", "-").replace("/", "-")
        return self._client(self.pki.sign(name, user, group=group))

    def api_of_account(self, namespace: str, account: str, *, bound_to: Mapping[str, Any] | None = None) -> KubeApi:
        """Return a client as the service account. A token bound to a pod or a node, given as the API server shows it, names the
        node."""
        return self._client(Token(self._token(namespace, account, bound_to)))

    def create_namespace(self, name: str, *, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace with the default service account that pods need, as the controller manager would create it. May be
        called again."""
        self._create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        self._create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})

    def kubectl_argv(self, *text: str) -> list[str]:
        """Return a command line of kubectl as an administrator, for what the JSON client lacks: exec, port-forward, kustomize,
        apply."""
        return [str(self._assets / "kubectl"), "--kubeconfig", str(self.admin_conf), *text]

    def kubectl(self, *text: str, deadline_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        command = self.kubectl_argv(*text)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=deadline_s)  # noqa: S603

    def eventually(self, holds: Callable[[], bool], what: str, *, within_s: float = 60.0) -> None:
        eventually(holds, what, within_s=within_s, log=self.logs[-1])

    # ---- processes

    def start(self, program: str, flags: Mapping[str, str], *, name: str = "") -> Child:
        """Start a program of the assets. It runs until its `stop` or the end of the block. `name`: the name of its log, if
        two run."""
        argv = [str(self._assets / program), *(f"--{flag}={value}" for flag, value in flags.items())]
        child = Child(argv, log=self.folder / f"{name or program}.log")
        if child.log not in self.logs:
            self.logs.append(child.log)
        self._ends.callback(child.stop, grace_s=5.0)
        child.start()
        return child

    def start_controller_manager(self) -> Child:
        flags = {
            "kubeconfig": str(self.sign_in("kcm", "system:kube-controller-manager")),
            "leader-elect": "false",
            "secure-port": "0",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": str(self._accounts_key),
            "root-ca-file": str(self.pki.certificate),
            "flex-volume-plugin-dir": f"{self.folder}/volume-plugins",  # the default folder would be created below /usr
        }
        return self.start("kube-controller-manager", flags)

    def start_scheduler(self, config: Mapping[str, Any] | None = None, *, name: str = "kube-scheduler") -> Child:
        """Start the default scheduler, or one with this KubeSchedulerConfiguration, which names its kubeconfig
        (clientConnection). `name` is its log's, where there are two."""
        if config is None:
            mine = str(self.sign_in(name, "system:kube-scheduler"))
            flags = {"kubeconfig": mine, "leader-elect": "false", "secure-port": "0", **self._gates}
            return self.start("kube-scheduler", flags, name=name)
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(config))
        return self.start("kube-scheduler", {"config": str(path), "secure-port": "0", **self._gates}, name=name)

    def _start_server(self) -> None:
        store, peers = free_port(), free_port()
        etcd = {
            "data-dir": f"{self.folder}/etcd",
            **dict.fromkeys(("listen-client-urls", "advertise-client-urls"), f"http://127.0.0.1:{store}"),
            **dict.fromkeys(("listen-peer-urls", "initial-advertise-peer-urls"), f"http://127.0.0.1:{peers}"),
            "initial-cluster": f"default=http://127.0.0.1:{peers}",
            "unsafe-no-fsync": "true",  # the data of etcd ends with the session
        }
        self.start("etcd", etcd)
        self.server = self.start("kube-apiserver", self._server_flags(store))
        admin = self.pki.sign("admin", "admin", group=ADMINISTRATORS)
        self._write_kubeconfig("admin", _tls("client-certificate", "client-key", admin))
        self.api = self._client(admin)
        self.server.wait_until(self.api.ready, "a ready API server")

    def _server_flags(self, store: int) -> dict[str, str]:
        here = ["127.0.0.1", "localhost", self.address, "10.96.0.1", "kubernetes.default.svc"]
        serving = self.pki.sign("apiserver", "kube-apiserver", addresses=here)
        kubelet_client = self.pki.sign("apiserver-kubelet-client", "kube-apiserver-kubelet-client", group=ADMINISTRATORS)
        write_key(self._accounts_key)
        return {
            "etcd-servers": f"http://127.0.0.1:{store}",
            "secure-port": str(self._port),
            "bind-address": "127.0.0.1",
            "advertise-address": self.address,
            "cert-dir": f"{self.folder}/pki",
            **_tls("tls-cert-file", "tls-private-key-file", serving),
            "client-ca-file": str(self.pki.certificate),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-account-issuer": "https://kubernetes.default.svc",
            **dict.fromkeys(("service-account-key-file", "service-account-signing-key-file"), str(self._accounts_key)),
            "service-cluster-ip-range": "10.96.0.0/24",
            "kubelet-certificate-authority": str(self.pki.certificate),
            **_tls("kubelet-client-certificate", "kubelet-client-key", kubelet_client),
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
            **self._gates,
            **self._apis,
        }

    def _client(self, credentials: KeyPair | Token) -> KubeApi:
        return KubeApi(port=self._port, authority=self.pki.certificate, client=credentials)

    def _token(self, namespace: str, account: str, bound_to: Mapping[str, Any] | None) -> str:
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if bound_to is not None:
            identity = {key: bound_to["metadata"][key] for key in ("name", "uid")}
            spec["boundObjectRef"] = {"kind": bound_to["kind"], "apiVersion": "v1", **identity}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return str(self.api.call("POST", path, {"spec": spec})["status"]["token"])

    def _create(self, path: str, body: Mapping[str, Any]) -> None:
        if not self.api.has(f"{path}/{body['metadata']['name']}"):
            self.api.call("POST", path, body)

    def _write_kubeconfig(self, name: str, user: Mapping[str, str]) -> Path:
        server = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority": str(self.pki.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": server}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "me"}}],
            "current-context": "sim",
        }
        path = self.folder / f"{name}.conf"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))
        return path


def eventually(holds: Callable[[], bool], what: str, *, within_s: float, log: Path) -> None:
    """Wait until the condition holds. Raise HostError with the end of the log after `within_s` seconds without progress."""
    wait_until(holds, what, idle_s=within_s, logs=[log])


def free_port() -> int:
    """Return a TCP port that is reserved for the children of this process, until it ends.

    The socket that holds it is bound and does not listen. So a server that sets SO_REUSEADDR, as asyncio's and Go's do, can
    bind the port, and the kernel gives it to no process that asks for any free port. Source: socket(7), ip(7)."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("", 0))
    port = int(holder.getsockname()[1])
    holder.detach()  # open until this process ends
    return port


def own_address() -> str:
    """Return the machine's own IPv4 address; an API server and a kubelet refuse the loopback's. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # TEST-NET-2, RFC 5737
        except OSError as e:
            raise HostError(f"cannot start a control plane: this machine has no IPv4 address: {e.strerror}") from e
        return str(probe.getsockname()[0])


def _tls(certificate: str, key: str, pair: KeyPair) -> dict[str, str]:
    return {certificate: str(pair.certificate), key: str(pair.key)}
