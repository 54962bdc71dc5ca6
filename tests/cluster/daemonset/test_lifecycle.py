"""Test `deploy/node` from installation to removal: first pod, rights, update. Measured times are printed (`-s`)."""

import json
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from hooks.daemon.handler_command import handler_program
from hooks.daemon.settings import Settings
from hooks.frontends.nri.guard.launched import PROGRAM
from hooks.host.netns import netns_path
from kubectl_lading.installation.installation import Part
from kubectl_lading.installation.status_view import StatusView
from kubectl_lading.main import main
from lading import __version__
from protos.cri.runtime.v1 import api_pb2 as cri
from tests.cluster.conftest import DEPLOY, NODE
from tests.cluster.daemonset.site import NODES, NodeSite
from tests.cluster.pods import Pods, container

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

GPU = "lading.dev/gpus"
HANDLED = "lading.dev/runtime-handler"


def cards(site: NodeSite, *indexes: int) -> list[str]:
    return sorted(f"nvidia{site.node.profile.gpus[index][1].minor}" for index in indexes)


def test_from_one_command_to_the_first_pod_with_a_card(site: NodeSite, pods: Pods) -> None:
    """Create the pod together with the installation: like any pod of a node that is being set up, it waits and never starts
    bare."""
    began = time.monotonic()
    site.apply()
    site.label("nri")
    applied = time.monotonic() - began
    site.await_ready("lading-guard", "lading-node")
    ready = time.monotonic() - began
    pods.run("first", annotations={GPU: "0,3"})
    running = time.monotonic() - began
    print(
        f"\napplied after {applied:.1f} s, node ready after {ready:.1f} s, first pod with cards running after {running:.1f} s"
    )
    assert pods.cards("first") == cards(site, 0, 3)
    assert (site.plugins / PROGRAM).is_file()  # containerd launches it at its next start
    environment = pods.sh("first", "env")
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    pods.run("plain")
    assert pods.cards("plain") == []


def test_the_driver_is_mounted_by_its_paths_on_the_host(pods: Pods, site: NodeSite) -> None:
    pods.run("driver", annotations={GPU: "1"})
    assert "libcuda.so.1" in pods.sh("driver", "ls /usr/lib64")


def test_the_doctor_in_its_pod_finds_the_driver_and_the_cards(site: NodeSite) -> None:
    text = json.loads(site.in_hooks("lading-doctor", "--only", "driver,driver-files,nri", "-o", "json"))
    assert {one["check"]: one["state"] for one in text["findings"]} == {"driver": "ok", "driver-files": "ok", "nri": "ok"}, text


def test_a_node_pod_reports_its_devices_by_its_own_account(site: NodeSite) -> None:
    path = f"/apis/devices.lading.dev/v1alpha1/nodedevices/{NODE}"
    site.cluster.eventually(lambda: site.cluster.api.has(path), "a report of the node")
    assert len(site.cluster.api.call("GET", path)["status"]["gpus"]) == 8


def status(site: NodeSite) -> StatusView:
    """Return what `kubectl lading status` says."""
    environment = {"KUBECONFIG": str(site.cluster.control_plane.admin_conf)}
    return msgspec.json.decode(CliRunner().invoke(main, ("status", "-o", "json"), env=environment).stdout, type=StatusView)


def test_status_knows_its_daemonsets_and_its_node(site: NodeSite) -> None:
    observed = status(site)
    ready = {one.name: (one.desired, one.updated, one.ready, one.not_ready_on) for one in observed.daemonsets}
    none = dict.fromkeys(("lading-remove", "lading-proxy", "lading-proxy-remove"), (0, 0, 0, ()))
    assert ready == {"lading-node": (1, 1, 1, ()), "lading-guard": (1, 1, 1, ()), **none}
    assert [(one.name, one.reporter, one.tainted) for one in observed.nodes] == [(NODE, __version__, False)]
    assert observed.versions["node image"] == {__version__: 2}
    assert not [one for one in observed.findings if one.group in (Part.DAEMONSETS, Part.NODES)]


def test_the_node_has_the_taint_only_while_the_guard_is_missing(site: NodeSite) -> None:
    cluster = site.cluster
    cluster.eventually(lambda: not site.tainted(), "a node without the taint")
    assert cluster.kubectl("delete", "daemonset", "-n", NODES, "lading-guard").returncode == 0
    cluster.eventually(site.tainted, "the taint")
    assert {"daemonsets-deployed", "nodes-untainted"} <= {one.check for one in status(site).findings}
    site.apply()
    site.await_ready("lading-guard")
    cluster.eventually(lambda: not site.tainted(), "a node without the taint")


def test_a_container_without_privilege_opens_no_device_of_its_node(site: NodeSite, pods: Pods) -> None:
    """Check why lading-hooks has to be privileged: with mounted device nodes alone, no capability allows a container to open
    them."""
    device = cards(site, 2)[0]
    dev = [{"name": "dev", "hostPath": {"path": str(site.node.root / "dev")}}]
    mount = [{"name": "dev", "mountPath": "/devices"}]
    may = {"able": {"capabilities": {"add": ["SYS_ADMIN", "NET_ADMIN", "MKNOD"]}}, "privileged": {"privileged": True}}
    for name, security in may.items():
        pods.run(name, containers=[container(volumeMounts=mount, securityContext=security)], volumes=dev)
    eperm, enxio = "1", "6"  # no driver is behind the node's number
    assert pods.sh("able", f"try-open /devices/{device}") == [eperm]
    assert pods.sh("privileged", f"try-open /devices/{device}") == [enxio]


_ENTER = """
import os, sys
from hooks.attach.namespaces import inside, opened, own
with own() as host, opened(sys.argv[1]) as fd:
    with inside(fd), own() as there:
        print(os.fstat(there).st_ino == os.fstat(fd).st_ino != os.fstat(host).st_ino)
        open("/proc/sys/net/ipv6/conf/default/ndisc_notify", "w").write("1")
"""


def test_lading_hooks_enters_the_network_namespace_of_a_pod(site: NodeSite, pods: Pods) -> None:
    """Enter a namespace that was made after its own container, as mounts of the host propagate, and write settings there."""
    pods.run("entered")
    uid = site.cluster.api.pod("entered")["metadata"]["uid"]
    with site.runtime.client() as client:
        (sandbox,) = (one for one in client.list_pods() if one.metadata.uid == uid)
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox.id, verbose=True)
        netns = netns_path(client.call("PodSandboxStatus", request, cri.PodSandboxStatusResponse))
    assert netns
    assert site.in_hooks("python3", "-c", _ENTER, netns).split() == ["True"]


def test_by_the_runtime_handler_no_pod_is_bare_while_neither_plugin_nor_guard_is_there(site: NodeSite, pods: Pods) -> None:
    """Run a container by the program that the DaemonSet put on the node."""
    handler = site.runtime.layout.handler
    handler.parent.mkdir()
    shutil.copy(handler_program(Settings(state_dir=str(site.state))), handler)
    for text in (("apply", "-f", str(DEPLOY / "runtime-class/runtime-class.yaml")), ("label", "node", NODE, f"{HANDLED}=true")):
        assert site.cluster.kubectl(*text).returncode == 0
    for name in ("lading-node", "lading-guard"):
        site.keep_away(name)
    pods.create("waits", annotations={GPU: "0"}, runtimeClassName="lading")
    pods.run("handled", runtimeClassName="lading")
    pods.wait_event("waits", "lading: ungranted: ")
    assert not pods.ready("waits")
    for name in ("lading-node", "lading-guard"):
        site.keep_away(name, False)
    pods.wait_ready("waits")
    assert pods.cards("waits") == cards(site, 0)
    assert pods.cards("handled") == []


def test_a_rolling_update_while_pods_start_leaves_none_without_its_card(site: NodeSite, pods: Pods) -> None:
    (before,) = site.pods("lading-node")
    site.apply(log_level="debug")
    names = [f"rolled-{index}" for index in range(8)]
    for index, name in enumerate(names):
        pods.create(name, annotations={GPU: str(index)})
        time.sleep(0.5)  # the rate of the pods, so that they start before, during and after the update
    site.cluster.eventually(
        lambda: site.ready("lading-node", but=before["metadata"]["uid"]), "the new pod of lading-node", within_s=180.0
    )
    for index, name in enumerate(names):
        site.cluster.eventually(lambda name=name: pods.ready(name), f"a ready pod {name}", within_s=120.0)  # type: ignore[misc]
        assert pods.cards(name) == cards(site, index)


def test_a_node_is_left_as_it_was_once_no_pod_holds_a_device(site: NodeSite, pods: Pods) -> None:
    cluster = site.cluster
    pods.run("holder", annotations={GPU: "0"})
    site.label("removed")
    cluster.eventually(
        lambda: not site.pods("lading-node") + site.pods("lading-guard"), "the end of its daemons", within_s=90.0
    )

    def refused() -> str:
        states = [s for pod in site.pods("lading-remove") for s in pod["status"].get("initContainerStatuses", [])]
        ended = [s.get(key, {}).get("terminated", {}) for s in states for key in ("state", "lastState")]
        return "".join(one.get("message", "") for one in ended)

    cluster.eventually(lambda: "default/holder" in refused(), "a refusal that names the holder", within_s=90.0)
    assert (site.state / "node.db").is_file()
    site.label("nri")
    site.await_ready("lading-guard", "lading-node")
    pods.delete("holder")

    def held() -> bool:
        devices = json.loads(site.in_hooks("lading-hooks", "ledger", "-o", "json"))["devices"]
        return any(device["holders"] for device in devices)

    cluster.eventually(lambda: not held(), "the end of every grant", within_s=120.0)
    site.label("removed")
    site.await_ready("lading-remove")
    assert not site.state.exists()
    assert not site.run.exists()
    assert not (site.plugins / PROGRAM).exists()
    assert not Path("/dev/termination-log").exists()
    assert cluster.api.has(f"/api/v1/namespaces/{NODES}/serviceaccounts/lading-node")
