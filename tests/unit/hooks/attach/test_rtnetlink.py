"""Compare requests with those of ip(8) for the same change (tests/golden/netlink)."""

import os
import struct

import pytest

from hooks.attach.kernel import KernelError
from hooks.attach.messages import NetlinkMessage, parse_messages, render_attribute
from hooks.attach.rtnetlink import (
    parse_link,
    parse_route,
    render_add_address,
    render_add_altname,
    render_add_route,
    render_drop_altname,
    render_get_link,
    render_move_link,
    render_rename_link,
    render_set_link,
    render_set_up,
    same_route,
)
from hooks.model.attachment import Link, Route
from tests.golden.netlink.capture import INDEX, NETNS_FD, sent


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("link-up", render_set_up(INDEX, up=True)),
        ("link-down", render_set_up(INDEX, up=False)),
        ("link-mac", render_set_link(INDEX, mac="02:00:00:00:00:03")),
        ("link-mtu", render_set_link(INDEX, mtu=1400)),
        ("link-rename", render_rename_link(INDEX, "pf7")),
        ("link-altname", render_add_altname(INDEX, "pf-seven")),
        ("link-altname-off", render_drop_altname(INDEX, "pf-seven")),
        ("link-move", render_move_link(INDEX, NETNS_FD, "rdma0")),
        ("address-4", render_add_address(INDEX, "10.0.0.2/24")),
        ("address-6", render_add_address(INDEX, "fd00::2/64")),
        ("route-4", render_add_route(INDEX, Route("10.1.0.0/16", "10.0.0.1"))),
        ("route-4-link", render_add_route(INDEX, Route("10.2.0.0/16"))),
        ("route-4-default", render_add_route(INDEX, Route("0.0.0.0/0", "10.0.0.1"))),
        ("route-6", render_add_route(INDEX, Route("fd01::/64", "fd00::1"))),
        ("route-6-link", render_add_route(INDEX, Route("fd02::/64"))),
    ],
)
def test_a_request_is_what_ip_sends(name: str, request_: bytes) -> None:
    assert request_ == sent()[name]


def test_a_link_is_asked_for_by_name_with_its_vfs_and_without_their_counters() -> None:
    (message,) = parse_messages(render_get_link("ens1f0"))
    assert message.kind == 18
    assert message.body[16:] == render_attribute(29, struct.pack("=I", 1 | 8)) + render_attribute(3, b"ens1f0\0")


def link_message(*attributes: tuple[int, bytes], flags: int = 0) -> NetlinkMessage:
    rendered = b"".join(render_attribute(kind, payload) for kind, payload in attributes)
    return NetlinkMessage(16, 0, 0, struct.pack("=BxHiII", 0, 1, 12, flags, 0) + rendered)


def test_a_link_is_read_with_the_function_that_it_is_of() -> None:
    message = link_message(
        (3, b"ens1f0v0\0"),
        (4, struct.pack("=I", 9000)),
        (1, bytes.fromhex("02005e100001")),
        (56, b"0000:18:00.2\0"),
        (57, b"pci\0"),
        flags=0x1003,
    )
    assert parse_link(message) == Link(
        index=12, name="ens1f0v0", mac="02:00:5e:10:00:01", mtu=9000, up=True, parent="0000:18:00.2"
    )


def test_alternative_names_are_read_whatever_octets_they_are() -> None:
    rendered = render_attribute(53, b"enp24s0f0v0\0") + render_attribute(99, bytes(4)) + render_attribute(53, b"\xff/ \0")
    link = parse_link(link_message((3, b"ens1v0\0"), (52 | 0x8000, rendered)))
    assert link.altnames == ("enp24s0f0v0", os.fsdecode(b"\xff/ "))
    assert render_attribute(53, b"\xff/ \0") in render_drop_altname(7, link.altnames[1])


def test_what_a_device_stands_on_is_read_where_it_is_of_the_same_namespace() -> None:
    lower = (5, struct.pack("=I", 7))
    assert parse_link(link_message((3, b"ib0.8001\0"), lower)).lower == 7
    assert parse_link(link_message((3, b"veth0\0"), lower, (37, bytes(4)))).lower == 0
    assert parse_link(link_message((3, b"ens1v0\0"))).lower == 0


def test_a_parent_on_another_bus_is_no_function() -> None:
    assert parse_link(link_message((3, b"eth0\0"), (56, b"virtio1\0"), (57, b"virtio\0"))).parent == ""


def test_the_address_of_an_infiniband_device_keeps_its_twenty_octets() -> None:
    octets = bytes(range(20))
    assert parse_link(link_message((3, b"ib0\0"), (1, octets))).mac == octets.hex(":")


def test_a_name_that_is_no_text_is_asked_for_as_it_was_reported() -> None:
    """Check a name that is no text: a pod that may configure its network can give its VF one, which the VF keeps when it
    returns."""
    name = parse_link(link_message((3, b"\xff\xfe\0"))).name
    assert render_attribute(3, b"\xff\xfe\0") in render_get_link(name)
    str(KernelError(f"cannot rename {name}")).encode()  # goes into journal and log


def test_a_device_without_an_address_has_none() -> None:
    assert parse_link(link_message((3, b"tun0\0"), (4, struct.pack("=I", 1500)))).mac == ""


def route_message(family: int, length: int, *attributes: tuple[int, bytes], table: int = 254, kind: int = 1) -> NetlinkMessage:
    rendered = b"".join(render_attribute(each, payload) for each, payload in attributes)
    return NetlinkMessage(24, 2, 0, struct.pack("=8BI", family, length, 0, 0, table, 3, 0, kind, 0) + rendered)


def test_routes_are_read() -> None:
    via = route_message(2, 16, (1, bytes([10, 1, 0, 0])), (5, bytes([10, 0, 0, 1])), (4, struct.pack("=I", 7)))
    default = route_message(10, 0, (4, struct.pack("=I", 7)))
    assert parse_route(via) == (7, Route("10.1.0.0/16", "10.0.0.1"))
    assert parse_route(default) == (7, Route("::/0"))


@pytest.mark.parametrize(
    "message",
    [
        route_message(2, 32, (1, bytes([10, 0, 0, 2])), (4, struct.pack("=I", 7)), table=255),
        route_message(2, 8, (1, bytes([10, 0, 0, 0])), kind=7),
        route_message(2, 8, (1, bytes([10, 0, 0, 0])), (9, bytes(8))),
    ],
    ids=["the local table", "unreachable", "several next hops"],
)
def test_a_route_that_is_not_plain_is_left_alone(message: NetlinkMessage) -> None:
    assert parse_route(message) is None


def test_routes_are_compared_by_what_they_mean() -> None:
    assert same_route(Route("fd01:0::/64", "fd00:0::1"), Route("fd01::/64", "fd00::1"))
    assert not same_route(Route("10.1.0.0/16"), Route("10.1.0.0/16", "10.0.0.1"))
    assert not same_route(Route("10.1.0.0/16"), Route("10.1.0.0/17"))
