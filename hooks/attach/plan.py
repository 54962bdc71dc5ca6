"""Decide the next act of an attachment, from its row in the journal and the current state of its devices.

This module decides the order of steps in both directions, and the act that completes a step. It also finds the first step of a
release, the values for a reset, and the rows that have lost their sandbox. It keeps no state between calls: after a crash at
any moment, the row and a fresh reading are enough to go on.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any, Final, assert_never

from hooks.ledger.reconcile import GRACE_S
from hooks.model.attachment import (
    MOST_ALTNAMES,
    NEUTRAL,
    NO_MAC,
    Attachment,
    Link,
    MacOwner,
    Netdev,
    RdmaDevice,
    Step,
    VfConfig,
    VfSettings,
    is_altname,
)
from lading.vocabulary import PciAddress, SandboxId

_OUT: Final = tuple(step for step in Step if step.releasing)
_IN: Final = tuple(step for step in Step if not step.releasing)
_RDMA: Final = frozenset({Step.RDMA_MOVING, Step.RDMA_RETURNING})  # only in RDMA's exclusive mode
_NETDEV: Final = frozenset({Step.ADDRESSING, Step.MOVING, Step.RAISING, Step.RETURNING})  # only for a VF with a network device

_ABSENT: Final = "its network device is not in the host's network namespace"
_NOT_BACK: Final = "its network device has not come back"


class Act(StrEnum):
    NOTHING = auto()  # the step is complete
    ADDRESS = auto()
    CONFIGURE = auto()
    MOVE_IN = auto()
    RDMA_MOVE_IN = auto()
    RAISE = auto()
    RDMA_MOVE_OUT = auto()
    MOVE_OUT = auto()
    PARK = auto()  # rename a device that came back by itself under the pod's name for it
    RESTORE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDevices:
    """Hold where a row's devices are at this moment."""

    netns: bool = False  # the pod's network namespace still exists
    host: Link | None = None  # the VF's network device in the host's namespace
    pod: Link | None = None  # the VF's network device in the pod's namespace, by one of `names_in_pod`
    rdma_host: RdmaDevice | None = None  # the VF's ibdev, if the host sees it
    rdma_pod: RdmaDevice | None = None  # the VF's ibdev, if the pod sees it


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSandboxes:
    """Hold the sandboxes in the runtime's newest lists."""

    ready: frozenset[SandboxId]
    live: frozenset[SandboxId]  # sandboxes with a created or running container
    at: int  # Unix time, seconds; the lists may be somewhat older
    known: frozenset[int] = frozenset()  # generations of the rows that existed before the lists were requested


def next_in(row: Attachment) -> Step:
    """Return the step after the row's, on the way to ATTACHED."""
    return next(step for step in _IN[_IN.index(row.step) + 1 :] if _concerns(row, step))


def next_out(row: Attachment) -> Step | None:
    """Return the step after the row's, on the way back; None after the last."""
    return next((step for step in _OUT[_OUT.index(row.step) + 1 :] if _concerns(row, step)), None)


def _concerns(row: Attachment, step: Step) -> bool:
    if step is Step.ADDRESSING and row.mac_owner is MacOwner.UNKNOWN:
        return False
    return (row.rdma or step not in _RDMA) and (row.netdev is not None or step not in _NETDEV)


def first_return(row: Attachment) -> Step | None:
    """Return the step at which a release begins or goes on; None if nothing was changed yet."""
    match row.step:
        case Step.RECORDED:
            return None
        case Step.ADDRESSING | Step.CONFIGURING:
            return Step.RESTORING
        case Step.MOVING:
            return Step.RETURNING
        case Step.RDMA_MOVING | Step.RAISING | Step.ATTACHED:
            if row.rdma:
                return Step.RDMA_RETURNING
            return Step.RETURNING if row.netdev is not None else Step.RESTORING
        case Step.RDMA_RETURNING | Step.RETURNING | Step.RESTORING:
            return row.step
        case _:
            assert_never(row.step)


def decide_act(row: Attachment, observed: ObservedDevices) -> Act | Stuck:
    """Return the act that completes the row's step, or why no act can."""
    attaching = not row.step.releasing and row.step is not Step.RECORDED
    if attaching and not observed.netns:
        return Stuck(why="the pod's network namespace is gone")
    home = observed.host is not None
    away = observed.pod is not None
    match row.step:
        case Step.RECORDED | Step.ATTACHED:
            return Act.NOTHING
        case Step.ADDRESSING:
            return Act.ADDRESS if home else Stuck(why=_ABSENT)
        case Step.CONFIGURING:
            return Act.CONFIGURE if home or row.netdev is None else Stuck(why=_ABSENT)
        case Step.MOVING:
            if not home and observed.pod is not None and observed.pod.name == row.ifname:
                return Act.NOTHING
            return Act.MOVE_IN if home or away else Stuck(why=_ABSENT)
        case Step.RDMA_MOVING:
            if observed.rdma_host is not None:
                return Act.RDMA_MOVE_IN
            return Act.NOTHING if observed.rdma_pod else Stuck(why=f"{row.vf.ibdev} is not in the host's network namespace")
        case Step.RAISING:
            return Act.RAISE if away else Stuck(why=f"the pod's namespace has no {row.ifname} that is this VF's")
        case Step.RDMA_RETURNING:
            if observed.rdma_host is not None:
                return Act.NOTHING
            return Act.RDMA_MOVE_OUT if observed.rdma_pod else Stuck(why="its RDMA device has not come back")
        case Step.RETURNING:
            if observed.host is not None:
                return Act.NOTHING if _is_called_as_ours(row, observed.host) else Act.PARK
            if observed.netns and not away:
                return Stuck(why=f"the pod's namespace has no {row.ifname} that is this VF's (any more)")
            return Act.MOVE_OUT if away else Stuck(why=_NOT_BACK)
        case Step.RESTORING:
            return Act.RESTORE if home or row.netdev is None else Stuck(why=_NOT_BACK)
        case _:
            assert_never(row.step)


def is_home(row: Attachment, observed: ObservedDevices) -> bool:
    """Return whether all moved devices are in the host's namespace again, restored or not."""
    return (row.netdev is None or observed.host is not None) and (not row.rdma or observed.rdma_host is not None)


def find_orphans(
    rows: Iterable[Attachment],
    alive: LiveSandboxes,
    *,
    stopped: Callable[[SandboxId], bool],
    unheld: Collection[int] = frozenset(),
    boot_id: str,
) -> tuple[Attachment, ...]:
    """Return the rows to release. Some are due at once: their release has begun, they are of another boot, their sandbox was
    stopped, or their generation is `unheld`. Others are due when GRACE_S old: their sandbox is neither ready nor has a live
    container, or their attach got no retry after a crash. The latter need lists that are newer than the row (`alive.known`):
    the clock may have been set, so a row's age alone proves nothing."""
    result = []
    for row in rows:
        ended = row.step.releasing or row.boot_id != boot_id or stopped(row.sandbox) or row.generation in unheld
        lost = row.step is not Step.ATTACHED or row.sandbox not in alive.ready | alive.live
        if ended or (lost and row.generation in alive.known and abs(alive.at - row.since) >= GRACE_S):
            result.append(row)
    return tuple(result)


def has_ended(row: Attachment, alive: LiveSandboxes | None, *, stopped: bool) -> bool:
    """Return whether the row's sandbox has ended, so that no process in it can use the VF. Lists from before the row say
    nothing about it."""
    if alive is None or row.generation not in alive.known:
        return False
    return (stopped or row.sandbox not in alive.ready) and row.sandbox not in alive.live


def names_in_pod(row: Attachment) -> tuple[str, ...]:
    """Return the names that the VF's network device can have in the pod. Linux moves a device first and then renames it: if the
    new name is in use there, the device keeps its name from the host."""
    return (row.ifname, row.netdev.name) if row.netdev is not None else ()


def is_own(row: Attachment, link: Link) -> bool:
    """Return whether the link is the VF's device: a pod may rename its devices and make others. If the kernel does not report a
    device's parent (before 5.14), the row's name is enough, and any other name needs the VF's MAC too."""
    original = row.netdev
    if original is None or link.parent != original.parent:
        return False
    return bool(link.parent) or link.name == row.ifname or link.mac in {original.mac, row.settings.config.mac}


def _is_called_as_ours(row: Attachment, link: Link) -> bool:
    """Return whether the device has only names of its own in the host's namespace: its original or parking name, and original
    alternative names."""
    original = row.netdev
    own = original is not None and link.name in {original.name, parking_name(row.bdf)}
    return own and set(link.altnames) <= set(original.altnames if original is not None else ())


def find_own_ibdev(row: Attachment, devices: Iterable[RdmaDevice]) -> RdmaDevice | None:
    """Return the VF's RDMA device in the pod's namespace by its recorded number, because a pod may rename its RDMA devices.
    Without a recorded number, the name decides."""
    if row.ibdev_number is None:
        return next((device for device in devices if device.name == row.vf.ibdev), None)
    return next((device for device in devices if device.number == row.ibdev_number), None)


def is_undone(row: Attachment, observed: ObservedDevices) -> bool:
    """Return whether an attached VF's network device or RDMA device is the host's again while its pod lives: a driver was
    reloaded, or the VF was created again."""
    netdev = row.netdev is not None and observed.host is not None and observed.pod is None
    rdma = row.rdma and observed.rdma_host is not None and observed.rdma_pod is None
    return observed.netns and (netdev or rdma)


def kept_altnames(link: Link) -> tuple[str, ...]:
    """Return the alternative names that a device gets again on its way back: udev's short plain names, at most
    MOST_ALTNAMES."""
    return tuple(name for name in link.altnames if is_altname(name))[:MOST_ALTNAMES]


def parking_name(vf: PciAddress) -> str:
    """Return the temporary name of a device that comes back from a pod: `0000:3b:00.2` → `ld00003b002`. No other VF has this
    name, and no pod can choose it. An ibdev gets it too, if another ibdev has its original name by then."""
    return "ld" + vf.replace(":", "").replace(".", "")


def first_mac_owner(settings: VfSettings, netdev: Netdev | None) -> MacOwner:
    """Return the MAC owner for a new row: UNTOUCHED if an Ethernet device is to get a MAC, else UNKNOWN."""
    asked = settings.config.mac is not None and netdev is not None and len(netdev.mac) == len(NO_MAC)
    return MacOwner.UNTOUCHED if asked else MacOwner.UNKNOWN


def decide_mac_owner(row: Attachment, *, taken: bool) -> MacOwner:
    """Decide whether the PF or the VF decides the VF's MAC. `taken`: the PF let the device set its MAC by itself. That proves
    nothing if the device had this MAC before, or if its PF trusts it. Then the PF counts as the owner if it reports a MAC."""
    shows_nothing = row.config.trust is True or (row.netdev is not None and row.netdev.mac == row.settings.config.mac)
    fixed = not taken or (shows_nothing and row.config.mac not in {None, NO_MAC})
    return MacOwner.PF if fixed else MacOwner.VF


def original_mac(row: Attachment) -> str:
    """Return the MAC to restore on the device; empty if it had none. If the PF decides the MAC, return the PF's, which the
    device takes at its next reset."""
    if row.mac_owner is MacOwner.PF and row.config.mac not in {None, NO_MAC}:
        return row.config.mac or ""
    return row.netdev.mac if row.netdev is not None else ""


def reset_of(row: Attachment) -> VfConfig:
    """Return the PF's original values of the fields that the settings changed. A field that was not reported gets a neutral
    value. The MAC is left out if the PF was not given one, or if the VF decides it."""
    values: dict[str, Any] = {}
    for name in row.settings.config.values:
        original = getattr(row.config, name)
        if name == "mac" and row.mac_owner in {MacOwner.UNTOUCHED, MacOwner.VF}:
            continue
        values[name] = getattr(NEUTRAL, name) if original is None else original
    return VfConfig(**values)


def reset_by_pf(row: Attachment) -> VfConfig:
    """Return the reset for a VF whose device is lost for good: like `reset_of`, but with the MAC that the PF reported."""
    return reset_of(replace(row, mac_owner=MacOwner.UNKNOWN))


def choose_ifname(taken: Iterable[str]) -> str:
    """Return the lowest `rdma<N>` that is free."""
    names = frozenset(taken)
    number = 0
    while f"rdma{number}" in names:
        number += 1
    return f"rdma{number}"


def describe_release(row: Attachment) -> list[str]:
    """Describe what a release would do, in order."""
    text = []
    step = first_return(row)
    if step is None:
        return [f"forget the attachment of {row.bdf}: nothing was changed yet"]
    if step is Step.RDMA_RETURNING:
        text.append(f"move RDMA device {row.vf.ibdev} from {row.netns} to the host's network namespace")
    if step in {Step.RDMA_RETURNING, Step.RETURNING} and row.netdev is not None:
        text.append(f"move {row.ifname} from {row.netns} to the host's network namespace")
    if changes := ", ".join(f"{name} {value}" for name, value in reset_of(row).values.items()):
        text.append(f"set VF {row.vf.index} of PF {row.vf.pf} back to {changes}")
    if row.netdev is not None:
        address = f", MAC {row.netdev.mac}" if row.netdev.mac else ""
        text.append(f"name it {row.netdev.name} again, with MTU {row.netdev.mtu}{address}")
    text.append(f"forget that {row.bdf} is attached to pod {row.namespace}/{row.pod_name} (sandbox {row.sandbox})")
    return text
