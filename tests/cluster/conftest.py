"""Cluster tests: a real kubelet and control plane, its CRI endpoint the proxy's socket, on a simulated node.

They need root, containerd, runc, and LADING_KUBE_ASSETS: a folder with the programs of `simnode.cluster.PROGRAMS`. Those are
in no package registry, so without the variable every test here is skipped, in CI too. LADING_CONTAINERD=2.1 chooses another
containerd than the machine's, of those that `simnode.install` unpacked. A test that fails shows the ends of the logs.
"""

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from simnode import leftovers
from simnode.build import build
from simnode.child import tail
from simnode.cluster import PROGRAMS, Cluster
from simnode.containerd import PrivateContainerd, find_containerd
from simnode.daemons import LadingNode
from simnode.install import missing_packages
from tests.cluster.pods import Pods
from tests.fakes.needs import need

NODE = "sim-node"
ASSETS = "LADING_KUBE_ASSETS"
LOGS = pytest.StashKey[list[Path]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for log in item.config.stash.get(LOGS, []):
            report.sections.append((f"the end of {log}", tail(log)))
    return report


@pytest.fixture(scope="session")
def assets() -> Path:
    folder = os.environ.get(ASSETS)
    if not folder:
        pytest.skip(f"needs {ASSETS}, a folder with {', '.join(PROGRAMS)}")
    return Path(folder)


@pytest.fixture(scope="session")
def runtime(assets: Path, pytestconfig: pytest.Config) -> Iterator[PrivateContainerd]:
    need(os.geteuid() == 0, "root")
    packages = missing_packages()
    need(not packages, f"{', '.join(packages)} (run: python -m simnode.install)")
    binaries = find_containerd(os.environ.get("LADING_CONTAINERD", ""))
    assert binaries is not None
    folder = Path(tempfile.mkdtemp(prefix="lading-kube-"))  # a short name: a socket's path has at most 107 bytes
    runtime = PrivateContainerd(folder / "ctd", binaries)
    pytestconfig.stash[LOGS] = [runtime.log]
    with runtime:
        yield runtime
    left = leftovers.below(folder)
    leftovers.remove_tree(folder)
    assert left == []


@pytest.fixture(scope="session")
def lading(runtime: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[LadingNode]:
    folder = runtime.layout.folder.parent / "lading"
    node = build("demo-8gpu", folder / "node")
    with LadingNode(folder, node=node, runtime=runtime, hooks_settings={"node_name": NODE}) as lading:
        pytestconfig.stash[LOGS] += lading.logs
        yield lading


@pytest.fixture(scope="session")
def cluster(assets: Path, lading: LadingNode, runtime: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A kubelet that reaches the runtime only through the proxy, and the control plane above it."""
    cluster = Cluster(
        runtime.layout.folder.parent / "kube",
        assets=assets,
        cri_socket=lading.cri_socket,
        cgroup_root=runtime.layout.cgroup_root,
        node_name=NODE,
    )
    pytestconfig.stash[LOGS] += cluster.logs
    with cluster:
        yield cluster


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Pods]:
    """Pods of one test; they are gone when it ends, so that nothing is held when the next begins."""
    pods = Pods(cluster)
    yield pods
    pods.delete_all()
