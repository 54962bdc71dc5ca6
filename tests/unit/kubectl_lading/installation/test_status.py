"""Test `kubectl lading status` as a command: its exit status, its wait, and a cluster that it may not read."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from central.decide.configuration import EffectiveConfiguration
from kubectl_lading.installation.installation import Part, Workload
from kubectl_lading.installation.read_installation import CRDS, DAEMONSETS, DEPLOYMENTS
from kubectl_lading.installation.status import AGAIN_S, wait_until_well
from kubectl_lading.installation.status_view import StatusView, view_status
from kubectl_lading.objects import Unread
from lading.checks.model import Verdict
from lading.kube.resource import NODE_DEVICES, PODS
from lading.vocabulary import NO_SUCH_PAGE
from simnode.api_server import write_kubeconfig
from tests.fakes.installed_cluster import BOOT, LEADER, NAMESPACE, STANDBY, InstalledCluster, served_installation
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import NODES_OF, NOW
from tests.unit.kubectl_lading.installation.installations import installation

WELL = view_status(installation())
ILL = view_status(installation(workload=Workload(unassigned=("a/b",))))
AWAY = Unread(why="cannot get /version: connection refused")


@pytest.fixture
def cluster() -> InstalledCluster:
    """Return a cluster without findings."""
    cluster = InstalledCluster()
    for path in [path for path in cluster.objects if path.endswith(("old-1", "/pods/next-run", "/pods/too-many"))]:
        del cluster.objects[path]
    cluster.count()
    for name in NODES_OF:
        status = cluster.objects[NODE_DEVICES.path(name=name)]["status"]
        status.update(problems=[], bootID=BOOT)
        for gpu in status["gpus"]:
            gpu.pop("unhealthy", None)
            gpu.pop("usedBy", None)
    return cluster


@pytest.fixture
def cli(cluster: InstalledCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setattr("time.time", lambda: NOW)
    with served_installation(cluster, tmp_path) as cli:
        yield cli


def seen(cli: Cli, *text: str) -> tuple[int, StatusView]:
    done = cli.run("status", "-o", "json", *text)
    return done.exit_code, msgspec.json.decode(done.stdout, type=StatusView)


def test_all_is_well(cluster: InstalledCluster, cli: Cli) -> None:
    status, view = seen(cli)
    assert (status, view.state, view.findings) == (0, Verdict.OK, ())
    assert view.versions["central"] == {"0.1.0": 2}


def test_something_is_degraded(cluster: InstalledCluster, cli: Cli) -> None:
    cluster.pages[cluster.proxied(LEADER, "/metrics")] = b"lading_central_leader 0\n"
    status, view = seen(cli)
    assert (status, [one.check for one in view.findings]) == (1, ["central-answers"])


@pytest.mark.parametrize(
    ("path", "checks"),
    [
        (CRDS.path(name="nodedevices.devices.lading.dev"), ["resource-served"]),
        (DEPLOYMENTS.path(NAMESPACE, "lading-central"), ["central-deployed"]),
        (DAEMONSETS.path("lading-nodes", "lading-node"), ["daemonsets-deployed"]),
    ],
)
def test_a_refused_read_makes_its_checks_unknown(cluster: InstalledCluster, cli: Cli, path: str, checks: list[str]) -> None:
    cluster.pages[path] = 403
    status, view = seen(cli)
    assert (status, [one.check for one in view.findings]) == (3, checks)


def test_a_missing_resource_is_found_by_its_list_if_the_definition_may_not_be_read(cluster: InstalledCluster, cli: Cli) -> None:
    cluster.pages[CRDS.path(name="nodedevices.devices.lading.dev")] = 403
    cluster.pages[NODE_DEVICES.path()] = 404
    _, view = seen(cli)
    (result,) = [one for one in view.findings if one.check == "resource-served"]
    assert (result.verdict, "kubectl lading install" in result.mend) == (Verdict.DEGRADED, True)


@contextmanager
def answering(page: bytes, status: int = 200) -> Iterator[str]:
    """Start an HTTP server that gives every caller the same answer, and return its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *text: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def without_central(cluster: InstalledCluster) -> None:
    for path in list(cluster.objects):
        if "/lading-central" in path:
            del cluster.objects[path]


def test_a_central_that_runs_elsewhere_is_asked_where_a_person_says(cluster: InstalledCluster, tmp_path: Path) -> None:
    without_central(cluster)
    with served_installation(cluster, tmp_path) as cli:
        _, alone = seen(cli)
        with answering(msgspec.json.encode(EffectiveConfiguration())) as url:
            status, named = seen(cli, "--central", url)
            assert cli.run("preflight", "--central", url).exit_code == 0
        deleted = seen(cli, "--central", url)[1]
    (result,) = [one for one in alone.findings if one.group == Part.CENTRAL]
    assert (result.check, result.verdict, "--central" in result.mend) == ("central-deployed", Verdict.DEGRADED, True)
    assert (status, [one for one in named.findings if one.group == Part.CENTRAL]) == (0, [])
    assert url in next(one.what for one in named.parts if one.part is Part.CENTRAL)
    assert [(one.check, one.verdict) for one in deleted.findings if one.group == Part.CENTRAL] == [
        ("central-deployed", Verdict.DEGRADED)
    ]


def test_a_metrics_port_in_place_of_central_is_an_unusable_flag(cli: Cli) -> None:
    with answering(NO_SUCH_PAGE, 404) as url:
        for text in (("status",), ("defrag",), ("simulate", "-f", "-")):
            done = cli.run(*text, "--central", url)
            assert (done.exit_code, done.stdout) == (2, "")
            assert "http://127.0.0.1:8081" in done.stderr


def test_replicas_that_may_not_be_asked_are_not_needed(cluster: InstalledCluster, cli: Cli) -> None:
    for pod in (LEADER, STANDBY):
        cluster.pages[cluster.proxied(pod, "/metrics")] = 403
    status, view = seen(cli)
    assert (status, [one.check for one in view.findings]) == (0, ["central-answers"])
    assert view.versions["central"] == {"0.1.0": 1}  # the version in the image's tag


def test_pods_that_may_not_be_read(cluster: InstalledCluster, cli: Cli) -> None:
    cluster.pages[PODS.path()] = 403
    done = cli.run("status")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "/api/v1/pods" in done.stderr


def test_nothing_is_installed(tmp_path: Path) -> None:
    bare = InstalledCluster()
    for path in list(bare.objects):
        if "lading" in path:
            del bare.objects[path]
    with served_installation(bare, tmp_path) as cli:
        status, view = seen(cli)
    missing = {"resource-served", "policies-there", "central-deployed", "scheduler-deployed", "nodes-report"}
    assert status == 1
    assert missing <= {one.check for one in view.findings if one.verdict is Verdict.DEGRADED}
    assert not [one.mend for one in view.findings if " logs " in one.mend]  # no `kubectl logs` command for a missing pod


def test_an_api_server_that_is_not_there(tmp_path: Path) -> None:
    done = Cli(write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")).run("status")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "hint" in done.stderr


def test_an_invalid_timeout_is_a_usage_error(cli: Cli) -> None:
    assert cli.run("status", "--wait", "--timeout", "soon").exit_code == 2


# ---- --wait


class Looks:
    """Return these views one after the other, and the last one repeatedly; time passes only in sleep."""

    def __init__(self, *scans: StatusView | Unread) -> None:
        self.scans = list(scans)
        self.now = 0.0
        self.told: list[str] = []

    async def read_view(self) -> StatusView | Unread:
        return self.scans.pop(0) if len(self.scans) > 1 else self.scans[0]

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, timeout_s: float) -> StatusView | Unread:
        return asyncio.run(
            wait_until_well(
                self.read_view, timeout_s=timeout_s, announce=self.told.append, clock=lambda: self.now, sleep=self.sleep
            )
        )


def test_wait_ends_when_all_checks_are_ok() -> None:
    scans = Looks(AWAY, AWAY, ILL, ILL, WELL, ILL)
    assert scans.wait(300) is WELL
    assert scans.now == 4 * AGAIN_S
    assert [("/version" in text, "a/b" in text) for text in scans.told] == [(True, False), (False, True)]


@pytest.mark.parametrize("last", [ILL, AWAY])
def test_wait_ends_at_its_timeout(last: StatusView | Unread) -> None:
    scans = Looks(last)
    assert scans.wait(7) is last
    assert scans.now <= 7


def test_without_a_timeout_the_installation_is_read_once() -> None:
    scans = Looks(ILL, WELL)
    assert (scans.wait(0), scans.now, scans.told) == (ILL, 0.0, [])
