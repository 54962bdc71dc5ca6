"""What `status` finds of an installation: nothing of one that is well, and each thing that can be wrong by its check."""

import re
from typing import Any

import msgspec
import pytest
import yaml

from central.ask.parse import managed_resources
from kubectl_lading.installation.control_checks import CENTRAL, POLICIES, SCHEDULER
from kubectl_lading.installation.finding import Level, NamedCentral, Part, Replica, SchedulerConfig, Workload
from kubectl_lading.installation.status_view import CHECKS, age_in_words, view_status
from kubectl_lading.objects import Crd, Unread
from tests.docs import ROOT
from tests.unit.kubectl_lading.installation.installations import (
    ADDRESS,
    LEADER,
    STANDBY,
    crd,
    deployment,
    endpoints,
    installation,
    lease,
    node,
    policy,
    policy_binding,
    report,
    system_pod,
)

UNREAD = Unread(why="cannot get it: 403 Forbidden")
IMAGE = "lading-central:0.1.0"
NEW_CRD = msgspec.convert({"metadata": {"name": "n"}, "status": {"conditions": None, "storedVersions": None}}, Crd)
GPU = {"uuid": "GPU-00000000-0000-0000-0000-000000000000", "bdf": "0000:1b:00.0", "model": "A", "memoryMiB": 1}


def test_one_that_is_well() -> None:
    view = view_status(installation())
    assert (view.state, view.findings) == (Level.OK, ())
    assert [one.part for one in view.parts] == [part for part in Part if part is not Part.VERSIONS]
    assert view.versions == {"central": {"0.1.0": 2}, "hooks": {"0.1.0": 2}, "kubectl-lading": {"0.1.0": 1}}
    assert [(one.name, one.changed_at) for one in view.nodes] == [
        ("n1", "2026-11-21T11:59:55Z"),
        ("n2", "2026-11-21T10:00:00Z"),
    ]


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
        {"scheduler_config": SchedulerConfig(profiles=("lading",), asks_central=managed_resources() - {"lading.dev/rdma"})},
        "lading.dev/rdma",
    ),
    ("scheduler-version", {"scheduler": deployment(SCHEDULER, "kube-scheduler:v1.37.0")}, "v1.37.0"),
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
def test_what_is_degraded(check: str, changes: dict[str, Any], named: str) -> None:
    view = view_status(installation(**changes))
    found = [one for one in view.findings if one.check == check and one.level is Level.DEGRADED and named in one.what]
    assert found, [(one.check, one.what) for one in view.findings]
    assert all(one.mend for one in found)
    assert view.state is Level.DEGRADED
    assert [one.state for one in view.parts if one.part is found[0].part] == [Level.DEGRADED]


@pytest.mark.parametrize(
    ("check", "changes", "named"),
    [
        ("resource-served", {"crd": UNREAD}, "CustomResourceDefinition"),
        ("policies-there", {"policies": UNREAD}, "policies"),
        ("policies-bound", {"bindings": UNREAD}, "bindings"),
        ("central-deployed", {"central": UNREAD}, CENTRAL),
        ("central-leads", {"lease": UNREAD}, CENTRAL),
        ("central-announced", {"endpoints": UNREAD}, CENTRAL),
        ("scheduler-asks-central", {"scheduler_config": UNREAD}, "kube-scheduler"),
    ],
)
def test_what_can_not_be_read_is_never_well(check: str, changes: dict[str, Any], named: str) -> None:
    view = view_status(installation(**changes))
    (found,) = view.findings
    assert (found.check, found.level, found.why) == (check, Level.UNKNOWN, UNREAD.why)
    assert named in found.what
    assert view.state is Level.UNKNOWN


@pytest.mark.parametrize(
    ("check", "changes", "named"),
    [
        ("central-deployed", {"central": None}, CENTRAL),
        ("central-leads", {"lease": lease(renewed_s=-60)}, "60 s"),
        ("central-answers", {"replicas": {LEADER: UNREAD, STANDBY: Replica()}}, LEADER),
        ("nodes-report", {"reports": {"n1": report(), "gone": report("gone")}}, "gone"),
        ("versions-in-step", {"reports": {"n1": report(), "n2": report("n2", reporter="0.2.0")}}, "0.2.0"),
        ("devices-healthy", {"reports": {"n1": report(gpus=[GPU | {"usedBy": "a process"}])}}, "a process"),
        ("devices-healthy", {"reports": {"n1": report(gpus=[GPU | {"dirty": "90 MiB of it"}])}}, "90 MiB of it"),
        ("pods-waiting", {"workload": Workload(pending={"fits": 1, "too-few-free-gpus": 3})}, "too-few-free-gpus 3, fits 1"),
    ],
)
def test_what_is_only_worth_knowing(check: str, changes: dict[str, Any], named: str) -> None:
    view = view_status(installation(**changes))
    (found,) = view.findings
    assert (found.check, found.level) == (check, Level.NOTE)
    assert named in found.what
    assert view.state is Level.NOTE


def test_every_check_is_tried() -> None:
    assert {check.code for check in CHECKS} == {check for check, _, _ in DEGRADED} | {"pods-waiting"}


def test_the_worst_comes_first() -> None:
    view = view_status(installation(central=UNREAD, workload=Workload(pending={"fits": 1}, unassigned=("a/b",))))
    assert [one.level for one in view.findings] == [Level.DEGRADED, Level.UNKNOWN, Level.NOTE]


def test_a_leader_that_runs_elsewhere_is_believed() -> None:
    """One outside of the cluster has no pod whose address could be compared."""
    assert view_status(installation(lease=lease(holder="a-host_0b6f"))).findings == ()


def test_one_that_runs_elsewhere_needs_no_deployment_where_a_person_says_that_it_answers() -> None:
    away: dict[str, Any] = {"central": None, "replicas": {}, "lease": None, "endpoints": None, "system_pods": []}
    (found,) = view_status(installation(**away)).findings
    assert (found.check, found.level) == ("central-deployed", Level.DEGRADED)
    named = NamedCentral(url="http://c:8080")
    assert view_status(installation(**away, named=named)).findings == ()
    leads = away | {"lease": lease(holder="a-host_0b6f")}  # kube-scheduler may know its address without the Service
    assert view_status(installation(**leads, named=named)).findings == ()


@pytest.mark.parametrize("changes", [{"central": None}, {"replicas": {}}, {}])
def test_the_logs_of_all_replicas_are_looked_at_however_they_were_made(changes: dict[str, Any]) -> None:
    found = view_status(installation(lease=None, **changes)).findings
    (mend,) = [one.mend for one in found if one.check == "central-leads"]
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


@pytest.mark.parametrize(("seconds", "words"), [(-3, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (400_000, "4d")])
def test_ages(seconds: float, words: str) -> None:
    assert age_in_words(seconds) == words


def test_the_image_of_central_is_named_by_its_tag() -> None:
    for image, tag in [("a:5000/central:0.2.0", "0.2.0"), ("a:5000/central", ""), ("central:1@sha256:ab", ""), ("", "")]:
        assert deployment(CENTRAL, image).tag == tag
    assert installation(replicas={}, central=deployment(CENTRAL, "central:0.2.0")).central_version == "0.2.0"
