"""Test `pods -w`: a row whenever a pod changes."""

import contextlib
from pathlib import Path

from central.view.pods import PodState, PodView, ShareView
from kubectl_lading.access import connect
from kubectl_lading.cluster import Cluster, follow
from kubectl_lading.flags import Flags
from kubectl_lading.pods.listed import list_pods
from kubectl_lading.pods.pods import print_changes
from kubectl_lading.where.nodes import view_nodes
from lading.kube.resource import PODS
from simnode.api_server import ApiServer, write_kubeconfig
from tests.fakes.small_cluster import SmallCluster


def view(uid: str, **options: object) -> PodView:
    return PodView(namespace="ns", pod=uid, uid=uid, state=PodState.HOLDING, **options)  # type: ignore[arg-type]


def test_a_row_is_printed_for_each_pod_that_changed() -> None:
    printed: list[tuple[str, str]] = []
    last = {one.uid: one for one in (view("a"), view("b"), view("c"))}
    now = [view("a"), view("b", holds=ShareView(gpus_idle=1)), view("d")]
    last = print_changes(last, now, lambda one, state: printed.append((one.uid, state)))
    assert printed == [("b", "holding"), ("d", "holding"), ("c", "gone")]
    assert last.keys() == {"a", "b", "d"}


def states(cluster: Cluster) -> dict[str, PodState]:
    return {one.pod: one.state for one in list_pods(cluster, view_nodes(cluster))}


async def test_a_deleted_pod_is_missing_in_the_next_states(tmp_path: Path) -> None:
    async with ApiServer(first_version=1000) as server:
        SmallCluster().fill(server.store)
        flags = Flags(kubeconfig=str(write_kubeconfig(tmp_path / "kubeconfig", server.url)))
        async with connect(flags) as client, contextlib.aclosing(follow(client, every_s=0)) as clusters:
            before = after = states(await anext(clusters))
            server.store.remove(PODS.path("team-a", "next-run"))
            while after == before:
                after = states(await anext(clusters))
    assert before.items() - after.items() == {("next-run", PodState.WAITING)}
