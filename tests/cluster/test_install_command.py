"""Run `kubectl lading install` on a real API server: it creates the objects that `kubectl apply` creates, leaves them unchanged
in a second run, and removes them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kubectl_lading.main import main
from simnode.control_plane import ControlPlane
from tests.cluster.conftest import DEPLOY

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodedevices.devices.lading.dev"


@pytest.fixture(scope="module")
def empty(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("install"), assets=assets) as plane:
        yield plane


def run(plane: ControlPlane, *text: str) -> Result:
    return CliRunner().invoke(main, ("install", "-o", "json", *text), env={"KUBECONFIG": str(plane.admin_conf)})


def whats(done: Result) -> set[str]:
    assert done.exit_code == 0, done.output
    return {one["what"] for one in json.loads(done.stdout)}


def test_install_creates_what_kubectl_would_apply_and_a_second_run_changes_nothing(empty: ControlPlane) -> None:
    assert whats(run(empty, "--dry-run")) == {"created"}
    assert not empty.api.has(CRD)
    assert whats(run(empty)) == {"created"}
    assert whats(run(empty, "--dry-run")) == {"unchanged"}
    version = empty.api.call("GET", CRD)["metadata"]["resourceVersion"]
    assert whats(run(empty)) == {"unchanged"}
    assert empty.api.call("GET", CRD)["metadata"]["resourceVersion"] == version
    applied = empty.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(DEPLOY))
    assert applied.returncode == 0, applied.stderr
    assert whats(run(empty, "--dry-run")) == {"unchanged"}


def test_labels_and_as_are_the_api_servers_own(empty: ControlPlane) -> None:
    def ask(*text: str) -> Result:
        return CliRunner().invoke(main, text, env={"KUBECONFIG": str(empty.admin_conf)})

    labelled = ask("pods", "-A", "-l", "app in (a, b),!c")
    assert (labelled.exit_code, "kubectl label node NODE" in labelled.stdout) == (0, True), labelled.output
    assert ask("pods", "-l", "app in (").exit_code == 1
    refused = ask("nodes", "--as", "jane")
    assert (refused.exit_code, "lading-reader" in refused.stderr) == (1, True), refused.output


def test_a_field_of_another_client_is_overwritten_by_force_only(empty: ControlPlane) -> None:
    scaled = empty.kubectl("scale", "-n", "lading-system", "deployment/lading-central", "--replicas=3")
    assert scaled.returncode == 0, scaled.stderr
    refused = run(empty)
    assert refused.exit_code == 1
    assert "conflict" in refused.stderr
    assert whats(run(empty, "--force")) == {"unchanged", "changed"}
    assert whats(run(empty)) == {"unchanged"}


def test_uninstall_removes_every_object(empty: ControlPlane) -> None:
    assert whats(run(empty, "--uninstall")) == {"deleted"}
    empty.eventually(lambda: not empty.api.has(CRD), "the end of the definition of NodeDevices")
    assert not empty.api.has("/apis/apps/v1/namespaces/lading-nodes/daemonsets/lading-node")
