"""Test the Helm chart on a real API server, and the manifests as kustomize renders them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart.build import FIRST_DATE, build
from kubectl_lading.install.manifests import render
from simnode.control_plane import ControlPlane
from tests.cluster.conftest import DEPLOY
from tests.install.helm import run_helm

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodedevices.devices.lading.dev"
NODE = "/apis/apps/v1/namespaces/lading-nodes/daemonsets/lading-node"


@pytest.fixture(scope="module")
def empty(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("chart"), assets=assets) as plane:
        yield plane


@pytest.mark.parametrize("folder", ["", "admission", "central", "crds", "node", "rbac", "scheduler", "cert-manager"])
def test_manifests_are_rendered_as_by_kustomize(folder: str, empty: ControlPlane) -> None:
    done = empty.kubectl("kustomize", str(DEPLOY / folder))
    assert done.returncode == 0, done.stderr
    assert by_name(render(DEPLOY / folder)) == by_name(yaml.safe_load_all(done.stdout))


def by_name(objects: Any) -> Any:
    return {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in objects}


def test_the_chart_is_installed_upgraded_and_removed(empty: ControlPlane, tmp_path: Path) -> None:
    chart = build(tmp_path, date=FIRST_DATE)
    access = ("--kubeconfig", str(empty.admin_conf), "--namespace", "default")
    empty.create_namespace("default")
    for text in (("install", "lading", chart), ("upgrade", "lading", chart, "--set", "node.maxUnavailable=3")):
        done = run_helm(*text, *access)
        assert done.returncode == 0, done.stderr
    assert empty.api.call("GET", NODE)["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 3
    done = run_helm("uninstall", "lading", *access)
    assert done.returncode == 0, done.stderr
    assert not empty.api.has(NODE)
    assert empty.api.has(CRD)
