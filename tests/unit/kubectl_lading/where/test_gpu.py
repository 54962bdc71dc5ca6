"""`gpu CARD`: a card in MIG mode by its instances' names, and whoever holds it as a whole all the same."""

from collections.abc import Iterator

import pytest

from lading.kube.resource import NODE_DEVICES
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import Json, SmallCluster


@pytest.fixture(scope="module")
def card() -> Json:
    report = SmallCluster().objects[NODE_DEVICES.path(name="mig-1")]
    found: Json = next(gpu for gpu in report["status"]["gpus"] if gpu.get("mig"))
    return found


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, card: Json) -> Iterator[Cli]:
    """Its node was put into MIG mode while a pod held the whole card."""
    cluster = SmallCluster()
    by_hand = {"pod": "uid-old", "container": "main", "namespace": "team-a", "podName": "old", "form": "manual"}
    cluster.objects[NODE_DEVICES.path(name="mig-1")]["status"]["grants"] = [by_hand | {"gpus": [{"uuid": card["uuid"]}]}]
    with served(cluster, tmp_path_factory.mktemp("cli")) as made:
        yield made


def test_an_instance_is_named_with_its_node_or_without(cli: Cli, card: Json) -> None:
    instance = card["mig"][0]["uuid"]
    said = {cli.run("gpu", word, "-o", "json").stdout for word in (instance, f"mig-1/{instance}", card["uuid"])}
    assert len(said) == 1
    assert card["uuid"] in said.pop()


def test_who_holds_all_of_it_is_named(cli: Cli, card: Json) -> None:
    assert "team-a/old" in cli.run("gpu", card["uuid"]).stdout
    line = next(line for line in cli.run("node", "mig-1", "-o", "wide").stdout.splitlines() if card["uuid"] in line)
    assert "team-a/old" in line
