"""Run `kubectl lading status`, `preflight` and `sysdump` on a real API server with `deploy/` installed, with the rights of
deploy/rbac only. No daemon runs: the commands report that, and find nothing unreadable."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from kubectl_lading.installation.preflight import PreflightView
from kubectl_lading.installation.status_view import StatusView
from kubectl_lading.main import main
from lading.checks.model import Verdict
from lading.nodedevices import GROUP, KIND, VERSION
from simnode.control_plane import ControlPlane
from simnode.patience import wait_until

SYSTEM = "lading-system"


def sign_in(plane: ControlPlane, account: str, *roles: str) -> Path:
    """Create a user with these roles: each is a role of the cluster and of Lading's namespace."""
    made = [plane.kubectl("create", "serviceaccount", account, "-n", "default")]
    for role in roles:
        who = f"--serviceaccount=default:{account}"
        made.append(plane.kubectl("create", "clusterrolebinding", f"{account}-{role}", f"--clusterrole={role}", who))
        made.append(plane.kubectl("create", "rolebinding", f"{account}-{role}", "-n", SYSTEM, f"--role={role}", who))
    assert all(done.returncode == 0 for done in made), [done.stderr for done in made]
    return plane.sign_in_account(account, "default", account)


def run(config: Path, *text: str) -> Result:
    return CliRunner().invoke(main, text, env={"KUBECONFIG": str(config)})


@pytest.fixture(scope="module")
def reader(deployed: ControlPlane) -> Path:
    return sign_in(deployed, "looker", "lading-reader")


def test_status_may_read_all_that_it_checks(reader: Path) -> None:
    done = run(reader, "status", "-o", "json")
    assert done.exit_code == 1, done.output
    view = msgspec.json.decode(done.stdout, type=StatusView)
    assert [one.what for one in view.findings if one.verdict is Verdict.UNKNOWN] == []
    missing = {"central-deployed", "central-leads", "scheduler-deployed", "nodes-report"}
    assert {one.check for one in view.findings if one.verdict is Verdict.DEGRADED} >= missing  # beside what other tests left


def test_preflight_knows_the_resource_as_it_is_served(reader: Path) -> None:
    done = run(reader, "preflight", "-o", "json")
    view = msgspec.json.decode(done.stdout, type=PreflightView)
    assert [one.what for one in view.findings if one.check == "resource-current"] == []
    assert ("API server", "full") in {(one.part, one.goes) for one in view.versions}


def test_a_report_that_changes_nothing_leaves_no_trace(deployed: ControlPlane, reader: Path) -> None:
    """Check that the age of a report says nothing by itself, for which reason `kubectl_lading.installation.node_checks` does
    not judge it alone."""
    node = "quiet-1"
    deployed.api.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    api = deployed.api_of(f"system:node:{node}", group="system:nodes")
    path = f"/apis/{GROUP}/{VERSION}/nodedevices"
    identity = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": node}}
    api.call("POST", path, identity)
    report = {**identity, "status": {"reporter": "0.1.0", "reconciled": True}}
    applied = f"{path}/{node}/status?fieldManager=lading-hooks&force=true"

    def changed_at() -> str:
        api.call("PATCH", applied, report, content_type="application/apply-patch+yaml")
        view = msgspec.json.decode(run(reader, "status", "-o", "json").stdout, type=StatusView)
        return next(one.changed_at for one in view.nodes if one.name == node)

    first = changed_at()
    wait_until(lambda: datetime.now(UTC) >= datetime.fromisoformat(first) + timedelta(seconds=1), "the next whole second")
    assert first == changed_at() != ""
    report["status"] = {"reporter": "0.1.0"}
    assert first < changed_at()
    deployed.api.call("DELETE", f"{path}/{node}")
    deployed.api.call("DELETE", f"/api/v1/nodes/{node}")


def test_without_rights_it_cannot_tell(deployed: ControlPlane) -> None:
    config = sign_in(deployed, "nobody")
    done = run(config, "status")
    assert (done.exit_code, done.stdout) == (3, "")


def test_a_sysdump_may_read_all_that_it_wants(deployed: ControlPlane, tmp_path: Path) -> None:
    config = sign_in(deployed, "maintainer", "lading-reader", "lading-sysdump")
    done = run(config, "sysdump", "-o", str(tmp_path / "dump"))
    assert done.exit_code == 0, done.output
    readme = (tmp_path / "dump/README.md").read_text()
    failures = readme.split("## What could not be read")[1].strip().splitlines()
    assert [line.split(":")[0] for line in failures] == ["- central/cluster.json"]  # no one leads
    for name, kinds in (("deployments", 2), ("clusterroles", 5), ("policies", 5), ("crd", 1)):
        result = json.loads((tmp_path / f"dump/objects/{name}.json").read_text())["items"]
        assert len(result) >= kinds, name
