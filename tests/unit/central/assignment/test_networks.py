import json
from typing import Any, Final

import pytest

from central.assignment.networks import VfNetwork, add_networks, parse_vf_network
from central.request.networks import UnreadableNetworks
from lading.errors import ConfigError
from lading.vocabulary import PciAddress

EACH: Final = VfNetwork(namespace="vfs", name="vf-{vf}")
ONE: Final = VfNetwork(namespace="vfs", name="rdma")
VF: Final = (PciAddress("0000:3b:00.2"), "rdma0")
OTHER: Final = (PciAddress("10000:c0:1f.7"), "rdma1")


def element(name: str, vf: tuple[PciAddress, str]) -> dict[str, Any]:
    return {"name": name, "namespace": "vfs", "interface": vf[1], "deviceID": vf[0]}


def added(own: str, *vfs: tuple[PciAddress, str], network: VfNetwork = EACH, namespace: str = "team") -> Any:
    text = add_networks(own, namespace, vfs, network)
    assert isinstance(text, str), text
    return json.loads(text)


# ---- the setting


@pytest.mark.parametrize(
    ("text", "network"),
    [("", None), ("vfs/vf-{vf}", EACH), ("vfs/rdma", ONE), ("a/{vf}", VfNetwork(namespace="a", name="{vf}"))],
)
def test_the_setting_names_a_network(text: str, network: VfNetwork | None) -> None:
    assert parse_vf_network(text) == network


@pytest.mark.parametrize(
    "text", ["vf-{vf}", "/vf-{vf}", "vfs/", "vfs/VF-{vf}", "vfs/{vf}-", "a/{vf}-{vf}", "a/b/c", "a/{bdf}", "a/" + "x" * 64]
)
def test_a_malformed_setting_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="cni_network"):
        parse_vf_network(text)


# ---- what is added


@pytest.mark.parametrize(
    ("network", "names"), [(EACH, ["vf-0000-3b-00-2", "vf-10000-c0-1f-7"]), (ONE, ["rdma", "rdma"])], ids=["each", "one"]
)
def test_vfs_have_a_definition_each_or_share_one(network: VfNetwork, names: list[str]) -> None:
    assert added("", VF, OTHER, network=network) == [element(name, vf) for name, vf in zip(names, (VF, OTHER), strict=True)]


def test_other_networks_stay_as_they_are_and_come_first() -> None:
    own = [
        {"name": "storage", "ips": ["10.0.0.2/24"], "cni-args": {"x": 1}, "not-known": None},
        {"name": "b", "namespace": "c"},
    ]
    assert added(json.dumps(own), VF) == [*own, element("vf-0000-3b-00-2", VF)]


def test_a_list_of_names_becomes_json() -> None:
    assert added(" storage , net/b@eth1,c@eth2", VF) == [
        {"name": "storage"},
        {"namespace": "net", "name": "b", "interface": "eth1"},
        {"name": "c", "interface": "eth2"},
        element("vf-0000-3b-00-2", VF),
    ]


@pytest.mark.parametrize("own", ["", "storage , b", '[{"name": "storage"}]', "[]"])
def test_networks_of_a_pod_without_vfs_are_not_changed_at_all(own: str) -> None:
    assert add_networks(own, "team", (), EACH) == own


@pytest.mark.parametrize(
    ("own", "network", "namespace"),
    [
        ("vfs/vf-0000-3b-00-3", EACH, "team"),
        ("vf-0000-3b-00-3", EACH, "vfs"),
        ('[{"name":"vf-0000-3b-00-3","namespace":""}]', EACH, "vfs"),
        ('[{"name":"vf-0000-3b-00-3","namespace":null}]', EACH, "vfs"),
        ('[{"name":"\\u0076f-0000-3b-00-3","namespace":"vfs"}]', EACH, "team"),
        ('[{"name":"rdma","namespace":"vfs","deviceID":"0000:3b:00.3"}]', ONE, "team"),
    ],
)
def test_a_vf_that_the_pod_names_itself_is_left_out(own: str, network: VfNetwork, namespace: str) -> None:
    assert added(own, network=network, namespace=namespace) == []
    (only,) = added(own, VF, network=network, namespace=namespace)
    assert only["deviceID"] == VF[0]


@pytest.mark.parametrize("own", ["vf-0000-3b-00-3", "vfs/vf-x", "vfs/vf-0000-3b-00-3-x", "vfs/a-vf-0000-3b-00-3"])
def test_a_network_of_a_similar_name_is_kept(own: str) -> None:
    assert add_networks(own, "team", (), EACH) == own


@pytest.mark.parametrize(
    "own",
    [
        *("[", '{"name":"a"}', '["a"]', "[{}]", '[{"name":1}]', '[{"name":"a","namespace":1}]', '[{"name":"\\ud800"}]'),
        '[{"name":"a","Name":"vf-0000-3b-00-3"}]',
        *('[{"name":"a","name\u017fpace":"vfs"}]', "[" * 100_000, "a b", "a,,b", "A", "a/b/c", "a@b@c", "a@" + "x" * 16),
    ],
)
def test_networks_that_multus_cannot_read_are_refused(own: str) -> None:
    assert isinstance(add_networks(own, "team", [VF], EACH), UnreadableNetworks)


def test_adding_the_same_vfs_again_changes_nothing() -> None:
    once = add_networks("storage", "team", [VF, OTHER], EACH)
    assert isinstance(once, str)
    assert add_networks(once, "team", [VF, OTHER], EACH) == once
