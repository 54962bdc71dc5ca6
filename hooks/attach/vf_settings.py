"""Render rtnetlink requests for a VF's settings at its PF, and parse the settings that a PF reports.

Each field has its own request, in the order of `Kernel.set_vf`, because the kernel has its own order within one request. Some
fields travel together (VLAN id, priority and protocol; both rates): if one of them is requested, the others are sent with their
present values. A field that already has its value is not sent: some drivers reset a VF for each setting. A MAC is always sent.
Many drivers report the VF's own MAC there, and only a MAC that was given to the PF binds the VF (igb_ndo_set_vf_mac,
ixgbe_ndo_set_vf_mac).

Source: linux/if_link.h (struct ifla_vf_*), net/core/rtnetlink.c (do_setvfinfo, rtnl_fill_vfinfo), ip-link(8) "vf".
"""

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from hooks.attach.messages import NetlinkMessage, parse_attributes, render_attribute
from hooks.attach.rtnetlink import IFLA_VF_INFO, IFLA_VFINFO_LIST, link_attributes, render_link_message
from hooks.model.attachment import VfConfig, VfLinkState, VlanProtocol

_TOGETHER: Final = (
    ("vlan", "vlan_qos", "vlan_proto"),
    ("mac",),
    ("min_tx_rate", "max_tx_rate"),
    ("spoofchk",),
    ("trust",),
    ("link_state",),
)
_NEUTRAL: Final = VfConfig(vlan=0, vlan_qos=0, vlan_proto=VlanProtocol.DOT1Q, min_tx_rate=0, max_tx_rate=0)

_IFLA_VF_MAC: Final = 1
_IFLA_VF_VLAN: Final = 2
_IFLA_VF_SPOOFCHK: Final = 4
_IFLA_VF_LINK_STATE: Final = 5
_IFLA_VF_RATE: Final = 6
_IFLA_VF_TRUST: Final = 9
_IFLA_VF_IB_NODE_GUID: Final = 10
_IFLA_VF_IB_PORT_GUID: Final = 11
_IFLA_VF_VLAN_LIST: Final = 12
_IFLA_VF_VLAN_INFO: Final = 1

_MAC: Final = struct.Struct("=I32s")
_SETTING: Final = struct.Struct("=II")
_TWO_SETTINGS: Final = struct.Struct("=III")
_GUID: Final = struct.Struct("=I4xQ")  # padded before the 64-bit number
_VLAN_INFO: Final = struct.Struct("=III2s2x")  # padded at the struct's end

_PROTOCOLS: Final = {b"\x81\x00": VlanProtocol.DOT1Q, b"\x88\xa8": VlanProtocol.DOT1AD}
_LINK_STATES: Final = dict(enumerate((VfLinkState.AUTO, VfLinkState.ENABLE, VfLinkState.DISABLE)))  # IFLA_VF_LINK_STATE_*
_NOT_REPORTED: Final = 0xFFFFFFFF  # the kernel's value for a setting that the driver does not report


def decide_changes(now: VfConfig, wanted: VfConfig) -> tuple[VfConfig, ...]:
    """Return the changes to send, in order. Each change has one field, or all fields that travel together."""
    changes = []
    for names in _TOGETHER:
        asked = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        if "mac" in asked or any(getattr(now, name) != value for name, value in asked.items()):
            # A VF without a VLAN keeps neither the priority nor the protocol of its earlier VLAN.
            rest = _NEUTRAL if asked.get("vlan") == 0 else now
            required = {name: getattr(rest, name) for name in names if getattr(rest, name) is not None}
            neutral = {name: getattr(_NEUTRAL, name) for name in names}
            fields: dict[str, Any] = {**neutral, **required, **asked}
            changes.append(VfConfig(**fields))
    return tuple(changes)


def render_change(pf_index: int, vf: int, change: VfConfig) -> bytes:
    """Render the request of one change that `decide_changes` returned."""
    match change:
        case VfConfig(vlan=int(vlan), vlan_qos=int(qos), vlan_proto=VlanProtocol.DOT1AD):
            octets = next(octets for octets, protocol in _PROTOCOLS.items() if protocol is VlanProtocol.DOT1AD)
            vlan_info = render_attribute(_IFLA_VF_VLAN_INFO, _VLAN_INFO.pack(vf, vlan, qos, octets))
            return _render(pf_index, _IFLA_VF_VLAN_LIST, vlan_info)
        case VfConfig(vlan=int(vlan), vlan_qos=int(qos)):
            return _render(pf_index, _IFLA_VF_VLAN, _TWO_SETTINGS.pack(vf, vlan, qos))
        case VfConfig(mac=str(mac)):
            return _render(pf_index, _IFLA_VF_MAC, _MAC.pack(vf, bytes.fromhex(mac.replace(":", ""))))
        case VfConfig(min_tx_rate=int(least), max_tx_rate=int(most)):
            return _render(pf_index, _IFLA_VF_RATE, _TWO_SETTINGS.pack(vf, least, most))
        case VfConfig(spoofchk=bool(check)):
            return _render(pf_index, _IFLA_VF_SPOOFCHK, _SETTING.pack(vf, check))
        case VfConfig(trust=bool(trust)):
            return _render(pf_index, _IFLA_VF_TRUST, _SETTING.pack(vf, trust))
        case VfConfig(link_state=VfLinkState() as state):
            number = next(number for number, name in _LINK_STATES.items() if name is state)
            return _render(pf_index, _IFLA_VF_LINK_STATE, _SETTING.pack(vf, number))
        case _:
            raise ValueError(f"no change of one kind: {change}")


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
    attributes = link_attributes(message)
    result = {}
    for _, info in parse_attributes(attributes.get(IFLA_VFINFO_LIST, b"")):
        attributes = dict(parse_attributes(info))
        if _IFLA_VF_MAC in attributes:
            result[_MAC.unpack_from(attributes[_IFLA_VF_MAC])[0]] = _parse_vf(attributes)
    return result


def _parse_vf(attributes: Mapping[int, bytes]) -> VfConfig:
    config = VfConfig(
        mac=_MAC.unpack_from(attributes[_IFLA_VF_MAC])[1][:6].hex(":"),
        spoofchk=_parse_flag(attributes.get(_IFLA_VF_SPOOFCHK)),
        trust=_parse_flag(attributes.get(_IFLA_VF_TRUST)),
    )
    if _IFLA_VF_VLAN in attributes:
        _, vlan, qos = _TWO_SETTINGS.unpack_from(attributes[_IFLA_VF_VLAN])
        config = replace(config, vlan=vlan, vlan_qos=qos)
    for _, info in parse_attributes(attributes.get(_IFLA_VF_VLAN_LIST, b"")):
        config = replace(config, vlan_proto=_PROTOCOLS.get(_VLAN_INFO.unpack_from(info)[3]))
    if _IFLA_VF_RATE in attributes:
        _, least, most = _TWO_SETTINGS.unpack_from(attributes[_IFLA_VF_RATE])
        config = replace(config, min_tx_rate=least, max_tx_rate=most)
    if _IFLA_VF_LINK_STATE in attributes:
        config = replace(config, link_state=_LINK_STATES.get(_SETTING.unpack_from(attributes[_IFLA_VF_LINK_STATE])[1]))
    return config


def _parse_flag(payload: bytes | None) -> bool | None:
    if payload is None or (value := _SETTING.unpack_from(payload)[1]) == _NOT_REPORTED:
        return None
    return bool(value)


def _render(pf_index: int, kind: int, value: bytes) -> bytes:
    attribute = render_attribute(kind, value)
    for outer in (IFLA_VF_INFO, IFLA_VFINFO_LIST):
        attribute = render_attribute(outer, attribute)
    return render_link_message(pf_index, attribute)
