from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.forms.netdev import (
    MAX_ADDRESSES,
    WrongSettingError,
    parse_flag,
    parse_interface,
    parse_mac,
    parse_settings,
    settings_conflict,
)
from hooks.model.attachment import VfConfig, VfSettings, VlanProtocol
from tests.fakes.holders import SETTINGS

FULL: dict[str, Any] = {
    "mac": "02:00:5E:10:00:01",
    "vlan": 100,
    "vlan_qos": 3,
    "vlan_proto": "802.1ad",
    "min_tx_rate": 100,
    "max_tx_rate": 1000,
    "spoofchk": False,
    "trust": True,
    "link_state": "enable",
    "mtu": 9000,
    "addresses": ["10.0.0.2/24", "FD00::0:2/64"],
    "routes": [{"to": "10.1.0.0/16", "via": "10.0.0.1"}, {"to": "0.0.0.0/0"}, {"to": "fd01::/64", "via": "fd00::1"}],
}


def test_everything_that_can_be_reported() -> None:
    assert parse_settings(FULL) == SETTINGS


def test_what_is_not_reported_is_not_set() -> None:
    nothing: dict[str, Any] = {"bdf": "0000:3b:00.2", "of_a_newer_central": {}, **dict.fromkeys(FULL)}
    assert parse_settings(nothing) == VfSettings()
    assert parse_settings(nothing).config.values == {}


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"mac": "02-00-5e-10-00-01"}, "mac"),
        ({"mac": "01:00:5e:00:00:01"}, "mac"),  # a group's
        ({"mac": "00:00:00:00:00:00"}, "mac"),
        ({"mac": "02:00:5e:10:00:01\n"}, "mac"),
        ({"mac": 7}, "mac"),
        ({"vlan": 4095}, "vlan"),
        ({"vlan": -1}, "vlan"),
        ({"vlan": True}, "vlan"),
        ({"vlan": 1.0}, "vlan"),
        ({"vlan": "100"}, "vlan"),
        ({"vlan_qos": 8}, "vlan_qos"),
        ({"vlan_proto": "802.1Q"}, "vlan_proto"),
        ({"vlan_proto": ["802.1q"]}, "vlan_proto"),
        ({"min_tx_rate": 2**32}, "min_tx_rate"),
        ({"max_tx_rate": 0.5}, "max_tx_rate"),
        ({"spoofchk": "on"}, "spoofchk"),
        ({"trust": 1}, "trust"),
        ({"link_state": "up"}, "link_state"),
        ({"mtu": 67}, "mtu"),
        ({"mtu": 65536}, "mtu"),
        ({"addresses": "10.0.0.2/24"}, "addresses"),
        ({"addresses": ["10.0.0.2"]}, "addresses[0]"),
        ({"addresses": ["10.0.0.2/24", "10.0.0.2/255.255.255.0"]}, "addresses[1]"),
        ({"addresses": ["10.0.0.2/24", "10.0.0.2/24"]}, "addresses[1]"),
        ({"addresses": ["fd00::2/64", "fd00:0::2/64"]}, "addresses[1]"),  # the same, in another spelling
        ({"addresses": ["10.0.0.2/33"]}, "addresses[0]"),
        ({"addresses": ["010.0.0.2/24"]}, "addresses[0]"),
        ({"addresses": ["fe80::1%eth0/64"]}, "addresses[0]"),
        ({"addresses": ["224.0.0.1/24"]}, "addresses[0]"),
        ({"addresses": ["0.0.0.0/24"]}, "addresses[0]"),
        ({"addresses": [7]}, "addresses[0]"),
        ({"addresses": [f"10.0.0.{i}/24" for i in range(1, MAX_ADDRESSES + 2)]}, "addresses"),
        ({"routes": ["10.1.0.0/16"]}, "routes[0]"),
        ({"routes": [{"via": "10.0.0.1"}]}, "routes[0].to"),
        ({"routes": [{"to": "10.1.0.1/16"}]}, "routes[0].to"),
        ({"routes": [{"to": "10.1.0.0"}]}, "routes[0].to"),
        ({"routes": [{"to": "default"}]}, "routes[0].to"),
        ({"routes": [{"to": "10.1.0.0/16", "via": "10.0.0.1/24"}]}, "routes[0].via"),
        ({"routes": [{"to": "10.1.0.0/16", "via": "fd00::1"}]}, "routes[0].via"),
        ({"routes": [{"to": "fd01::/64", "via": "fe80::1%eth0"}]}, "routes[0].via"),
        ({"routes": [{"to": "10.1.0.0/16", "via": "::"}]}, "routes[0].via"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(entry: dict[str, Any], key: str) -> None:
    with pytest.raises(WrongSettingError) as e:
        parse_settings(entry)
    assert e.value.key == key


@pytest.mark.parametrize(("value", "flag"), [(None, None), (True, True), (False, False)])
def test_a_flag(value: object, flag: bool | None) -> None:
    assert parse_flag({"netdev": value}, "netdev") is flag
    with pytest.raises(WrongSettingError):
        parse_flag({"netdev": 0}, "netdev")


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        (VfSettings(config=VfConfig(min_tx_rate=2, max_tx_rate=1)), True),
        (VfSettings(config=VfConfig(min_tx_rate=1, max_tx_rate=1)), False),
        (VfSettings(config=VfConfig(min_tx_rate=2, max_tx_rate=0)), False),  # 0 is no limit
        (VfSettings(config=VfConfig(vlan_proto=VlanProtocol.DOT1AD)), True),
        (VfSettings(config=VfConfig(vlan_proto=VlanProtocol.DOT1AD, vlan=5)), False),
        (VfSettings(), False),
    ],
)
def test_what_does_not_go_together(settings: VfSettings, wrong: bool) -> None:
    assert bool(settings_conflict(settings)) is wrong


def test_a_conflict_names_values_as_they_were_written() -> None:
    conflict = settings_conflict(VfSettings(config=VfConfig(vlan_proto=VlanProtocol.DOT1AD)))
    assert "802.1ad" in conflict
    assert "<" not in conflict


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["to", "via"]), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(FULL)), JSON))
def test_whatever_is_written_there_is_an_answer_and_read_again_it_is_the_same(entry: dict[str, Any]) -> None:
    try:
        result = parse_settings(entry)
    except WrongSettingError:
        return
    assert result.config.mac is None or parse_mac(result.config.mac) == result.config.mac
    assert all(parse_interface(address) == address for address in result.addresses)
