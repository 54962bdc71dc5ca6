"""An act of an attachment as calls to the kernel, in order. What each changes is in `kernel`; nothing is called here.

A call that fails ends the act; done again from its beginning it changes only what is not yet as asked.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple, assert_never

from hooks.attach.kernel import Kernel
from hooks.attach.model import Attachment, Link, Netdev
from hooks.attach.plan import Act, Seen, parking_name, reset_of

_NO_MAC: Final = "00:00:00:00:00:00"


class Call(NamedTuple):
    doing: str  # in words: "moving it into the pod"
    do: Callable[[], object]


def calls_of(act: Act, row: Attachment, seen: Seen, kernel: Kernel) -> Iterator[Call]:
    ibdev, netns, netns_id, ifname = row.vf.ibdev, row.netns, row.netns_id, row.ifname
    match act:
        case Act.NOTHING:
            pass
        case Act.CONFIGURE:
            yield from _configure(row, seen.host, kernel)
        case Act.MOVE_IN:
            if (link := seen.host or seen.pod) is not None:  # in the pod: under the name that it had here
                yield Call("moving it into the pod", partial(kernel.move_in, link.name, netns, netns_id, ifname))
        case Act.RDMA_MOVE_IN:
            yield Call(f"moving {ibdev} into the pod", partial(kernel.rdma_move_in, ibdev, netns, netns_id))
        case Act.RAISE:
            up = partial(kernel.configure, netns, ifname, addresses=row.settings.addresses, routes=row.settings.routes)
            yield Call("bringing it up in the pod", up)
        case Act.RDMA_MOVE_OUT:
            yield Call(f"moving {ibdev} out of the pod", partial(kernel.rdma_move_out, netns, netns_id, ibdev))
        case Act.MOVE_OUT:
            if seen.pod is not None:
                out = partial(kernel.move_out, netns, netns_id, seen.pod.name, parking_name(row.bdf))
                yield Call("moving it out of the pod", out)
        case Act.RESTORE:
            yield from _restore(row, seen.host, kernel)
        case _:
            assert_never(act)


def _configure(row: Attachment, host: Link | None, kernel: Kernel) -> Iterator[Call]:
    config, mtu = row.settings.config, row.settings.mtu
    if not config.empty:
        yield Call("setting it up at its PF", partial(kernel.set_vf, row.vf.pf, row.vf.index, config))
    if host is not None and (config.mac is not None or mtu is not None):
        # Drivers do not hand a MAC from the PF on to a network device that is there already.
        yield Call("setting its MAC and MTU", partial(kernel.set_link, None, host.name, mac=config.mac, mtu=mtu, up=False))


def _restore(row: Attachment, host: Link | None, kernel: Kernel) -> Iterator[Call]:
    """The PF first: it lets the device change its MAC only once it does not itself insist on another."""
    if not (config := reset_of(row)).empty:
        yield Call("resetting it at its PF", partial(kernel.set_vf, row.vf.pf, row.vf.index, config))
    if host is not None and row.netdev is not None:
        yield from _restore_link(host, row.netdev, kernel)


def _restore_link(link: Link, original: Netdev, kernel: Kernel) -> Iterator[Call]:
    # InfiniBand's is the kernel's own: it has the number of a queue pair in it, which is another after a reload.
    mac = original.mac if len(original.mac) == len(_NO_MAC) and original.mac != link.mac else None
    down = partial(kernel.set_link, None, link.name, mac=mac, mtu=original.mtu, up=False)
    yield Call("restoring its MAC and MTU", down)
    if link.name != original.name:
        yield Call(f"naming it {original.name} again", partial(kernel.rename, link.name, original.name))
    if original.up:
        yield Call("bringing it up again", partial(kernel.set_link, None, original.name, up=True))
