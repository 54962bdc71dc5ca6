"""Render rtnetlink requests about links, addresses and routes, and parse the answers. Values in and out.

Requests are octet for octet as iproute2 sends them (tests/golden/netlink).

Source: rtnetlink(7), linux/if_link.h, linux/if_addr.h, linux/rtnetlink.h.
"""

import ipaddress
import struct
from typing import Final, Literal

from hooks.attach.messages import (
    ASK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    NetlinkMessage,
    parse_attributes,
    parse_number,
    parse_text,
    render_attribute,
    render_message,
    render_nested,
    render_number,
    render_text,
)
from hooks.model.attachment import Link, Route

RTM_NEWLINK: Final = 16
_RTM_DELLINK: Final = 17
RTM_GETLINK: Final = 18
_RTM_NEWADDR: Final = 20
_RTM_NEWROUTE: Final = 24
_RTM_GETROUTE: Final = 26
_RTM_NEWLINKPROP: Final = 108
_RTM_DELLINKPROP: Final = 109

LINK_HEADER: Final = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change mask
_ADDRESS_HEADER: Final = struct.Struct("=4BI")  # struct ifaddrmsg: family, prefix length, flags, scope, index
_ROUTE_HEADER: Final = struct.Struct("=8BI")  # struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags

_IFF_UP: Final = 1
_RTEXT_FILTER_VF: Final = 1
_RTEXT_FILTER_SKIP_STATS: Final = 8  # counters of hundreds of VFs would not fit into one attribute

IFLA_VFINFO_LIST: Final = 22
IFLA_VF_INFO: Final = 1

_IFLA_ADDRESS: Final = 1
_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_LINK: Final = 5
_IFLA_NET_NS_FD: Final = 28
_IFLA_EXT_MASK: Final = 29
_IFLA_LINK_NETNSID: Final = 37
_IFLA_PROP_LIST: Final = 52
_IFLA_ALT_IFNAME: Final = 53
_IFLA_AF_SPEC: Final = 26
_IFLA_INET_CONF: Final = 1
_ARP_NOTIFY: Final = 22  # IPV4_DEVCONF_ARP_NOTIFY
_IFLA_PARENT_DEV_NAME: Final = 56
_IFLA_PARENT_DEV_BUS_NAME: Final = 57

_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_IFA_F_OPTIMISTIC: Final = 4

_AF_INET: Final = 2
_AF_INET6: Final = 10
_RTA_DST: Final = 1
_RTA_OIF: Final = 4
_RTA_GATEWAY: Final = 5
_RTN_UNICAST: Final = 1
_RT_TABLE_MAIN: Final = 254
_RTPROT_BOOT: Final = 3
_RT_SCOPE_UNIVERSE: Final = 0
_RT_SCOPE_LINK: Final = 253

_ADD: Final = ASK | NLM_F_CREATE | NLM_F_EXCL


def render_get_link(name: str) -> bytes:
    """Render the request for a link and the settings of its VFs."""
    mask = render_number(_IFLA_EXT_MASK, _RTEXT_FILTER_VF | _RTEXT_FILTER_SKIP_STATS)
    return render_link_message(0, mask, render_text(_IFLA_IFNAME, name), kind=RTM_GETLINK)


def render_list_links() -> bytes:
    mask = render_number(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    return render_link_message(0, mask, kind=RTM_GETLINK, flags=NLM_F_REQUEST | NLM_F_DUMP)


def render_delete_link(index: int) -> bytes:
    return render_link_message(index, kind=_RTM_DELLINK)


def render_link_message(
    index: int, *attributes: bytes, kind: int = RTM_NEWLINK, flags: int = ASK, up: bool | None = None
) -> bytes:
    """Render a request about one device, by default a change. `up` sets the device up or down; None leaves its state."""
    header = LINK_HEADER.pack(0, 0, index, _IFF_UP if up else 0, 0 if up is None else _IFF_UP)
    return render_message(kind, flags, header + b"".join(attributes))


def render_set_up(index: int, *, up: bool) -> bytes:
    return render_link_message(index, up=up)


def render_announce(index: int) -> bytes:
    """Render a request that sets arp_notify: when the device comes up, the kernel sends a gratuitous ARP for each address.
    Neighbours may still know the address with another VF's MAC. rtnetlink has such settings for IPv4 only; `netlink` writes
    those for IPv6."""
    setting = render_nested(_IFLA_INET_CONF, render_number(_ARP_NOTIFY, 1))
    return render_link_message(index, render_nested(_IFLA_AF_SPEC, render_nested(_family(4), setting)))


def render_set_link(index: int, *, mac: str | None = None, mtu: int | None = None) -> bytes:
    attributes = [] if mtu is None else [render_number(_IFLA_MTU, mtu)]
    attributes += [] if mac is None else [render_attribute(_IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))]
    return render_link_message(index, *attributes)


def render_rename_link(index: int, name: str) -> bytes:
    return render_link_message(index, render_text(_IFLA_IFNAME, name))


def render_move_link(index: int, netns_fd: int, name: str) -> bytes:
    return render_link_message(index, render_number(_IFLA_NET_NS_FD, netns_fd), render_text(_IFLA_IFNAME, name))


def render_add_altname(index: int, name: str) -> bytes:
    return _render_altname(_RTM_NEWLINKPROP, _ADD | NLM_F_APPEND, index, name)


def render_drop_altname(index: int, name: str) -> bytes:
    return _render_altname(_RTM_DELLINKPROP, ASK, index, name)


def _render_altname(kind: int, flags: int, index: int, name: str) -> bytes:
    names = render_nested(_IFLA_PROP_LIST, render_text(_IFLA_ALT_IFNAME, name))
    return render_link_message(index, names, kind=kind, flags=flags)


def render_add_address(index: int, address: str) -> bytes:
    """Render a request that adds an address. An IPv6 address gets optimistic DAD, which the kernel ignores if that setting is
    off."""
    parsed = ipaddress.ip_interface(address)
    flags = _IFA_F_OPTIMISTIC if parsed.version == 6 else 0
    header = _ADDRESS_HEADER.pack(_family(parsed.version), parsed.network.prefixlen, flags, 0, index)
    addresses = (render_attribute(kind, parsed.packed) for kind in (_IFA_LOCAL, _IFA_ADDRESS))
    return render_message(_RTM_NEWADDR, _ADD, header + b"".join(addresses))


def render_add_route(index: int, route: Route) -> bytes:
    """Render a route into the main table. As in ip-route(8), a route without a gateway has link scope in IPv4."""
    to = ipaddress.ip_network(route.to)
    scope = _RT_SCOPE_LINK if to.version == 4 and not route.via else _RT_SCOPE_UNIVERSE
    header = _ROUTE_HEADER.pack(_family(to.version), to.prefixlen, 0, 0, _RT_TABLE_MAIN, _RTPROT_BOOT, scope, _RTN_UNICAST, 0)
    via = render_attribute(_RTA_GATEWAY, ipaddress.ip_address(route.via).packed) if route.via else b""
    body = render_attribute(_RTA_DST, to.network_address.packed) + via + render_number(_RTA_OIF, index)
    return render_message(_RTM_NEWROUTE, _ADD, header + body)


def render_list_routes(version: Literal[4, 6]) -> bytes:
    header = _ROUTE_HEADER.pack(_family(version), 0, 0, 0, 0, 0, 0, 0, 0)
    return render_message(_RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, header)


def link_attributes(message: NetlinkMessage) -> dict[int, bytes]:
    """Return the attributes of a link, by type. Raise ValueError on truncated data."""
    return dict(parse_attributes(message.body[LINK_HEADER.size :], {IFLA_VFINFO_LIST: IFLA_VF_INFO}))


def parse_link(message: NetlinkMessage) -> Link:
    _, _, index, flags, _ = LINK_HEADER.unpack_from(message.body)
    attributes = link_attributes(message)
    on_pci = parse_text(attributes.get(_IFLA_PARENT_DEV_BUS_NAME, b"")) == "pci"
    return Link(
        index=index,
        name=parse_text(attributes.get(_IFLA_IFNAME, b"")),
        mac=attributes.get(_IFLA_ADDRESS, b"").hex(":"),
        mtu=parse_number(attributes.get(_IFLA_MTU, b"")),
        up=bool(flags & _IFF_UP),
        parent=parse_text(attributes.get(_IFLA_PARENT_DEV_NAME, b"")) if on_pci else "",
        altnames=tuple(
            parse_text(name)
            for kind, name in parse_attributes(attributes.get(_IFLA_PROP_LIST, b""))
            if kind == _IFLA_ALT_IFNAME
        ),
        lower=0 if _IFLA_LINK_NETNSID in attributes else parse_number(attributes.get(_IFLA_LINK, b"")),
    )


def parse_route(message: NetlinkMessage) -> tuple[int, Route] | None:
    """Return (index of the device, the route); None for anything but a plain route of the main table."""
    family, length, _, _, table, _, _, kind, _ = _ROUTE_HEADER.unpack_from(message.body)
    attributes = dict(parse_attributes(message.body[_ROUTE_HEADER.size :]))
    if (table, kind) != (_RT_TABLE_MAIN, _RTN_UNICAST) or _RTA_OIF not in attributes:
        return None
    to = attributes.get(_RTA_DST, bytes(4 if family == _AF_INET else 16))
    via = attributes.get(_RTA_GATEWAY)
    return parse_number(attributes[_RTA_OIF]), Route(
        to=f"{ipaddress.ip_address(to)}/{length}", via=str(ipaddress.ip_address(via)) if via else ""
    )


def same_route(one: Route, other: Route) -> bool:
    """Return whether two routes are equal, however they are spelled."""
    return ipaddress.ip_network(one.to) == ipaddress.ip_network(other.to) and _gateway(one) == _gateway(other)


def _gateway(route: Route) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    return ipaddress.ip_address(route.via) if route.via else None


def _family(version: int) -> int:
    return _AF_INET if version == 4 else _AF_INET6
