"""Say what is missing next in a cluster where no node reports devices: a label, or the node's report. Pure.

A cluster without the resource NodeDevices is `kubectl_lading.lists.NotInstalledError`, whose hint is the first step.

Tests: tests/unit/kubectl_lading/test_next_step.py
"""

from collections.abc import Iterator

from kubectl_lading.cluster import Cluster
from lading.errors import LadingError
from lading.vocabulary import FRONT_END


def next_step(cluster: Cluster) -> Iterator[str]:
    """Yield a text about what is missing, and the command for it; nothing if a node reports devices."""
    if not cluster.reports:
        yield f"No node reports devices. Next{_command(cluster)}"


def expect_reports(cluster: Cluster, devices: str) -> None:
    """Raise LadingError with the next step as hint if no node reports devices. `devices`: the devices that the user names."""
    if not cluster.reports:
        raise LadingError(f"cannot find {devices}: no node reports devices", hint=f"next{_command(cluster)}")


def _command(cluster: Cluster) -> str:
    chosen = sorted(name for name, node in cluster.nodes.items() if FRONT_END in node.metadata.labels)
    if chosen:
        return f": kubectl lading status, which shows why {chosen[0]}, which has the label {FRONT_END}, does not report"
    return f", for each node with devices: kubectl label node NODE {FRONT_END}=nri"
