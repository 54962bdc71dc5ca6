import json
from typing import Any

import pytest

from central.assignment.annotation import BadAssignment, OwnAssignment, parse_own, render_assignment
from central.assignment.model import Part, PlacedContainer
from central.request.model import Role, Sharing
from lading.vocabulary import PodUid
from tests.unit.central.placed import container, instance, mig_uuid, share, uuid, vf, whole

POD = PodUid("5f0d2c61-0000-4000-8000-000000000001")
INIT_AND_APP = (("init", Role.INIT), ("train", Role.APP))


def render(placed: dict[str, PlacedContainer], *roles: tuple[str, Role]) -> str:
    return render_assignment(POD, "n1", 7, placed, roles)


def gpu_entries(placed: dict[str, PlacedContainer], *roles: tuple[str, Role]) -> dict[str, dict[str, Any]]:
    """Return each container's first GPU, without its names."""
    containers = json.loads(render(placed, *roles))["containers"]
    return {
        name: {key: amount for key, amount in entry["gpus"][0].items() if isinstance(amount, int)}
        for name, entry in containers.items()
    }


def own(text: str, *roles: tuple[str, Role]) -> OwnAssignment:
    result = parse_own(text, roles, namespace="team")
    assert isinstance(result, OwnAssignment), result
    return result


def test_the_form_of_the_reference() -> None:
    placed = {"side": container(share("A", 8138, 30)), "train": container(whole("B"), vf(2), vf(9)), "rdma": container(vf(1))}
    assert render(placed, ("train", Role.APP), ("none", Role.APP), ("side", Role.APP), ("rdma", Role.APP)) == (
        f'{{"v":1,"pod":"{POD}","node":"n1","gen":7,"containers":{{'
        f'"train":{{"gpus":[{{"uuid":"{uuid("B")}","bdf":"0000:1b:00.0"}}],'
        '"vfs":[{"bdf":"0000:18:00.2","pf":"0000:18:00.0","ifname":"rdma0"},'
        '{"bdf":"0000:18:01.1","pf":"0000:18:00.0","ifname":"rdma1"}]},'
        f'"side":{{"gpus":[{{"uuid":"{uuid("A")}","bdf":"0000:1a:00.0","memory_mib":8138,"core_percent":30}}]}},'
        '"rdma":{"vfs":[{"bdf":"0000:18:00.1","pf":"0000:18:00.0","ifname":"rdma2"}]}},"gang":""}'
    )


def test_a_vf_of_several_containers_has_one_name_in_the_pod() -> None:
    placed = {"init": container(vf(2)), "train": container(vf(1), vf(2))}
    entries = json.loads(render(placed, *INIT_AND_APP))["containers"]
    assert [[v["ifname"] for v in entries[name]["vfs"]] for name in ("init", "train")] == [["rdma0"], ["rdma1", "rdma0"]]


def test_containers_are_in_starting_order_and_those_without_devices_left_out() -> None:
    placed = {"late": container(whole("A")), "b": container(), "c": container(vf(1)), "a": container(vf(2))}
    text = render(placed, ("a", Role.INIT), ("b", Role.SIDECAR), ("c", Role.APP))
    assert list(json.loads(text)["containers"]) == ["a", "c", "late"]


def test_the_amounts_of_the_pod_are_written_if_its_containers_run_one_after_the_other() -> None:
    placed = {"init": container(share("A", 3000, 10)), "train": container(share("A", 2000, 20))}
    assert gpu_entries(placed, *INIT_AND_APP) == {
        "init": {"memory_mib": 3000, "core_percent": 10, "pod_memory_mib": 3000, "pod_core_percent": 20},
        "train": {"memory_mib": 2000, "core_percent": 20, "pod_memory_mib": 3000, "pod_core_percent": 20},
    }
    # Together they take the sum, which needs no saying.
    assert gpu_entries(placed, ("init", Role.SIDECAR), ("train", Role.APP)) == {
        "init": {"memory_mib": 3000, "core_percent": 10},
        "train": {"memory_mib": 2000, "core_percent": 20},
    }


def test_the_amounts_of_the_pod_are_written_for_each_amount_and_card_alone() -> None:
    placed = {"init": container(share("A", 3000)), "train": container(share("A", 2000, 20))}
    assert gpu_entries(placed, *INIT_AND_APP) == {
        "init": {"memory_mib": 3000, "pod_memory_mib": 3000},
        "train": {"memory_mib": 2000, "core_percent": 20, "pod_memory_mib": 3000},
    }
    elsewhere = {"init": container(share("B", 3000)), "train": container(share("A", 2000, 20))}
    assert gpu_entries(elsewhere, *INIT_AND_APP)["train"] == {"memory_mib": 2000, "core_percent": 20}


def test_the_amounts_of_the_pod_are_not_written_for_a_whole_card() -> None:
    placed = {"init": container(share("A", 3000)), "again": container(share("A", 1000)), "train": container(whole("A"))}
    assert gpu_entries(placed, ("init", Role.INIT), ("again", Role.INIT), ("train", Role.APP)) == {
        "init": {"memory_mib": 3000, "pod_memory_mib": 3000},
        "again": {"memory_mib": 1000, "pod_memory_mib": 3000},
        "train": {},
    }


def test_a_mig_instance_is_read_back_with_its_card() -> None:
    placed = {"train": container(instance("A", 1), instance("A", 2))}
    text = render(placed, ("train", Role.APP))
    assert [gpu["uuid"] for gpu in json.loads(text)["containers"]["train"]["gpus"]] == [mig_uuid(1), mig_uuid(2)]
    assert own(text).placed == placed
    assert own(text).taken.gpus == {uuid("A"): Part(mig=frozenset({mig_uuid(1), mig_uuid(2)}))}


def test_the_amounts_of_the_pod_are_computed_and_not_read() -> None:
    placed = {"init": container(share("A", 3000, 10)), "train": container(share("A", 2000, 20), vf(1))}
    text = render(placed, *INIT_AND_APP).replace('"pod_memory_mib":3000', '"pod_memory_mib":4000')
    result = own(text, *INIT_AND_APP)
    assert (result.pod, result.node, result.gen, result.placed) == (POD, "n1", 7, placed)
    assert result.taken.gpus == {uuid("A"): Part(3000, 20)}
    assert result.taken.vfs == {vf(1).bdf}


def test_unknown_keys_are_ignored() -> None:
    text = render({"train": container(whole("A"), vf(1))}, ("train", Role.APP))
    newer = json.loads(text)
    newer["since"] = {"deep": [[1.5, None]]}
    newer["containers"]["train"]["later"] = newer["containers"]["train"]["gpus"][0]["rank"] = True
    newer["containers"]["train"]["vfs"][0]["rail"] = 3
    assert own(json.dumps(newer)) == own(text)


VALID: dict[str, Any] = json.loads(render({"train": container(share("A", 8138, 30), vf(1))}, ("train", Role.APP)))


def changed(at: str, value: object) -> str:
    """Return VALID with one value replaced, or removed for None."""
    tree = json.loads(json.dumps(VALID))
    here, (*path, last) = tree, at.split(".")
    for step in path:
        here = here[int(step)] if isinstance(here, list) else here[step]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return json.dumps(tree)


GPU, VF = "containers.train.gpus.0", "containers.train.vfs.0"
WRONG_LABELS: list[Any] = [[], "x", {"affinity": "-x"}, {"exclusion": 7}, {"affinity": "x\n"}]


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "{", json.dumps(VALID)[:-1], json.dumps(VALID) + "x", "[" * 100_000, '{"x":' * 100_000, "\ud800"),
        *(changed(key, None) for key in ("v", "pod", "node", "gen", "containers", f"{GPU}.uuid", f"{GPU}.bdf", f"{VF}.pf")),
        *(changed("v", v) for v in (2, 0, True, "1", 1.5)),
        *(changed("gen", gen) for gen in (-1, 2**63, "7", 1.5, True)),
        *(changed(key, value) for key in ("pod", "node") for value in ("", 7)),
        *(changed(f"{GPU}.uuid", text) for text in (uuid("A").lower(), uuid("A") + "\n", uuid("A")[:20], "0", mig_uuid(1))),
        *(changed(f"{GPU}.bdf", text) for text in ("1a:00.0", "0000:1A:00.0", " 0000:1a:00.0", "/dev/nvidia0")),
        *(changed(f"{VF}.bdf", text) for text in ("mlx5_1", "0000:18:00.8", "0000:18:00.1\n")),
        *(changed(f"{GPU}.memory_mib", mib) for mib in (0, -1, 2**31, "8Gi", 1.5)),
        *(changed(f"{GPU}.core_percent", core) for core in (0, 101, True)),
        changed(f"{GPU}.card", "0000:1a:00.0"),
        *(json.dumps({**VALID, "sharing": labels}) for labels in WRONG_LABELS),
    ],
    ids=lambda text: text[:40],
)
def test_a_malformed_assignment_is_an_error(text: str) -> None:
    result = parse_own(text, [("train", Role.APP)], namespace="team")
    assert isinstance(result, BadAssignment), result
    assert len(result.message) < 400


def test_the_valid_one_is() -> None:
    assert own(json.dumps(VALID)).placed == {"train": container(share("A", 8138, 30), vf(1))}


@pytest.mark.parametrize(
    ("labels", "written"),
    [
        ({"affinity": "x", "anti_affinity": "y", "exclusion": "z"}, '{"affinity":"x","anti_affinity":"y","exclusion":"z"}'),
        ({"exclusion": "z"}, '{"exclusion":"z"}'),
    ],
)
def test_sharing_labels_come_back_with_the_shares_of_the_pods_namespace(labels: dict[str, str], written: str) -> None:
    sharing = Sharing(namespace="team", **labels)
    placed = {"train": container(share("A", 10), whole("B"))}
    text = render_assignment(POD, "n1", 7, placed, [], sharing)
    assert text.endswith(f',"sharing":{written},"gang":""}}')
    assert own(text).taken.gpus == {uuid("A"): Part(10, sharing=(sharing,)), uuid("B"): Part(whole=True)}


def test_without_labels_nothing_is_reported_of_them() -> None:
    placed = {"train": container(share("A", 10))}
    assert "sharing" not in json.loads(render(placed))
    assert own(render(placed)).taken.gpus[uuid("A")].sharing == ()


def test_labels_of_another_version_are_ignored() -> None:
    text = json.dumps({**VALID, "sharing": {"affinity": "x", "colour": ["red"]}})
    assert own(text).taken.gpus[uuid("A")].sharing == (Sharing(namespace="team", affinity="x"),)


@pytest.mark.parametrize("gang", ["", "lading:default/train"])
def test_the_gang_comes_back_with_which_the_pod_was_bound(gang: str) -> None:
    assert own(render_assignment(POD, "n1", 7, {}, [], gang=gang)).gang == gang
    older = {key: value for key, value in VALID.items() if key != "gang"}
    assert own(json.dumps(older)).gang is None
