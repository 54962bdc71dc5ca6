"""The Helm chart, by Helm itself: with its default values it makes the objects of deploy/, and a wrong value is refused."""

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.chart.build import CHECKSUM, FIRST_DATE, build
from hooks.forms.annotations import prefixes
from kubectl_lading.install.manifests import find_deploy, pod_spec, render
from lading import __version__
from tests.install.helm import run_helm

Objects = dict[tuple[str, str, str], Any]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("chart"), date=FIRST_DATE)


def rendered(chart: Path, *text: str) -> Objects:
    done = run_helm("template", "lading", chart, *text)
    assert done.returncode == 0, done.stderr
    return by_identity(yaml.safe_load_all(done.stdout))


def by_identity(objects: Any) -> Objects:
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects if one}


def refused(chart: Path, *text: str) -> str:
    done = run_helm("template", "lading", chart, *text)
    assert done.returncode != 0
    return done.stderr


def test_by_default_it_makes_the_objects_of_deploy(chart: Path) -> None:
    made = rendered(chart)
    for (kind, _, _), one in made.items():
        if spec := pod_spec(one):
            assert len(one["spec"]["template"]["metadata"].pop("annotations").pop(CHECKSUM)) == 64
            assert spec.pop("imagePullSecrets") == []
        if kind == "CustomResourceDefinition":
            assert one["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
            if not one["metadata"]["annotations"]:
                del one["metadata"]["annotations"]
    wanted = by_identity(render(find_deploy(), suffixes=False))
    assert made.keys() == wanted.keys()
    for identity, one in wanted.items():
        assert made[identity] == one, identity


def test_no_guard_refuses_its_pods(chart: Path) -> None:
    """A guarded pod of lading-hooks would not start without lading-hooks."""
    templates = [one["spec"]["template"] for one in rendered(chart).values() if pod_spec(one)]
    keys = {key for one in templates for key in one["metadata"]["annotations"]}
    assert keys
    assert not any(key.startswith(prefixes()) for key in keys)


def test_helm_finds_no_fault_in_it(chart: Path) -> None:
    done = run_helm("lint", "--strict", chart)
    assert done.returncode == 0, done.stdout + done.stderr


def test_values_go_where_they_are_reported_to(chart: Path, tmp_path: Path) -> None:
    values: Mapping[str, Any] = {
        "images": {"node": {"repository": "registry.test/lading-node", "tag": "9"}},
        "imagePullSecrets": [{"name": "pull"}],
        "central": {"replicas": 1, "config": 'listen = "x{{ y }}"\n'},
        "certManager": {"enabled": True},
        "node": {
            "maxUnavailable": "10%",
            "hooks": "a = 1\n",
            "folders": {"containerd": "/run/k3s/containerd"},
            "publicKeys": {"central-1.pub.pem": "-----BEGIN PUBLIC KEY-----\nx\n"},
        },
    }
    (tmp_path / "values.json").write_text(json.dumps(values))
    made = rendered(chart, "--values", str(tmp_path / "values.json"))
    node = made["DaemonSet", "lading-nodes", "lading-node"]
    spec = pod_spec(node)
    assert {one["image"] for one in (*spec["initContainers"], *spec["containers"])} == {"registry.test/lading-node:9"}
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert node["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    assert (paths["containerd"], paths["nri"]) == ("/run/k3s/containerd", "/var/run/nri")
    removing = {volume["name"]: volume for volume in pod_spec(made["DaemonSet", "lading-nodes", "lading-remove"])["volumes"]}
    assert removing["containerd"]["hostPath"]["path"] == "/run/k3s/containerd"
    assert made["ConfigMap", "lading-nodes", "lading-node-config"]["data"]["hooks.toml"] == "a = 1\n"
    assert made["ConfigMap", "lading-system", "lading-central-config"]["data"]["central.toml"] == 'listen = "x{{ y }}"\n'
    assert made["ConfigMap", "lading-nodes", "lading-public-keys"]["data"] == values["node"]["publicKeys"]
    assert made["Deployment", "lading-system", "lading-central"]["spec"]["replicas"] == 1
    assert ("Certificate", "lading-system", "lading-central") in made
    default = rendered(chart)["DaemonSet", "lading-nodes", "lading-node"]
    checksums = [one["spec"]["template"]["metadata"]["annotations"][CHECKSUM] for one in (node, default)]
    assert checksums[0] != checksums[1]


@pytest.mark.parametrize(
    ("switch", "kind", "name"),
    [
        ("namespaces.create", "Namespace", "lading-system"),
        ("central.enabled", "Deployment", "lading-scheduler"),
        ("admission.enabled", "ValidatingAdmissionPolicy", "lading-manual"),
        ("node.enabled", "DaemonSet", "lading-guard"),
    ],
)
def test_a_part_can_be_left_out(chart: Path, switch: str, kind: str, name: str) -> None:
    made = {(one, theirs) for one, _, theirs in rendered(chart, "--set", f"{switch}=false")}
    assert (kind, name) not in made
    assert ("CustomResourceDefinition", "nodedevices.devices.lading.dev") in made


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("central.replicas=none", "replicas"),
        ("central.replica=2", "replica"),
        ("images.node.tag=latest", "tag"),
        ("node.folders.nri=run/nri", "nri"),
        ("node.publicKeys.x\\.pem=y", "x.pem"),
        ("node.maxUnavailable=0", "maxUnavailable"),
    ],
)
def test_a_value_that_has_no_meaning_is_refused_by_its_name(chart: Path, value: str, named: str) -> None:
    assert named in refused(chart, "--set", value)


def test_each_value_is_in_the_schema_and_explained(chart: Path) -> None:
    with tarfile.open(chart) as files:
        values, schema = (files.extractfile(f"lading/{name}") for name in ("values.yaml", "values.schema.json"))
        assert values
        assert schema
        text, known = yaml.safe_load(values), json.load(schema)["properties"]
    assert text.keys() == known.keys() - {"global"}


def test_the_same_files_give_the_same_bytes(chart: Path, tmp_path: Path) -> None:
    assert chart.name == f"lading-{__version__}.tgz"
    assert build(tmp_path, date=FIRST_DATE).read_bytes() == chart.read_bytes()
