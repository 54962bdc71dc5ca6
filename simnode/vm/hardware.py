"""Translate the profile of a simulated node to a machine of QEMU: `place` gives addresses, `render_machine` arguments.

QEMU has no NVIDIA cards and no mlx5. A card is QEMU's function `edu`, to which the guest's module `nvidia` binds. A PF is an
`igb`, a model of Intel's 82576 with up to seven VFs; the RDMA device of a PF or VF is one of rdma_rxe on its network device. A
guest differs from its profile in PCI addresses, because SeaBIOS numbers buses depth-first from each host bridge on, and in
network devices' names, which udev gives. Nothing here does I/O. Source: QEMU docs/pcie.txt and docs/system/devices/igb.rst.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import msgspec

from lading.errors import ConfigError
from simnode.profile import GpuCard, HostBridge, NvidiaDriver, PciNode, PfFunction, Profile, VfFunction

DRIVER_VERSION: Final = "550.127.05"  # every guest has the same fake driver
MAX_VFS: Final = 7  # the 82576's TotalVFs
_VF_OFFSET, _VF_STRIDE = 0x80, 2  # QEMU's igb: routing ID of the first VF, relative to its PF, and the step to the next VF
_SWITCH_PORTS: Final = ("x3130-upstream", "xio3130-downstream")


def place(profile: Profile) -> Profile:
    """Return the profile with the addresses and names that the guest has. ConfigError: QEMU cannot make such a node."""
    moved: dict[str, str] = {}
    bridges = []
    for bridge in profile.host_bridges:
        bus = int(bridge.bus.partition(":")[2], 16)
        below = _place(bridge.below, bus, count(bus + 1), moved)
        bridges.append(msgspec.structs.replace(bridge, below=below))
    driver = NvidiaDriver(version=DRIVER_VERSION) if profile.driver else None
    linked = tuple(_link(bridge, moved) for bridge in bridges)
    return msgspec.structs.replace(profile, host_bridges=linked, driver=driver, majors={})


def _place(nodes: Sequence[PciNode], bus: int, buses: Iterator[int], moved: dict[str, str]) -> tuple[PciNode, ...]:
    result = []
    for node in nodes:
        slot, function = _slot(node, nodes)
        bdf = moved[node.bdf] = f"0000:{bus:02x}:{slot:02x}.{function}"
        secondary = next(buses) if node.below else 0
        pf = _place_pf(node.pf, bdf) if node.pf else None
        below = _place(node.below, secondary, buses, moved)
        result.append(msgspec.structs.replace(node, bdf=bdf, below=below, pf=pf))
    return tuple(result)


def _slot(node: PciNode, siblings: Sequence[PciNode]) -> tuple[int, int]:
    """Return device and function. A device without a function 0 is not found, so that the first function becomes 0."""
    slot, _, function = node.bdf.split(":")[2].partition(".")
    first = min(sibling.bdf for sibling in siblings if sibling.bdf.split(":")[2].startswith(f"{slot}."))
    return int(slot, 16), 0 if node.bdf == first else int(function)


def _place_pf(pf: PfFunction, bdf: str) -> PfFunction:
    if len(pf.vfs) > MAX_VFS:
        raise ConfigError(f"cannot make PF {pf.ibdev} with {len(pf.vfs)} VFs: an igb has at most {MAX_VFS}")
    first = _routing_id(bdf) + _VF_OFFSET
    vfs = tuple(
        VfFunction(bdf=_address(first + number * _VF_STRIDE), driver="igbvf", ibdevs=vf.ibdevs[:1])
        for number, vf in enumerate(pf.vfs)
    )
    return PfFunction(ibdev=pf.ibdev, netdev="", link_layer="Ethernet", total_vfs=MAX_VFS, vfs=vfs)


def _routing_id(bdf: str) -> int:
    _, bus, rest = bdf.split(":")
    slot, function = rest.split(".")
    return int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)


def _address(routing_id: int) -> str:
    return f"0000:{routing_id >> 8:02x}:{routing_id >> 3 & 0x1F:02x}.{routing_id & 7}"


def _link(bridge: HostBridge, moved: dict[str, str]) -> HostBridge:
    """Return the bridge with the new addresses of cards that NVLinks connect."""

    def linked(gpu: GpuCard) -> GpuCard:
        return msgspec.structs.replace(gpu, nvlinks={moved.get(peer, peer): links for peer, links in gpu.nvlinks.items()})

    def walk(node: PciNode) -> PciNode:
        gpu = linked(node.gpu) if node.gpu else None
        return msgspec.structs.replace(node, below=tuple(map(walk, node.below)), gpu=gpu)

    return msgspec.structs.replace(bridge, below=tuple(map(walk, bridge.below)))


def render_machine(placed: Profile, memory_mib: int) -> list[str]:
    """Return QEMU's arguments for processors, memory and PCI functions of a placed profile."""
    sockets = 1 + max((bridge.socket for bridge in placed.host_bridges), default=0)
    words = ["-machine", "q35", "-smp", f"{sockets},sockets={sockets},cores=1,threads=1", "-m", f"{memory_mib}M"]
    words += _render_numa(placed, memory_mib)
    for bridge in placed.host_bridges:
        number = int(bridge.bus.partition(":")[2], 16)
        bus = f"hb{number:02x}" if number else "pcie.0"  # bus 0 is the machine's own
        if number:
            node = f",numa_node={bridge.numa}" if bridge.numa >= 0 else ""
            words += ["-device", f"pxb-pcie,id={bus},bus=pcie.0,bus_nr={number}{node}"]
        words += [word for node in bridge.below for word in _render_function(node, bridge.below, bus, depth=0)]
    return words


def _render_numa(placed: Profile, memory_mib: int) -> list[str]:
    """Return one memory for each NUMA node; the processor of a socket is in the first node of the socket."""
    bridges = [bridge for bridge in placed.host_bridges if bridge.numa >= 0]
    nodes = 1 + max((bridge.numa for bridge in bridges), default=-1)
    processors = {min(b.numa for b in bridges if b.socket == socket): socket for socket in {b.socket for b in bridges}}
    words = []
    for node in range(nodes):
        cpus = f",cpus={processors[node]}" if node in processors else ""
        words += ["-object", f"memory-backend-ram,id=m{node},size={memory_mib // nodes}M"]
        words += ["-numa", f"node,nodeid={node},memdev=m{node}{cpus}"]
    return words


def _render_function(node: PciNode, siblings: Sequence[PciNode], bus: str, *, depth: int) -> list[str]:
    slot, function = node.bdf.split(":")[2].split(".")
    ident = "f" + node.bdf.removeprefix("0000:").replace(":", "").replace(".", "")
    several = sum(sibling.bdf.split(".")[0] == node.bdf.split(".")[0] for sibling in siblings) > 1
    at = f"bus={bus},addr=0x{slot}.{function}{',multifunction=on' if several else ''}"
    if node.gpu:
        return ["-device", f"edu,{at}"]
    if node.pf:
        mac = f"52:54:00:aa:{node.bdf[5:7]}:0{function}"
        # hubid: all PFs are on one Ethernet segment. rombar: without the ROM of the network boot.
        return ["-netdev", f"hubport,id={ident},hubid=1", "-device", f"igb,netdev={ident},{at},mac={mac},rombar=0"]
    if depth == 0:
        port = f"pcie-root-port,id={ident},{at},chassis={_secondary(node)},slot=0"
    elif depth % 2:
        port = f"{_SWITCH_PORTS[0]},id={ident},{at}"
    else:
        port = f"{_SWITCH_PORTS[1]},id={ident},{at},chassis={_secondary(node)},slot=0"
    below = (word for child in node.below for word in _render_function(child, node.below, ident, depth=depth + 1))
    return ["-device", port, *below]


def _secondary(node: PciNode) -> int:
    """Return the number of the bus below a port, which is unique, as a chassis number must be; 0 without one."""
    return int(node.below[0].bdf[5:7], 16) if node.below else 0


def render_cards(placed: Profile) -> str:
    """Return the parameters of the module `nvidia`, in the order in which the kernel finds the cards."""
    if placed.driver is None:
        return ""
    uuids, minors = (",".join(str(getattr(gpu, name)) for _, gpu in placed.gpus) for name in ("uuid", "minor"))
    models = {gpu.model for _, gpu in placed.gpus}
    if len(models) != 1:
        raise ConfigError(f"cannot make cards of several models: {', '.join(sorted(models))}")
    return f'uuids={uuids} minors={minors} version={placed.driver.version} model="{models.pop()}"\n'


def render_nics(placed: Profile) -> str:
    """Return a line for each PF: its address, the number of its VFs, and the RDMA devices' names of itself and its VFs."""
    return "".join(
        " ".join([bdf, str(len(pf.vfs)), pf.ibdev, *(vf.ibdevs[0] if vf.ibdevs else "-" for vf in pf.vfs)]) + "\n"
        for bdf, pf in placed.pfs
    )
