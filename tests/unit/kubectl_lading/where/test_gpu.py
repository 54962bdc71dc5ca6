"""Test `gpu CARD` for a card in MIG mode: by its instances' names, with the holder of the whole card too."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lading.kube.resource import NODE_DEVICES
from simnode.reported import read_status
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import Json, SmallCluster


@pytest.fixture(scope="module")
def card() -> Json:
    report = SmallCluster().objects[NODE_DEVICES.path(name="mig-1")]
    result: Json = next(gpu for gpu in report["status"]["gpus"] if gpu.get("mig"))
    return result


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, card: Json) -> Iterator[Cli]:
    """Serve a card that was put into MIG mode while a pod held the whole card."""
    cluster = SmallCluster()
    by_hand = {"pod": "uid-old", "container": "main", "namespace": "team-a", "podName": "old", "form": "manual"}
    cluster.objects[NODE_DEVICES.path(name="mig-1")]["status"]["grants"] = [by_hand | {"gpus": [{"uuid": card["uuid"]}]}]
    with served(cluster, tmp_path_factory.mktemp("cli")) as made:
        yield made


def test_what_could_be_made_on_demand_is_reported(tmp_path: Path, card: Json) -> None:
    cluster = SmallCluster()
    (on_demand, _) = msgspec.to_builtins(read_status("mig-on-demand"))["gpus"]
    cluster.objects[NODE_DEVICES.path(name="mig-1")]["status"]["gpus"] = [on_demand]
    with served(cluster, tmp_path) as cli:
        output = cli.run("gpu", on_demand["uuid"]).stdout
        assert (
            "room for MIG instances, some or others: 7 x 1g.10gb, 3 x 2g.20gb, 2 x 3g.40gb, 1 x 4g.40gb, 1 x 7g.80gb" in output
        )
        assert "free for MIG" in cli.run("node", "mig-1").stdout


def test_an_instance_is_named_with_its_node_or_without(cli: Cli, card: Json) -> None:
    instance = card["mig"][0]["uuid"]
    output = {cli.run("gpu", word, "-o", "json").stdout for word in (instance, f"mig-1/{instance}", card["uuid"])}
    assert len(output) == 1
    assert card["uuid"] in output.pop()


def test_who_holds_all_of_it_is_named(cli: Cli, card: Json) -> None:
    assert "team-a/old" in cli.run("gpu", card["uuid"]).stdout
    line = next(line for line in cli.run("node", "mig-1", "-o", "wide").stdout.splitlines() if card["uuid"] in line)
    assert "team-a/old" in line
