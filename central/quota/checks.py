"""Decide whether a pod, or all pods of a gang, stay within their quota, and in which order quotas may borrow.

    max        never exceeded, by the quota and by each quota above it
    runtime    of a quota in a tree: the amount that it may use now, its guaranteed part and the lent part of others
    min        not exceeded by pods that are never preempted, because their amounts cannot be taken back
    together   quotas of scheduler-plugins use no more than the mins of all of them

Runtime is divided in units, but a pod or gang needs all of its devices: three quotas with a gang of 8 each get 6, 5 and 5 of 16
cards, and none of the gangs would start. So a gang may borrow beyond the runtime, up to max, while the free amount also covers
all that others are guaranteed and request. A single pod may borrow if it is larger than the runtime. `turn_key` gives the order
in which quotas borrow.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from central.quota.amounts import as_text, bare, unit_as_text
from central.quota.model import FLAT, Amounts, Quota, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.request.reasons import OfPod

Key = tuple[Fraction | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRefusal:
    """Report why the pods of a quota do not start now."""

    code: OfPod
    quota: QuotaId
    why: str

    @property
    def shown(self) -> str:
        """Return the text that kube-scheduler shows."""
        return self.code.about(self.why)


def check(
    snapshot: QuotaSnapshot,
    quota: QuotaId,
    amounts: Amounts,
    *,
    preemptible: bool = True,
    gang: bool = False,
    own: Amounts = MappingProxyType({}),
    has_turn: Callable[[QuotaId], bool] = lambda quota: True,
) -> QuotaRefusal | None:
    """Return why the quota does not allow these amounts beside its used ones; None if it allows them.

    `gang`: the amounts are of several pods that start together. `own`: amounts already used for the same pods. `has_turn`:
    whether it is the quota's turn to borrow; called only if the pods would borrow beyond the runtime."""
    tree = snapshot.tree
    if quota in tree.problems:
        return QuotaRefusal(code=OfPod.QUOTA_INVALID, quota=quota, why=f"quota {quota} is refused: {tree.problems[quota]}")
    leaf = tree.quotas.get(quota)
    if leaf is None:
        return None
    if leaf.is_parent or tree.groups.get(quota):
        reason = f"quota {quota} is divided among other quotas; name one of them in the label of the pod"
        return QuotaRefusal(code=OfPod.QUOTA_INVALID, quota=quota, why=reason)
    more = {key: amount - own.get(key, 0) for key, amount in amounts.items()}
    limit = next(_limits(snapshot, leaf, more, preemptible=preemptible), None)
    return limit or next(_beyond_runtime(snapshot, leaf, more, amounts, gang=gang, has_turn=has_turn), None)


def _limits(snapshot: QuotaSnapshot, leaf: Quota, more: Amounts, *, preemptible: bool) -> Iterator[QuotaRefusal]:
    """Yield a refusal for each fixed limit that is exceeded. `more` are the amounts beside the used ones."""
    for key, amount in more.items():
        for quota in map(snapshot.tree.quotas.__getitem__, snapshot.tree.paths[leaf.id]):
            yield from _above(quota, snapshot.used_of(quota.id, key) + amount, quota.max.get(key), key, "its max")
        if leaf.flat and key in snapshot.flat_min:
            together = sum(snapshot.used_of(member, key) for member in snapshot.tree.groups.get(FLAT, ())) + amount
            yield from _above(leaf, together, snapshot.flat_min[key], key, "the mins of the quotas of all namespaces together")
        if not preemptible and key in leaf.max:
            fixed = snapshot.fixed_of(leaf.id, key) + amount
            yield from _above(leaf, fixed, leaf.min.get(key, 0), key, "its min, for pods that are never preempted")


def _above(quota: Quota, used: int, most: int | None, key: str, which: str) -> Iterator[QuotaRefusal]:
    if most is not None and used > most:
        yield QuotaRefusal(code=OfPod.QUOTA_EXCEEDED, quota=quota.id, why=f"quota {quota.id}: {_of(key, used, most)}: {which}")


def _beyond_runtime(
    snapshot: QuotaSnapshot, leaf: Quota, more: Amounts, whole: Amounts, *, gang: bool, has_turn: Callable[[QuotaId], bool]
) -> Iterator[QuotaRefusal]:
    """Yield a refusal for each resource that may not be borrowed beyond the runtime. `whole` are all amounts of these pods,
    including those already used."""
    for key, amount in more.items():
        runtime = snapshot.runtime_of(leaf, key)
        used = snapshot.used_of(leaf.id, key) + amount
        if runtime is None or used <= runtime:
            continue
        larger = whole[key] > runtime
        if (gang or larger) and lendable(snapshot, leaf.id, key) >= amount and has_turn(leaf.id):
            continue
        if larger:
            share = f"{as_text(key, whole[key])} together are more than its {bare(key, runtime)}"
            reason = f"quota {leaf.id}: {share}; it may borrow them when they are free and it is its turn"
            yield QuotaRefusal(code=OfPod.QUOTA_TURN, quota=leaf.id, why=reason)
        else:
            yield from _above(leaf, used, runtime, key, "what it may use now")


def lendable(snapshot: QuotaSnapshot, quota: QuotaId, key: str) -> int:
    """Return the amount that this quota may borrow: the free amount in its tree, less the guaranteed amounts that other quotas
    request and do not have."""
    tree = snapshot.tree
    path = tree.paths[quota]
    free = snapshot.free(tree.group_of(quota), key)
    for step in path:
        if tree.quotas[step].total is not None:
            break  # the root of a tree has no siblings
        siblings = tree.groups.get(tree.quotas[step].parent, ())
        free -= sum(snapshot.owed(tree.quotas[other], key) for other in siblings if other != step)
    return free


def turn_key(snapshot: QuotaSnapshot, quota: QuotaId) -> Key:
    """Return the sort key of a quota that waits to borrow. The quota that uses the smallest part of its guarantee, or else of
    its weight, comes first. Quotas of one parent are compared after their parents. The resource with the largest part
    decides."""
    path = [snapshot.tree.quotas[step] for step in snapshot.tree.paths.get(quota, ())]
    return tuple(max((_ratio(snapshot, step, key) for key in step.max), default=Fraction(0)) for step in reversed(path))


def _ratio(snapshot: QuotaSnapshot, quota: Quota, key: str) -> Fraction | float:
    used, base = snapshot.used_of(quota.id, key), quota.min.get(key, 0) or quota.weight_of(key)
    return Fraction(used, base) if base else math.inf if used else Fraction(0)


def _of(key: str, used: int, most: int) -> str:
    return f"{bare(key, used)} of {bare(key, most)} {unit_as_text(key)}"
