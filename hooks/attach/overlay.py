"""Show an inventory with the devices that Lading moved into pods, as sysfs would if they were still on the host.

A VF whose network device is in a pod has no network device in the host's sysfs. In exclusive mode it has no RDMA device and no
port there either. That does not make the VF unhealthy. `with_attached` takes an inventory as it was read, the journal's rows,
and the VFs whose network device another process moved (`find_strays`). It returns the inventory for decisions, the node report
and people. Other problems of a VF stay, such as no driver, or another driver than before. A row that failed makes its VF
unhealthy.

Source: sysfs-class-net (a device is listed in its own namespace only), rdma-system(8) (exclusive).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from hooks.model.assignment import GrantedDevices, GrantedVf
from hooks.model.attachment import STRAY, Attachment
from hooks.model.grant import Holding
from hooks.model.inventory import ETHERNET, Inventory, Vf
from lading.vocabulary import PciAddress


def with_attached(
    inventory: Inventory, rows: Iterable[Attachment], *, strays: Collection[PciAddress] = frozenset()
) -> Inventory:
    """Return the inventory with attached VFs shown as on the host; the same object if there are neither rows nor strays."""
    away = {row.bdf: row for row in rows}
    if not away and not strays:
        return inventory
    pfs = tuple(replace(pf, vfs=tuple(_shown(vf, away, strays) for vf in pf.vfs)) for pf in inventory.pfs)
    return replace(inventory, pfs=pfs)


def holdings_of(rows: Iterable[Attachment]) -> tuple[Holding, ...]:
    """Return a holding for each VF in a pod. The pod holds the VF until it is back, whatever grants exist."""
    return tuple(
        Holding(
            pod=row.pod,
            pod_name=f"{row.namespace}/{row.pod_name}",
            container="",
            devices=GrantedDevices(vfs=(GrantedVf(bdf=row.bdf),)),
        )
        for row in rows
    )


def find_strays(inventory: Inventory, rows: Iterable[Attachment]) -> frozenset[PciAddress]:
    """Return the Ethernet VFs with an RDMA device whose network device is neither on the host nor in a row. An inventory may be
    older than the rows: before acting on the answer, call this again with a newer inventory."""
    ours = {row.bdf for row in rows}
    return frozenset(vf.bdf for vf in inventory.vfs if vf.bdf not in ours and _netdev_is_away(vf))


def _netdev_is_away(vf: Vf) -> bool:
    return vf.link_layer == ETHERNET and bool(vf.ibdev) and not vf.netdev and not vf.unhealthy


def _shown(vf: Vf, away: Mapping[PciAddress, Attachment], strays: Collection[PciAddress]) -> Vf:
    row = away.get(vf.bdf)
    if row is None:
        return replace(vf, unhealthy=STRAY) if vf.bdf in strays and _netdev_is_away(vf) else vf
    before = row.vf
    if vf.driver == before.driver and not vf.ibdev and row.rdma:
        # The VF's names and device nodes are those from before; its place on the PCI bus is read now.
        vf = replace(before, pf=vf.pf, index=vf.index, numa=vf.numa, unhealthy="")
    elif vf.driver == before.driver and vf.uverbs is not None:
        # All namespaces see the RDMA device in shared mode; only its GIDs go with the network device.
        vf = replace(vf, netdev=vf.netdev or before.netdev, unhealthy="")
    return replace(vf, unhealthy=row.failure) if row.failure else vf
