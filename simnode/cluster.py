"""A one-node Kubernetes whose kubelet speaks CRI to a given socket: etcd, control plane and kubelet as child processes.

Enters: a folder with the six programs (their versions must fit one another; none is in a package registry), a folder for state
and logs, a CRI socket, the cgroup below which the pods shall be. Leaves: a Ready node and an API client. At the end of the
`with` block the pods are deleted, every process is ended by its pid, and what a kubelet writes outside its own folder is as it
was. Refuses: anyone but root, a machine on which another kubelet lives.

Source: KubeletConfiguration v1beta1, "PKI certificates and requirements", `kube-apiserver --help`, Kubernetes 1.36.
"""

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lading.errors import HostError
from simnode import leftovers
from simnode.child import Child, answers, tail
from simnode.kube_api import KubeApi
from simnode.pki import Authority, KeyPair, write_key

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_EVERY_S = 0.2

# Fixed in kubelet's code, wherever its root folder is.
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
_OUTSIDE = (_DEVICE_PLUGINS, _DEVICE_PLUGINS.parent, Path("/var/log/containers"))
_TUNABLES = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)


class Cluster:
    """`kubelet` may be stopped and started by a test; everything else lives as long as the block."""

    def __init__(self, folder: Path, *, assets: Path, cri_socket: Path, cgroup_root: str, node_name: str) -> None:
        self.folder = folder
        self.node_name = node_name
        self._assets = assets
        self._cri_socket = cri_socket
        self._cgroup_root = cgroup_root.strip("/")
        self._address = _own_address()
        self._ends = contextlib.ExitStack()
        self.kubelet_folder = folder / "kubelet"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            self._check()
            ends.enter_context(_host_unchanged())
            self.kubelet_folder.mkdir(parents=True)
            ends.callback(leftovers.remove_tree, self.kubelet_folder)
            _make_cgroup(self._cgroup_root)
            self._start_control_plane(ends)
            self.kubelet = self._start("kubelet", self._kubelet_flags(), ends)
            self.eventually(self._usable, "a Ready node and a default service account")
            ends.callback(self._delete_pods)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ends.close()

    @property
    def logs(self) -> list[Path]:
        return [self.folder / f"{program}.log" for program in PROGRAMS[:-1]]

    def ready(self) -> bool:
        return self.api.node_condition(self.node_name, "Ready").get("status") == "True"

    def kubectl_argv(self, *words: str) -> list[str]:
        """kubectl as an administrator, for what the JSON client can not do: exec, port-forward, logs as people see them."""
        return [str(self._assets / "kubectl"), "--kubeconfig", str(self.folder / "admin.conf"), *words]

    def kubectl(self, *words: str, deadline_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
        command = self.kubectl_argv(*words)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=deadline_s)  # noqa: S603

    def eventually(self, holds: Callable[[], bool], what: str, *, within_s: float = 60.0) -> None:
        """Looks until it holds, HostError at the end of the time. kubelet backs off up to 15 s after a refused container."""
        until = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > until:
                raise HostError(f"cannot wait for {what}: it did not come in {within_s:.0f} s\n{tail(self.logs[-1])}")
            time.sleep(_EVERY_S)

    def _check(self) -> None:
        if os.geteuid() != 0:
            raise HostError("cannot start a kubelet: it needs root")
        missing = [program for program in PROGRAMS if not (self._assets / program).is_file()]
        if missing:
            raise HostError(f"cannot start a cluster: {self._assets} has no {', '.join(missing)}")
        if answers(_DEVICE_PLUGINS / "kubelet.sock"):
            raise HostError("cannot start a kubelet: one lives on this machine already")

    def _start(self, program: str, flags: Mapping[str, str], ends: contextlib.ExitStack) -> Child:
        argv = [str(self._assets / program), *(f"--{flag}={value}" for flag, value in flags.items())]
        child = Child(argv, log=self.folder / f"{program}.log")
        ends.callback(child.stop, grace_s=5.0)
        child.start()
        return child

    def _start_control_plane(self, ends: contextlib.ExitStack) -> None:
        pki = Authority(self.folder / "pki")
        here = ["127.0.0.1", "localhost", self._address, "10.96.0.1", "kubernetes.default.svc"]
        serving, kubelet_client = (
            pki.sign("apiserver", "kube-apiserver", addresses=here),
            pki.sign("apiserver-kubelet-client", "kube-apiserver-kubelet-client", group="system:masters"),
        )
        accounts_key = self.folder / "pki/accounts.key"
        write_key(accounts_key)
        store, peers, api = (_free_port() for _ in range(3))
        etcd = {
            "data-dir": f"{self.folder}/etcd",
            **dict.fromkeys(("listen-client-urls", "advertise-client-urls"), f"http://127.0.0.1:{store}"),
            **dict.fromkeys(("listen-peer-urls", "initial-advertise-peer-urls"), f"http://127.0.0.1:{peers}"),
            "initial-cluster": f"default=http://127.0.0.1:{peers}",
            "unsafe-no-fsync": "true",  # its data ends with the session
        }
        apiserver = {
            "etcd-servers": f"http://127.0.0.1:{store}",
            "secure-port": str(api),
            "bind-address": "127.0.0.1",
            "advertise-address": self._address,
            "cert-dir": f"{self.folder}/pki",
            **_tls("tls-cert-file", "tls-private-key-file", serving),
            "client-ca-file": str(pki.certificate),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-account-issuer": "https://kubernetes.default.svc",
            **dict.fromkeys(("service-account-key-file", "service-account-signing-key-file"), str(accounts_key)),
            "service-cluster-ip-range": "10.96.0.0/24",
            "kubelet-certificate-authority": str(pki.certificate),
            **_tls("kubelet-client-certificate", "kubelet-client-key", kubelet_client),
            "kubelet-preferred-address-types": "InternalIP",
            "allow-privileged": "true",
        }
        self._start("etcd", etcd, ends)
        server = self._start("kube-apiserver", apiserver, ends)
        admin = self._client(pki, api, "admin", "admin", "system:masters")
        self._client(pki, api, "kubelet", f"system:node:{self.node_name}", "system:nodes", [self.node_name, self._address])
        self.api = KubeApi(port=api, authority=pki.certificate, client=admin)
        server.wait_until(self.api.ready, "a ready API server")
        for program, user in (("kube-controller-manager", "kcm"), ("kube-scheduler", "scheduler")):
            self._client(pki, api, user, f"system:{program}")
            flags = {"kubeconfig": f"{self.folder}/{user}.conf", "leader-elect": "false", "secure-port": "0"}
            if user == "kcm":
                flags["use-service-account-credentials"] = "true"
                flags["service-account-private-key-file"] = str(accounts_key)
                flags["root-ca-file"] = str(pki.certificate)
                flags["flex-volume-plugin-dir"] = f"{self.folder}/volume-plugins"  # else it makes one below /usr
            self._start(program, flags, ends)

    def _client(
        self, pki: Authority, port: int, name: str, user: str, group: str = "", addresses: list[str] | None = None
    ) -> KeyPair:
        """A key pair for the user and a kubeconfig `<name>.conf` that has it."""
        pair = pki.sign(name, user, group=group, addresses=addresses or [])
        server = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(pki.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "sim", "cluster": server}],
            "users": [{"name": "me", "user": _tls("client-certificate", "client-key", pair)}],
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "me"}}],
            "current-context": "sim",
        }
        (self.folder / f"{name}.conf").write_text(json.dumps(config))
        return pair

    def _kubelet_flags(self) -> dict[str, str]:
        config = self.folder / "kubelet.yaml"
        config.write_text(json.dumps(self._kubelet_config()))
        return {
            "config": str(config),
            "kubeconfig": f"{self.folder}/kubelet.conf",
            "hostname-override": self.node_name,
            "node-ip": self._address,
            "root-dir": str(self.kubelet_folder),
            "cert-dir": f"{self.folder}/pki",
            "v": "2",
        }

    def _kubelet_config(self) -> dict[str, Any]:
        pki = self.folder / "pki"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            **dict.fromkeys(("containerRuntimeEndpoint", "imageServiceEndpoint"), f"unix://{self._cri_socket}"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup_root}",
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,  # from 1.35 on it refuses cgroup v1 unless told
            "failSwapOn": False,
            "oomScoreAdj": 0,  # to lower it needs CAP_SYS_RESOURCE
            "makeIPTablesUtilChains": False,
            "port": _free_port(),
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
        """While kubelet lives, so that it unmounts their volumes itself. What it does not do, the runtime's end does."""
        for pod in self.api.pods():
            self.api.delete_pod(pod["metadata"]["name"])
        with contextlib.suppress(HostError):
            self.eventually(lambda: not self.api.pods(), "the end of every pod", within_s=30.0)


@contextlib.contextmanager
def _host_unchanged() -> Iterator[None]:
    """What a kubelet sets and leaves on its host is as it was afterwards."""
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
    """In every hierarchy: kubelet does not make its `cgroupRoot` itself."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            (Path(point) / name).mkdir(exist_ok=True)


def _own_address() -> str:
    """This machine's own IPv4 address; a kubelet refuses the loopback's. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # TEST-NET-2, RFC 5737
        except OSError as e:
            raise HostError(f"cannot start a kubelet: this machine has no IPv4 address for its node: {e.strerror}") from e
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tls(certificate: str, key: str, pair: KeyPair) -> dict[str, str]:
    return {certificate: str(pair.certificate), key: str(pair.key)}
