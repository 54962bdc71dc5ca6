"""Test `kubectl lading install` with a small API server: what is created, kept, refused and removed."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from kubectl_lading.install.apply import find_differences, find_lack
from kubectl_lading.install.manifests import find_deploy, render
from lading.errors import HostError
from simnode.api_store import Store
from tests.fakes.kube_server import FakeKubeServer
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import SmallCluster

SIGNING = "/api/v1/namespaces/lading-system/secrets/lading-central-signing"
PUBLIC = "/api/v1/namespaces/lading-nodes/configmaps/lading-public-keys"
TLS = "/api/v1/namespaces/lading-system/secrets/lading-central-tls"
CENTRAL = "/apis/apps/v1/namespaces/lading-system/deployments/lading-central"
NODE = "/apis/apps/v1/namespaces/lading-nodes/daemonsets/lading-node"
CERT_MANAGER = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/certificates.cert-manager.io"
REMOVER = "/api/v1/namespaces/lading-nodes/pods/lading-remove-x"


class Empty(SmallCluster):
    """Represent a cluster with one node and no report."""

    def fill(self, store: Store) -> None:
        store.load("/api/v1/nodes/n1", {"metadata": {"name": "n1", "labels": {"lading.dev/front-end": "nri"}}})


@pytest.fixture
def cluster() -> SmallCluster:
    return Empty()


def run(cli: Cli, *text: str) -> dict[tuple[str, str], str]:
    """Return what was done, by kind and name."""
    done = cli.run("install", "-o", "json", *text)
    assert done.exit_code == 0, done.output
    return {(one["kind"], one["name"]): one["what"] for one in json.loads(done.stdout)}


def test_a_second_install_changes_nothing(cli: Cli, server: FakeKubeServer) -> None:
    done = run(cli)
    assert set(done.values()) == {"created"}
    assert {(one["kind"], one["metadata"]["name"]) for one in render(find_deploy())} < done.keys()
    keys = server.objects[SIGNING], server.objects[TLS]
    again = run(cli)
    assert set(again.values()) == {"unchanged"}
    assert (server.objects[SIGNING], server.objects[TLS]) == keys


def test_the_nodes_get_the_public_key_of_the_private_one(cli: Cli, server: FakeKubeServer) -> None:
    run(cli)
    private = load_pem_private_key(b64decode(server.objects[SIGNING]["data"]["private.pem"]), password=None)
    (written,) = server.objects[PUBLIC]["data"].items()
    assert written[0] == "central-1.pub.pem"
    assert load_pem_public_key(written[1].encode()) == private.public_key()
    del server.objects[PUBLIC]
    run(cli)
    assert server.objects[PUBLIC]["data"] == dict([written])


def test_certificates_are_cert_managers_where_it_is(cli: Cli, server: FakeKubeServer) -> None:
    server.objects[CERT_MANAGER] = {"metadata": {"name": "certificates.cert-manager.io"}}
    done = run(cli, "--dry-run")
    assert done["Certificate", "lading-central"] == "created"
    assert ("Secret", "lading-central-tls") not in done


def test_a_dry_run_says_what_would_be_and_changes_nothing(cli: Cli, server: FakeKubeServer) -> None:
    before = dict(server.objects)
    assert run(cli, "--dry-run")["DaemonSet", "lading-node"] == "created"
    assert dict(server.objects) == before
    run(cli)
    assert run(cli, "--dry-run", "--image", "lading-node=x.test/y")["DaemonSet", "lading-node"] == "changed"


def test_an_image_has_the_tag_of_the_release_unless_another_is_named(cli: Cli, server: FakeKubeServer) -> None:
    run(cli, "--image", "lading-node=registry.test:5000/lading-node", "--image", "kube-scheduler=registry.test/s:v1.35.0")
    containers = server.objects[NODE]["spec"]["template"]["spec"]["containers"]
    assert {one["image"] for one in containers} == {"registry.test:5000/lading-node:0.1.0"}
    done = cli.run("install", "--image", "lading-nod=x")
    assert done.exit_code == 2
    assert "lading-nod" in done.output
    assert "lading-node" in done.output
    assert cli.run("install", "--image", "lading-node").exit_code == 2


def test_a_second_install_keeps_the_images_of_the_first(cli: Cli, server: FakeKubeServer) -> None:
    run(cli, "--image", "lading-node=registry.test/n", "--image", "kube-scheduler=registry.test/s:v1.35.0")
    assert set(run(cli).values()) == {"unchanged"}
    run(cli, "--image", "lading-node=other.test/n")
    containers = server.objects[NODE]["spec"]["template"]["spec"]["containers"]
    assert {one["image"] for one in containers} == {"other.test/n:0.1.0"}
    scheduler = server.objects["/apis/apps/v1/namespaces/lading-system/deployments/lading-scheduler"]
    assert [one["image"] for one in scheduler["spec"]["template"]["spec"]["containers"]] == ["registry.test/s:v1.35.0"]


def test_the_table_of_a_dry_run_names_what_would_change_and_no_more(cli: Cli) -> None:
    empty = cli.run("install", "--dry-run").stdout.splitlines()
    assert all(line.endswith("  would be created") for line in empty[1:-1])
    assert "would be created" in empty[-1]
    run(cli)
    head, *changed, summary = cli.run("install", "--dry-run", "--image", "lading-central=x.test/y").stdout.splitlines()
    assert head.split()[-1] == "FIELDS"
    assert [line.split()[2] for line in changed] == ["lading-central"]
    assert "spec.template.spec.containers.image" in changed[0]
    assert "1 would be changed" in summary


def test_the_next_step_after_an_installation_is_a_label(cli: Cli, server: FakeKubeServer) -> None:
    assert "kubectl label node" not in cli.run("install").stdout
    server.store.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}})
    assert "kubectl label node NODE lading.dev/front-end=nri" in cli.run("install").stdout.splitlines()[-1]


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--uninstall",)])
def test_objects_of_a_helm_release_are_left_to_helm(cli: Cli, server: FakeKubeServer, words: tuple[str, ...]) -> None:
    run(cli)
    annotations = {"meta.helm.sh/release-name": "gpus", "meta.helm.sh/release-namespace": "infra"}
    node = server.objects[NODE]
    node["metadata"]["annotations"] = annotations
    server.objects[NODE] = node
    before = dict(server.objects)
    done = cli.run("install", *words)
    assert (done.exit_code, dict(server.objects)) == (1, before)
    assert "release infra/gpus" in done.stderr
    assert f"helm {'uninstall' if '--uninstall' in words else 'upgrade'} gpus -n infra" in done.stderr
    assert cli.run("install", "--dry-run", "--force").exit_code == 0


def test_wait_says_what_is_not_ready_and_fails_at_the_timeout(cli: Cli) -> None:
    done = cli.run("install", "--wait", "--timeout", "0s")
    assert done.exit_code == 1
    assert "lading-central: 0 of 2 pods are ready" in done.stderr


def deployment(ready: int, updated: int, *, observed: int = 1) -> Any:
    status = {"observedGeneration": observed, "readyReplicas": ready, "updatedReplicas": updated}
    return {"kind": "Deployment", "metadata": {"generation": 1}, "spec": {"replicas": 2}, "status": status}


def daemonset(wanted: int, updated: int, ready: int) -> Any:
    status = {"desiredNumberScheduled": wanted, "updatedNumberScheduled": updated, "numberReady": ready}
    return {"kind": "DaemonSet", "metadata": {}, "spec": {}, "status": status}


@pytest.mark.parametrize(
    ("live", "lack"),
    [
        (None, "not there"),
        (deployment(2, 2, observed=0), "not seen"),
        (deployment(2, 1), "1 of 2"),
        (deployment(2, 2), ""),
        (daemonset(3, 3, 2), "2 of 3"),
        (daemonset(0, 0, 0), ""),
    ],
)
def test_a_workload_is_ready_when_all_its_pods_are_updated_and_ready(live: Any, lack: str) -> None:
    result = find_lack(live)
    assert lack in result
    assert bool(result) == bool(lack)


def remover(status: Any, name: str = "lading-remove") -> Any:
    labels = {"app.kubernetes.io/name": name}
    return {"metadata": {"name": "lading-remove-x", "labels": labels}, "spec": {"nodeName": "n1"}, "status": status}


@pytest.mark.parametrize(("front_end", "removes"), [("nri", "lading-remove"), ("proxy", "lading-proxy-remove")])
def test_uninstall_cleans_the_nodes_and_deletes_all(cli: Cli, server: FakeKubeServer, front_end: str, removes: str) -> None:
    run(cli)
    server.store.put("/api/v1/nodes/n1", {"metadata": {"name": "n1", "labels": {"lading.dev/front-end": front_end}}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    server.objects[REMOVER] = remover(ready, removes)
    assert run(cli, "--uninstall", "--dry-run")["DaemonSet", "lading-node"] == "deleted"
    assert NODE in server.objects
    done = run(cli, "--uninstall")
    assert set(done.values()) == {"deleted"}
    assert NODE not in server.objects
    assert CENTRAL not in server.objects
    assert "lading.dev/front-end" not in server.objects["/api/v1/nodes/n1"]["metadata"]["labels"]
    assert set(run(cli, "--uninstall").values()) == {"absent"}


def test_a_node_that_cannot_be_cleaned_goes_on_as_before(cli: Cli, server: FakeKubeServer) -> None:
    run(cli)
    reason = {"initContainerStatuses": [{"lastState": {"terminated": {"message": "error: team/holder has a card"}}}]}
    server.objects[REMOVER] = remover(reason)
    done = cli.run("install", "--uninstall", "--timeout", "0s")
    assert done.exit_code == 1
    assert "n1: error: team/holder has a card" in done.output
    assert NODE in server.objects
    assert server.objects["/api/v1/nodes/n1"]["metadata"]["labels"]["lading.dev/front-end"] == "nri"
    forced = cli.run("install", "--uninstall", "--timeout", "0s", "--force")
    assert forced.exit_code == 1
    assert "stays on n1" in forced.stderr
    assert NODE not in server.objects


def test_fields_that_the_api_server_added_are_no_change() -> None:
    assert [*find_differences({"a": [{"b": 1}]}, {"a": [{"b": 1, "default": 2}], "status": {}})] == []
    assert [*find_differences({"a": [{"b": 1}]}, {"a": [{"b": 1}, {"b": 2}]})] == ["a"]
    assert [*find_differences({"a": 1, "b": {"c": [{"d": 1}]}}, {"b": {"c": [{"d": 2}]}})] == ["a", "b.c.d"]


def test_a_field_of_a_kustomization_without_a_meaning_here_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []\nnamePrefix: x-\n")
    with pytest.raises(HostError, match="namePrefix"):
        render(tmp_path)


class TestWithPods:
    """Test a cluster in which pods hold devices."""

    @pytest.fixture
    def cluster(self) -> SmallCluster:
        return SmallCluster()

    def test_uninstall_is_refused_while_pods_hold_devices(self, cli: Cli, server: FakeKubeServer) -> None:
        before = dict(server.objects)
        done = cli.run("install", "--uninstall")
        assert done.exit_code == 1
        assert "these pods hold devices: " in done.stderr
        assert "h100-1" in done.stderr
        assert dict(server.objects) == before
