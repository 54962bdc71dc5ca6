"""Sum up the devices that pods, namespaces and nodes hold and use, for `kubectl lading pods` and `top`. Pure.

The inputs are the `NodeView`s of all nodes. The results are a `PodView` for each pod with devices, and a `ShareView` for any
group of holders. A card's use counts for a group if all of the card's holders are in the group. For other cards a group's
memory counts if the node reports memory by pod; drivers report busy time by card only. No holder uses a card that is reported
as idle.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from central.ledger.model import Claim
from central.view.model import GpuView, HolderView, NodeView
from lading.amounts import divide


class PodState(StrEnum):
    WAITING = "waiting"  # not bound
    STARTING = "starting"  # devices are assigned, but the node has not granted them yet
    HOLDING = "holding"
    IDLE = "idle"  # holds GPUs, but none of them is in use


class ShareView(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the sums of the devices that some pods hold and use."""

    gpus: int = 0  # cards, each counted once
    gpus_reported: int = 0  # cards with reported use
    gpus_idle: int = 0  # cards with reported use that are not in use
    gpus_shared: int = 0  # cards shared with pods outside, with unknown use by pod: not in `used_mib` and `busy_percent`
    vfs: int = 0
    held_mib: int = 0
    held_percent: int = 0  # 100 a card
    used_mib: int | None = None  # sum over the cards
    busy_percent: int | None = None  # mean over the cards


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    pod: str  # name; empty if unknown
    uid: str
    state: PodState
    nodes: tuple[str, ...] = ()
    created: int = 0  # Unix seconds; 0: unknown
    asks: str = ""  # the pod's request as text
    holds: ShareView = ShareView()


def view_pods(views: Sequence[NodeView]) -> list[PodView]:
    """Return the pods with devices, sorted by namespace and name."""
    nodes: dict[str, dict[str, NodeView]] = {}
    holders: dict[str, list[HolderView]] = {}
    for view in views:
        for holder in _holders(view):
            nodes.setdefault(holder.uid, {})[view.name] = view
            holders.setdefault(holder.uid, []).append(holder)
    made = [_pod(listed, list(nodes[uid].values())) for uid, listed in holders.items()]
    return sorted(made, key=lambda one: (one.namespace, one.pod, one.uid))


def share_of(views: Iterable[NodeView], is_mine: Callable[[HolderView], bool]) -> ShareView:
    """Return the sums of the nodes' devices that the holders selected by `is_mine` hold and use."""
    nodes = list(views)
    cards = [gpu for node in nodes for gpu in node.gpus if any(map(is_mine, gpu.holders))]
    vfs = [vf for node in nodes for pf in node.pfs for vf in pf.vfs if any(map(is_mine, vf.holders))]
    own = [gpu for gpu in cards if all(map(is_mine, gpu.holders))]
    parts = [_part(gpu, [one for one in gpu.holders if is_mine(one)]) for gpu in cards]
    used_mib, busy_percent = used(own)
    of_shared = [_used_mib(gpu, is_mine) for gpu in cards if not all(map(is_mine, gpu.holders))]
    memory = [mib for mib in (used_mib, *of_shared) if mib is not None]
    return ShareView(
        gpus=len(cards),
        gpus_reported=sum(gpu.use is not None for gpu in cards),
        gpus_idle=sum(gpu.idle for gpu in cards),
        gpus_shared=of_shared.count(None),
        vfs=len(vfs),
        held_mib=sum(mib for mib, _ in parts),
        held_percent=sum(percent for _, percent in parts),
        used_mib=sum(memory) if memory else None,
        busy_percent=busy_percent,
    )


def _used_mib(gpu: GpuView, is_mine: Callable[[HolderView], bool]) -> int | None:
    """Return the card's memory in use by the selected holders; None unless it is reported for each of them."""
    amounts = [one.used_mib for one in gpu.holders if is_mine(one)]
    return None if None in amounts else sum(filter(None, amounts))


def share_of_nodes(views: Sequence[NodeView]) -> ShareView:
    """Return the sums of all pods on these nodes, with the use of all cards, also of cards that are used without a grant."""
    used_mib, busy_percent = used([gpu for view in views for gpu in view.gpus])
    of_all = share_of(views, lambda holder: True)
    return msgspec.structs.replace(of_all, used_mib=used_mib, busy_percent=busy_percent)


def used(gpus: Sequence[GpuView]) -> tuple[int | None, int | None]:
    """Return the total memory in use in MiB, and the mean busy percentage; each is None if no card reports it."""
    memory = [gpu.use.memory_mib for gpu in gpus if gpu.use and gpu.use.memory_mib is not None]
    busy = [gpu.use.busy_percent for gpu in gpus if gpu.use and gpu.use.busy_percent is not None]
    return sum(memory) if memory else None, divide(sum(busy), len(busy)) if busy else None


def _holders(view: NodeView) -> Iterable[HolderView]:
    for gpu in view.gpus:
        yield from gpu.holders
    for pf in view.pfs:
        for vf in pf.vfs:
            yield from vf.holders


def _pod(holders: Sequence[HolderView], nodes: Sequence[NodeView]) -> PodView:
    who = holders[0]
    holds = share_of(nodes, lambda one: one.uid == who.uid)
    granted = any(Claim.GRANTED in one.claims for one in holders)
    return PodView(
        namespace=who.namespace,
        pod=who.pod,
        uid=who.uid,
        state=_state(holds, granted=granted),
        nodes=tuple(node.name for node in nodes),
        created=who.created,
        holds=holds,
    )


def _state(holds: ShareView, *, granted: bool) -> PodState:
    if not granted:
        return PodState.STARTING
    return PodState.IDLE if holds.gpus and holds.gpus_idle == holds.gpus else PodState.HOLDING


def _part(gpu: GpuView, holders: Sequence[HolderView]) -> tuple[int, int]:
    """Return the MiB and the percentage of the card that these holders hold."""
    if any(one.whole for one in holders):
        return gpu.memory_mib, 100
    if gpu.mig:
        mine = {uuid for one in holders for uuid in one.mig}
        mib = min(gpu.memory_mib, sum(one.memory_mib for one in gpu.mig if one.uuid in mine))
        return mib, divide(100 * mib, gpu.memory_mib) if gpu.memory_mib else 0
    mib, percent = sum(one.memory_mib for one in holders), sum(one.core_percent for one in holders)
    return min(gpu.memory_mib, mib), min(100, percent)
