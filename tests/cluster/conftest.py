"""Start a real control plane for cluster tests and, where a test needs one, a real kubelet whose CRI endpoint is the proxy's
socket.

They need LADING_KUBE_ASSETS: a folder with the programs of `simnode.cluster.PROGRAMS`. Those are in no package registry, so
without the variable every test here is skipped, in CI too; those with a real Kueue also where the folder lacks what
`simnode.kueue` needs. With a kubelet they need root, containerd and runc as well; LADING_CONTAINERD=2.1 chooses another
containerd than the machine's, of those that `simnode.install` unpacked. A test that fails shows the ends of the logs.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simnode import leftovers
from simnode.build import build
from simnode.cluster import PROGRAMS, Cluster
from simnode.containerd import PrivateContainerd, find_containerd
from simnode.control_plane import ControlPlane
from simnode.daemons import LadingNode
from simnode.install import missing_packages
from simnode.kube_api import KubeApi
from tests.cluster.pods import Pods
from tests.fakes.needs import need
from tests.logs import LOGS

NODE = "sim-node"
ASSETS = "LADING_KUBE_ASSETS"
CONTAINERD = "LADING_CONTAINERD"
DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="session")
def assets() -> Path:
    folder = os.environ.get(ASSETS)
    if not folder:
        pytest.skip(f"needs {ASSETS}, a folder with {', '.join(PROGRAMS)}")
    return Path(folder)


@pytest.fixture(scope="session")
def control_plane(
    assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    """Start etcd and an API server with a namespace `default` that accepts pods: no node, no controllers, no part of Lading.
    All tests share it: each has a namespace and names of its own."""
    control_plane = ControlPlane(tmp_path_factory.mktemp("control-plane"), assets=assets)
    pytestconfig.stash.setdefault(LOGS, []).extend(control_plane.logs)
    with control_plane:
        control_plane.create_namespace("default")
        yield control_plane


@contextmanager
def applied(control_plane: ControlPlane, base: str) -> Iterator[KubeApi]:
    """Apply a folder of `deploy/`, and delete it in the end, because others share the control plane."""
    folder = str(DEPLOY / base)
    done = control_plane.kubectl("apply", "--server-side", "-k", folder)
    assert done.returncode == 0, done.stderr
    yield control_plane.api
    deleted = control_plane.kubectl("delete", "-k", folder)
    assert deleted.returncode == 0, deleted.stderr


@pytest.fixture(scope="session")
def deployed(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """Start a control plane with `deploy/` installed. It is not shared: the admission policies would affect the requests of
    other tests."""
    control_plane = ControlPlane(tmp_path_factory.mktemp("deployed"), assets=assets)
    pytestconfig.stash.setdefault(LOGS, []).extend(control_plane.logs)
    with control_plane:
        control_plane.create_namespace("default")
        done = control_plane.kubectl("apply", "--server-side", "-k", str(DEPLOY))
        assert done.returncode == 0, done.stderr
        yield control_plane


@pytest.fixture(scope="session")
def runtime(assets: Path, pytestconfig: pytest.Config) -> Iterator[PrivateContainerd]:
    yield from start_runtime(os.environ.get(CONTAINERD, ""), pytestconfig)


def start_runtime(version: str, pytestconfig: pytest.Config) -> Iterator[PrivateContainerd]:
    """Start a private containerd whose version begins with this text."""
    need(os.geteuid() == 0, "root")
    packages = missing_packages()
    need(not packages, f"{', '.join(packages)} (run: python -m simnode.install)")
    binaries = find_containerd(version)
    need(binaries is not None, f"containerd {version} (run: python -m simnode.install {version})")
    assert binaries is not None
    folder = Path(tempfile.mkdtemp(prefix="lading-kube-"))  # a short name: a socket's path has at most 107 bytes
    runtime = PrivateContainerd(folder / "ctd", binaries)
    pytestconfig.stash.setdefault(LOGS, []).append(runtime.log)
    with runtime:
        yield runtime
    left = leftovers.below(folder)
    leftovers.remove_tree(folder)
    assert left == []


@pytest.fixture(scope="module")
def lading(runtime: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[LadingNode]:
    folder = runtime.layout.folder.parent / "lading"
    node = build("demo-8gpu", folder / "node")
    with LadingNode(folder, node=node, runtime=runtime, hooks_settings={"node_name": NODE}) as lading:
        pytestconfig.stash[LOGS] += lading.logs
        yield lading


def start_cluster(
    name: str, assets: Path, lading: LadingNode, runtime: PrivateContainerd, pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    """Start a kubelet that reaches the runtime only through the proxy, and its control plane. `name` names its folder."""
    cluster = Cluster(
        runtime.layout.folder.parent / name,
        assets=assets,
        cri_socket=lading.cri_socket,
        cgroup_root=runtime.layout.cgroup_root,
        node_name=NODE,
        boot_id=lading.node.root / "proc/sys/kernel/random/boot_id",
    )
    pytestconfig.stash[LOGS] += cluster.logs
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(assets: Path, lading: LadingNode, runtime: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    yield from start_cluster("kube", assets, lading, runtime, pytestconfig)


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """Yield the pods of one test, and delete them at its end, so that the next test finds all devices free."""
    pods = Pods(cluster)
    yield pods
    pods.delete_all()
