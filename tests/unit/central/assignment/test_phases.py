import json
from pathlib import Path
from typing import Any

import pytest

from central.assignment.model import Part, PlacedContainer, PlacedGpu, Taken
from central.assignment.phases import add_up, take
from central.request.model import Role, Sharing
from lading.devices.share import Amounts
from tests.unit.central.placed import container, instance, share, uuid, vf, whole

VECTORS = json.loads((Path(__file__).parents[3] / "golden/central/phases.json").read_text())


def placed_gpu(written: list[Any]) -> PlacedGpu:
    match written:
        case [letter]:
            return whole(letter)
        case [letter, str(mig)]:
            return instance(letter, int(mig.removeprefix("MIG-")))
        case [letter, mib, core]:
            return share(letter, mib, core)
    raise AssertionError(written)


def placed(written: dict[str, Any]) -> PlacedContainer:
    return container(
        *(placed_gpu(gpu) for gpu in written.get("gpus", [])), *(vf(int(name[1:])) for name in written.get("vfs", []))
    )


def part(mib: int, core: int, *also: str) -> Part:
    migs = frozenset(instance("A", int(mig.removeprefix("MIG-"))).mig_uuid for mig in also if mig != "whole")
    return Part(mib, core, "whole" in also, migs)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_amounts_that_a_pod_takes_at_one_time(vector: dict[str, Any]) -> None:
    roles = [(name, Role(role)) for name, role in vector["roles"]]
    expected = Taken(
        gpus={uuid(letter): part(*amounts) for letter, amounts in vector["taken"]["gpus"].items()},
        vfs=frozenset(vf(int(name[1:])).bdf for name in vector["taken"].get("vfs", [])),
    )
    assert take(roles, {name: placed(written) for name, written in vector["placed"].items()}) == expected


def test_the_order_of_what_was_placed_means_nothing() -> None:
    roles = [("s", Role.SIDECAR), ("i", Role.INIT), ("a", Role.APP)]
    of = {"a": container(share("A", 5)), "i": container(share("A", 3)), "s": container(share("A", 1))}
    assert take(roles, of) == take(roles, dict(reversed(of.items())))


def test_the_sum_of_all_shares() -> None:
    assert add_up([container(share("A", 5), whole("B")), container(share("A", 3, 7))]) == {uuid("A"): Amounts(8, 7)}


def test_shares_carry_the_pods_labels_and_nothing_else_does() -> None:
    labels = Sharing(namespace="team", affinity="x")
    of = {"a": container(share("A", 5), whole("B"), instance("C", 1)), "b": container(share("D", core=3))}
    parts = take([], of, labels).gpus
    assert {letter for letter in "ABCD" if parts[uuid(letter)].sharing == (labels,)} == {"A", "D"}
    assert parts[uuid("B")].sharing == parts[uuid("C")].sharing == ()
