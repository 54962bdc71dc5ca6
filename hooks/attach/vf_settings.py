"""Render rtnetlink requests for a VF's settings at its PF, and parse the settings that a PF reports.

Each field has its own request, in the order of `Kernel.set_vf`, because the kernel has its own order within one request. Some
fields travel together (VLAN id, priority and protocol; both rates): if one of them is requested, the others are sent with their
present values. A field that already has its value is not sent: some drivers reset a VF for each setting. A MAC is always sent.
Many drivers report the VF's own MAC there, and only a MAC that was given to the PF binds the VF (igb_ndo_set_vf_mac,
ixgbe_ndo_set_vf_mac).

Source: linux/if_link.h (struct ifla_vf_*), net/core/rtnetlink.c (do_setvfinfo, rtnl_fill_vfinfo), ip-link(8) "vf".
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hooks.attach.messages import NetlinkMessage, parse_attributes, parse_number, render_attribute
from hooks.attach.rtnetlink import IFLA_VF_INFO, IFLA_VFINFO_LIST, link_attributes, render_link_message
from hooks.model.attachment import NEUTRAL, VfConfig, VfLinkState, VlanProtocol

_IFLA_VF_MAC: Final = 1
_IFLA_VF_VLAN: Final = 2
_IFLA_VF_IB_NODE_GUID: Final = 10
_IFLA_VF_IB_PORT_GUID: Final = 11
_IFLA_VF_VLAN_LIST: Final = 12
_IFLA_VF_VLAN_INFO: Final = 1

_ONE: Final = struct.Struct("=II")
_TWO: Final = struct.Struct("=III")
_MAC: Final = struct.Struct("=I6s26x")
_GUID: Final = struct.Struct("=I4xQ")  # padded before the 64-bit number
_VLAN_INFO: Final = struct.Struct("=III2s2x")  # padded at the struct's end


class _Setting(NamedTuple):
    kind: int  # IFLA_VF_*
    layout: struct.Struct  # VF's index, then the fields
    fields: tuple[str, ...]  # fields of VfConfig


_SETTINGS: Final = (
    _Setting(_IFLA_VF_VLAN, _TWO, ("vlan", "vlan_qos")),
    _Setting(_IFLA_VF_MAC, _MAC, ("mac",)),
    _Setting(6, _TWO, ("min_tx_rate", "max_tx_rate")),
    _Setting(4, _ONE, ("spoofchk",)),
    _Setting(9, _ONE, ("trust",)),
    _Setting(5, _ONE, ("link_state",)),
)

_DOT1AD: Final = b"\x88\xa8"
_PROTOCOLS: Final = {b"\x81\x00": VlanProtocol.DOT1Q, _DOT1AD: VlanProtocol.DOT1AD}
_LINK_STATES: Final = (VfLinkState.AUTO, VfLinkState.ENABLE, VfLinkState.DISABLE)  # IFLA_VF_LINK_STATE_* from 0
_FLAGS: Final = {0: False, 0xFFFFFFFF: None}  # the kernel's largest number is a flag that the driver does not report
_PARSERS: Final[Mapping[str, Callable[[Any], object]]] = {
    "mac": lambda octets: octets.hex(":"),
    "spoofchk": lambda number: _FLAGS.get(number, True),
    "trust": lambda number: _FLAGS.get(number, True),
    "link_state": dict(enumerate(_LINK_STATES)).get,
}


def decide_changes(now: VfConfig, wanted: VfConfig) -> tuple[VfConfig, ...]:
    """Return the changes to send, in order. Each change has one field, or all fields that travel together."""
    changes, reported = [], now.values
    for setting in _SETTINGS:
        names = (*setting.fields, "vlan_proto") if setting.kind == _IFLA_VF_VLAN else setting.fields
        asked = {name: value for name, value in wanted.values.items() if name in names}
        if "mac" in asked or any(reported.get(name) != value for name, value in asked.items()):
            # A VF without a VLAN keeps neither the priority nor the protocol of its earlier VLAN.
            result = NEUTRAL.values | ({} if asked.get("vlan") == 0 else reported) | asked
            changes.append(VfConfig(**{name: result[name] for name in names}))
    return tuple(changes)


def render_change(pf_index: int, vf: int, change: VfConfig) -> bytes:
    """Render the request of one change that `decide_changes` returned."""
    if change.vlan_proto is VlanProtocol.DOT1AD:
        vlan_info = render_attribute(_IFLA_VF_VLAN_INFO, _VLAN_INFO.pack(vf, change.vlan, change.vlan_qos, _DOT1AD))
        return _render(pf_index, _IFLA_VF_VLAN_LIST, vlan_info)
    for kind, layout, fields in _SETTINGS:
        values = [_number_of(value) for name in fields if (value := getattr(change, name)) is not None]
        if len(values) == len(fields):
            return _render(pf_index, kind, layout.pack(vf, *values))
    raise ValueError(f"no change of one kind: {change}")


def _number_of(value: str | int) -> int | bytes:
    """Return a setting as a number, or octets for a MAC, as the kernel's struct has it."""
    if isinstance(value, VfLinkState):
        return _LINK_STATES.index(value)
    return bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else value


def render_guids(pf_index: int, vf: int, guid: int) -> tuple[bytes, bytes]:
    """Return the requests for the node GUID and for the port GUID of an InfiniBand VF. Two requests are needed, because the
    kernel takes one GUID and ignores the rest of a request (do_setvfinfo)."""
    value = _GUID.pack(vf, guid)
    return _render(pf_index, _IFLA_VF_IB_NODE_GUID, value), _render(pf_index, _IFLA_VF_IB_PORT_GUID, value)


def describe_change(change: VfConfig) -> str:
    """Describe a change for messages: `VLAN 100, priority 5, 802.1q`."""
    match change:
        case VfConfig(vlan=int(vlan)):
            return f"VLAN {vlan}, priority {change.vlan_qos}, {change.vlan_proto}"
        case VfConfig(mac=str(mac)):
            return f"MAC {mac}"
        case VfConfig(max_tx_rate=int(most)):
            return f"transmit rates {change.min_tx_rate} to {most} Mbit/s"
        case VfConfig(spoofchk=bool(check)):
            return f"spoof check {'on' if check else 'off'}"
        case VfConfig(trust=bool(trust)):
            return f"trust {'on' if trust else 'off'}"
        case _:
            return f"link state {change.link_state}"


def parse_vfs(message: NetlinkMessage) -> Mapping[int, VfConfig]:
    """Return the settings of the VFs in a link message, by index; empty if the driver has no VFs, or reports none."""
    infos = parse_attributes(link_attributes(message).get(IFLA_VFINFO_LIST, b""))
    reported = (dict(parse_attributes(info)) for _, info in infos)
    return {parse_number(vf[_IFLA_VF_MAC][:4]): _parse_vf(vf) for vf in reported if _IFLA_VF_MAC in vf}


def _parse_vf(attributes: Mapping[int, bytes]) -> VfConfig:
    fields: dict[str, Any] = {}
    for kind, layout, names in _SETTINGS:
        if kind in attributes:
            values = layout.unpack_from(attributes[kind])[1:]
            fields |= {name: _PARSERS.get(name, int)(value) for name, value in zip(names, values, strict=True)}
    for _, info in parse_attributes(attributes.get(_IFLA_VF_VLAN_LIST, b"")):
        fields["vlan_proto"] = _PROTOCOLS.get(_VLAN_INFO.unpack_from(info)[3])
    return VfConfig(**fields)


def _render(pf_index: int, kind: int, value: bytes) -> bytes:
    attribute = render_attribute(kind, value)
    for outer in (IFLA_VF_INFO, IFLA_VFINFO_LIST):
        attribute = render_attribute(outer, attribute)
    return render_link_message(pf_index, attribute)
