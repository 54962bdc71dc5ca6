"""Which VFs: always as many as wanted, once there are `vfs_peak` free ones; close to the container's cards where that is asked.

Enters: the room, the VFs wanted in order, the cards of each container. Leaves: the VFs of each container. The n-th VF is chosen
for the n-th card, and with more VFs than cards it begins anew. Preferred are: what the pod takes anyway at another time; then,
for `nearest`, a PF below the same bridges as the card, then in its NUMA node; then the PF with the fewest VFs taken, then the
lowest address.

Containers of the last phase come before init containers, so that those have their VFs close and these use them again. VFs never
run short here: what an init container finds taken in its phase is that of the sidecars beside it alone.
"""

from collections.abc import Mapping, Sequence

from central.assignment.model import PlacedVf
from central.fit.demand import Demand, VfsWanted
from central.fit.topology import closeness
from central.ledger.model import NodeRoom, VfRoom
from lading.nodedevices import Gpu, Pf
from lading.vocabulary import PciAddress

_Key = tuple[bool, int, bool, int, int, str]


class _Port:
    """A PF during one choice."""

    __slots__ = ("bdf", "free", "pf", "taken")

    def __init__(self, pf: Pf) -> None:
        self.pf = pf
        self.bdf: PciAddress = pf.bdf
        self.free: list[VfRoom] = []  # by address
        self.taken = 0  # VFs, by this pod too


def choose_vfs(room: NodeRoom, demand: Demand, cards: Mapping[str, Sequence[Gpu]]) -> Mapping[str, tuple[PlacedVf, ...]]:
    """By container. At least `demand.vfs_peak` VFs of the room are free."""
    ports = _ports(room.vfs)
    used: dict[PciAddress, int] = {}  # VF → phases in which this pod uses it
    chosen: dict[str, tuple[PlacedVf, ...]] = {}
    for wanted in demand.vfs:
        near = cards.get(wanted.container, ()) if demand.nearest else ()
        picks = []
        for number in range(wanted.count):
            port, vf = _pick(ports, wanted, used, near[number % len(near)] if near else None)
            bdf = vf.vf.bdf
            if bdf not in used:
                port.taken += 1
            used[bdf] = used.get(bdf, 0) | wanted.mask
            picks.append(PlacedVf(bdf=bdf, pf=port.bdf))
        chosen[wanted.container] = tuple(picks)
    return chosen


def _ports(vfs: Sequence[VfRoom]) -> list[_Port]:
    ports: dict[PciAddress, _Port] = {}
    for vf in vfs:
        port = ports.get(vf.pf.bdf)
        if port is None:
            port = ports[vf.pf.bdf] = _Port(vf.pf)
        if vf.free:
            port.free.append(vf)
        elif vf.usable:
            port.taken += 1
    with_room = [port for port in ports.values() if port.free]
    for port in with_room:
        port.free.sort(key=_address)
    return with_room


def _pick(ports: Sequence[_Port], wanted: VfsWanted, used: Mapping[PciAddress, int], near: Gpu | None) -> tuple[_Port, VfRoom]:
    best: tuple[_Port, VfRoom] | None = None
    best_key: _Key | None = None
    for port in ports:
        vf = _first(port, wanted, used)
        if vf is None:
            continue
        bridges, numa = closeness(near.place, port.pf.place) if near is not None else (0, False)
        key = (vf.vf.bdf not in used, -bridges, not numa, port.taken, *_address(vf))
        if best_key is None or key < best_key:
            best, best_key = (port, vf), key
    if best is None:
        raise AssertionError("fewer free VFs than were counted")
    return best


def _first(port: _Port, wanted: VfsWanted, used: Mapping[PciAddress, int]) -> VfRoom | None:
    """One that the pod uses at another time, else one that it does not use."""
    fresh = None
    for vf in port.free:
        phases = used.get(vf.vf.bdf)
        if phases is None:
            fresh = fresh or vf
        elif not phases & wanted.mask:
            return vf
    return fresh


def _address(vf: VfRoom) -> tuple[int, str]:
    return len(vf.vf.bdf), vf.vf.bdf
