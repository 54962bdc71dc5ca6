"""Start one cluster for all tests of the whole path. The node trusts central's signature, and each process has only its own
rights.

kube-scheduler → central → API server → kubelet → proxy → containerd, with the CRD, rights and admission policies of deploy/.
The node is real but for its devices; it reports as the reporter's service account, with a token bound to it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.vocabulary import SYSTEM_NAMESPACE
from simnode.build import build
from simnode.cluster import Cluster
from simnode.containerd import PrivateContainerd
from simnode.daemons import LadingNode
from simnode.scheduling import KEY_ID, Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY, NODE, start_cluster
from tests.cluster.pods import Pods
from tests.cluster.scheduling.books import Auditor
from tests.cluster.scheduling.world import MERGE, World, read_books
from tests.logs import LOGS


@pytest.fixture(scope="package")
def key(runtime: PrivateContainerd) -> SigningKey:
    return SigningKey(runtime.layout.folder.parent / "keys")


@pytest.fixture(scope="package")
def lading(runtime: PrivateContainerd, key: SigningKey, pytestconfig: pytest.Config) -> Iterator[LadingNode]:
    folder = runtime.layout.folder.parent / "signed"
    lading = LadingNode(
        folder,
        node=build("demo-8gpu", folder / "node"),
        runtime=runtime,
        hooks_settings={
            "node_name": NODE,
            "assignments": ["signed"],
            f"keys.{KEY_ID}": str(key.public),
            "inventory_interval": 1,
            "metrics": "127.0.0.1:0",
        },
        proxy_settings={"metrics": "127.0.0.1:0"},
        tokens=True,
    )
    pytestconfig.stash[LOGS] += lading.logs
    with lading:
        yield lading
    with runtime.client() as direct:
        direct.remove_every_pod()


@pytest.fixture(scope="package")
def cluster(assets: Path, lading: LadingNode, runtime: PrivateContainerd, pytestconfig: pytest.Config) -> Iterator[Cluster]:
    yield from start_cluster("sched", assets, lading, runtime, pytestconfig)


@pytest.fixture(scope="package")
def whole(cluster: Cluster, lading: LadingNode, key: SigningKey, pytestconfig: pytest.Config) -> Iterator[World]:
    plane = cluster.control_plane
    install(plane, DEPLOY)
    labels = {"metadata": {"labels": {"lading.dev/costly-placement": "allowed"}}}  # for the tests of sharing
    plane.api.call("PATCH", "/api/v1/namespaces/default", labels, content_type=MERGE)
    node = plane.api.node(NODE)
    reporter = plane.sign_in_account(
        "reporter", SYSTEM_NAMESPACE, "lading-reporter", bound_to={"apiVersion": "v1", "kind": "Node", **node}
    )
    lading.reconfigure_hooks(report=True, kubeconfig=str(reporter))
    scheduling = Scheduling(plane, deploy=DEPLOY, key=key, settings={"quota_delay": 5})
    pytestconfig.stash[LOGS] += scheduling.logs

    with scheduling, Auditor(plane.api, lambda: read_books(lading, NODE)) as auditor:
        yield World(cluster, lading, scheduling, auditor)


@pytest.fixture
def world(whole: World, pods: Pods) -> Iterator[World]:
    """Check that no pod holds a device when a test begins, and that no device had two holders when it ends."""
    whole.await_idle()
    before = whole.auditor.checks
    yield whole
    whole.cluster.eventually(lambda: whole.auditor.checks > before, "a look of the auditor")
    assert whole.auditor.found == set()
