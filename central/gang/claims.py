"""Claim the devices of a gang's plan in the ledger, all or none, and end these claims."""

import math
from collections.abc import Collection, Mapping
from typing import Final

from central.gang.draft import Where
from central.gang.gangs import Gangs
from central.gang.model import Gang, Member
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Conflict, Holder, OwnClaim
from central.request.model import CpuMemory
from lading.vocabulary import PodUid

_KEPT: Final = "kept-for-gang/"  # prefix of a made-up uid, followed by the former member's uid; no pod has such a uid


def hold_plan(ledger: Ledger, gang: Gang, where: Where, cpu_memory: Mapping[PodUid, CpuMemory]) -> Conflict | None:
    """Claim the devices of a plan. The plan replaces earlier plans for its members, and the places kept for former members.
    Other members keep their places. Return the conflict if there is one; then nothing changes."""
    claims = [
        OwnClaim(holder=gang.members[uid].holder, node=one.node, taken=one.placement.taken, cpu_memory=cpu_memory[uid])
        for uid, one in where.items()
    ]
    conflict = ledger.claims.plan(claims, instead_of=gang.kept)
    if conflict is None:
        gang.kept.clear()
        for uid, planned in where.items():
            gang.members[uid].planned = planned
        gang.nodes = frozenset(planned.node for planned in gang.plan.values())
    return conflict


def drop_plan(ledger: Ledger, gang: Gang) -> None:
    """End the plan, and all claims for members that are not bound."""
    forget_kept(ledger, gang)
    for member in gang.members.values():
        drop_member(ledger, member)
    gang.opened = gang.named = False
    gang.nodes, gang.until = frozenset(), math.inf


def drop_member(ledger: Ledger, member: Member) -> None:
    """End the claims for a member that is not bound."""
    member.planned, member.arrived = None, False
    ledger.claims.forget_plan(member.uid)
    ledger.claims.forget_nomination(member.uid)


def follow(ledger: Ledger, gangs: Gangs) -> None:
    """Update the claims of all gangs that changed. Call this after each change of a pod, or of a gang's object."""
    for gang, member in gangs.take_ended():
        follow_end(ledger, gang, member)
    for gang in gangs.take_changed():
        follow_change(ledger, gang)


def follow_end(ledger: Ledger, gang: Gang, member: Member) -> None:
    """End the member's part of the plan: the pod was deleted, has ended, or left the gang. After a Binding was sent, the place
    is kept for a replacement pod, as long as the gang has members."""
    planned = member.planned
    drop_member(ledger, member)
    if not gang.members:
        drop_plan(ledger, gang)
    elif planned is not None and not gang.ordinary and has_begun(ledger, gang):
        uid = PodUid(f"{_KEPT}{member.uid}")
        holder = Holder(pod=uid, namespace=member.namespace, name=member.name)
        claim = OwnClaim(holder=holder, node=planned.node, taken=planned.placement.taken, labels=member.labels)
        if ledger.claims.plan([claim]) is None:
            gang.kept[uid] = claim


def follow_change(ledger: Ledger, gang: Gang) -> None:
    """End the claims of members that cannot be bound any more. Before the first Binding, end a plan with too few places for a
    start."""
    for member in [gang.members[uid] for uid in gang.plan]:
        if not member.waits:
            follow_end(ledger, gang, member)
    if not (gang.ordinary or gang.covered or has_begun(ledger, gang)):
        drop_plan(ledger, gang)


def has_begun(ledger: Ledger, gang: Gang) -> bool:
    """Return whether a member is bound, or being bound, so that the other members have to follow."""
    return gang.finishing or any(ledger.own_claim(uid, Claim.RESERVED) is not None for uid in gang.members)


def forget_kept(ledger: Ledger, gang: Gang, uids: Collection[PodUid] | None = None) -> None:
    """End the places kept for former members; with `uids`, only these claims."""
    for uid in [*gang.kept] if uids is None else uids:
        ledger.claims.forget_plan(uid)
        del gang.kept[uid]
