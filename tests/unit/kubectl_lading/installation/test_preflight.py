"""Test what is in the way of an upgrade."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubectl_lading.installation.control_checks import SCHEDULER
from kubectl_lading.installation.installation import Installation, Replica
from kubectl_lading.installation.preflight import PreflightView, view_preflight
from kubectl_lading.installation.upgrade_checks import CHECKS
from kubectl_lading.objects import Unread
from lading.checks.model import Verdict
from lading.nodedevices import Status
from lading.versions import Support
from lading.vocabulary import CENTRAL
from tests.fakes.installed_cluster import LEADER, STANDBY, InstalledCluster, served_installation
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import NOW
from tests.unit.kubectl_lading.installation.installations import crd, deployment, installation, node, report

FIELDS = {field.encode_name: {"type": "string"} for field in msgspec.structs.fields(Status)}
OLDER_CRD = crd(fields={name: kind for name, kind in FIELDS.items() if name != "reconciled"})
REPLICAS = {LEADER: Replica(version="0.1.0", leads=True, bindings_open=0), STANDBY: Replica(version="0.1.0")}


def current(**changes: Any) -> Installation:
    return installation(**({"crd": crd(fields=FIELDS)} | changes))


def test_nothing_is_in_the_way() -> None:
    view = view_preflight(current(), "0.1.0")
    assert (view.state, view.findings) == (Verdict.OK, ())
    assert {(one.part, one.version, one.count, one.goes) for one in view.versions} == {
        ("central", "0.1.0", 2, Support.FULL),
        ("node image", "0.1.0", 4, Support.FULL),
        ("hooks", "0.1.0", 2, Support.FULL),
        ("kubectl-lading", "0.1.0", 1, Support.FULL),
        ("API server", "v1.36.2", 1, Support.FULL),
        ("kube-scheduler", "v1.36.2", 2, Support.FULL),
        ("kubelet", "v1.36.2", 2, Support.FULL),
        ("container runtime", "containerd://1.7.28", 2, Support.FULL),
    }


IN_THE_WAY: list[tuple[str, dict[str, Any], str, str]] = [
    ("parts-in-step", {"reports": {"n1": report(reporter="0.3.0")}}, "0.2.0", "0.3.0"),
    ("steps-allowed", {}, "0.3.0", "0.1.0"),
    ("this-command", {"cli": "0.3.0"}, "0.1.0", "0.3.0"),
    ("resource-current", {"crd": OLDER_CRD}, "0.1.0", "reconciled"),
    ("kubelets", {"nodes": {"n1": node(kubelet="v1.37.0")}}, "0.1.0", "v1.37.0"),
    ("runtimes", {"nodes": {"n1": node(runtime="containerd://1.5.2")}}, "0.1.0", "n1"),
    ("disks", {"nodes": {"n1": node(DiskPressure="True")}}, "0.1.0", "n1"),
    (
        "vfs-back",
        {"reports": {"n1": report(pfs=[{"bdf": "0000:18:00.0", "vfs": [{"bdf": "0000:18:00.2", "unhealthy": "stuck"}]}])}},
        "0.1.0",
        "0000:18:00.2",
    ),
    ("nodes-reconciled", {"reports": {"n1": report(reconciled=False)}}, "0.1.0", "n1"),
    ("central-deployed", {"central": deployment(CENTRAL, "central:0.1.0", updatedReplicas=1)}, "0.1.0", "rollout"),
    ("central-leads", {"lease": None}, "0.1.0", "Lease"),
]


@pytest.mark.parametrize(("check", "changes", "target", "named"), IN_THE_WAY)
def test_a_check_that_is_in_the_way_of_an_upgrade_is_degraded(
    check: str, changes: dict[str, Any], target: str, named: str
) -> None:
    view = view_preflight(current(**changes), target)
    result = [one for one in view.findings if one.check == check and one.verdict is Verdict.DEGRADED and named in one.what]
    assert result, [(one.check, one.what) for one in view.findings]
    assert all(one.mend for one in result)
    assert view.state is Verdict.DEGRADED


@pytest.mark.parametrize(
    ("check", "changes", "target"),
    [
        ("steps-allowed", {"cli": "0.0.9"}, "0.0.9"),
        ("replicas-spare", {"central": deployment(CENTRAL, "central:0.1.0", ready=1, wanted=1)}, "0.1.0"),
        ("bindings-settled", {"replicas": REPLICAS | {LEADER: Replica(version="0.1.0", leads=True, bindings_open=2)}}, "0.1.0"),
        ("bindings-settled", {"replicas": {LEADER: Unread(why="503")}}, "0.1.0"),
        ("runtimes", {"nodes": {"n1": node(runtime="cri-o://1.34.0")}}, "0.1.0"),
        ("runtimes", {"nodes": {"n1": node(runtime="containerd://1.6.20")}}, "0.1.0"),
    ],
)
def test_a_check_that_is_only_worth_knowing_is_a_note(check: str, changes: dict[str, Any], target: str) -> None:
    view = view_preflight(current(**changes), target)
    assert {(one.check, one.verdict) for one in view.findings} == {(check, Verdict.NOTE)}


def test_a_version_that_cannot_be_compared_is_unknown() -> None:
    view = view_preflight(current(reports={"n1": report(reporter="dev")}), "0.1.0")
    assert ("steps-allowed", Verdict.UNKNOWN) in [(one.check, one.verdict) for one in view.findings]


def test_a_step_that_is_too_long_names_the_one_before() -> None:
    (result,) = {one.mend for one in view_preflight(current(cli="0.3.0"), "0.3.0").findings if one.check == "steps-allowed"}
    assert "0.2.0" in result


def test_a_stored_version_of_the_resource_that_is_not_served_is_in_the_way() -> None:
    result = msgspec.structs.replace(crd(fields=FIELDS), status=msgspec.structs.replace(crd().status, stored_versions=("v0",)))
    assert [one.check for one in view_preflight(current(crd=result), "0.1.0").findings] == ["resource-current"]


def test_pods_that_only_wait_or_run_badly_are_not_in_the_way() -> None:
    assert not {"pods-waiting", "pods-assigned", "devices-healthy", "nodes-problems"} & {check.name for check in CHECKS}
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert "scheduler-version" in {check.name for check in CHECKS}, SCHEDULER


# ---- as a command


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr("time.time", lambda: NOW)
    with served_installation(InstalledCluster(), tmp_path) as cli:
        yield cli


def test_the_installed_cluster(cli: Cli) -> None:
    """Check a cluster whose CustomResourceDefinition is that of deploy/, with every reported field."""
    done = cli.run("preflight", "-o", "json")
    view = msgspec.json.decode(done.stdout, type=PreflightView)
    assert (done.exit_code, view.target) == (1, "0.1.0")
    assert [one.check for one in view.findings] == ["nodes-reachable"]


def test_an_invalid_target_version_is_a_usage_error(cli: Cli) -> None:
    assert cli.run("preflight", "--to", "newest").exit_code == 2


def test_a_cluster_that_cannot_be_read(tmp_path: Path) -> None:
    cluster = InstalledCluster()
    cluster.pages["/version"] = 401
    with served_installation(cluster, tmp_path) as cli:
        assert cli.run("preflight").exit_code == 3
