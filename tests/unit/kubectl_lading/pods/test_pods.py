"""Test `pods -w`, a row whenever a pod changes, and the flags of lists that kubectl has too."""

import contextlib
from pathlib import Path

import pytest

from central.request.dialects.options import DialectName, DialectOptions
from central.request.parse import Dialects
from central.view.pods import PodState, PodView, ShareView
from kubectl_lading.access import connect
from kubectl_lading.central import Central
from kubectl_lading.cluster import Cluster, follow
from kubectl_lading.flags import Flags
from kubectl_lading.pods.listed import list_pods
from kubectl_lading.pods.pods import print_changes
from kubectl_lading.where.nodes import view_nodes
from lading.kube.resource import NODES, PODS
from simnode.api_server import ApiServer, write_kubeconfig
from tests.fakes.kube_objects import pod
from tests.fakes.kube_server import FakeKubeServer
from tests.fakes.kubectl_lading import Cli
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


def names(cli: Cli, *words: str) -> set[str]:
    return {line.split()[0] for line in cli.run(*words, "--no-headers").stdout.splitlines()}


def test_a_selector_limits_lists_to_objects_with_these_labels(cli: Cli, server: FakeKubeServer) -> None:
    labelled = server.objects[PODS.path("team-a", "next-run")]
    labelled["metadata"]["labels"] = {"app": "next"}
    server.objects[PODS.path("team-a", "next-run")] = labelled
    assert names(cli, "pods", "-n", "team-a", "-l", "app=next") == {"next-run"}
    assert names(cli, "why", "-n", "team-a", "-l", "app=next") == {"next-run"}
    assert "too-many" in names(cli, "pods", "-n", "team-a")
    node = server.objects[NODES.path(name="h100-2")]
    node["metadata"]["labels"] = {"rack": "7"}
    server.objects[NODES.path(name="h100-2")] = node
    assert names(cli, "nodes", "-l", "rack=7") == {"h100-2", "TOTAL"}


def test_pods_of_another_system_are_pods_with_requests_if_central_reads_them(
    cli: Cli, server: FakeKubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PODS.path("team-a", "of-hami")
    server.store.put(path, pod("of-hami", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, namespace="team-a"))
    assert "of-hami" not in names(cli, "pods", "-n", "team-a")
    assert "asks for no device" in cli.run("pod", "of-hami", "-n", "team-a").stdout

    async def dialects(central: Central) -> Dialects:
        return Dialects(DialectOptions(enabled=(DialectName.HAMI,)))

    monkeypatch.setattr(Central, "dialects", dialects)
    assert "of-hami" in names(cli, "pods", "-n", "team-a")
    assert "3000Mi" in cli.run("pod", "of-hami", "-n", "team-a").stdout
    assert "3000Mi" in cli.run("why", "of-hami", "-n", "team-a").stdout


def test_a_selector_that_the_api_server_refuses_is_an_error(cli: Cli) -> None:
    done = cli.run("pods", "-l", "a==b==c")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "400" in done.stderr


@pytest.mark.parametrize("words", [("gpu", "h100-1/0"), ("why", "train-0"), ("quota",)])
def test_a_selector_without_effect_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli.run(*words, "-l", "app=x").exit_code == 2


@pytest.mark.parametrize("words", [("nodes",), ("pods", "-A"), ("top", "namespaces"), ("why", "-A")])
def test_without_headers_each_line_is_a_row(cli: Cli, words: tuple[str, ...]) -> None:
    head, *rows = cli.run(*words).stdout.splitlines()
    bare = cli.run(*words, "--no-headers").stdout.splitlines()
    assert head.split()[0].isupper()
    assert [line.split() for line in bare] == [line.split() for line in rows[: len(bare)]]
    assert len(bare) in (len(rows), len(rows) - 1)  # one line less where a legend is left out
