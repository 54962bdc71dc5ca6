"""Test what `status` finds of an installation: nothing of one that is well, and each thing that can be wrong by its check."""

import re
from typing import Any

import msgspec
import pytest
import yaml

from central.request.dialects.options import DialectName, DialectOptions
from central.request.parse import OWN_ONLY, Dialects
from kubectl_lading.installation.control_checks import POLICIES, SCHEDULER
from kubectl_lading.installation.daemonset_checks import DAEMONSETS, GUARD, HOOKS, REMOVER
from kubectl_lading.installation.installation import NamedCentral, Part, Replica, SchedulerConfig, Workload
from kubectl_lading.installation.status_view import CHECKS, view_status
from kubectl_lading.objects import Crd, Unread
from lading.checks.model import Verdict
from lading.vocabulary import CENTRAL, NODES_NAMESPACE, NOT_READY
from tests.docs import ROOT
from tests.unit.kubectl_lading.installation.installations import (
    ADDRESS,
    LEADER,
    STANDBY,
    crd,
    daemonset,
    deployment,
    endpoints,
    installation,
    lease,
    node,
    node_pod,
    policy,
    policy_binding,
    report,
    system_pod,
)

UNREAD = Unread(why="cannot get it: 403 Forbidden")
IMAGE = "lading-central:0.1.0"
NEW_CRD = msgspec.convert({"metadata": {"name": "n"}, "status": {"conditions": None, "storedVersions": None}}, Crd)
GPU = {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "bdf": "0000:1b:00.0", "model": "A", "memoryMiB": 1}


def test_a_complete_installation_has_no_findings() -> None:
    view = view_status(installation())
    assert (view.state, view.findings) == (Verdict.OK, ())
    assert [one.part for one in view.parts] == [part for part in Part if part is not Part.VERSIONS]
    assert view.versions == {
        "central": {"0.1.0": 2},
        "node image": {"0.1.0": 4},
        "hooks": {"0.1.0": 2},
        "kubectl-lading": {"0.1.0": 1},
    }
    assert [(one.name, one.changed_at) for one in view.nodes] == [
        ("n1", "2026-11-21T11:59:55Z"),
        ("n2", "2026-11-21T10:00:00Z"),
    ]


BOTH: dict[str, Any] = {name: daemonset(name) for name in (HOOKS, GUARD)}
HALF = BOTH | {HOOKS: daemonset(HOOKS, ready=1)}
ROLLING = BOTH | {HOOKS: daemonset(HOOKS, updatedNumberScheduled=1)}


def dialects(name: DialectName) -> Dialects:
    return Dialects(DialectOptions(enabled=(name,)))


DEGRADED: list[tuple[str, dict[str, Any], str]] = [
    ("api-server-version", {"api_server": "v1.29.4", "scheduler": deployment(SCHEDULER, "kube-scheduler:v1.29.4")}, "1.29.4"),
    ("resource-served", {"crd": None, "reports": {}, "nodes": {}}, "NodeDevices"),
    ("resource-served", {"crd": crd(established=False)}, "established"),
    ("resource-served", {"crd": crd(version="v1beta1")}, "v1alpha1"),
    ("resource-served", {"crd": NEW_CRD}, "established"),
    ("policies-there", {"policies": {name: policy(name) for name in POLICIES[1:]}}, POLICIES[0]),
    ("policies-there", {"policies": {name: policy(name, warning="undefined field") for name in POLICIES}}, "undefined field"),
    ("policies-bound", {"bindings": [policy_binding(name, "Warn") for name in POLICIES]}, POLICIES[0]),
    ("policies-bound", {"bindings": []}, POLICIES[0]),
    ("central-deployed", {"central": None, "replicas": {}}, CENTRAL),
    ("central-deployed", {"named": NamedCentral(url="http://c:8080", silent="it takes too long")}, "http://c:8080"),
    ("central-deployed", {"central": deployment(CENTRAL, IMAGE, ready=1)}, "1 of 2"),
    ("central-deployed", {"central": deployment(CENTRAL, IMAGE, ready=0, wanted=0)}, "0"),
    ("central-deployed", {"central": deployment(CENTRAL, IMAGE, updatedReplicas=1)}, "rollout"),
    ("central-deployed", {"central": deployment(CENTRAL, IMAGE, observedGeneration=0)}, "rollout"),
    ("central-leads", {"lease": None}, "Lease"),
    ("central-leads", {"lease": lease(holder="")}, "holder"),
    ("central-leads", {"lease": lease(renewed_s=31)}, "31 s"),
    ("central-announced", {"endpoints": None}, CENTRAL),
    ("central-announced", {"endpoints": endpoints()}, CENTRAL),
    ("central-announced", {"endpoints": endpoints("10.0.0.8")}, "10.0.0.8"),
    ("central-answers", {"replicas": {LEADER: Replica(leads=True, unready=("lists-read: not yet",))}}, "lists-read"),
    ("central-answers", {"replicas": {LEADER: Replica(), STANDBY: Replica()}}, "0 replicas"),
    ("central-answers", {"replicas": {LEADER: Replica(leads=True), STANDBY: Replica(leads=True)}}, STANDBY),
    ("central-bindings", {"replicas": {LEADER: Replica(leads=True, bindings_open=51)}}, "51"),
    ("scheduler-deployed", {"scheduler": None}, SCHEDULER),
    (
        "scheduler-asks-central",
        {"scheduler_config": SchedulerConfig(profiles=("lading",), asks_central=OWN_ONLY.resources - {"lading.dev/rdma"})},
        "lading.dev/rdma",
    ),
    ("scheduler-asks-central", {"dialects": dialects(DialectName.HAMI)}, "nvidia.com/gpumem"),
    (
        "scheduler-asks-central",
        {
            "dialects": dialects(DialectName.KAI),
            "scheduler_config": SchedulerConfig(profiles=("lading",), asks_central=dialects(DialectName.KAI).resources),
        },
        "by labels or annotations",
    ),
    ("scheduler-version", {"scheduler": deployment(SCHEDULER, "kube-scheduler:v1.37.0")}, "v1.37.0"),
    ("daemonsets-deployed", {"daemonsets": {HOOKS: daemonset(HOOKS)}}, GUARD),
    ("daemonsets-deployed", {"daemonsets": {GUARD: daemonset(GUARD)}}, HOOKS),
    ("daemonsets-deployed", {"daemonsets": ROLLING}, "rollout of lading-node"),
    ("daemonsets-deployed", {"daemonsets": BOTH | {HOOKS: daemonset(HOOKS, observedGeneration=0)}}, "rollout of lading-node"),
    ("daemonsets-deployed", {"daemonsets": HALF, "node_pods": UNREAD}, "1 of 2 pods of lading-node are ready"),
    ("daemonsets-deployed", {"daemonsets": HALF, "node_pods": [node_pod(HOOKS, "n1")]}, "not on n2 (last news 120m ago)"),
    ("daemonsets-deployed", {"daemonsets": HALF, "reports": {}, "node_pods": [node_pod(HOOKS, "n1")]}, "n2 (no report)"),
    (
        "daemonsets-deployed",
        {"daemonsets": BOTH | {REMOVER: daemonset(REMOVER, ready=0, wanted=1)}, "nodes": {"n1": node(front_end="removed")}},
        "not on n1",
    ),
    ("daemonsets-in-step", {"daemonsets": {name: daemonset(name, tag="0.3.0") for name in BOTH}}, "0.3.0"),
    ("nodes-chosen-report", {"reports": {"n1": report()}}, "n2"),
    ("nodes-untainted", {"nodes": {"n1": node(taint=NOT_READY), "n2": node("n2")}}, "n1"),
    ("nodes-report", {"reports": {}}, "no node"),
    ("nodes-report", {"workload": Workload(unreported=("n9",))}, "n9"),
    ("versions-in-step", {"reports": {"n1": report(reporter="0.3.0")}}, "0.3.0"),
    ("versions-in-step", {"cli": "0.9.0", "replicas": {}, "reports": {"n1": report(reporter="0.8.0")}}, "0.9.0"),
    ("nodes-reconciled", {"reports": {"n1": report(reconciled=False)}}, "n1"),
    ("nodes-reachable", {"nodes": {"n1": node(ready="Unknown"), "n2": node("n2")}}, "n1"),
    ("nodes-rebooted", {"nodes": {"n1": node(boot="another"), "n2": node("n2")}}, "n1"),
    ("nodes-problems", {"reports": {"n1": report(problems=["cannot read /sys/x"])}}, "/sys/x"),
    ("devices-healthy", {"reports": {"n1": report(gpus=[GPU | {"unhealthy": "XID 79"}])}}, "XID 79"),
    (
        "devices-healthy",
        {"reports": {"n1": report(pfs=[{"bdf": "0000:18:00.0", "vfs": [{"bdf": "0000:18:00.2", "unhealthy": "stuck"}]}])}},
        "0000:18:00.2",
    ),
    ("pods-assigned", {"workload": Workload(unassigned=("a/b",))}, "a/b"),
    ("pods-healthy", {"workload": Workload(unhealthy=("a/b", "a/c"))}, "a/c"),
    ("pods-granted", {"workload": Workload(ungranted=("a/b",))}, "a/b"),
    ("pods-started", {"workload": Workload(unstarted=("a/b",))}, "a/b"),
    ("pods-apart", {"workload": Workload(clashes=("GPU-1 on n1 (a/b and a/c)",))}, "GPU-1"),
    ("objects-readable", {"workload": Workload(problems=("Pod a/b cannot be read: x",))}, "a/b"),
]


@pytest.mark.parametrize(("check", "changes", "named"), DEGRADED)
def test_each_defect_is_a_degraded_finding_of_its_check(check: str, changes: dict[str, Any], named: str) -> None:
    view = view_status(installation(**changes))
    result = [one for one in view.findings if one.check == check and one.verdict is Verdict.DEGRADED and named in one.what]
    assert result, [(one.check, one.what) for one in view.findings]
    assert all(one.mend for one in result)
    assert view.state is Verdict.DEGRADED
    assert [one.state for one in view.parts if one.part == result[0].group] == [Verdict.DEGRADED]


@pytest.mark.parametrize(
    ("check", "changes", "named"),
    [
        ("resource-served", {"crd": UNREAD}, "CustomResourceDefinition"),
        ("policies-there", {"policies": UNREAD}, "policies"),
        ("policies-bound", {"bindings": UNREAD}, "bindings"),
        ("central-deployed", {"central": UNREAD}, CENTRAL),
        ("central-leads", {"lease": UNREAD}, CENTRAL),
        ("central-announced", {"endpoints": UNREAD}, CENTRAL),
        ("daemonsets-deployed", {"daemonsets": BOTH | {HOOKS: UNREAD}}, HOOKS),
        ("scheduler-asks-central", {"scheduler_config": UNREAD}, "kube-scheduler"),
    ],
)
def test_a_part_that_cannot_be_read_is_unknown(check: str, changes: dict[str, Any], named: str) -> None:
    view = view_status(installation(**changes))
    (result,) = view.findings
    assert (result.check, result.verdict, result.why) == (check, Verdict.UNKNOWN, UNREAD.why)
    assert named in result.what
    assert view.state is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("check", "changes", "named"),
    [
        ("central-deployed", {"central": None}, CENTRAL),
        ("central-leads", {"lease": lease(renewed_s=-60)}, "60 s"),
        ("central-answers", {"replicas": {LEADER: UNREAD, STANDBY: Replica()}}, LEADER),
        ("daemonsets-deployed", {"nodes": {"n1": node(front_end=""), "n2": node("n2", front_end="")}}, "lading.dev/front-end"),
        ("daemonsets-in-step", {"daemonsets": BOTH | {GUARD: daemonset(GUARD, tag="0.2.0")}}, "lading-guard 0.2.0"),
        ("nodes-report", {"reports": {"n1": report(), "n2": report("n2"), "gone": report("gone")}}, "gone"),
        ("versions-in-step", {"reports": {"n1": report(), "n2": report("n2", reporter="0.2.0")}}, "0.2.0"),
        ("devices-healthy", {"reports": {"n1": report(gpus=[GPU | {"usedBy": "a process"}]), "n2": report("n2")}}, "a process"),
        (
            "devices-healthy",
            {"reports": {"n1": report(gpus=[GPU | {"dirty": "90 MiB of it"}]), "n2": report("n2")}},
            "90 MiB of it",
        ),
        ("pods-waiting", {"workload": Workload(pending={"fits": 1, "too-few-free-gpus": 3})}, "too-few-free-gpus 3, fits 1"),
    ],
)
def test_a_finding_that_needs_no_action_is_a_note(check: str, changes: dict[str, Any], named: str) -> None:
    view = view_status(installation(**changes))
    (result,) = view.findings
    assert (result.check, result.verdict) == (check, Verdict.NOTE)
    assert named in result.what
    assert view.state is Verdict.NOTE


def test_nodes_that_are_set_up_by_units_need_no_daemonsets() -> None:
    by_units: dict[str, Any] = {
        "daemonsets": {},
        "node_pods": [],
        "nodes": {"n1": node(front_end=""), "n2": node("n2", front_end="")},
    }
    view = view_status(installation(**by_units))
    assert (view.findings, view.daemonsets) == ((), ())
    assert [one.what for one in view.parts if one.part is Part.DAEMONSETS] == ["none"]


def test_a_node_that_is_not_reachable_is_reported_once() -> None:
    nodes = {"n1": node(), "n2": node("n2", ready="Unknown")}
    (result,) = view_status(installation(daemonsets=HALF, node_pods=[node_pod(HOOKS, "n1")], nodes=nodes)).findings
    assert result.check == "nodes-reachable"


def test_a_daemonset_says_where_it_is_not_ready() -> None:
    view = view_status(installation(daemonsets=HALF, node_pods=[node_pod(HOOKS, "n1"), node_pod(HOOKS, "n2", ready=False)]))
    (result,) = [one for one in view.daemonsets if one.name == HOOKS]
    assert (result.desired, result.ready, result.not_ready_on) == (2, 1, ("n2",))
    assert result.image == "registry.example/lading-node:0.1.0"
    assert [one.what for one in view.parts if one.part is Part.DAEMONSETS] == [
        "lading-node 1 of 2 ready; lading-guard 2 of 2 ready"
    ]


def test_every_check_is_tried() -> None:
    assert {check.name for check in CHECKS} == {check for check, _, _ in DEGRADED} | {"pods-waiting"}


def test_findings_are_sorted_by_their_verdict() -> None:
    view = view_status(installation(central=UNREAD, workload=Workload(pending={"fits": 1}, unassigned=("a/b",))))
    assert [one.verdict for one in view.findings] == [Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.NOTE]


def test_a_leader_that_runs_elsewhere_is_believed() -> None:
    """Check a leader outside of the cluster, which has no pod whose address could be compared."""
    assert view_status(installation(lease=lease(holder="a-host_0b6f"))).findings == ()


def test_central_outside_of_the_cluster_needs_no_deployment_if_its_url_is_given() -> None:
    away: dict[str, Any] = {"central": None, "replicas": {}, "lease": None, "endpoints": None, "system_pods": []}
    (result,) = view_status(installation(**away)).findings
    assert (result.check, result.verdict) == ("central-deployed", Verdict.DEGRADED)
    named = NamedCentral(url="http://c:8080")
    assert view_status(installation(**away, named=named)).findings == ()
    leads = away | {"lease": lease(holder="a-host_0b6f")}  # kube-scheduler may know its address without the Service
    assert view_status(installation(**leads, named=named)).findings == ()


@pytest.mark.parametrize("changes", [{"central": None}, {"replicas": {}}, {}])
def test_the_logs_of_all_replicas_are_checked_however_they_were_made(changes: dict[str, Any]) -> None:
    findings = view_status(installation(lease=None, **changes)).findings
    (mend,) = [one.mend for one in findings if one.check == "central-leads"]
    assert f"logs -l app.kubernetes.io/name={CENTRAL}" in mend


def test_no_log_is_named_that_there_is_not() -> None:
    late = installation(central=None, replicas={}, lease=lease(renewed_s=31))
    (mend,) = [one.mend for one in view_status(late).findings if one.check == "central-leads"]
    assert "kubectl" not in mend


def test_two_addresses_of_one_service() -> None:
    now = installation(endpoints=endpoints("fd00::7", ADDRESS), system_pods=[system_pod(LEADER, ADDRESS)])
    assert view_status(now).findings == ()


def test_the_names_are_those_of_deploy() -> None:
    deploy = ROOT / "deploy"
    texts = [path.read_text() for path in sorted((deploy / "admission").glob("*.yaml"))]
    policies = [
        one["metadata"]["name"] for text in texts for one in yaml.safe_load_all(text) if one and one["kind"].endswith("Policy")
    ]
    assert sorted(policies) == sorted(POLICIES)
    for folder, name in (("central", CENTRAL), ("scheduler", SCHEDULER)):
        assert re.search(rf"kind: Deployment\nmetadata:\n  name: {name}\n", (deploy / folder / "deployment.yaml").read_text())
    texts = [path.read_text() for path in sorted((deploy / "node").glob("*.yaml"))]
    made = [one["metadata"] for text in texts for one in yaml.safe_load_all(text) if one and one["kind"] == "DaemonSet"]
    assert {(one["namespace"], one["name"]) for one in made} == {(NODES_NAMESPACE, name) for name in DAEMONSETS}


def test_the_image_of_central_is_named_by_its_tag() -> None:
    for image, tag in [("a:5000/central:0.2.0", "0.2.0"), ("a:5000/central", ""), ("central:1@sha256:ab", ""), ("", "")]:
        assert deployment(CENTRAL, image).tag == tag
    assert installation(replicas={}, central=deployment(CENTRAL, "central:0.2.0")).central_version == "0.2.0"
