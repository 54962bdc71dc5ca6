"""Test what is read of a cluster file, and what is refused: the message names the file, the entry, the key and the value."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.request.model import PartitionPolicy
from lading.errors import ConfigError
from lading.nodedevices import NodeDevices
from simnode.reported import FILES
from simulate.cluster_file import read_cluster
from simulate.objects import card_of, render_devices
from tests.unit.simulate.shipped import CLUSTERS, PROFILES, described, entry

H100: dict[str, Any] = json.loads((FILES / "dgx-h100.json").read_text())


def written(folder: Path, content: object, name: str = "cluster.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_shipped_cluster_has_every_profile() -> None:
    cluster = read_cluster(CLUSTERS / "mixed.json")
    by_kind = {node.name.rpartition("-")[0]: node for node in cluster.nodes}
    machines = [name for name in PROFILES if name != "mig-on-demand"]  # the machine of mig, with another configuration
    assert len(by_kind) == len(machines)
    assert len({id(node.devices) for node in cluster.nodes}) == len(machines)
    assert [node.name for node in cluster.nodes[:3]] == ["h100-1", "h100-2", "h100-3"]
    assert (by_kind["h100"].gpus, by_kind["h100"].model, by_kind["h100"].cpu_milli) == (8, H100["gpus"][0]["model"], 112_000)
    assert (by_kind["mig"].gpus, by_kind["mig"].cards) == (1, [1])  # the other card is in MIG mode
    assert cluster.partition is PartitionPolicy.PREFER


def test_an_object_of_the_cluster(tmp_path: Path) -> None:
    """Check an object as kubectl prints it: the pods that it names are not there when the replay begins."""
    gpus = [
        {**H100["gpus"][0], "usedBy": "somebody", "dirty": "its memory"},
        {**H100["gpus"][1], "unhealthy": "fell off the bus"},
        *H100["gpus"][2:],
    ]
    status = {**H100, "gpus": gpus, "reconciled": False, "problems": ["one"], "grants": [{"pod": "p", "container": "c"}]}
    annotations = {"lading.dev/cordon": "all"}
    written(
        tmp_path, {"kind": "NodeDevices", "metadata": {"name": "n1", "annotations": annotations}, "status": status}, "n1.json"
    )
    (node,) = described(tmp_path, entry("dgx-h100", 1) | {"devices": "n1.json"}).nodes
    report = msgspec.convert(render_devices(0, node), NodeDevices)
    assert (report.status.reconciled, report.status.grants, report.metadata.annotations) == (True, (), {})
    assert (node.gpus, node.cards) == (7, [0, 2, 3, 4, 5, 6, 7])
    assert (report.status.gpus[0].used_by, report.status.gpus[0].dirty) == ("", "")


def test_identities_are_the_clusters(tmp_path: Path) -> None:
    """Check that links lead to cards of the same node."""
    linked = json.loads((FILES / "mig.json").read_text())
    linked["gpus"][0]["links"] = [{"count": 2, "to": linked["gpus"][1]["uuid"]}]
    written(tmp_path, linked, "mig.json")
    nodes = described(tmp_path, entry("mig", 3) | {"devices": "mig.json"}, entry("dgx-a100", 3)).nodes
    reports = [msgspec.convert(render_devices(number, node), NodeDevices) for number, node in enumerate(nodes)]
    gpus = [gpu for report in reports for gpu in report.status.gpus]
    instances = [mig.uuid for gpu in gpus for mig in gpu.mig]
    assert len({gpu.uuid for gpu in gpus}) == len(gpus) == 30
    assert len(set(instances)) == len(instances) > 3
    assert [card_of(gpu.uuid) for gpu in reports[3].status.gpus] == list(range(8))
    assert [report.status.gpus[0].links[0].to for report in reports[:3]] == [
        report.status.gpus[1].uuid for report in reports[:3]
    ]
    assert all(link.to == "" for gpu in reports[3].status.gpus for link in gpu.links)


ENTRY = {"name": "n", "count": 2, "devices": "h100.json", "cpu_milli": 1000, "memory_mib": 1024}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *(("{", ()), ("\ufeff[", ()), ([], ("[]",)), ({}, ("nodes is missing",)), ({"nodes": []}, ("nodes = []",))),
        ({"nodes": {}}, ("nodes = {}",)),
        ({"nodes": [ENTRY], "node": 3}, ("'node' = 3",)),
        ({"nodes": [ENTRY], "nvswitch_partition": "maybe"}, ("nvswitch_partition = 'maybe'",)),
        ({"nodes": [ENTRY], "nvswitch_partition": ["honor"]}, ("nvswitch_partition = ['honor']",)),
        ({"nodes": [ENTRY, "h100"]}, ("nodes[1]", "'h100'")),
        ({"nodes": [ENTRY, {**ENTRY, "gpus": 8}]}, ("nodes[1]", "'gpus' = 8")),
        ({"nodes": [{key: value for key, value in ENTRY.items() if key != "count"}]}, ("nodes[0]", "count is missing")),
        ({"nodes": [ENTRY, ENTRY]}, ("nodes[1]", "name = 'n'", "n-1")),
        *[
            ({"nodes": [{**ENTRY, key: value}]}, ("nodes[0]", f"{key} = {value!r}"))
            for key, value in (
                ("name", ""),
                ("name", 3),
                ("count", 0),
                ("count", -1),
                ("count", 20_001),
                ("count", 10**40),
                ("count", True),
                ("count", 2.0),
                ("count", "2"),
                ("cpu_milli", -1),
                ("cpu_milli", 10**10),
                ("memory_mib", None),
                ("devices", 1),
                ("devices", "none.json"),
                ("devices", "."),
                ("devices", "broken.json"),
                ("devices", "other.json"),
                ("devices", "profile.json"),
                ("devices", "wrong.json"),
                ("devices", "list.json"),
                ("devices", "two-models.json"),
                ("devices", "twice.json"),
                ("devices", "small.json"),
                ("devices", "many.json"),
            )
        ],
    ],
)
def test_a_file_that_cannot_be_replayed_is_an_error_with_the_reason(
    tmp_path: Path, content: object, named: tuple[str, ...]
) -> None:
    one, two, *_ = H100["gpus"]
    written(tmp_path, H100, "h100.json")
    written(tmp_path, "{", "broken.json")
    written(tmp_path, {"kind": "Node", "status": H100}, "other.json")
    written(tmp_path, {"name": "x", "host_bridges": []}, "profile.json")
    written(tmp_path, {"gpus": [{**one, "memoryMiB": "much"}]}, "wrong.json")
    written(tmp_path, [H100], "list.json")
    written(tmp_path, {"gpus": [one, {**two, "model": "another"}]}, "two-models.json")
    written(tmp_path, {"gpus": [one, one]}, "twice.json")
    written(tmp_path, {"gpus": [{**one, "reservedMiB": one["memoryMiB"]}]}, "small.json")
    written(tmp_path, {"gpus": [{**one, "uuid": f"GPU-{n}", "bdf": f"0000:{n:02x}:00.0"} for n in range(17)]}, "many.json")
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as refused:
        read_cluster(path)
    assert all(part in str(refused.value) for part in (str(path), *named))


def test_a_cluster_without_a_gpu_to_give(tmp_path: Path) -> None:
    written(tmp_path, {"gpus": [{**H100["gpus"][0], "migEnabled": True}]}, "mig.json")
    with pytest.raises(ConfigError, match=r"cluster\.json"):
        described(tmp_path, {**ENTRY, "devices": "mig.json"})


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_cluster(tmp_path / "none.json")


@pytest.mark.parametrize("report", [H100, {"kind": "NodeDevices", "status": H100}, {"pfs": H100["pfs"]}])
def test_the_report_of_one_node(tmp_path: Path, report: dict[str, Any]) -> None:
    """Check that the replacement that an error message suggests can be read."""
    path = written(tmp_path, report, "dgx.json")
    with pytest.raises(ConfigError) as refused:
        read_cluster(path)
    assert all(part in str(refused.value) for part in (str(path), "one node"))
    shown = json.loads(refused.value.hint[refused.value.hint.index("{") :])
    assert shown["nodes"][0]["devices"] == "dgx.json"
    if "gpus" in report:
        assert len(read_cluster(written(tmp_path, shown)).nodes) == 1


def test_another_encoding(tmp_path: Path) -> None:
    """Check UTF-16, which some shells write and JSON can detect."""
    path = tmp_path / "cluster.json"
    path.write_bytes('{"nodes": [{"name":\n "k\xfcche"}]}'.encode("latin-1"))
    with pytest.raises(ConfigError) as refused:
        read_cluster(path)
    assert all(part in str(refused.value) for part in (str(path), "UTF-8", "0xfc in line 2"))
    written(tmp_path, H100, "h100.json")
    path.write_bytes(json.dumps({"nodes": [ENTRY]}).encode("utf-16"))
    assert len(read_cluster(path).nodes) == 2
