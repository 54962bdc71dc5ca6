"""Test a node's report at a real API server: the CRD accepts it, kubectl prints it, and without an API server the node works as
before.

Both daemons are real, between a kubelet's calls and a runtime in memory. The reporter is the node's own user, as with kubelet's
kubeconfig, and has the rights of deploy/rbac and no others. Who else writes a report here is a node too: admission may ask.
"""

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import pytest

from lading.log import Event
from lading.nodedevices import Status
from lading.vocabulary import MANUAL_GPUS, MANUAL_VFS
from simnode.build import build
from simnode.control_plane import ControlPlane
from simnode.cri import Cri
from simnode.daemons import LadingNode
from simnode.kube_api import KubeError
from simnode.nvml import GPU_IS_LOST, Failure, NvmlState
from tests.fakes.doorway import Doorway
from tests.faults.rig import logged
from tests.hostile.runtime import InMemoryRuntime
from tests.logs import LOGS
from tests.node.observe import ask, metric
from tests.node.site import eventually
from tests.unit.deploy.test_nodedevices import FULL

NODE: Final = "reporting-node"
NODES: Final = "system:nodes"
DEPLOY: Final = Path(__file__).parents[2] / "deploy"
PATH: Final = "/apis/devices.lading.dev/v1alpha1/nodedevices"


@dataclass(frozen=True, slots=True)
class Stage:
    plane: ControlPlane
    door: Doorway  # between the node and the API server
    lading: LadingNode
    kubelet: Cri

    def status(self) -> Status:
        return msgspec.convert(self.plane.api.call("GET", f"{PATH}/{NODE}")["status"], Status)

    def reported(self, holds: Callable[[Status], bool], what: str, *, within_s: float = 10.0) -> float:
        """Wait until a report has this content, and return the seconds: they include a poll of the inventory (1 s) and a scan
        of the reporter."""
        began = time.monotonic()

        def seen() -> bool:
            try:
                return holds(self.status())
            except (KubeError, KeyError):  # not there yet
                return False

        self.plane.eventually(seen, what, within_s=within_s)
        return time.monotonic() - began

    def kubectl(self, *text: str) -> str:
        done = self.plane.kubectl(*text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def columns(self) -> dict[str, str]:
        header, row = self.kubectl("get", "nodedevices", NODE).splitlines()
        starts = [match.start() for match in re.finditer(r"\S+", header)]
        cells = [slice(a, b) for a, b in zip(starts, [*starts[1:], None], strict=True)]
        return {header[cell].strip(): row[cell].strip() for cell in cells}

    def set_nvml(self, **changed: Any) -> None:
        NvmlState(profile=self.lading.node.profile, **changed).write(self.lading.node.nvml_state)


@pytest.fixture(scope="module")
def stage(control_plane: ControlPlane, pytestconfig: pytest.Config, device_nodes: None) -> Iterator[Stage]:
    """Start the daemons before the CRD, the rights and the Node exist, as on a machine that is being set up."""
    kubeconfig = control_plane.sign_in("hooks", f"system:node:{NODE}", group=NODES)
    config = json.loads(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    with (
        tempfile.TemporaryDirectory(prefix="lading-") as name,
        Doorway(urlsplit(cluster["server"]).port or 443) as door,
        InMemoryRuntime(Path(name) / "runtime.sock") as runtime,
    ):
        cluster["server"] = f"https://127.0.0.1:{door.port}"
        kubeconfig.write_text(json.dumps(config))
        settings = {"node_name": NODE, "report": True, "kubeconfig": str(kubeconfig), "metrics": "127.0.0.1:0"}
        settings |= {"inventory_interval": 1, "reconcile_interval": 1, "report_use_interval": 1}
        folder = Path(name)
        lading = LadingNode(
            folder,
            node=build("demo-8gpu", folder / "node"),
            runtime=runtime,
            hooks_settings=settings,
            proxy_settings={"metrics": ""},
        )
        pytestconfig.stash.setdefault(LOGS, []).extend(lading.logs)
        with lading, lading.client() as kubelet:
            yield Stage(control_plane, door, lading, kubelet)


@pytest.fixture(scope="module")
def reporting(stage: Stage) -> Stage:
    """Set up the cluster for reports, and wait for the first report."""
    for manifest in ("namespace.yaml", "crds/nodedevices.yaml", "rbac/reporter.yaml"):
        stage.kubectl("apply", "-f", str(DEPLOY / manifest))
    stage.plane.api.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    stage.reported(lambda status: status.reconciled, "the first report", within_s=60.0)
    return stage


def test_a_node_serves_before_the_cluster_knows_of_reports(stage: Stage) -> None:
    with stage.kubelet.pod("early", annotations={MANUAL_GPUS: "0"}) as pod:
        eventually(pod.create_container)  # kubelet tries again too, while the hooks have only just started
    stage.plane.eventually(lambda: bool(logged(stage.lading.hooks, Event.REPORT_FAILED)), "a report that fails")


def test_the_object_belongs_to_its_node(reporting: Stage) -> None:
    api = reporting.plane.api
    metadata = api.call("GET", f"{PATH}/{NODE}")["metadata"]
    uid = api.node(NODE)["metadata"]["uid"]
    assert metadata["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}]
    assert [m["manager"] for m in metadata["managedFields"] if m.get("subresource") == "status"] == ["lading-hooks"]


def test_kubectl_shows_the_node_in_one_line(reporting: Stage) -> None:
    columns = reporting.columns()
    age = columns.pop("AGE")
    assert columns == {
        "NAME": NODE,
        "GPUS": "8/8",
        "MODEL": "NVIDIA H100 80GB HBM3",
        "VFS": "16/16",
        "HELD": "",
        "DRIVER": "550.127.05",
        "PROBLEMS": "",
    }
    assert age
    assert "what shares a switch" in reporting.kubectl("explain", "nodedevices.status.gpus.place.path")


def test_health_arrives_both_ways(reporting: Stage) -> None:
    reporting.set_nvml(failures=(Failure(gpu=3, status=GPU_IS_LOST),))
    reporting.reported(lambda status: bool(status.gpus[3].unhealthy), "a lost card")
    columns = reporting.columns()
    assert columns["GPUS"] == "7/8"
    assert "0000:3d:00.0" in columns["PROBLEMS"]
    reporting.set_nvml()
    reporting.reported(lambda status: not status.gpus[3].unhealthy, "the card, well again")
    assert reporting.columns()["GPUS"] == "8/8"


def test_grants_come_and_go(reporting: Stage) -> None:
    with reporting.kubelet.pod("train", annotations={MANUAL_GPUS: "0,1:memory=8Gi,core=30", MANUAL_VFS: "2"}) as pod:
        pod.create_container("main")
        reporting.reported(lambda status: len(status.grants) == 1, "the grant")
        (grant,) = reporting.status().grants
        assert (grant.pod, grant.container, grant.pod_name, grant.form) == (pod.spec.uid, "main", "train", "manual")
        assert [(gpu.memory_mib, gpu.core_percent) for gpu in grant.gpus] == [(None, None), (8192, 30)]
        assert len(grant.vfs) == 2
        assert reporting.columns()["HELD"] == "2 GPUs, 2 VFs"
    reporting.reported(lambda status: not status.grants, "its release")
    past = [one for one in reporting.status().past if one.pod == pod.spec.uid]
    assert sorted(one.device for one in past) == sorted([*(gpu.uuid for gpu in grant.gpus), *grant.vfs])
    assert {(one.pod_name, one.container, one.by) for one in past} == {("train", "main", "manual")}
    assert all(0 <= one.until - one.since < 60 for one in past)


def test_use_is_reported_without_an_event(reporting: Stage) -> None:
    changes = len(logged(reporting.lading.hooks, Event.INVENTORY_CHANGED))
    reporting.set_nvml(used={0: (5000, 41)})
    reporting.reported(lambda status: status.use[0].busy_percent == 40, "a busy card")
    status = reporting.status()
    assert (status.use[0].uuid, status.use[0].memory_used_mib) == (status.gpus[0].uuid, 5120)
    assert {(one.memory_used_mib, one.busy_percent) for one in status.use[1:]} == {(0, 0)}
    assert abs(status.used_at - time.time()) < 30
    reporting.set_nvml()
    reporting.reported(lambda status: status.use[0].memory_used_mib == 0, "an idle card")
    assert len(logged(reporting.lading.hooks, Event.INVENTORY_CHANGED)) == changes


def test_without_an_api_server_the_node_works_and_tells_afterwards(reporting: Stage) -> None:
    hooks = reporting.lading.hooks
    reporting.door.close()
    failures = metric(hooks.log, "lading_hooks_report_failures_total")
    with reporting.kubelet.pod("meanwhile", annotations={MANUAL_GPUS: "2"}) as pod:
        began = time.monotonic()
        pod.create_container()
        assert time.monotonic() - began < 1.0  # nothing on this path asked the API server
        reporting.plane.eventually(
            lambda: metric(hooks.log, "lading_hooks_report_failures_total") > failures, "a report that fails"
        )
        assert reporting.status().grants == ()
        assert metric(hooks.log, "lading_hooks_report_stale_seconds") > 0
        assert ask(hooks.log, "/readyz")[0] == 200
        reporting.door.open()
        reporting.reported(lambda status: len(status.grants) == 1, "what happened meanwhile", within_s=40.0)
    reporting.reported(lambda status: not status.grants, "its release")
    assert metric(hooks.log, "lading_hooks_report_stale_seconds") == 0


def test_a_daemon_that_starts_without_an_api_server_serves_and_stops(reporting: Stage) -> None:
    hooks = reporting.lading.hooks
    reporting.door.close()
    try:
        runs = len(logged(hooks, Event.DAEMON_STARTED))
        hooks.restart()
        reporting.plane.eventually(lambda: len(logged(hooks, Event.DAEMON_STARTED)) > runs, "a started daemon")
        reporting.plane.eventually(lambda: ask(hooks.log, "/readyz")[0] == 200, "a ready node")
        with reporting.kubelet.pod("meanwhile", annotations={MANUAL_GPUS: "2"}) as pod:
            pod.create_container()
        assert hooks.stop(grace_s=5.0) == 0
    finally:
        hooks.start()
        reporting.door.open()
    reporting.reported(lambda status: status.reconciled and not status.grants, "the node as it is", within_s=40.0)


def test_fields_of_another_client_are_removed_by_the_next_report(reporting: Stage) -> None:
    forged = {"status": {"driver": "none", "summary": {"problems": "all is lost"}, "problems": ["all is lost"]}}
    other = reporting.plane.api_of(f"system:node:{NODE}", group=NODES)
    written = other.call("PATCH", f"{PATH}/{NODE}/status", forged, content_type="application/merge-patch+json")
    assert written["status"]["problems"] == ["all is lost"]  # a report of the daemon may replace it at once
    reporting.set_nvml(failures=(Failure(gpu=0, status=GPU_IS_LOST),))
    reporting.reported(lambda status: bool(status.gpus[0].unhealthy), "the next report")
    reporting.set_nvml()
    reporting.reported(lambda status: not status.gpus[0].unhealthy, "and the one after it")
    status = reporting.status()
    assert (status.driver, status.problems, status.summary.problems) == ("550.127.05", (), "")


def test_an_annotation_of_a_person_stays(reporting: Stage) -> None:
    reporting.kubectl("annotate", "nodedevices", NODE, "lading.dev/cordon=all")
    reporting.set_nvml(failures=(Failure(gpu=0, status=GPU_IS_LOST),))
    reporting.reported(lambda status: bool(status.gpus[0].unhealthy), "another report")
    reporting.set_nvml()
    assert reporting.plane.api.call("GET", f"{PATH}/{NODE}")["metadata"]["annotations"]["lading.dev/cordon"] == "all"


def test_every_field_survives_the_api_server(reporting: Stage) -> None:
    name = "every-field"
    api = reporting.plane.api_of(f"system:node:{name}", group=NODES)
    identity = {"apiVersion": "devices.lading.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name}}
    api.call("POST", PATH, identity)
    whole = {**identity, "status": msgspec.to_builtins(FULL)}
    path = f"{PATH}/{name}/status?fieldManager=lading-hooks&force=true&fieldValidation=Strict"
    api.call("PATCH", path, whole, content_type="application/apply-patch+yaml")
    assert msgspec.convert(api.call("GET", f"{PATH}/{name}")["status"], Status) == FULL
    whole["status"]["gpus"][0]["uuid"] = "0"
    with pytest.raises(KubeError) as refused:
        api.call("PATCH", path, whole, content_type="application/apply-patch+yaml")
    assert refused.value.status == 422
