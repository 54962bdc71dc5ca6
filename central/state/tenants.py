"""Order waiting pods: by priority, then the namespace with the smallest part of all devices first, then by age.

A namespace's part is the larger of its parts of all cards and of all VFs. Devices of its bound pods count, and devices
predicted, reserved or planned for its pods. Parts of cards count as in quotas (central.quota.amounts). Devices that are only
nominated do not count: else a pod would lose its turn by its own nomination.

Only nodes that changed since the last query are counted again. Pods of one namespace are ordered by priority and age.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from typing import Final, NamedTuple

from central.ledger.ledger import Ledger
from central.ledger.model import Claim
from central.loop.steps import Steps, exhaust
from central.quota.amounts import CARD, held_milli, requested_milli
from central.request.model import at_one_time
from central.state.pending import Pending, in_line
from lading.vocabulary import PodUid

_COUNTED: Final = (Claim.RESERVED, Claim.PLANNED, Claim.PREDICTED)

InTurn = Callable[[Iterable[Pending]], Iterator[Pending]]
Place = tuple[int, int, str, PodUid]


class DeviceAmounts(NamedTuple):
    milli: int = 0  # thousandths of cards
    vfs: int = 0

    def plus(self, other: "DeviceAmounts", times: int = 1) -> "DeviceAmounts":
        return DeviceAmounts(self.milli + times * other.milli, self.vfs + times * other.vfs)


NONE: Final = DeviceAmounts()


class _Node(NamedTuple):
    has: DeviceAmounts
    held: dict[str, DeviceAmounts]  # held devices by namespace


_NOTHING: Final = _Node(NONE, {})


class Tenants:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._uncounted: dict[str, None] = {}  # nodes that changed
        self._observed = -1
        self._nodes: dict[str, _Node] = {}
        self._has = NONE
        self._held: dict[str, DeviceAmounts] = {}

    # ---- queries

    def part(self, namespace: str) -> int:
        """Return the namespace's part of all devices as of the last `catch_up`. The number has no unit; compare it only with
        those of other namespaces."""
        return self._size(self._held.get(namespace, NONE))

    def part_of(self, pods: Iterable[Pending]) -> Fraction:
        """Return the part of all devices that these pods request: the larger of the parts of cards and of VFs."""
        self.catch_up()
        return self._part(_requested_by(pods))

    def within(self, share: Fraction, pods: Iterable[Pending], more: Iterable[Pending]) -> list[Pending]:
        """Return the pods of `more` that fit in the share. Each is added in order if `pods` and all added pods together request
        at most `share` of all devices."""
        requested, allowed = _requested_by(pods), list[Pending]()
        for pod in more:
            if self._part(requested.plus(_requested(pod))) <= share:
                requested = requested.plus(_requested(pod))
                allowed.append(pod)
        return allowed

    def _part(self, requested: DeviceAmounts) -> Fraction:
        cards, vfs = (Fraction(some, max(1, every)) for some, every in zip(requested, self._has, strict=True))
        return max(cards, vfs)

    def line(self) -> Callable[[Pending], Place]:
        """Return the sort key of the queue in the current state."""
        self.catch_up()
        return lambda pod: (-pod.priority, self.part(pod.namespace), pod.created, pod.uid)

    def in_turn(self, waiting: Iterable[Pending]) -> Iterator[Pending]:
        """Yield these pods in queue order, as if each were admitted in turn: a yielded pod's request counts for its namespace
        from then on."""
        self.catch_up()
        held = dict(self._held)
        lines: defaultdict[str, list[Pending]] = defaultdict(list)  # pods by namespace, the first of the queue last
        for pod in sorted(waiting, key=in_line, reverse=True):
            lines[pod.namespace].append(pod)

        def place(namespace: str) -> tuple[int, int, str, PodUid, str]:
            first = lines[namespace][-1]
            return -first.priority, self._size(held.get(namespace, NONE)), first.created, first.uid, namespace

        heap = [place(namespace) for namespace in lines]
        heapify(heap)
        while heap:
            namespace = heap[0][-1]
            pod = lines[namespace].pop()
            held[namespace] = held.get(namespace, NONE).plus(_requested(pod))
            if lines[namespace]:
                heapreplace(heap, place(namespace))
            else:
                heappop(heap)
            yield pod

    def _size(self, held: DeviceAmounts) -> int:
        """Return the larger of the two parts, multiplied by the totals of cards and VFs so that it stays a whole number."""
        return max(held.milli * max(1, self._has.vfs), held.vfs * max(1, self._has.milli))

    # ---- counting

    def catch_up(self) -> None:
        exhaust(self.catching_up())

    def catching_up(self) -> Steps:
        """Count the nodes that changed, one in each step."""
        names, self._observed = self._ledger.claims_changed_since(self._observed)
        self._uncounted.update(dict.fromkeys(names))
        while self._uncounted:  # after an exception about one node, the other nodes are still counted
            self._count(self._uncounted.popitem()[0])
            yield

    def _count(self, name: str) -> None:
        before, now = self._nodes.get(name, _NOTHING), self._read_node(name)
        self._has = self._has.plus(before.has, -1).plus(now.has)
        for namespace, held in before.held.items():
            self._add(namespace, held, -1)
        for namespace, held in now.held.items():
            self._add(namespace, held, 1)
        if now == _NOTHING:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = now

    def _read_node(self, name: str) -> _Node:
        capacity = self._ledger.capacity(name)
        cards = {card.gpu.uuid: card.gpu for card in capacity.cards}
        milli = sum(CARD for card in capacity.cards if card.usable or card.pods)
        device_amountses: dict[str, DeviceAmounts] = {}
        for uid, taken in self._ledger.holds_on(name):
            namespace = self._namespace_of(uid)
            if namespace is not None:
                held = DeviceAmounts(held_milli(taken, cards), len(taken.vfs))
                device_amountses[namespace] = device_amountses.get(namespace, NONE).plus(held)
        return _Node(DeviceAmounts(milli, sum(vf.usable for vf in capacity.vfs)), device_amountses)

    def _namespace_of(self, uid: PodUid) -> str | None:
        """Return the namespace of a pod that counts; None for a pod that has only a nomination, or is unknown."""
        record = self._ledger.pod(uid)
        if record is not None and record.node:
            return record.namespace
        claims = (self._ledger.own_claim(uid, kind) for kind in _COUNTED)
        return next((claim.holder.namespace for claim in claims if claim is not None), None)

    def _add(self, namespace: str, held: DeviceAmounts, times: int) -> None:
        now = self._held.get(namespace, NONE).plus(held, times)
        if now == NONE:
            self._held.pop(namespace, None)
        else:
            self._held[namespace] = now


def _requested_by(pods: Iterable[Pending]) -> DeviceAmounts:
    requested = NONE
    for pod in pods:
        requested = requested.plus(_requested(pod))
    return requested


def _requested(pod: Pending) -> DeviceAmounts:
    return DeviceAmounts(requested_milli(pod.request), at_one_time(pod.request.containers, lambda one: one.vfs))
