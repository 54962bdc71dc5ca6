"""Test `kubectl lading sysdump`: what it has, what none of its files has, and who can read them."""

import json
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_lading.dump.shapes import SECTIONS, concerns_us
from kubectl_lading.dump.sysdump import LARGE_BYTES
from kubectl_lading.installation.control_checks import POLICIES
from kubectl_lading.installation.read_installation import CONFIG_MAPS, DEPLOYMENTS
from lading.kube.resource import EVENTS, NODE_DEVICES, NODES, PODS
from lading.vocabulary import ASSIGNMENT_SIGNATURE, CENTRAL
from simnode.api_server import write_kubeconfig
from tests.docs import ROOT
from tests.fakes.installed_cluster import LEADER, NAMESPACE, STANDBY, InstalledCluster, served_installation
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import NOW, uid_of

CANARY = "c4n4ry-hunter2"
CENTRAL_API = f"/api/v1/namespaces/{NAMESPACE}/pods/http:{LEADER}:8081/proxy"


def hide(cluster: InstalledCluster) -> None:
    """Hide the canary where people and programs put secrets."""
    spec = {
        "env": [{"name": "TOKEN", "value": CANARY}],
        "command": ["sh", "-c", CANARY],
        "args": [f"--password={CANARY}", "--token", CANARY],
    }
    for path, one in cluster.objects.items():
        annotations = one["metadata"].setdefault("annotations", {})
        annotations["kubectl.kubernetes.io/last-applied-configuration"] = f'{{"password":"{CANARY}"}}'
        annotations["vault.example/secret"] = CANARY
        one["metadata"]["managedFields"] = [{"manager": "kubectl", "time": "t", "fieldsV1": {"f:x": CANARY}}]
        if "/pods/" in path:
            for container in one["spec"]["containers"]:
                container.update(spec)
            one["spec"]["volumes"] = [{"name": "v", "nfs": {"server": CANARY, "path": f"//u:{CANARY}@x"}}]
            one["status"]["message"] = CANARY
        if "/nodes/" in path:
            one["spec"] = {"providerID": CANARY}
    signing = cluster.objects[DEPLOYMENTS.path(NAMESPACE, CENTRAL)]["spec"]["template"]["spec"]
    signing["containers"][0] |= spec
    config = cluster.objects[CONFIG_MAPS.path(NAMESPACE, f"{CENTRAL}-config-7f6g")]
    config["data"] |= {"private.pem": CANARY, "proxy.txt": f"https://u:{CANARY}@proxy:3128"}
    config["data"]["central.toml"] += f'\nwebhook_token = "{CANARY}"\n'
    cluster.objects["/api/v1/namespaces/lading-system/secrets/lading-central-signing"] = {
        "metadata": {"name": "lading-central-signing"},
        "data": {"private.pem": CANARY},
    }
    cluster.say("train-0", "Failed", f'exec: "{CANARY}": not found', source="kubelet")
    cluster.say("train-0", "Evicted", f"Authorization: Bearer {CANARY}", source="lading-central")
    report = cluster.objects[NODE_DEVICES.path(name="h100-1")]["status"]
    report["problems"] = [f"cannot get https://u:{CANARY}@host/x"]
    log = f"GET https://u:{CANARY}@api/x token={CANARY}\n-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"
    for pod in (LEADER, STANDBY):
        for page in (cluster.log_of(pod), cluster.log_of(pod) + "?previous"):
            cluster.pages[page] = b"event=daemon.started\n" + log.encode()
        cluster.objects[PODS.path(NAMESPACE, pod)]["status"]["containerStatuses"] = [{"name": "central", "restartCount": 1}]
        cluster.pages[cluster.proxied(pod, "/metrics")] += f'x{{password="{CANARY}"}} 1\n'.encode()  # type: ignore[operator]
    cluster.pages[f"{CENTRAL_API}/v1/cluster"] = json.dumps({"nodes": [{"why": f"token={CANARY}"}]}).encode()
    cluster.pages[f"{CENTRAL_API}/v1/why/team-a/next-run"] = json.dumps({"reasons": {"too-few-free-gpus": 1}}).encode()


@pytest.fixture
def cluster() -> InstalledCluster:
    cluster = InstalledCluster()
    hide(cluster)
    return cluster


@pytest.fixture
def cli(cluster: InstalledCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.chdir(tmp_path)
    with served_installation(cluster, tmp_path) as cli:
        yield cli


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def items(folder: Path, name: str) -> list[Any]:
    result: list[Any] = json.loads((folder / name).read_text())["items"]
    return result


def test_no_secret_is_in_any_file(cli: Cli, tmp_path: Path) -> None:
    done = cli.run("sysdump", "-o", "dump")
    assert done.exit_code == 0, done.output
    files = files_of(tmp_path / "dump")
    telling = [name for name, content in files.items() if CANARY.encode() in content]
    assert telling == []
    assert CANARY not in done.output
    with tarfile.open(tmp_path / "dump.tar.gz") as tar:
        packed = {member.name: file.read() for member in tar if (file := tar.extractfile(member))}
    assert packed == {f"dump/{name}": content for name, content in files.items()}


def test_a_sysdump_has_the_objects_logs_and_views_of_the_installation(
    cluster: InstalledCluster, cli: Cli, tmp_path: Path
) -> None:
    assert cli.run("sysdump", "-o", "dump").exit_code == 0
    dump = tmp_path / "dump"
    pods = {one["metadata"]["name"]: one for one in items(dump, "objects/pods.json")}
    assert {"train-0", "next-run", LEADER} <= set(pods)
    signature = cluster.pod("train-0")["metadata"]["annotations"][ASSIGNMENT_SIGNATURE]
    assert pods["train-0"]["metadata"]["annotations"][ASSIGNMENT_SIGNATURE] == signature
    assert len(items(dump, "objects/nodedevices.json")) == 6
    assert len(items(dump, "objects/policies.json")) == len(POLICIES)
    assert {one["reason"] for one in items(dump, "objects/events.json")} >= {"FailedScheduling", "Evicted", "Failed"}
    names = set(files_of(dump))
    assert {f"logs/{LEADER}/central.log", f"logs/{LEADER}/central.previous.log", f"central/{STANDBY}/metrics.txt"} <= names
    assert {"central/cluster.json", "central/why/team-a/next-run.json", "status.json", "sysdump.log"} <= names
    assert json.loads((dump / "status.json").read_text())["state"] == "degraded"


def test_the_readme_says_what_is_in_it(cli: Cli, tmp_path: Path) -> None:
    assert cli.run("sysdump", "-o", "dump").exit_code == 0
    readme = (tmp_path / "dump/README.md").read_text()
    named = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    assert named == set(files_of(tmp_path / "dump")) - {"README.md"}


def test_no_one_else_reads_it(cli: Cli, tmp_path: Path) -> None:
    assert cli.run("sysdump").exit_code == 0
    folder = tmp_path / "lading-sysdump-20261121T120000Z"
    for path in (folder, *folder.rglob("*"), tmp_path / (folder.name + ".tar.gz")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    with tarfile.open(tmp_path / (folder.name + ".tar.gz")) as tar:
        assert {(member.uid, member.uname) for member in tar.getmembers()} == {(0, "")}


def test_a_folder_that_is_there_is_not_written_to(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "dump").mkdir()
    done = cli.run("sysdump", "-o", "dump")
    assert (done.exit_code, list((tmp_path / "dump").iterdir())) == (1, [])


def test_parts_that_cannot_be_read_are_named_in_the_readme(cluster: InstalledCluster, cli: Cli, tmp_path: Path) -> None:
    cluster.pages[NODES.path()] = 403
    cluster.pages[cluster.log_of(LEADER)] = 403
    cluster.pages[f"{CENTRAL_API}/v1/cluster"] = 403
    done = cli.run("sysdump", "-o", "dump")
    assert done.exit_code == 0
    assert "lading-sysdump" in done.stderr
    dump = tmp_path / "dump"
    failures = (dump / "README.md").read_text().split("## What could not be read")[1]
    for name in ("objects/nodes.json", f"logs/{LEADER}/central.log", "central/cluster.json", "status"):
        assert f"- {name}: " in failures
    assert items(dump, "objects/nodes.json") == []
    assert len(items(dump, "objects/nodedevices.json")) == 6


def test_a_sysdump_of_an_unreachable_api_server_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = Cli(write_kubeconfig(tmp_path / "away", "http://127.0.0.1:1")).run("sysdump", "-o", "dump")
    assert done.exit_code == 1
    assert "127.0.0.1" in done.stderr
    assert not (tmp_path / "dump").exists()


def test_a_central_that_is_named_wrongly_is_a_part_that_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    url = json.loads(cli.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    assert cli.run("sysdump", "-o", "dump", "--central", url).exit_code == 0
    assert "an API server answers there" in (tmp_path / "dump" / "README.md").read_text()
    assert items(tmp_path / "dump", "objects/nodedevices.json")


def test_secrets_are_not_asked_for() -> None:
    assert "secrets" not in {section.resource.plural for section in SECTIONS}


def test_pods_with_requests_or_in_the_namespace_of_lading_are_in_the_sysdump() -> None:
    assert not concerns_us(
        {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": [{"name": "c"}]}}, NAMESPACE
    )
    asking = {"name": "c", "resources": {"limits": {"lading.dev/gpu": "1"}}}
    assert concerns_us({"metadata": {"namespace": "shop"}, "spec": {"initContainers": [asking]}}, NAMESPACE)
    assert concerns_us({"metadata": {"namespace": "shop", "annotations": {"lading.dev/gpus": "0"}}, "spec": {}}, NAMESPACE)
    assert concerns_us({"metadata": {"namespace": "shop"}, "spec": {"schedulerName": "lading"}}, NAMESPACE)
    assert concerns_us({"metadata": {"namespace": NAMESPACE}}, NAMESPACE)


def test_other_peoples_pods_and_events_stay_where_they_are(
    cluster: InstalledCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.keep(PODS.path("shop", "web"), {"metadata": {"name": "web", "namespace": "shop"}, "spec": {"containers": []}})
    about = {"kind": "Pod", "name": "web", "namespace": "shop", "uid": uid_of("web")}
    event = {"metadata": {"name": "e", "namespace": "shop"}, "involvedObject": about, "reason": "Other"}
    cluster.keep(EVENTS.path("shop", "e"), event)
    monkeypatch.chdir(tmp_path)
    with served_installation(cluster, tmp_path) as cli:
        assert cli.run("sysdump", "-o", "dump").exit_code == 0
    assert "Other" not in {one["reason"] for one in items(tmp_path / "dump", "objects/events.json")}
    assert "web" not in {one["metadata"]["name"] for one in items(tmp_path / "dump", "objects/pods.json")}


def test_the_rights_of_deploy_are_enough_and_give_no_secrets() -> None:
    texts = [(ROOT / "deploy/rbac" / name).read_text() for name in ("reader.yaml", "sysdump.yaml")]
    rules = [rule for text in texts for role in yaml.safe_load_all(text) for rule in role["rules"]]
    given = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    wanted = {(one.resource.group, one.resource.plural, "get" if one.name else "list") for one in SECTIONS}
    wanted |= {("", resource, "list") for resource in ("pods", "events")}
    wanted |= {("", resource, "get") for resource in ("pods/log", "pods/proxy")}
    assert wanted <= given
    assert "secrets" not in {resource.partition("/")[0] for _, resource, _ in given}


# ---- large clusters


@pytest.fixture
def large(cluster: InstalledCluster) -> InstalledCluster:
    """List the first node as one of many."""
    first = {"metadata": {"remainingItemCount": LARGE_BYTES // 20}, "items": [{"metadata": {"name": "n1"}}]}
    cluster.pages[NODES.path()] = json.dumps(first).encode()
    return cluster


def test_a_large_cluster_is_not_read_unasked(large: InstalledCluster, cli: Cli, tmp_path: Path) -> None:
    done = cli.run("sysdump", "-o", "dump")
    assert done.exit_code == 1
    assert "--yes" in done.stderr
    assert str(LARGE_BYTES // 20 + 1) in done.stderr
    assert not (tmp_path / "dump").exists()


def test_a_large_cluster_is_read_if_one_says_so(large: InstalledCluster, cli: Cli, tmp_path: Path) -> None:
    done = cli.run("sysdump", "-o", "dump", "--yes")
    assert done.exit_code == 0
    assert "MiB" in done.stderr
    assert (tmp_path / "dump.tar.gz").exists()


def test_a_small_one_is_read_without_a_word(cli: Cli) -> None:
    assert "MiB" not in cli.run("sysdump", "-o", "dump").stderr
