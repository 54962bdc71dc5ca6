"""Test `node N` for nodes with problems."""

from pathlib import Path

from lading.kube.resource import NODE_DEVICES, NODES
from tests.fakes.kubectl_lading import served
from tests.fakes.small_cluster import SmallCluster


def test_every_node_that_nodes_lists_can_be_checked(tmp_path: Path) -> None:
    """Check a node too that was deleted while a pod is bound to it."""
    cluster = SmallCluster()
    for path in (NODE_DEVICES.path(name="h100-2"), NODES.path(name="h100-2")):
        del cluster.objects[path]
    with served(cluster, tmp_path) as cli:
        listed = [line.split()[0] for line in cli.run("nodes").stdout.splitlines()[1:-2]]
        looked_at = [cli.run("node", name).exit_code for name in listed]
    assert "h100-2" in listed
    assert set(looked_at) == {0}
