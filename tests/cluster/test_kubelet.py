"""Run a real kubelet behind the proxy: check the devices and Events of its pods, and that pods without devices run as
before."""

from http.client import HTTPConnection

import pytest

from lading.reasons import Reason
from simnode.cluster import Cluster
from simnode.containerd import PrivateContainerd
from simnode.daemons import LadingNode
from tests.cluster.pods import Pods, container

pytestmark = pytest.mark.node


def card(lading: LadingNode, index: int) -> str:
    """Return a GPU's device node. Its number is the driver's minor, not NVML's index."""
    return f"nvidia{lading.node.profile.gpus[index][1].minor}"


# ---- what is not ours


def test_the_node_is_ready_through_the_proxy(cluster: Cluster, runtime: PrivateContainerd) -> None:
    observed = cluster.api.node(cluster.node_name)["status"]["nodeInfo"]["containerRuntimeVersion"]
    assert observed.startswith(f"containerd://{runtime.version}")
    assert cluster.ready()


def test_a_plain_pod_runs_and_its_probes_exec_and_logs_work(pods: Pods) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1}
    main = container(
        command=["sh", "-c", "echo hello from $(hostname); exec pause"],
        lifecycle={"postStart": {"exec": {"command": ["touch", "/tmp/up"]}}},
        readinessProbe=probe,
        livenessProbe={"exec": {"command": ["test", "!", "-e", "/tmp/bad"]}, "periodSeconds": 1, "failureThreshold": 1},
    )
    pods.run("plain", containers=[main])
    assert pods.logs("plain") == ["hello from plain"]
    assert pods.sh("plain", "hostname; touch /tmp/bad") == ["plain"]
    pods.wait_restarts("plain", 1)  # the liveness probe restarts it
    pods.wait_ready("plain")
    assert pods.logs("plain", previous=True) == ["hello from plain"]


def test_exit_codes_and_both_streams_of_exec_come_through(cluster: Cluster, pods: Pods) -> None:
    pods.run("streams")
    done = cluster.kubectl("exec", "streams", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.startswith("err\n")


def test_port_forward_goes_to_the_pod(pods: Pods) -> None:
    pods.run("web", containers=[container(command=["httpd", "-f", "-p", "8080", "-h", "/etc"])])
    with pods.forwarded("web", 8080) as port:
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/group")
        assert connection.getresponse().read().startswith(b"root:")
        connection.close()


def test_a_pod_is_resized_in_place(cluster: Cluster, pods: Pods) -> None:
    small = {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
    larger = {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"cpu": "300m", "memory": "128Mi"}}
    pods.run("resized", annotations={"lading.dev/gpus": "0"}, containers=[container(resources=small)])
    before, cards = pods.status("resized"), pods.cards("resized")
    cluster.api.patch_pod("resized", {"spec": {"containers": [{"name": "main", "resources": larger}]}}, subresource="resize")
    limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
    cluster.eventually(lambda: pods.sh("resized", limit) == [str(128 << 20)], "the larger memory limit")
    after = pods.status("resized")
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    assert pods.cards("resized") == cards != []


# ---- devices


def test_a_pod_annotated_by_hand_gets_its_devices(pods: Pods, lading: LadingNode) -> None:
    pods.run("by-hand", annotations={"lading.dev/gpus": "0,3", "lading.dev/vfs": "2"})
    assert pods.cards("by-hand") == sorted([card(lading, 0), card(lading, 3)])
    assert len(pods.verbs("by-hand")) == 2
    env = dict(line.split("=", 1) for line in pods.sh("by-hand", "env") if "=" in line)
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert len(env["NCCL_IB_HCA"].split(",")) == 2


def test_a_wrong_annotation_is_notified_in_the_pods_events_and_the_right_one_runs(
    cluster: Cluster, pods: Pods, lading: LadingNode
) -> None:
    pods.create("typo", annotations={"lading.dev/gpus": "0,12"})
    event = pods.wait_event("typo", "lading: ")
    assert f"lading: {Reason.DEVICE_UNKNOWN}: " in event
    assert "12" in event
    waiting = {"reason": "CreateContainerError", "message": event.removeprefix("Failed: Error: ")}
    cluster.eventually(
        lambda: pods.status("typo")["state"].get("waiting") == waiting, f"the same in the pod's status: {waiting}"
    )
    pods.delete("typo")
    pods.run("typo", annotations={"lading.dev/gpus": "0,1"})
    assert pods.cards("typo") == sorted([card(lading, 0), card(lading, 1)])


def test_a_card_is_one_pods_until_that_pod_is_deleted(pods: Pods, lading: LadingNode) -> None:
    pods.run("first", annotations={"lading.dev/gpus": "5"})
    pods.create("second", annotations={"lading.dev/gpus": "5"})
    assert f"lading: {Reason.DEVICE_HELD}: " in pods.wait_event("second", "lading: ")
    pods.delete("first")
    pods.wait_ready("second")
    assert pods.cards("second") == [card(lading, 5)]


def test_an_init_container_and_the_container_after_it_share_their_pods_devices(pods: Pods, lading: LadingNode) -> None:
    see = "ls /dev /dev/infiniband | grep -E '^(nvidia|uverbs)[0-9]+$' | sort"
    pods.run(
        "prepared",
        annotations={"lading.dev/gpus": "2", "lading.dev/vfs": "1"},
        initContainers=[container("prepare", command=["sh", "-c", see])],
        containers=[container(command=["sh", "-c", f"{see}; exec pause"])],
    )
    observed = pods.logs("prepared", container="prepare")
    assert card(lading, 2) in observed
    assert len(observed) == 2  # one card, one verbs device
    assert pods.logs("prepared") == observed


def test_a_suffix_gives_devices_to_one_container_only(pods: Pods, lading: LadingNode) -> None:
    pods.run("one-of-two", annotations={"lading.dev/gpus.train": "4"}, containers=[container("train"), container("side")])
    assert pods.cards("one-of-two", container="train") == [card(lading, 4)]
    assert pods.cards("one-of-two", container="side") == []


def test_a_crash_looping_container_keeps_its_devices(cluster: Cluster, pods: Pods, lading: LadingNode) -> None:
    see = "ls /dev /dev/infiniband | grep -E '^(nvidia|uverbs)[0-9]+$' | sort; exit 3"
    annotations = {"lading.dev/gpus": "6", "lading.dev/vfs": "1"}
    pods.create("crashing", annotations=annotations, containers=[container(command=["sh", "-c", see])])
    pods.wait_restarts("crashing", 1)
    first = pods.logs("crashing")
    pods.wait_restarts("crashing", 3)
    assert card(lading, 6) in first
    assert len(first) == 2
    # kubelet may have removed the container that its status still names; the next status names another.
    cluster.eventually(lambda: pods.logs("crashing", previous=True) == first, "the same devices in the last container")


def test_pods_that_start_at_once_get_vfs_of_their_own(pods: Pods) -> None:
    names = [f"many-{number}" for number in range(4)]
    for name in names:
        pods.create(name, annotations={"lading.dev/vfs": "1"})
    for name in names:
        pods.wait_ready(name)
    assert len({verbs for name in names for verbs in pods.verbs(name)}) == len(names)


# ---- our daemons come and go


def test_a_proxy_restarted_under_kubelet_is_not_noticed(cluster: Cluster, pods: Pods, lading: LadingNode) -> None:
    pods.run("goes-on", annotations={"lading.dev/gpus": "0"})
    before, condition = pods.status("goes-on"), cluster.api.node_condition(cluster.node_name, "Ready")
    lading.proxy.stop()
    assert cluster.kubectl("exec", "goes-on", "--", "true").returncode != 0  # there is no other way to the runtime
    lading.proxy.start()
    pods.run("after", annotations={"lading.dev/gpus": "1"})  # through the new proxy
    assert pods.cards("after") == [card(lading, 1)]
    assert pods.cards("goes-on") == [card(lading, 0)]
    assert pods.status("goes-on") == before
    now = cluster.api.node_condition(cluster.node_name, "Ready")
    assert (now["status"], now["lastTransitionTime"]) == ("True", condition["lastTransitionTime"])


def test_a_kubelet_restarted_over_the_proxy_finds_its_pods(cluster: Cluster, pods: Pods, lading: LadingNode) -> None:
    pods.run("found", annotations={"lading.dev/gpus": "7"})
    before = pods.status("found")
    cluster.kubelet.stop()
    cluster.kubelet.start()
    pods.run("new")  # kubelet works again
    after = pods.status("found")
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    assert pods.cards("found") == [card(lading, 7)]


def test_without_hooks_a_guarded_pod_waits_and_a_plain_one_runs(pods: Pods, lading: LadingNode) -> None:
    lading.hooks.stop()
    try:
        pods.create("guarded", annotations={"lading.dev/gpus": "0"})
        pods.run("unaware")
        assert f"lading: {Reason.HOOK_UNAVAILABLE}: " in pods.wait_event("guarded", "lading: ")
        assert not pods.ready("guarded")
        pods.delete("unaware")
    finally:
        lading.hooks.start()
    pods.wait_ready("guarded")
    assert pods.cards("guarded") == [card(lading, 0)]
