"""Hold in the ledger what a gang's plan takes, all of it or nothing, and end that."""

import math
from collections.abc import Mapping
from typing import Final

from central.ask.model import Requests
from central.gang.draft import Where
from central.gang.model import Gang, Member
from central.ledger.ledger import Ledger
from central.ledger.model import Conflict, Holder, OwnClaim
from lading.vocabulary import PodUid

_KEPT: Final = "kept-for-gang/"  # and the uid of a member that is gone: no pod has such a uid


def hold_plan(ledger: Ledger, gang: Gang, where: Where, requests: Mapping[PodUid, Requests]) -> Conflict | None:
    """Hold a plan, in place of all that was held for these members, and for members that are gone. On a conflict nothing of it
    is held."""
    _forget_kept(ledger, gang)
    for uid in where:
        ledger.forget_nomination(uid)
    claims = [
        OwnClaim(holder=gang.members[uid].holder, node=one.node, taken=one.placement.taken, requests=requests[uid])
        for uid, one in where.items()
    ]
    conflict = ledger.plan(claims)
    for uid, planned in where.items():
        gang.members[uid].planned = None if conflict else planned
    gang.nodes = frozenset(planned.node for planned in gang.plan.values())
    return conflict


def drop_plan(ledger: Ledger, gang: Gang) -> None:
    """End the plan: nothing is held for members that are not bound."""
    _forget_kept(ledger, gang)
    for member in gang.members.values():
        drop_member(ledger, member)
    gang.opened = gang.named = False
    gang.nodes, gang.until = frozenset(), math.inf


def drop_member(ledger: Ledger, member: Member) -> None:
    """End what is held for one member that is not bound."""
    member.planned, member.arrived = None, False
    ledger.forget_plan(member.uid)
    ledger.forget_nomination(member.uid)


def follow_end(ledger: Ledger, gang: Gang, member: Member) -> None:
    """Follow the end of a membership: the pod is gone, or names another gang now. Before the first Binding the plan ends if too
    few members are left; after it, the pod's place is kept for one that replaces it, as long as the gang has members."""
    planned = member.planned
    drop_member(ledger, member)
    if not gang.members:
        _forget_kept(ledger, gang)
    if gang.ordinary or not gang.members:
        return
    begun = gang.opened or gang.finishing
    if planned is not None and (begun or member.node):
        uid = PodUid(f"{_KEPT}{member.uid}")
        holder = Holder(pod=uid, namespace=member.namespace, name=member.name)
        claim = OwnClaim(holder=holder, node=planned.node, taken=planned.placement.taken)
        if ledger.plan([claim]) is None:
            gang.kept[uid] = claim
    elif not begun and any(gang.planned()[role] < lacking for role, lacking in gang.lacking().items()):
        drop_plan(ledger, gang)


def _forget_kept(ledger: Ledger, gang: Gang) -> None:
    for uid in gang.kept:
        ledger.forget_plan(uid)
    gang.kept.clear()
