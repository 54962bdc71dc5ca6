"""Test the places that pods would get: as central decides, several pods together, without creating any."""

from collections import Counter

import msgspec

from central.request.reasons import OfPod
from central.search.placement import Missing
from kubectl_lading.deciding import DecidingCluster, compute_deciding
from kubectl_lading.objects import Node, Report
from kubectl_lading.plans.manifests import parse_manifest
from kubectl_lading.plans.trial import Trial, Trials
from tests.fakes.kube_objects import devices, node


def cluster(*sizes: int, cpu: str = "64") -> DecidingCluster:
    """Return a cluster, given the number of cards and VFs of each node."""
    reports = [msgspec.convert(devices(f"n{n}", size, size, version=n + 1), Report) for n, size in enumerate(sizes)]
    nodes = [msgspec.convert(node(f"n{n}", allocatable={"cpu": cpu, "memory": "64Gi"}), Node) for n, _ in enumerate(sizes)]
    return compute_deciding((reports, "9"), (nodes, "9"), ([], "9"))


def run(trials: Trials, *texts: str) -> list[Trial]:
    return list(trials.run([draft.pod for text in texts for draft in parse_manifest(text, "x", namespace="team").pods]))


def tried(where: DecidingCluster, limits: str, *, replicas: int = 1, scheduler: str = "lading") -> list[Trial]:
    text = f"""
kind: Deployment
metadata: {{name: x}}
spec:
  replicas: {replicas}
  template: {{spec: {{schedulerName: {scheduler}, containers: [{{name: main, resources: {{limits: {{{limits}}}}}}}]}}}}
"""
    return run(Trials(where), text)


def test_each_pod_is_placed_beside_the_pods_before_it() -> None:
    trials = tried(cluster(2, 1), "lading.dev/gpu: 1", replicas=4)
    uuids = [gpu.uuid for trial in trials for given in trial.containers.values() for gpu in given.gpus]
    assert len(set(uuids)) == 3
    assert [bool(trial.node) for trial in trials] == [True, True, True, False]
    reason = trials[-1].why
    assert reason is not None
    assert reason.reasons == {Missing.TOO_FEW_FREE_GPUS: 2}


def test_pods_of_several_manifests_get_different_cards() -> None:
    text = "kind: Pod\nspec: {schedulerName: lading, containers: [{name: main, resources: {limits: {lading.dev/gpu: 1}}}]}"
    uuids = [gpu.uuid for trial in run(Trials(cluster(2)), text, text) for gpu in trial.containers["main"].gpus]
    assert len(set(uuids)) == 2


def test_a_trial_has_devices_and_their_distances() -> None:
    (trial,) = tried(cluster(2), "lading.dev/gpu: 2, lading.dev/rdma: 1")
    assert (len(trial.containers["main"].gpus), len(trial.containers["main"].vfs)) == (2, 1)
    assert sum(trial.distances.values()) == 3
    assert trial.pairs == ()


def test_a_trial_has_each_pair_of_devices_if_requested() -> None:
    text = "kind: Pod\nspec: {containers: [{name: main, resources: {limits: {lading.dev/gpu: 2, lading.dev/rdma: 1}}}]}"
    (trial,) = run(Trials(cluster(2), in_pairs=True), text)
    assert len(trial.pairs) == 3
    assert Counter(pair.said for pair in trial.pairs) == trial.distances


def test_a_node_with_the_devices_and_without_the_cpu() -> None:
    (trial,) = tried(cluster(1, cpu="2"), "lading.dev/gpu: 1, cpu: 4")
    assert (trial.node, trial.lacks_resources) == ("", ("n0",))


def test_verdicts_are_computed_again_after_a_pod_was_placed() -> None:
    """Check that the second six finds two free cards, and the last six none."""
    six, two = (
        f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: m, resources: {{limits: {{lading.dev/gpu: {n}}}}}}}]}}"
        for n in (6, 2)
    )
    trials = Trials(cluster(8))
    tried = run(trials, six, six, two, six)
    assert [bool(trial.node) for trial in tried] == [True, False, True, False]
    (before,), (after,) = ([trials.verdicts[number] for number in tried[at].verdicts] for at in (1, 3))
    assert before.nodes == after.nodes == ("n0",)
    assert before.detail != after.detail


def test_a_pod_with_a_problem_of_its_own_gets_no_node() -> None:
    (bad,) = tried(cluster(1), "lading.dev/gpus: 1")
    assert (bad.node, bad.code) == ("", OfPod.REQUEST_MALFORMED)
    (plain,) = tried(cluster(1), "cpu: 1")
    assert (plain.node, plain.code, bool(plain.problem)) == ("", "", True)
    (elsewhere,) = tried(cluster(1), "lading.dev/gpu: 1", scheduler="default-scheduler")
    assert elsewhere.node == "n0"
    assert elsewhere.notes


GANG = """
kind: Job
metadata: {{name: train}}
spec:
  parallelism: {size}
  completions: {size}
  template:
    metadata: {{annotations: {{lading.dev/gang: train, lading.dev/gang-min: "{least}"}}}}
    spec: {{schedulerName: lading, containers: [{{name: main, resources: {{limits: {{lading.dev/gpu: 1}}}}}}]}}
"""


def test_the_pods_of_a_gang_start_together() -> None:
    trials = run(Trials(cluster(2, 2)), GANG.format(size=4, least=4))
    assert Counter(trial.node for trial in trials) == {"n0": 2, "n1": 2}
    assert {trial.gang for trial in trials} == {"team/train"}
    uuids = [gpu.uuid for trial in trials for given in trial.containers.values() for gpu in given.gpus]
    assert len(set(uuids)) == 4


def test_no_pod_of_a_gang_starts_where_not_all_can() -> None:
    one = "kind: Pod\nspec: {schedulerName: lading, containers: [{name: main, resources: {limits: {lading.dev/gpu: 1}}}]}"
    trials = run(Trials(cluster(2, 1)), GANG.format(size=4, least=4), one)
    assert [(trial.node, trial.code) for trial in trials[:4]] == [("", OfPod.GANG_TOO_LARGE)] * 4
    assert trials[4].node


def test_a_gang_without_enough_members_waits() -> None:
    trials = run(Trials(cluster(4)), GANG.format(size=3, least=4))
    assert [(trial.node, trial.code) for trial in trials] == [("", OfPod.GANG_WAITS_FOR_MEMBERS)] * 3
    assert "3 of 4 members exist" in trials[0].problem


def test_members_beyond_the_minimum_start_where_there_is_room() -> None:
    trials = run(Trials(cluster(3)), GANG.format(size=4, least=2))
    assert sorted(trial.node for trial in trials) == ["", "n0", "n0", "n0"]


def nodes(*nodes: dict[str, object]) -> DecidingCluster:
    """Return nodes with one card each."""
    listed = [msgspec.convert(one, Node) for one in nodes]
    reports = [msgspec.convert(devices(one.metadata.name, 1, 1, version=3), Report) for one in listed]
    return compute_deciding((reports, "9"), (listed, "9"), ([], "9"))


def test_a_node_that_kubernetes_keeps_the_pod_from_is_not_taken() -> None:
    trials = tried(nodes(node("n0", cordoned=True), node("n1", taints=["a"])), "lading.dev/gpu: 1")
    assert (trials[0].node, trials[0].not_allowed) == ("", ("n0", "n1"))
    assert tried(nodes(node("n0", cordoned=True), node("n1")), "lading.dev/gpu: 1")[0].node == "n1"
    tolerant = """
kind: Pod
metadata: {name: p}
spec:
  schedulerName: lading
  tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]
  containers: [{name: main, resources: {limits: {lading.dev/gpu: 1}}}]
"""
    assert run(Trials(nodes(node("n0", cordoned=True))), tolerant)[0].node == "n0"


def test_a_gang_takes_no_node_that_kubernetes_keeps_it_from() -> None:
    trials = run(Trials(nodes(node("n0", cordoned=True), node("n1"))), GANG.format(size=2, least=2))
    assert not any(trial.node for trial in trials)


def test_a_node_that_is_not_ready_is_not_taken() -> None:
    (trial,) = tried(nodes(node("n0", ready=False)), "lading.dev/gpu: 1")
    assert trial.why is not None
    assert trial.why.reasons == {Missing.UNREACHABLE: 1}
