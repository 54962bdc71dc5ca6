"""Render and parse an attachment in its one written form, for the journal's table and a container's annotation.

The annotation is `lading.dev/attachments`. The form is canonical JSON, read back strictly (`canonical`). All names are checked
too: a release renames devices and sets up a PF by them, and a container gets the device nodes that they name. A value that is
not an address, interface name, MAC or path in Lading's form, or a number out of range, is refused as StateError.

Source: linux/if_link.h, dev_valid_name (net/core/dev.c), infiniband's device nodes (drivers/infiniband/core).
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from hooks.model.attachment import (
    MAX_MTU,
    MAX_QOS,
    MAX_RATE,
    MAX_VLAN,
    MIN_MTU,
    MOST_ALTNAMES,
    Attachment,
    Netdev,
    VfConfig,
    VfSettings,
    is_altname,
)
from hooks.model.canonical import decode, render_canonical
from hooks.model.inventory import CharDevice, Vf
from lading.devices.identity import is_ibdev, is_ifname, parse_pci_address
from lading.errors import StateError
from lading.vocabulary import PciAddress

_LARGEST_INTEGER: Final = 2**63 - 1  # SQLite's largest integer
_LARGEST_U32: Final = 2**32 - 1
# A container's annotation may name generations up to 2**48. Above them are as many as a node can ever use, and JSON's readers
# hold each of them exactly (up to 2**53).
_MAX_REPORTED: Final = 2**48
_LARGEST_GENERATION: Final = 2**53

_MAC: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_HARDWARE: Final = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){0,31}")  # twenty octets on InfiniBand, 32 at most (MAX_ADDR_LEN)
_NETDEV: Final = re.compile(r"(?!\.{1,2}$)[^\s/:\x00-\x20\x7f\ud800-\udfff]{1,15}")
_KEPT_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,39}")
_KEPT_VALUE: Final = re.compile(r"[0-9a-z:, ]{0,4096}")
_MOST_KEPT: Final = 128
_NODE: Final = re.compile(r"/dev/infiniband/(uverbs|umad|issm)[0-9]{1,6}")
_PATH: Final = re.compile(r"(/[^/\x00-\x1f]+)+")


def render_attachment(attachment: Attachment) -> str:
    return render_canonical(attachment).decode()


def render_attachments(attachments: Iterable[Attachment]) -> str:
    """Return the annotation: the attachments of one container."""
    return render_canonical(tuple(attachments)).decode()


def parse_attachment(text: str) -> Attachment:
    result = decode(text, Attachment)
    _check(text, (result,), render_attachment(result))
    return result


def parse_attachments(text: str) -> tuple[Attachment, ...]:
    result = decode(text, tuple[Attachment, ...], name="attachments")
    _check(text, result, render_attachments(result))
    if any(one.generation > _MAX_REPORTED for one in result):
        raise StateError(f"cannot read an attachment: a generation after {_MAX_REPORTED}")
    return result


def newest_of_each(attachments: Iterable[Attachment], *, taken: Collection[int] = ()) -> tuple[Attachment, ...]:
    """Return the newest attachment of each VF: several containers may report the same attachment, and an exited container an
    older one. The generations in the result are distinct, and none of them is in `taken`."""
    newest: dict[PciAddress, Attachment] = {}
    for one in sorted(attachments, key=lambda a: (a.generation, a.bdf)):
        newest[one.bdf] = one
    used, distinct = set(taken), []
    for one in newest.values():
        number = max(used) + 1 if one.generation in used else one.generation
        used.add(number)
        distinct.append(replace(one, generation=number))
    return tuple(distinct)


def check_attachment(attachment: Attachment) -> None:
    """Raise StateError if the written form could not be read back."""
    for problem in _problems(attachment):
        raise StateError(f"cannot keep an attachment: {problem}")


def _check(text: str, attachments: tuple[Attachment, ...], rendered: str) -> None:
    if rendered != text:
        raise StateError("cannot read an attachment: not the bytes that this node writes")
    for one in attachments:
        for problem in _problems(one):
            raise StateError(f"cannot read an attachment: {problem}")


def _problems(a: Attachment) -> Iterator[str]:
    yield from _vf_problems(a.vf)
    yield from _config_problems(a.config)
    yield from _settings_problems(a.settings)
    if a.netdev is not None:
        yield from _netdev_problems(a.netdev)
    yield from _unless(is_ifname(a.ifname), a.ifname, "no interface name")
    yield from _unless(_is_path(a.netns), a.netns, "no path of a namespace")
    yield from (f"{name} is empty" for name in ("pod", "sandbox", "boot_id") if not getattr(a, name))
    yield from _unless(0 <= a.generation <= _LARGEST_GENERATION, a.generation, "no generation")
    numbers = {"since": a.since, "device": a.netns_id.device, "inode": a.netns_id.inode, "ibdev": a.ibdev_number or 0}
    for name, number in numbers.items():
        yield from _unless(0 <= number <= _LARGEST_INTEGER, number, f"out of range for {name}")


def _vf_problems(vf: Vf) -> Iterator[str]:
    for address in (vf.bdf, vf.pf):
        yield from _unless(parse_pci_address(address) == address, address, "no PCI address")
    yield from _unless(0 <= vf.index <= 0xFFFF, vf.index, "no number of a VF")
    yield from _unless(not vf.ibdev or is_ibdev(vf.ibdev), vf.ibdev, "no RDMA device's name")
    yield from _unless(not vf.netdev or _is_netdev(vf.netdev), vf.netdev, "no network device's name")
    for node in (*((vf.uverbs,) if vf.uverbs else ()), *vf.umad):
        yield from _node_problems(node)


def _node_problems(node: CharDevice) -> Iterator[str]:
    """Yield the problems of this device node. A container gets the node, so it must not be another device, for example a
    disk."""
    yield from _unless(_NODE.fullmatch(node.path) is not None, node.path, "no RDMA device node")
    yield from _unless(_is_path(node.host_path) and node.host_path.endswith(node.path), node.host_path, "another node")
    yield from _unless(0 < node.major <= _LARGEST_U32 and 0 <= node.minor <= _LARGEST_U32, node.path, "without its number")


def _netdev_problems(netdev: Netdev) -> Iterator[str]:
    yield from _unless(_is_netdev(netdev.name), netdev.name, "no network device's name")
    yield from _unless(not netdev.mac or _HARDWARE.fullmatch(netdev.mac) is not None, netdev.mac, "no hardware address")
    yield from _unless(0 <= netdev.mtu <= _LARGEST_U32, netdev.mtu, "no MTU")
    yield from _unless(len(netdev.altnames) <= MOST_ALTNAMES, netdev.altnames, "too many alternative names")
    for name in netdev.altnames:
        yield from _unless(is_altname(name), name, "no alternative name")
    yield from _unless(len(netdev.kept) <= _MOST_KEPT, len(netdev.kept), f"more than {_MOST_KEPT} settings of a device")
    for name, value in netdev.kept:
        yield from _unless(_KEPT_NAME.fullmatch(name) is not None, name, "no name of a device's setting")
        yield from _unless(_KEPT_VALUE.fullmatch(value) is not None, value, f"no value of the device's setting {name}")


def _config_problems(config: VfConfig) -> Iterator[str]:
    yield from _unless(config.mac is None or _MAC.fullmatch(config.mac) is not None, config.mac, "no MAC")
    for value, largest in (
        (config.vlan, MAX_VLAN),
        (config.vlan_qos, MAX_QOS),
        (config.min_tx_rate, MAX_RATE),
        (config.max_tx_rate, MAX_RATE),
    ):
        yield from _unless(value is None or 0 <= value <= largest, value, f"not from 0 to {largest}")


def _settings_problems(settings: VfSettings) -> Iterator[str]:
    yield from _config_problems(settings.config)
    yield from _unless(settings.mtu is None or MIN_MTU <= settings.mtu <= MAX_MTU, settings.mtu, "no MTU")
    for address in settings.addresses:
        yield from _unless(_parses(ipaddress.ip_interface, address), address, "no address")
    for route in settings.routes:
        yield from _unless(_parses(ipaddress.ip_network, route.to), route.to, "no network")
        yield from _unless(not route.via or _parses(ipaddress.ip_address, route.via), route.via, "no gateway")


def _unless(ok: bool, value: object, problem: str) -> Iterator[str]:
    if not ok:
        yield f"{value!r:.80}: {problem}"


def _is_netdev(name: str) -> bool:
    return _NETDEV.fullmatch(name) is not None


def _is_path(path: str) -> bool:
    return len(path) <= 4096 and _PATH.fullmatch(path) is not None and not {".", ".."} & set(path.split("/"))


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True
