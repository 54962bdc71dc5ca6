import json
from typing import Any

import msgspec
import pytest

from simnode.decisions import Decision, GivenGpu, find_clashes, read_decision, request_as_text
from tests.unit.simnode.decided import CARDS, STATUS, card, decision


@pytest.mark.parametrize(
    ("held", "device"),
    [
        ((decision("a", card()), decision("b", card())), CARDS[0]),
        ((decision("a", card()), decision("b", card(memory_mib=1))), CARDS[0]),
        ((decision("a", card(memory_mib=600)), decision("b", card(memory_mib=600))), CARDS[0]),
        ((decision("a", card(core_percent=60)), decision("b", card(core_percent=60))), CARDS[0]),
        ((decision("a", vfs=(1,)), decision("b", vfs=(1, 2))), "0000:20:00.1"),
        ((decision("a", GivenGpu(uuid="GPU-unknown", bdf="", memory_mib=1)),), "GPU-unknown"),
    ],
)
def test_a_device_that_is_held_twice_is_a_clash(held: tuple[Decision, ...], device: str) -> None:
    (clash,) = find_clashes(held, {"n1": STATUS})
    assert device in clash


def test_shares_that_fit_on_a_card_are_no_clash() -> None:
    held = [
        decision("a", card(memory_mib=500, core_percent=50), vfs=(1,)),
        decision("b", card(memory_mib=500, core_percent=50), vfs=(2,)),
        decision("c", card(1), card(1)),
        decision("d"),
    ]
    assert find_clashes(held, {"n1": STATUS}) == []


def test_containers_that_take_turns_count_once() -> None:
    turns = {"memory_mib": 600, "pod_memory_mib": 600, "core_percent": 60, "pod_core_percent": 60}
    held = decision("a", card(**turns), card(**turns))
    assert find_clashes([held, decision("b", card(memory_mib=400, core_percent=40))], {"n1": STATUS}) == []
    assert len(find_clashes([held, decision("b", card(memory_mib=401, core_percent=41))], {"n1": STATUS})) == 2


def test_a_decision_is_read_from_the_pod() -> None:
    given = {
        "v": 1,
        "containers": {"train": {"gpus": [msgspec.to_builtins(card())], "vfs": [{"bdf": "v", "pf": "p", "ifname": "r"}]}},
    }
    limits: dict[str, Any] = {"lading.dev/gpu": "1", "lading.dev/rdma": 1, "cpu": "1"}
    pod = {
        "metadata": {
            "name": "a",
            "uid": "u",
            "annotations": {"lading.dev/assignment": json.dumps(given), "lading.dev/policy": "spread", "other": "x"},
        },
        "spec": {
            "nodeName": "n1",
            "initContainers": [{"name": "idle"}, {"name": "first", "resources": {"limits": limits}}],
            "containers": [{"name": "train", "resources": {"limits": limits}}],
        },
    }
    result = read_decision(pod)
    assert (result.node, result.refines) == ("n1", {"policy": "spread"})
    assert [(one.name, one.init, len(one.gpus), len(one.vfs)) for one in result.containers] == [
        ("first", True, 0, 0),
        ("train", False, 1, 1),
    ]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"gpu": "2", "rdma": "1"}, "2 GPUs, 1 VF"),
        ({"gpu-memory": "8Gi", "gpu-core": "30"}, "8Gi 30 % of a GPU"),
        ({"gpu-mem": "8Gi"}, "lading.dev/gpu-mem: 8Gi"),
        ({}, ""),
    ],
)
def test_a_request_is_described_in_words(limits: dict[str, str], words: str) -> None:
    assert request_as_text({f"lading.dev/{key}": value for key, value in limits.items()}) == words
