"""Test a node's taint at a real API server, with real daemons and a real containerd: the node has it while plugin or guard is
missing.

lading-hooks is the service account lading-reporter, with a token that is bound to the node, and has no other rights; the
admission policies of deploy/ are there.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from lading.log import Event
from lading.vocabulary import NOT_READY
from simnode import leftovers
from simnode.build import build
from simnode.containerd import PrivateContainerd, find_unpacked
from simnode.control_plane import ControlPlane
from simnode.daemons import LadingNode
from simnode.images import default_cache
from simnode.install import missing_packages
from tests.fakes.needs import need
from tests.logs import LOGS
from tests.node.observe import ask
from tests.node.site import eventually

NODE: Final = "tainted-node"
SYSTEM: Final = "lading-system"
OTHER: Final = {"key": "example.com/other", "effect": "NoExecute"}
OURS: Final = {"key": NOT_READY, "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Stage:
    plane: ControlPlane
    runtime: PrivateContainerd
    lading: LadingNode

    def taints(self) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.plane.api.node(NODE)["spec"].get("taints", [])
        return result

    def check(self, *, tainted: bool) -> None:
        def check() -> None:
            assert (OURS in self.taints()) is tainted
            assert ask(self.lading.hooks.log, "/readyz")[0] == (503 if tainted else 200)

        eventually(check)


@pytest.fixture(scope="module")
def stage(deployed: ControlPlane, pytestconfig: pytest.Config) -> Iterator[Stage]:
    """Register the node with the taint, as kubelet does with --register-with-taints."""
    need(os.geteuid() == 0, "root")
    need(not missing_packages(), "containerd and runc (run: python -m simnode.install)")
    binaries = find_unpacked("2.", default_cache()) or find_unpacked("1.7.", default_cache())
    need(binaries is not None, "a newer containerd (run: python -m simnode.install 2.)")
    assert binaries is not None
    deployed.api.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}, "spec": {"taints": [OURS, OTHER]}})
    kubeconfig = deployed.sign_in_account("tainter", SYSTEM, "lading-reporter", bound_to=deployed.api.node(NODE))
    folder = Path(tempfile.mkdtemp(prefix="lading-"))
    runtime = PrivateContainerd(folder / "ctd", binaries)
    settings = {"node_name": NODE, "report": True, "kubeconfig": str(kubeconfig), "metrics": "127.0.0.1:0"}
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.append(runtime.log)
    with runtime:
        lading = LadingNode(
            folder, node=build("demo-8gpu", folder / "node"), runtime=runtime, hooks_settings=settings, nri=runtime.nri_socket
        )
        logs.extend(lading.logs)
        with lading:
            yield Stage(deployed, runtime, lading)
    left = leftovers.below(folder)
    leftovers.remove_tree(folder)
    assert left == []


def test_the_taint_is_removed_when_plugin_and_guard_are_connected_and_other_taints_stay(stage: Stage) -> None:
    stage.check(tainted=False)
    assert OTHER in stage.taints()


def test_the_taint_comes_back_when_the_guard_is_killed_and_ends_with_a_new_guard(stage: Stage) -> None:
    stage.check(tainted=False)
    stage.lading.guard.kill()
    stage.check(tainted=True)
    assert OTHER in stage.taints()
    stage.lading.guard.start()
    stage.check(tainted=False)


def test_the_node_has_the_taint_while_nri_is_not_available(stage: Stage) -> None:
    stage.check(tainted=False)
    stage.runtime.kill()
    stage.check(tainted=True)
    stage.runtime.start()
    stage.check(tainted=False)


def test_another_client_may_change_the_node_meanwhile(stage: Stage) -> None:
    stage.check(tainted=False)
    stage.plane.api.call(
        "PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"a": "b"}}}, content_type="application/merge-patch+json"
    )
    stage.lading.guard.kill()
    stage.check(tainted=True)
    stage.lading.guard.start()
    stage.check(tainted=False)
    assert str(Event.NODE_TAINT_FAILED) not in stage.lading.hooks.log.read_text()
