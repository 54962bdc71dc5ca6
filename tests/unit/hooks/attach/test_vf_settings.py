"""Compare requests with those of ip(8) for the same change (tests/golden/netlink)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.attach.messages import NLA_F_NESTED, NetlinkMessage, render_attribute
from hooks.attach.rtnetlink import parse_link
from hooks.attach.vf_settings import decide_changes, describe_change, parse_vfs, render_change, render_guids
from hooks.model.attachment import NEUTRAL, VfConfig, VfLinkState, VlanProtocol
from tests.golden.netlink.capture import INDEX, sent

_MAC = "02:00:5e:10:00:01"


@pytest.mark.parametrize(
    ("name", "wanted", "now"),
    [
        ("vf-mac", VfConfig(mac=_MAC), NEUTRAL),
        ("vf-vlan", VfConfig(vlan=100), NEUTRAL),
        ("vf-vlan-qos", VfConfig(vlan=100, vlan_qos=5), NEUTRAL),
        ("vf-vlan-802.1q", VfConfig(vlan=100, vlan_qos=5, vlan_proto=VlanProtocol.DOT1Q), NEUTRAL),
        ("vf-vlan-802.1ad", VfConfig(vlan=100, vlan_qos=5, vlan_proto=VlanProtocol.DOT1AD), NEUTRAL),
        ("vf-vlan-off", VfConfig(vlan=0), VfConfig(vlan=100, vlan_qos=5, vlan_proto=VlanProtocol.DOT1AD)),
        ("vf-rates", VfConfig(min_tx_rate=100, max_tx_rate=1000), NEUTRAL),
        ("vf-max-rate", VfConfig(max_tx_rate=1000), NEUTRAL),
        ("vf-min-rate", VfConfig(min_tx_rate=100), NEUTRAL),
        ("vf-spoofchk-on", VfConfig(spoofchk=True), VfConfig(spoofchk=False)),
        ("vf-spoofchk-off", VfConfig(spoofchk=False), NEUTRAL),
        ("vf-trust-on", VfConfig(trust=True), NEUTRAL),
        ("vf-trust-off", VfConfig(trust=False), VfConfig(trust=True)),
        ("vf-state-auto", VfConfig(link_state=VfLinkState.AUTO), VfConfig(link_state=VfLinkState.ENABLE)),
        ("vf-state-enable", VfConfig(link_state=VfLinkState.ENABLE), NEUTRAL),
        ("vf-state-disable", VfConfig(link_state=VfLinkState.DISABLE), NEUTRAL),
    ],
)
def test_a_change_is_what_ip_sends(name: str, wanted: VfConfig, now: VfConfig) -> None:
    (change,) = decide_changes(now, wanted)
    assert render_change(INDEX, 3, change) == sent()[name]


def test_guids_are_what_ip_sends() -> None:
    assert render_guids(INDEX, 3, 0x0200_0000_0000_002A) == (sent()["vf-node-guid"], sent()["vf-port-guid"])


def test_changes_are_in_the_order_in_which_drivers_want_them() -> None:
    wanted = VfConfig(
        mac=_MAC, vlan=100, vlan_qos=5, max_tx_rate=1000, spoofchk=False, trust=True, link_state=VfLinkState.ENABLE
    )
    assert decide_changes(NEUTRAL, wanted) == (
        VfConfig(vlan=100, vlan_qos=5, vlan_proto=VlanProtocol.DOT1Q),
        VfConfig(mac=_MAC),
        VfConfig(min_tx_rate=0, max_tx_rate=1000),
        VfConfig(spoofchk=False),
        VfConfig(trust=True),
        VfConfig(link_state=VfLinkState.ENABLE),
    )


def test_what_travels_with_a_field_stays_as_it_is() -> None:
    now = VfConfig(vlan=100, vlan_qos=5, vlan_proto=VlanProtocol.DOT1AD, min_tx_rate=10, max_tx_rate=100)
    assert decide_changes(now, VfConfig(vlan=200, min_tx_rate=20)) == (
        VfConfig(vlan=200, vlan_qos=5, vlan_proto=VlanProtocol.DOT1AD),
        VfConfig(min_tx_rate=20, max_tx_rate=100),
    )


def test_a_field_that_the_driver_does_not_tell_is_sent() -> None:
    assert decide_changes(VfConfig(), VfConfig(trust=False)) == (VfConfig(trust=False),)


_configs = st.builds(
    VfConfig,
    mac=st.none() | st.sampled_from([_MAC, "02:00:5e:10:00:02"]),
    vlan=st.none() | st.integers(0, 3),
    vlan_qos=st.none() | st.integers(0, 2),
    vlan_proto=st.none() | st.sampled_from(VlanProtocol),
    min_tx_rate=st.none() | st.integers(0, 2),
    max_tx_rate=st.none() | st.integers(0, 2),
    spoofchk=st.none() | st.booleans(),
    trust=st.none() | st.booleans(),
    link_state=st.none() | st.sampled_from(VfLinkState),
)


@given(_configs, _configs)
def test_each_change_is_one_request_and_together_they_are_all_that_was_wanted(now: VfConfig, wanted: VfConfig) -> None:
    reached = {name: getattr(now, name) for name in VfConfig.__slots__}
    for change in decide_changes(now, wanted):
        assert render_change(INDEX, 0, change)
        assert describe_change(change)
        reached |= {name: value for name in VfConfig.__slots__ if (value := getattr(change, name)) is not None}
    asked = {name: value for name in VfConfig.__slots__ if (value := getattr(wanted, name)) is not None}
    assert asked.items() <= reached.items()
    again = decide_changes(VfConfig(**reached), wanted)
    assert again == (() if wanted.mac is None else (VfConfig(mac=wanted.mac),))


def vf_info(number: int, *attributes: tuple[int, bytes]) -> bytes:
    entries = ((1, struct.pack("=I32s", number, bytes.fromhex("02005e100001"))), *attributes)
    return render_attribute(1, b"".join(render_attribute(kind, payload) for kind, payload in entries))


def link_with(*infos: bytes) -> NetlinkMessage:
    return NetlinkMessage(16, 0, 0, struct.pack("=BxHiII", 0, 1, INDEX, 0, 0) + render_attribute(22, b"".join(infos)))


@pytest.mark.parametrize("counters", [250, 248, 244])
def test_hundreds_of_vfs_are_read_from_a_kernel_that_adds_their_counters(counters: int) -> None:
    """Read a list with counters, which the request excludes, and which is longer than an attribute's 16-bit length."""
    infos = b"".join(vf_info(number, (8 | NLA_F_NESTED, bytes(counters))) for number in range(254))
    length = 4 + len(infos)
    assert length > 0xFFFF
    wrapped = struct.pack("=HH", length % 0x10000, 22) + infos
    after = render_attribute(56, b"0000:18:00.0\0") + render_attribute(57, b"pci\0")
    body = struct.pack("=BxHiII", 0, 1, INDEX, 0, 0) + render_attribute(3, b"ens1f0\0") + wrapped + after
    message = NetlinkMessage(16, 0, 0, body)
    assert sorted(parse_vfs(message)) == list(range(254))
    assert (parse_link(message).name, parse_link(message).parent) == ("ens1f0", "0000:18:00.0")


def test_a_list_of_vfs_that_is_cut_off_is_an_error() -> None:
    whole = link_with(*(vf_info(number) for number in range(3)))
    with pytest.raises(ValueError, match="22"):
        parse_vfs(whole._replace(body=whole.body[:-8]))


def test_a_vf_is_read_and_what_its_driver_does_not_tell_is_none() -> None:
    vlan_list = render_attribute(1, struct.pack("=III2s2x", 4, 100, 5, b"\x88\xa8"))
    attributes = (
        (2, struct.pack("=III", 4, 100, 5)),
        (6, struct.pack("=III", 4, 10, 1000)),
        (4, struct.pack("=II", 4, 0xFFFFFFFF)),
        (5, struct.pack("=II", 4, 2)),
        (9, struct.pack("=II", 4, 1)),
        (12, vlan_list),
    )
    assert parse_vfs(link_with(vf_info(0), vf_info(4, *attributes))) == {
        0: VfConfig(mac=_MAC),
        4: VfConfig(
            mac=_MAC,
            vlan=100,
            vlan_qos=5,
            vlan_proto=VlanProtocol.DOT1AD,
            min_tx_rate=10,
            max_tx_rate=1000,
            trust=True,
            link_state=VfLinkState.DISABLE,
        ),
    }


def test_a_device_without_vfs_tells_of_none() -> None:
    assert parse_vfs(NetlinkMessage(16, 0, 0, struct.pack("=BxHiII", 0, 1, INDEX, 0, 0))) == {}
