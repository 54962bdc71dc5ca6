"""Run `kubectl lading` as a plugin of kubectl on a real control plane, with the rights of deploy/rbac only. It reaches central
through the API server's proxy for pods."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from central.search.placement import Missing
from lading.vocabulary import SYSTEM_NAMESPACE
from simnode.kube_api import KubeApi
from simnode.scheduling import Replica
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import MERGE, World, asks

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

RESTRICTED = {"runAsNonRoot": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

DeviceRequest = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def person(whole: World) -> Iterator[DeviceRequest]:
    """Sign in as a person who may look and cordon, and nothing else."""
    plane = whole.cluster.control_plane
    replicas = [_as_pod(plane.api, replica) for replica in whole.scheduling.replicas]
    for text in (
        ("create", "serviceaccount", "person", "-n", "default"),
        ("create", "clusterrolebinding", "person-looks", "--clusterrole=lading-reader", "--serviceaccount=default:person"),
        ("create", "clusterrolebinding", "person-works", "--clusterrole=lading-operator", "--serviceaccount=default:person"),
        (
            "create",
            "rolebinding",
            "person-asks",
            "-n",
            SYSTEM_NAMESPACE,
            "--role=lading-reader",
            "--serviceaccount=default:person",
        ),
    ):
        done = plane.kubectl(*text)
        assert done.returncode == 0, done.stderr
    config = plane.sign_in_account("person", "default", "person")
    kubectl = plane.kubectl_argv()[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def ask(*text: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        argv = [kubectl, "lading", *text]
        env = {**os.environ, "PATH": path, "KUBECONFIG": str(config)}
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, env=env, timeout=60, check=False)

    yield ask
    for kind, name in (("clusterrolebinding", "person-looks"), ("clusterrolebinding", "person-works")):
        plane.kubectl("delete", kind, name)
    for path in replicas:
        plane.api.call("DELETE", f"{path}?gracePeriodSeconds=0")


def _as_pod(api: KubeApi, replica: Replica) -> str:
    """Let a process serve as the pod that the API server's proxy connects to, and return the path of the proxy."""
    name = Path(replica.argv[-1]).stem
    ports = [{"name": "extender", "containerPort": replica.port}, {"name": "page", "containerPort": replica.page_port}]
    main = {"name": "central", "image": "none", "ports": ports, "securityContext": RESTRICTED}
    spec = {"containers": [main], "schedulerName": "nobody", "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
    pods = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
    api.call("POST", pods, {"metadata": {"name": name}, "spec": spec})
    status = {"podIP": replica.address, "podIPs": [{"ip": replica.address}]}
    api.call("PATCH", f"{pods}/{name}/status", {"status": status}, content_type=MERGE)
    return f"{pods}/{name}"


def said(done: "subprocess.CompletedProcess[str]") -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_where(world: World, pods: Pods, person: DeviceRequest) -> None:
    world.run(pods, "cli-train", gpu=2, rdma=1)
    held = world.assigned("cli-train")["main"]
    (node,) = said(person("nodes", "-o", "json"))["nodes"]
    assert node["name"] == world.node
    holders = {gpu["uuid"]: [one["pod"] for one in gpu.get("holders", [])] for gpu in node["gpus"]}
    assert {uuid for uuid, pods in holders.items() if pods == ["cli-train"]} == set(held.gpus)
    for text in (("node", world.node), ("gpu", held.gpus[0]), ("pod", "cli-train")):
        done = person(*text)
        assert done.returncode == 0, done.stderr
        assert "cli-train" in done.stdout


def test_why_a_pod_waits_and_what_would_help(world: World, pods: Pods, person: DeviceRequest) -> None:
    world.run(pods, "cli-fills", gpu=8)
    world.create(pods, "cli-waits", gpu=1)
    world.await_refused("cli-waits")
    done = person("why", "cli-waits")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # central was reached
    assert Missing.TOO_FEW_FREE_GPUS in done.stdout
    assert "cli-fills" in done.stdout


def test_simulate_says_what_then_happens(world: World, pods: Pods, person: DeviceRequest) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cli-next"}}
    spec = {"schedulerName": "lading", "containers": [container(resources=asks(gpu=3, rdma=1))]}
    done = person("simulate", "-f", "-", stdin=yaml.safe_dump({**manifest, "spec": spec}))
    assert done.returncode == 0, done.stderr
    world.run(pods, "cli-next", gpu=3, rdma=1)
    assert all(gpu in done.stdout for gpu in world.assigned("cli-next")["main"].gpus)


def test_a_cordon_is_felt_and_taken_back(world: World, pods: Pods, person: DeviceRequest) -> None:
    done = person("cordon", "--all", "--node", world.node)
    assert done.returncode == 0, done.stderr
    try:
        world.create(pods, "cli-late", gpu=1)
        assert Missing.UNHEALTHY in world.await_refused("cli-late")
    finally:
        done = person("uncordon", "--all", "--node", world.node)
    assert done.returncode == 0, done.stderr
    world.await_bound("cli-late", within_s=10.0)


def test_the_whole_installation(world: World, person: DeviceRequest) -> None:
    """Check the whole output of `status`. Workloads run here as processes and not as Deployments, which it reports; all else is
    as deployed."""
    done = person("status", "-o", "json")
    assert done.returncode in (0, 1, 3), done.stderr
    json.loads(done.stdout)


def test_what_a_person_may_not(world: World, person: DeviceRequest) -> None:
    plane = world.cluster.control_plane
    account = "system:serviceaccount:default:person"
    for verb, resource, part in (
        ("create", "pods", "binding"),
        ("delete", "pods", ""),
        ("get", "secrets", ""),
        ("patch", "nodedevices.devices.lading.dev", "status"),
        ("create", "services", "proxy"),
    ):
        asked = plane.kubectl(
            "auth", "can-i", verb, resource, f"--subresource={part}", f"--as={account}", "-n", SYSTEM_NAMESPACE
        )
        assert asked.stdout.strip() == "no", (verb, resource, part)
