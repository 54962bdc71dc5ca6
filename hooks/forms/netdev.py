"""Parse the settings of a VF for its pod, from an assignment's entry or the node's `[vf]`, into `VfSettings`.

It takes a JSON object or TOML table as Python values; unknown keys are ignored. It returns the settings; a missing key is None,
which is never written to the kernel. Refused, by key (WrongSettingError): another type, a number out of range, a MAC that no
device can have, an address without its prefix, a route whose network and gateway do not fit together.

Source: if_link.h (IFLA_VF_*), RFC 791 (an MTU is at least 68), the annotation's form in docs/reference.md.
"""

import contextlib
import ipaddress
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from hooks.model.attachment import (
    MAX_MTU,
    MAX_QOS,
    MAX_RATE,
    MAX_VLAN,
    MIN_MTU,
    Route,
    VfConfig,
    VfLinkState,
    VfSettings,
    VlanProtocol,
)
from lading.devices.identity import shown_value

MAX_ADDRESSES, MAX_ROUTES = 16, 64

_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_PREFIX: Final = re.compile(r"[0-9a-fA-F.:]+/[0-9]{1,3}")  # no netmask, no scope

T = TypeVar("T")
Enumerated = TypeVar("Enumerated", bound=StrEnum)


class WrongSettingError(Exception):
    def __init__(self, key: str, cause: str) -> None:
        """Set the message. `key`, with its index: `addresses[1]`; `cause` begins with "is"."""
        super().__init__(f"{key} {cause}")
        self.key = key
        self.cause = cause


def parse_settings(entry: Mapping[str, Any]) -> VfSettings:
    """Parse the settings. Raise WrongSettingError."""
    config = VfConfig(
        mac=_optional(entry, "mac", parse_mac, "a unicast MAC address as 02:00:5e:10:00:01"),
        vlan=_number(entry, "vlan", 0, MAX_VLAN),
        vlan_qos=_number(entry, "vlan_qos", 0, MAX_QOS),
        vlan_proto=_member(entry, "vlan_proto", VlanProtocol),
        min_tx_rate=_number(entry, "min_tx_rate", 0, MAX_RATE),
        max_tx_rate=_number(entry, "max_tx_rate", 0, MAX_RATE),
        spoofchk=parse_flag(entry, "spoofchk"),
        trust=parse_flag(entry, "trust"),
        link_state=_member(entry, "link_state", VfLinkState),
    )
    return VfSettings(
        config=config,
        mtu=_number(entry, "mtu", MIN_MTU, MAX_MTU),
        addresses=_addresses(entry),
        routes=_routes(entry),
    )


def parse_flag(entry: Mapping[str, Any], key: str) -> bool | None:
    value = entry.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise WrongSettingError(key, f"is {shown_value(value)}, not true or false")


def parse_mac(text: str) -> str | None:
    """Return the MAC in lower case; None if no network device can have it as its own: a group's address, or zero."""
    mac = text.lower()
    if not _MAC.fullmatch(mac) or int(mac[:2], 16) & 1 or not mac.strip("0:"):
        return None
    return mac


def parse_interface(text: str) -> str | None:
    """Return an address with its prefix, in one spelling; None if no interface can have it."""
    if not _PREFIX.fullmatch(text):
        return None
    try:
        result = ipaddress.ip_interface(text)
    except ValueError:
        return None
    return None if result.ip.is_multicast or result.ip.is_unspecified else str(result)


def _number(entry: Mapping[str, Any], key: str, low: int, high: int) -> int | None:
    value = entry.get(key)
    if value is None or (type(value) is int and low <= value <= high):
        return value
    raise WrongSettingError(key, f"is {shown_value(value)}, not a whole number from {low} to {high}")


def _member(entry: Mapping[str, Any], key: str, kind: type[Enumerated]) -> Enumerated | None:
    value = entry.get(key)
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise WrongSettingError(key, f"is {shown_value(value)}, not one of {', '.join(kind)}") from None


def _optional(entry: Mapping[str, Any], key: str, parse: Callable[[str], T | None], right: str) -> T | None:
    value = entry.get(key)
    return None if value is None else _parsed(key, value, parse, right)


def _parsed(key: str, value: object, parse: Callable[[str], T | None], right: str) -> T:
    result = parse(value) if isinstance(value, str) else None
    if result is None:
        raise WrongSettingError(key, f"is {shown_value(value)}, not {right}")
    return result


def _addresses(entry: Mapping[str, Any]) -> tuple[str, ...]:
    result: list[str] = []
    for i, value in enumerate(_list(entry, "addresses", MAX_ADDRESSES)):
        key = f"addresses[{i}]"
        address = _parsed(key, value, parse_interface, "an address with its prefix as 10.0.0.2/24")
        if address in result:
            raise WrongSettingError(key, f"is {address}, which is there already")
        result.append(address)
    return tuple(result)


def _routes(entry: Mapping[str, Any]) -> tuple[Route, ...]:
    return tuple(_route(f"routes[{i}]", value) for i, value in enumerate(_list(entry, "routes", MAX_ROUTES)))


def _route(key: str, value: object) -> Route:
    if not isinstance(value, dict):
        raise WrongSettingError(key, f'is {shown_value(value)}, not an object as {{"to":"10.1.0.0/16","via":"10.0.0.1"}}')
    to = _network(f"{key}.to", value.get("to"))
    if value.get("via") is None:
        return Route(to=str(to))
    via = _gateway(f"{key}.via", value["via"])
    if via.version != to.version:
        raise WrongSettingError(f"{key}.via", f"is {via}, and IPv{via.version} is no way to {to}")
    return Route(to=str(to), via=str(via))


def _network(key: str, value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if isinstance(value, str) and _PREFIX.fullmatch(value):
        with contextlib.suppress(ValueError):
            return ipaddress.ip_network(value)
    raise WrongSettingError(key, f"is {shown_value(value)}, not a network as 10.1.0.0/16, its host bits zero; any: 0.0.0.0/0")


def _gateway(key: str, value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    if isinstance(value, str) and "%" not in value:
        with contextlib.suppress(ValueError):
            result = ipaddress.ip_address(value)
            if not result.is_multicast and not result.is_unspecified:
                return result
    raise WrongSettingError(key, f"is {shown_value(value)}, not the address of a gateway as 10.0.0.1")


def _list(entry: Mapping[str, Any], key: str, most: int) -> list[Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise WrongSettingError(key, f"is {shown_value(value)}, not an array")
    if len(value) > most:
        raise WrongSettingError(key, f"is an array of {len(value)}, more than {most}")
    return value


def settings_conflict(settings: VfSettings) -> str:
    """Describe why two settings, of one entry or of an entry and the node's, cannot be combined; empty if they can."""
    config = settings.config
    if config.min_tx_rate and config.max_tx_rate and config.min_tx_rate > config.max_tx_rate:
        return f"min_tx_rate is {config.min_tx_rate} Mbit/s and max_tx_rate {config.max_tx_rate}"
    if config.vlan_proto is VlanProtocol.DOT1AD and not config.vlan:
        return f"vlan_proto is {config.vlan_proto}, and there is no vlan"
    return ""
