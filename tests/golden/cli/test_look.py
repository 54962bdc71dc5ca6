"""Test what `nodes`, `node`, `gpu` and `pod` say of a small cluster: on a pipe, and on terminals of 80 and 200 columns."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from rich.console import Console

from central.view.build import node_view
from central.view.model import NodeView
from kubectl_lading.where.node import draw_node
from lading.nodedevices import NodeDevices
from tests.fakes.kubectl_lading import Cli
from tests.fakes.small_cluster import KEY_ID, NOW, PUBLIC_PEM
from tests.golden.recorded import assert_recorded
from tests.unit.central.world import World

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("nodes", "nodes"),
        ("nodes-wide", "nodes -o wide"),
        ("node", "node h100-1"),
        ("node-wide", "node h100-1 -o wide"),
        ("node-mig", "node mig-1"),
        ("node-cordoned", "node desk-1"),
        ("node-unreachable", "node old-1"),
        ("gpu-held", "gpu h100-1/0"),
        ("gpu-shared", "gpu GPU-00000003"),
        ("gpu-free", "gpu h100-1/3"),
        ("gpu-lost", "gpu h100-1/6"),
        ("gpu-mig", "gpu MIG-00000052"),
        ("pods", "pods -A"),
        ("pods-wide", "pods -A -o wide"),
        ("pods-idle", "pods -n team-a --state idle --state waiting"),
        ("top-nodes", "top nodes"),
        ("top-namespaces", "top namespaces"),
        ("top-namespace", "top namespaces -n team-b"),
        ("top-pods", "top pods -A --sort idle"),
        ("pod", "pod team-a/train-0"),
        ("pod-many", "pod train-1 -n team-a"),
        ("pod-share", "pod team-b/serve-a"),
        ("pod-waits", "-n team-a pod next-run"),
    ],
)
def test_on_a_pipe(cli: Cli, file: str, words: str) -> None:
    done = cli.run(*words.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert_recorded(HERE / f"{file}.txt", done.stdout)


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("words", ["nodes", "pods -A", "top namespaces", "node h100-1", "gpu h100-1/0", "pod team-a/train-0"])
def test_on_a_terminal(cli: Cli, words: str, columns: int) -> None:
    text = cli.on_terminal(*words.split(), columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert_recorded(HERE / f"{words.replace('/', '-').replace(' ', '-')}-{columns}.txt", text)


def _crowded() -> NodeView:
    """Eight GPUs, each shared by three pods, and eight NICs with 16 VFs each, held by four pods."""
    places = []
    for n in range(8):
        bridges = [f"0000:{n:02x}:{depth:02x}.0" for depth in (1, 2, 3)]
        places.append({"path": ["pci0000:00", *bridges], "numa": n // 4, "socket": n // 4})
    card = {"model": "NVIDIA H200", "memoryMiB": 144_384}
    gpus = [
        card | {"uuid": f"GPU-{n:08x}-0000-0000-0000-000000000000", "bdf": f"0000:{0x10 + n:02x}:00.0", "place": place}
        for n, place in enumerate(places)
    ]
    pfs = [
        {"bdf": f"0000:{0x60 + n:02x}:00.0", "ibdev": f"mlx5_{n}", "linkLayer": "InfiniBand", "place": place}
        | {"vfs": [{"bdf": f"0000:{0x60 + n:02x}:{1 + vf // 8:02x}.{vf % 8}"} for vf in range(16)]}
        for n, place in enumerate(places)
    ]
    shares = [
        {"pod": f"uid-{n}-{part}", "namespace": "inference", "podName": f"chat-{n}-{part}", "container": "main"}
        | {"gpus": [{"uuid": gpu["uuid"], "memoryMiB": 24_576, "corePercent": 25}]}
        for n, gpu in enumerate(gpus)
        for part in range(3)
    ]
    nets = [
        {"pod": f"uid-net-{n}", "namespace": "training", "podName": f"llama-worker-{n}", "container": "main"}
        | {"vfs": [vf["bdf"] for pf in pfs for vf in pf["vfs"][3 * n : 3 * n + 3]]}  # type: ignore[index]
        for n in range(4)
    ]
    use = [{"uuid": gpu["uuid"], "memoryUsedMiB": 65_536, "busyPercent": 85} for gpu in gpus]
    status = {"reconciled": True, "gpus": gpus, "pfs": pfs, "grants": [*shares, *nets], "use": use, "usedAt": NOW - 5}
    world = World()
    world.readiness("dense-1", True)
    report = msgspec.convert({"metadata": {"name": "dense-1", "resourceVersion": "9"}, "status": status}, NodeDevices)
    world.devices_feed.changed(report)
    return node_view(world.ledger, report, "dense-1")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_crowded_node_stays_readable(cli: Cli, columns: int) -> None:
    out = Console(width=columns, color_system=None, force_terminal=False)
    with out.capture() as text:
        for line in draw_node(_crowded(), columns, wide=False):
            out.print(line)
    assert max(len(line.rstrip()) for line in text.get().splitlines()) <= columns
    assert_recorded(HERE / f"node-crowded-{columns}.txt", text.get())


def test_json_and_yaml_are_the_same_value(cli: Cli) -> None:
    for text in ("nodes", "pods -A", "top pods -A", "node h100-1", "gpu h100-1/0", "pod team-a/train-0"):
        as_json = json.loads(cli.run(*text.split(), "-o", "json").stdout)
        assert as_json == yaml.safe_load(cli.run(*text.split(), "-o", "yaml").stdout)
        assert as_json


def test_no_pod_of_a_namespace_is_another_ones(cli: Cli) -> None:
    assert json.loads(cli.run("pods", "-o", "json").stdout)["pods"] == []
    named = json.loads(cli.run("pods", "-n", "team-b", "-o", "json").stdout)["pods"]
    assert {one["namespace"] for one in named} == {"team-b"}
    everything = json.loads(cli.run("pods", "-A", "-o", "json").stdout)["pods"]
    assert [one for one in everything if one["namespace"] == "team-b"] == named


def test_rows_of_top_add_up_to_their_total(cli: Cli) -> None:
    for of in ("pods", "namespaces", "nodes"):
        output = json.loads(cli.run("top", of, "-o", "json", *(["-A"] if of == "pods" else [])).stdout)
        for key in ("vfs", "held_mib", "held_percent"):
            assert sum(row["share"][key] for row in output["rows"]) == output["total"]["share"][key]


def test_what_a_row_counts_as_held_nodes_count_too(cli: Cli) -> None:
    totals = json.loads(cli.run("nodes", "-o", "json").stdout)["totals"]
    share = json.loads(cli.run("top", "nodes", "-o", "json").stdout)["total"]["share"]
    assert (share["held_mib"], share["held_percent"]) == (totals["held_mib"], totals["held_percent"])
    assert share["gpus_idle"] == totals["gpus_idle"] == 4


def test_nodes_as_json_have_the_names_of_the_cluster_view(cli: Cli) -> None:
    output = json.loads(cli.run("nodes", "-o", "json").stdout)
    assert output["totals"]["nodes"] == len(output["nodes"]) == 6
    assert {node["name"]: node["state"] for node in output["nodes"]}["old-1"] == "unreachable"


@pytest.mark.parametrize(("key_id", "state"), [(KEY_ID, "valid"), ("another", "unchecked")])
def test_a_signature_is_checked_where_its_key_is_there(cli: Cli, tmp_path: Path, key_id: str, state: str) -> None:
    (tmp_path / "public.pem").write_bytes(PUBLIC_PEM)
    done = cli.run("pod", "team-a/train-0", "-o", "json", "--public-key", f"{key_id}={tmp_path / 'public.pem'}")
    assert json.loads(done.stdout)["signature"] == {"state": state, "key_id": KEY_ID}


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("node h100", "h100-1"),
        ("gpu h100-1/9", "h100-1/"),
        ("gpu GPU-00000099", "GPU-0000000"),
        ("pod team-a/train", "team-a/train-0"),
    ],
)
def test_what_is_not_there_names_what_is_near(cli: Cli, words: str, near: str) -> None:
    done = cli.run(*words.split())
    assert (done.exit_code, done.stdout) == (1, "")
    assert near in done.stderr


def test_a_pci_address_of_several_nodes_asks_which(cli: Cli) -> None:
    done = cli.run("gpu", "0000:1a:00.0")
    assert done.exit_code == 1
    assert "h100-1/0" in done.stderr
    assert cli.run("gpu", "h100-1/0000:1a:00.0").exit_code == 0


def test_a_nic_is_no_gpu(cli: Cli) -> None:
    done = cli.run("gpu", "h100-1/0000:18:00.0")
    assert done.exit_code == 1
    assert "kubectl lading node h100-1" in done.stderr
