"""Read RDMA functions from sysfs: PFs, their VFs, and the device nodes by which a container uses a VF.

A VF's identity is its PCI address; everything else (ibdev, netdev, uverbs number) is looked up here, each time. Names are
compared whole: `mlx5_1` is a prefix of `mlx5_10`, and `uverbs3` need not be `mlx5_3`. A VF that cannot be given to a container
is listed, and its `unhealthy` says why: no driver, a VFIO driver, no or several ibdevs, no uverbs node, no GUID or GID. In
exclusive rdma netns mode an ibdev that a pod took is not in the host's sysfs: such a VF shows as one without ibdev.

A PF is a function that is not a VF, and that has an ibdev itself or a VF with an ibdev. A PF is unhealthy if its VFs could
reach no peer: it has no driver, or no active port. A PF without an ibdev of its own is healthy (bonded ports share an ibdev).

Source: Documentation/ABI/testing/sysfs-bus-pci (physfn, virtfn, sriov_*), sysfs-class-infiniband, sysfs-class-net;
drivers/pci/pci-sysfs.c (max_link_speed, max_link_width: of the function's own capabilities).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hooks.host.attributes import (
    pinned,
    read_attribute,
    read_device_number,
    read_int,
    read_link_name,
    read_names,
    read_numa,
    read_path,
    read_socket,
)
from hooks.host.devnodes import Cause, DeviceNodeError, read_char_device
from hooks.model.inventory import CharDevice, Pf, Vf
from lading.devices.identity import parse_pci_address
from lading.vocabulary import PciAddress

_VIRTFN: Final = "virtfn"
_NO_DRIVER: Final = "no driver is bound to it"
_ACTIVE: Final = "4: ACTIVE"  # sysfs-class-infiniband: what a port's `state` is while it passes traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassNode:
    """Represent an entry of /sys/class/infiniband_verbs or …_mad, whose node is /dev/infiniband/<name>."""

    name: str
    ibdev: str
    number: tuple[int, int] | None  # major, minor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    root: Path
    verbs: tuple[_ClassNode, ...]
    mads: tuple[_ClassNode, ...]

    def function(self, bdf: str) -> Path:
        return self.root / "sys/bus/pci/devices" / bdf

    def node(self, entry: _ClassNode) -> CharDevice:
        path = f"/dev/infiniband/{entry.name}"
        if entry.number is None:
            raise DeviceNodeError(Cause.WRONG_NUMBER, path, "sysfs has no device number for it")
        return read_char_device(self.root, path, major=entry.number[0], minor=entry.number[1])


def read_rdma(host_root: Path) -> tuple[tuple[Pf, ...], CharDevice | None, tuple[str, ...]]:
    """Return the PFs with their VFs, the host's rdma_cm node, and messages about unreadable functions. Raise OSError if sysfs
    cannot be listed.

    A function that vanishes while it is read is left out.
    """
    host = _Host(
        root=host_root, verbs=_read_class(host_root, "infiniband_verbs"), mads=_read_class(host_root, "infiniband_mad")
    )
    problems: list[str] = []
    pfs = []
    for name in read_names(host_root / "sys/bus/pci/devices"):
        bdf = parse_pci_address(name)
        if bdf is None or (host.function(bdf) / "physfn").is_symlink():
            continue
        try:
            pf = _read_pf(host, bdf, problems)
        except OSError as e:
            problems.append(f"cannot read PCI function {bdf}: {e}")
            continue
        if pf is not None:
            pfs.append(pf)
    return tuple(pfs), _read_rdma_cm(host, problems) if pfs else None, tuple(problems)


def _read_class(host_root: Path, kind: str) -> tuple[_ClassNode, ...]:
    folder = host_root / "sys/class" / kind
    nodes = []
    for name in read_names(folder):
        with pinned(folder / name) as entry:
            if ibdev := read_attribute(entry / "ibdev"):  # abi_version is a file beside the entries
                nodes.append(_ClassNode(name=name, ibdev=ibdev, number=read_device_number(entry / "dev")))
    return tuple(nodes)


def _read_rdma_cm(host: _Host, problems: list[str]) -> CharDevice | None:
    entry = _ClassNode(name="rdma_cm", ibdev="", number=read_device_number(host.root / "sys/class/misc/rdma_cm/dev"))
    try:
        return host.node(entry)
    except DeviceNodeError as e:
        problems.append(f"{e} (modprobe rdma_ucm)" if entry.number is None or e.cause is Cause.MISSING else str(e))
        return None


def _read_pf(host: _Host, bdf: PciAddress, problems: list[str]) -> Pf | None:
    folder = host.function(bdf)
    ibdevs = read_names(folder / "infiniband")
    functions = _read_vf_addresses(folder)
    if not ibdevs and not any(read_names(host.function(vf) / "infiniband") for _, vf in functions):
        return None
    vfs = (_read_vf(host, bdf, index, vf, problems) for index, vf in functions)
    driver, numa = read_link_name(folder / "driver"), read_numa(host.root, bdf)
    return Pf(
        bdf=bdf,
        driver=driver,
        numa=numa,
        ibdev=ibdevs[0] if len(ibdevs) == 1 else "",
        netdev=next(iter(_read_netdevs(folder)), ""),
        link_layer=_read_link_layer(host, ibdevs[0]) if ibdevs else "",
        total_vfs=read_int(folder / "sriov_totalvfs") or 0,
        vfs=tuple(vf for vf in vfs if vf is not None),
        path=read_path(host.root, bdf),
        socket=read_socket(host.root, numa),
        unhealthy=_unreachable(host, ibdevs) if driver else _NO_DRIVER,
        pcie=_read_pcie(folder),
    )


def _read_pcie(function: Path) -> str:
    """Return the fastest link that the function can have, which no missing cable changes; empty if sysfs does not say."""
    speed, width = read_attribute(function / "max_link_speed"), read_attribute(function / "max_link_width")
    return f"{speed} x{width}" if speed and width else ""


def _read_vf_addresses(pf: Path) -> list[tuple[int, PciAddress]]:
    """Return (index, address) of each `virtfn<index>` link that has a target, by index."""
    result = []
    for name in read_names(pf):
        index = name.removeprefix(_VIRTFN)
        if name.startswith(_VIRTFN) and index.isdecimal() and (bdf := parse_pci_address(read_link_name(pf / name))):
            result.append((int(index), bdf))
    return sorted(result)


def _read_netdevs(function: Path) -> tuple[str, ...]:
    """Return the function's network devices, one for each port (ConnectX-3 has two); not IPoIB's children (ib0.8001), which are
    built on another."""
    names = read_names(function / "net")
    return names if len(names) < 2 else tuple(name for name in names if _stands_alone(function / "net" / name))


def _stands_alone(netdev: Path) -> bool:
    lower = read_attribute(netdev / "iflink")
    return lower is None or lower == read_attribute(netdev / "ifindex")


def _read_vf(host: _Host, pf: PciAddress, index: int, bdf: PciAddress, problems: list[str]) -> Vf | None:
    folder = host.function(bdf)
    driver = read_link_name(folder / "driver")
    ibdevs = read_names(folder / "infiniband")
    ibdev = ibdevs[0] if len(ibdevs) == 1 else ""
    uverbs, unhealthy = None, _unusable(driver, ibdevs)
    if not unhealthy:
        uverbs, unhealthy = _read_uverbs(host, ibdev)
    netdevs = _read_netdevs(folder)
    if len(netdevs) > 1:  # the VF's RDMA device is as usable as any other
        problems.append(f"VF {bdf} has {' and '.join(netdevs)}, one for each port: none of them can be brought into a pod")
    vf = Vf(
        bdf=bdf,
        pf=pf,
        index=index,
        driver=driver,
        numa=read_numa(host.root, bdf),
        ibdev=ibdev,
        netdev=next(iter(netdevs), ""),
        link_layer=_read_link_layer(host, ibdev) if ibdev else "",
        uverbs=uverbs,
        umad=_read_umad(host, ibdev, problems) if ibdev else (),
        unhealthy=unhealthy or _nameless(host, ibdev),
    )
    # Destroyed meanwhile: the values above do not describe an existing VF.
    return vf if folder.exists() else None


def _unusable(driver: str, ibdevs: tuple[str, ...]) -> str:
    if not driver:
        return _NO_DRIVER
    if "vfio" in driver:  # vfio-pci, mlx5_vfio_pci
        return f"it is bound to {driver}, for virtual machines"
    if len(ibdevs) > 1:
        return f"it has several RDMA devices: {', '.join(ibdevs)}"
    if not ibdevs:
        return "it has no RDMA device, or one that a pod took in exclusive netns mode"
    return ""


def _read_uverbs(host: _Host, ibdev: str) -> tuple[CharDevice | None, str]:
    match [entry for entry in host.verbs if entry.ibdev == ibdev]:
        case [entry]:
            try:
                return host.node(entry), ""
            except DeviceNodeError as e:
                return None, str(e)
        case []:
            return None, f"{ibdev} has no uverbs device (modprobe ib_uverbs)"
        case several:
            return None, f"{ibdev} has several uverbs devices: {', '.join(entry.name for entry in several)}"


def _read_umad(host: _Host, ibdev: str, problems: list[str]) -> tuple[CharDevice, ...]:
    """Return the umad and issm nodes. These are optional: an unusable node is reported as a problem, but does not make the VF
    unhealthy."""
    nodes = []
    for entry in (entry for entry in host.mads if entry.ibdev == ibdev):
        try:
            nodes.append(host.node(entry))
        except DeviceNodeError as e:
            problems.append(str(e))
    return tuple(nodes)


def _ports(host: _Host, ibdev: str) -> list[Path]:
    folder = host.root / "sys/class/infiniband" / ibdev / "ports"
    return [folder / name for name in sorted(read_names(folder), key=lambda name: (len(name), name))]


def _read_link_layer(host: _Host, ibdev: str) -> str:
    return next((layer for port in _ports(host, ibdev) if (layer := read_attribute(port / "link_layer"))), "")


def _unreachable(host: _Host, ibdevs: tuple[str, ...]) -> str:
    """Describe why nothing passes a PF's ports. A port that reports no state counts as active."""
    states = {port: state for ibdev in ibdevs for port in _ports(host, ibdev) if (state := read_attribute(port / "state"))}
    if not states or _ACTIVE in states.values():
        return ""
    return "no port is active: " + ", ".join(f"{port.parts[-3]} port {port.name} is {state}" for port, state in states.items())


def _nameless(host: _Host, ibdev: str) -> str:
    """Describe why no peer could address it: a node GUID of zero, or a GID table whose interface ids are all zero."""
    guid = read_attribute(host.root / "sys/class/infiniband" / ibdev / "node_guid")
    if guid is not None and not guid.strip("0:"):
        return f"{ibdev} has the node GUID 0: set the VF's GUIDs through its PF"
    gids = (port / "gids" / name for port in _ports(host, ibdev) for name in read_names(port / "gids"))
    if not any((read_attribute(gid) or "")[-19:].strip("0:") for gid in gids):  # the last 64 of 128 bits
        return f"{ibdev} has no GID: set the VF's GUIDs, or its MAC and link, through its PF"
    return ""
