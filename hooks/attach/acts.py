"""Translate an act of an attachment into kernel calls, in order. `kernel` describes the calls; this module makes none of them.

A call that fails ends the act. An act that is repeated from the beginning changes only the settings that are not yet as
requested.

Tests: tests/unit/hooks/attach/test_attacher.py
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, assert_never

from hooks.attach.kernel import Kernel, KernelError, NameTakenError
from hooks.attach.plan import Act, ObservedDevices, original_mac, parking_name, reset_of
from hooks.model.attachment import NO_MAC, Attachment, Link, MacOwner, Netdev, RdmaDevice


class KernelCall(NamedTuple):
    doing: str  # operation as text: "moving it into the pod"
    do: Callable[[], object]


def calls_of(act: Act, row: Attachment, observed: ObservedDevices, kernel: Kernel) -> Iterator[KernelCall]:
    netns, netns_id, ifname = row.netns, row.netns_id, row.ifname
    match act:
        case Act.NOTHING:
            pass
        case Act.ADDRESS:
            if observed.host is not None and (mac := row.settings.config.mac) is not None:
                yield KernelCall("setting its MAC by itself", partial(kernel.take_mac, observed.host.name, mac))
        case Act.CONFIGURE:
            yield from _configure(row, observed.host, kernel)
        case Act.MOVE_IN:
            if (
                link := observed.host or observed.pod
            ) is not None:  # an interrupted move leaves it in the pod under its host name
                yield KernelCall("moving it into the pod", partial(kernel.move_in, link.name, netns, netns_id, ifname))
        case Act.RDMA_MOVE_IN:
            if (ibdev := observed.rdma_host) is not None:
                yield KernelCall(f"moving {ibdev.name} into the pod", partial(kernel.rdma_move_in, ibdev, netns, netns_id))
        case Act.RAISE:
            up = partial(kernel.configure, netns, ifname, addresses=row.settings.addresses, routes=row.settings.routes)
            yield KernelCall("bringing it up in the pod", up)
        case Act.RDMA_MOVE_OUT:
            if (ibdev := observed.rdma_pod) is not None:
                yield KernelCall(f"moving {ibdev.name} out of the pod", partial(kernel.rdma_move_out, netns, netns_id, ibdev))
        case Act.MOVE_OUT:
            if observed.pod is not None:
                out = partial(kernel.move_out, netns, netns_id, observed.pod.name, parking_name(row.bdf))
                yield KernelCall("moving it out of the pod", out)
        case Act.PARK:
            if observed.host is not None and row.netdev is not None:
                yield from _park(observed.host, row.netdev, kernel, parking=parking_name(row.bdf))
        case Act.RESTORE:
            yield from _restore(row, observed, kernel)
        case _:
            assert_never(act)


def _configure(row: Attachment, host: Link | None, kernel: Kernel) -> Iterator[KernelCall]:
    config, mtu = row.settings.config, row.settings.mtu
    if config.values:
        yield KernelCall("setting it up at its PF", partial(kernel.set_vf, row.vf.pf, row.vf.index, config))
    if host is not None and (config.mac is not None or mtu is not None):
        # Drivers do not pass a MAC from the PF on to a network device that exists already.
        yield KernelCall(
            "setting its MAC and MTU", partial(kernel.set_link, None, host.name, mac=config.mac, mtu=mtu, up=False)
        )


def _park(link: Link, original: Netdev, kernel: Kernel, *, parking: str) -> Iterator[KernelCall]:
    """Yield the calls that give a returned device its own alternative names and a temporary name. They come before all calls
    that may fail: another VF may be waiting for a name of the device."""
    yield KernelCall("removing its alternative names", partial(kernel.set_altnames, link.name, original.altnames))
    yield KernelCall("giving it a temporary name", partial(_rename_to_one_of, kernel, link.name, parking, original.name))


def _restore(row: Attachment, observed: ObservedDevices, kernel: Kernel) -> Iterator[KernelCall]:
    """Yield the calls that restore the VF. The PF comes first: the device may change its MAC only after the PF stops requiring
    another one."""
    ibdev, host = observed.rdma_host, observed.host
    if ibdev is not None and ibdev.name != row.vf.ibdev:
        yield KernelCall(f"restoring the name {row.vf.ibdev} of {ibdev.name}", partial(_rename_ibdev, kernel, ibdev, row))
    if row.mac_owner is MacOwner.VF:
        # A retry must not release the MAC a second time: the PF would not learn the VF's MAC again.
        done = row.config.mac or ""
        yield KernelCall("letting it decide its MAC", partial(kernel.release_mac, row.vf.pf, row.vf.index, unless=done))
    if (config := reset_of(row)).values:
        yield KernelCall("resetting it at its PF", partial(kernel.set_vf, row.vf.pf, row.vf.index, config))
    if host is not None and row.netdev is not None:
        yield from _restore_link(row, host, row.netdev, kernel)


def _restore_link(row: Attachment, link: Link, original: Netdev, kernel: Kernel) -> Iterator[KernelCall]:
    # The settings come before the MTU, because a leftover XDP program does not allow every MTU.
    yield KernelCall("restoring its settings", partial(kernel.restore_kept, row.bdf, link.name, original.kept))
    # The kernel sets InfiniBand's MAC: it contains the number of a queue pair, which changes with a reload.
    own = original_mac(row)
    mac = own if len(own) == len(NO_MAC) and own != link.mac else None
    down = partial(kernel.set_link, None, link.name, mac=mac, mtu=original.mtu, up=False)
    yield KernelCall("restoring its MAC and MTU", down)
    if set(link.altnames) != set(original.altnames):
        yield KernelCall("restoring its alternative names", partial(kernel.set_altnames, link.name, original.altnames))
    if link.name != original.name:
        yield KernelCall(
            f"restoring its name {original.name}", partial(_rename, kernel, link.name, original.name, parking_name(row.bdf))
        )
    if original.up:
        yield KernelCall("bringing it up again", partial(kernel.set_link, None, original.name, up=True))
    # If the PF now reports another MAC than before, its driver does not report a VF's own MAC. So the recorded MAC was given to
    # the PF, and the PF gets it again.
    if row.mac_owner is MacOwner.VF and row.config.mac not in {None, NO_MAC}:
        yield KernelCall("comparing its MAC at its PF", partial(kernel.confirm_mac, row.vf.pf, row.vf.index, row.config.mac))


def _rename(kernel: Kernel, name: str, to: str, parking: str) -> None:
    """Rename the device; if that fails, give it its parking name. Otherwise two devices that have each other's name would wait
    forever."""
    try:
        kernel.rename(name, to)
    except KernelError:
        _rename_to_one_of(kernel, name, parking)
        raise


def _rename_to_one_of(kernel: Kernel, name: str, *names: str) -> None:
    """Give the device the first of these names that is free. No other VF's device wants any of these names, so two devices
    never block each other's renaming forever. If no name is free, the device keeps its name, and is renamed later with the
    rest."""
    for to in names:
        with contextlib.suppress(KernelError):
            kernel.rename(name, to)
            return


def _rename_ibdev(kernel: Kernel, ibdev: RdmaDevice, row: Attachment) -> None:
    """Give the RDMA device its original name, or its parking name if another pod's device has that name. Names are unique on a
    machine, but the device's identity is its number: the next pod can get the device under either name."""
    parking = parking_name(row.bdf)
    try:
        kernel.rdma_rename(ibdev, row.vf.ibdev)
    except NameTakenError:
        if ibdev.name != parking:
            kernel.rdma_rename(ibdev, parking)
