"""Start `deploy/node` with a real kubelet of unchanged flags, over a real containerd with NRI.

The images are built for it, in minutes, or are those of LADING_IMAGES (the tar of `make image`). Mounts have to propagate, as
systemd has it. Where they do not:
`unshare --mount sh -c 'mount --make-rshared / && exec pytest tests/cluster/daemonset'`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.wheel import build as build_wheel
from hooks.frontends.nri.guard.launched import PROGRAM
from hooks.frontends.nri.guard.program import built_program
from simnode import leftovers
from simnode.build import build
from simnode.cluster import Cluster
from simnode.containerd import PrivateContainerd
from tests.cluster.conftest import CONTAINERD, NODE, start_runtime
from tests.cluster.daemonset.site import NodeSite
from tests.docs import ROOT
from tests.fakes.needs import need
from tests.install.images import build_images, import_images
from tests.logs import LOGS


@pytest.fixture(scope="package")
def runtime(assets: Path, pytestconfig: pytest.Config) -> Iterator[PrivateContainerd]:
    """Start a containerd that supports NRI."""
    mounts = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    need(any(mount[4] == "/" and "shared:" in "".join(mount[6:]) for mount in mounts), "a shared / (see above)")
    yield from start_runtime(os.environ.get(CONTAINERD) or "1.7.", pytestconfig)


@pytest.fixture(scope="package")
def imported(runtime: PrivateContainerd, tmp_path_factory: pytest.TempPathFactory) -> None:
    given = os.environ.get("LADING_IMAGES")
    need(bool(given) or built_program().is_file(), "the guard, a part of the image (make launched-guard)")
    folder = tmp_path_factory.mktemp("images")
    images = Path(given) if given else build_images(build_wheel(ROOT, folder), folder)
    import_images(runtime, images)
    if not given:
        images.unlink()


@pytest.fixture(scope="module")
def cluster(assets: Path, runtime: PrivateContainerd, imported: None, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Start a cluster whose kubelet calls the runtime directly, without a proxy."""
    folder = runtime.layout.folder.parent / "node"
    cluster = Cluster(
        folder / "kube", assets=assets, cri_socket=runtime.socket, cgroup_root=runtime.layout.cgroup_root, node_name=NODE
    )
    pytestconfig.stash[LOGS] += cluster.logs
    with cluster:
        yield cluster
    leftovers.remove_tree(folder)


@pytest.fixture(scope="module")
def site(cluster: Cluster, runtime: PrivateContainerd) -> Iterator[NodeSite]:
    folder = runtime.layout.folder.parent / "node"
    site = NodeSite(folder=folder, cluster=cluster, runtime=runtime, node=build("demo-8gpu", folder / "sim"))
    cluster.kubectl("label", "namespace", "default", "lading.dev/manual=allowed")
    yield site
    site.remove_all()
    (site.plugins / PROGRAM).unlink(missing_ok=True)  # else it is launched for the next module
