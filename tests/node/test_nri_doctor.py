"""Run the doctor on a node whose front end is NRI: it expects no proxy, and checks the requirements of NRI."""

from pathlib import Path

import pytest

from simnode.containerd import PrivateContainerd
from simnode.control_plane import free_port
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.site import eventually
from tests.node.test_doctor import KUBELET, Found, found, states, write_kubelet
from tests.node.test_nri_launched import folder_of, run

pytestmark = pytest.mark.node

_OF_THE_PROXY = {"registration", "hooks-dir", "hooks", "connections"}


@pytest.fixture(scope="module")
def node(share_lading: StartLading, newer: PrivateContainerd, runtime_handler: None) -> LadingNode:
    """Start a node whose kubelet talks to the runtime."""
    settings = {"metrics": f"127.0.0.1:{free_port()}", "nri_plugin_path": str(folder_of(newer)), "rdma_memlock": True}
    running = share_lading(runtime=newer, hooks=settings, nri=True)
    (running.node.root / KUBELET).parent.mkdir(parents=True)
    write_kubelet(running, str(newer.socket))
    return running


def eventually_found(node: LadingNode, check: str, state: str, mend: str = "") -> None:
    def check_finding() -> None:
        findings = found(node)[check]
        assert any(one == state and mend in text for one, text in findings), findings

    eventually(check_finding)


def test_a_node_that_is_well(node: LadingNode) -> None:
    def well() -> Found:
        checks = found(node)
        assert states(checks, "failed") == set(), checks
        return checks

    checks = eventually(well)
    assert not checks.keys() & _OF_THE_PROXY
    for check in ("kubelet-endpoint", "nri", "ready", "runtime-handler", "socket"):
        assert checks[check] == [("ok", "")]
    ((state, mend),) = checks["nri-plugins"]
    assert state == "warning"
    assert "lading-hooks install-guard" in mend


def test_a_kubelet_that_talks_to_a_proxy(node: LadingNode, newer: PrivateContainerd) -> None:
    write_kubelet(node, str(node.cri_socket))
    try:
        eventually_found(node, "kubelet-endpoint", "failed", f"unix://{newer.socket}")
    finally:
        write_kubelet(node, str(newer.socket))


def test_a_guard_that_is_not_there(node: LadingNode) -> None:
    node.guard.kill()
    try:
        eventually_found(node, "ready", "failed", "lading-nri-guard")
    finally:
        node.guard.start()


def test_nri_that_is_off(node: LadingNode) -> None:
    node.reconfigure_hooks(nri_socket=str(node.folder / "none.sock"))
    try:
        eventually_found(node, "nri", "failed", '[plugins."io.containerd.nri.v1.nri"] and below it: disable = false')
    finally:
        node.reconfigure_hooks(nri_socket=str(node.nri))


def test_a_launched_guard_that_is_installed_and_runs_after_containerds_restart(
    node: LadingNode, newer: PrivateContainerd, launched_guard: Path
) -> None:
    where = ("--nri-plugin-path", folder_of(newer))
    run("install-guard", *where, "--program", launched_guard)
    try:
        stray = folder_of(newer) / "stray"
        stray.touch(0o755)
        eventually_found(node, "nri-plugins", "failed", f"chmod a-x {stray}")
        stray.unlink()
        newer.restart()
        assert states(found(node, "--only", "nri-plugins"), "failed") == set()
    finally:
        run("remove-guard", *where)
        newer.restart()
