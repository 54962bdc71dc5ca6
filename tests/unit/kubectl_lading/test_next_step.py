"""Test the next step that commands name in a cluster without Lading, or without a node that reports devices."""

import pytest

from lading.kube.resource import NODE_DEVICES
from simnode.api_store import Store
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import SmallCluster

LABEL = "kubectl label node NODE lading.dev/front-end=nri"
READS_DEVICES = [
    "nodes",
    "pods",
    "why",
    "top",
    "node n1",
    "gpu GPU-1",
    "cordon GPU-1",
    "defrag",
    "simulate -f {manifest}",
]


class Bare(SmallCluster):
    """Represent a cluster with one node and no report."""

    def fill(self, store: Store) -> None:
        store.load("/api/v1/nodes/n1", {"metadata": {"name": "n1", "uid": "uid-n1"}})


@pytest.fixture
def cluster() -> SmallCluster:
    return Bare()


@pytest.fixture
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("manifest") / "pod.json"
    path.write_text('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}')
    return str(path)


@pytest.mark.parametrize("words", READS_DEVICES)
def test_where_no_node_reports_the_next_step_is_a_label(cli: Cli, manifest: str, words: str) -> None:
    assert LABEL in cli.run(*words.format(manifest=manifest).split()).output


@pytest.mark.parametrize("words", ["nodes", "pods", "gpu GPU-1"])
def test_where_a_labelled_node_does_not_report_the_next_step_is_status(cli: Cli, server: FakeKubeServer, words: str) -> None:
    server.store.put("/api/v1/nodes/n1", {"metadata": {"name": "n1", "labels": {"lading.dev/front-end": "nri"}}})
    output = cli.run(*words.split()).output
    assert "kubectl lading status" in output
    assert "n1" in output


@pytest.mark.parametrize("words", [*READS_DEVICES, "quota"])
def test_where_lading_is_not_installed_the_first_step_is_to_install_it(
    cli: Cli, server: FakeKubeServer, manifest: str, words: str
) -> None:
    server.fail(Fault(status=404, body=b"404 page not found\n"), when=lambda request: request.path == NODE_DEVICES.path())
    done = cli.run(*words.format(manifest=manifest).split())
    assert done.exit_code == 1
    assert "kubectl lading install" in done.stderr
    assert "deploy/" not in done.stderr


def test_status_names_the_same_step_for_each_missing_part(cli: Cli) -> None:
    output = cli.run("status").output
    assert output.count("kubectl lading install") >= 4
    assert "kubectl apply" not in output
