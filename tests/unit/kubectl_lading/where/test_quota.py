"""Test `quota`: the tree with its numbers, one quota of it, and clusters without quotas or without the right to read them."""

import json

import pytest

from central.quota.model import QuotaDialect
from central.view.quotas import QuotaAmount
from kubectl_lading.where.quota import draw_bar
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import elastic_quota
from tests.fakes.kube_server import FakeKubeServer, Fault, Request
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import SmallCluster


def is_of_quotas(request: Request) -> bool:
    return request.path.endswith("/elasticquotas")


def test_one_quota_and_those_below_it(cli: Cli) -> None:
    for name, expected in {"research": ["research", "robots", "speech", "vision"], "speech": ["speech"]}.items():
        output = json.loads(cli.run("quota", name, "-o", "json").stdout)
        assert [one["quota"] for one in output["quotas"]] == expected


def test_the_numbers(cli: Cli) -> None:
    (speech,) = json.loads(cli.run("quota", "speech", "-o", "json").stdout)["quotas"]
    assert (speech["kind"], speech["parent"], speech["uncounted"]) == (QuotaDialect.KOORDINATOR, "research", ["nvidia.com/gpu"])
    (amount,) = speech["amounts"]
    assert amount == {
        "resource": RESOURCE_GPU,
        "min": 4,
        "max": 8,
        "runtime": 1.235,
        "used": 1.235,  # 40 % and 30 % of a card, a quarter of one, and two sevenths as a MIG instance
        "borrowed": 0,
        "lent": 2.765,
        "waiting": 0,
    }


def test_no_such_quota(cli: Cli) -> None:
    done = cli.run("quota", "speach")
    assert done.exit_code == 1
    assert "did you mean speech" in done.stderr


@pytest.mark.parametrize(("status", "warned"), [(404, False), (403, True)])
def test_a_cluster_without_the_kinds_or_the_right(cli: Cli, server: FakeKubeServer, status: int, warned: bool) -> None:
    server.fail(Fault(status=status), when=is_of_quotas, times=2)
    done = cli.run("quota")
    assert done.exit_code == 0
    assert done.stdout.startswith("There are no quotas")
    assert ("quotas were not looked at" in done.stderr) == warned


class TestNamespaces:
    """Test quotas of scheduler-plugins."""

    @pytest.fixture
    def cluster(self) -> SmallCluster:
        made = SmallCluster()
        quota = elastic_quota("q", {RESOURCE_GPU: "2"}, {RESOURCE_GPU: "9", "memory": "1Ti"}, namespace="team-a")
        made.objects["/apis/scheduling.x-k8s.io/v1alpha1/namespaces/team-a/elasticquotas/q"] = quota
        return made

    def test_they_stand_beside_the_tree(self, cli: Cli) -> None:
        lines = cli.run("quota", "-o", "wide").stdout.splitlines()
        at = next(at for at, line in enumerate(lines) if line.startswith("team-a/q"))
        assert lines[at].split()[-6:] == ["9", "2", "9", "5", "-", "24"]
        assert lines[at + 1].split()[0] == "memory"
        assert "1Ti" in lines[at + 1] or "1024Gi" in lines[at + 1]


@pytest.mark.parametrize(
    ("least", "used", "lent", "expected"),
    [
        (6.0, 0.0, 6.0, "░░░░░░"),
        (6.0, 2.0, 0.0, "██····"),
        (6.0, 2.0, 3.0, "██░░░·"),
        (2.0, 5.0, 0.0, "██▓▓▓"),
        (0.0, 30.0, 0.0, "▓" * 24),  # more than there is
        (0.0, 0.0, 0.0, ""),
    ],
)
def test_bars(least: float, used: float, lent: float, expected: str) -> None:
    amount = QuotaAmount(
        resource=RESOURCE_GPU,
        min=least,
        max=99.0,
        runtime=0.0,
        used=used,
        borrowed=max(0.0, used - least),
        lent=lent,
        waiting=0.0,
    )
    bar = draw_bar(amount, 24.0)
    assert (bar.plain.rstrip(), len(bar.plain)) == (expected, 24)
