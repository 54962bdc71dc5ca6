"""Choose devices for the containers of a pod one after the other: the best for each that leave enough for the others.

Take a node's devices as numbers of its topology, the containers in the order of the demand, and a policy. Return the devices of
each container, or None; raise SearchEndedError if the search reached its bound.

The search is exact. If the best choice of a container leaves too little for the following ones, the next best is tried. Of
choices that are equivalent for the following containers, only the best is tried, and a failed state of all devices is not
searched again. Whether the other containers fit depends on cards. If devices are bound to a place (a scope, a VF on each
switch, a partition), it also depends on their places. It never depends on which VFs of one place are taken. A container's
devices count in the phases in which the container runs (demand.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from central.request.model import PartitionPolicy, Policy, RdmaPolicy, Scope
from central.search.cards import Card, CardState
from central.search.demand import Demand, Wanted
from central.search.joint import DeviceMasks, JointChoice, Query, alternatives, find, sites_of
from central.search.mig import best_instances, instance_ranks, splits, with_vfs
from central.search.placement import Missing
from central.search.prefer import preference, ranks
from central.search.topology import NEXT_TO, Distances, NodeTopology, bits, link
from central.search.vfs import Choice, FreeVfs

SETS_A_STEP = 8  # sets of cards that count as one step, once the search has backtracked


class SearchEndedError(Exception):
    """Report a search that reached its limit: of all containers together (SEARCH_ENDED), or of one container alone
    (SETS_ENDED)."""

    def __init__(self, missing: Missing = Missing.SEARCH_ENDED) -> None:
        super().__init__(missing)
        self.missing = missing


class Chosen(NamedTuple):
    wanted: Wanted
    cards: Sequence[Card]  # ascending by PCI address
    vfs: int = 0  # bit mask of VF numbers
    distances: Distances = NEXT_TO


class Places(NamedTuple):
    """Hold the place number of each card and each port (PF). Devices of one place are equivalent for whether a pod fits."""

    cards: Sequence[int]
    ports: Sequence[int]


def places_of(topology: NodeTopology, demand: Demand) -> Places:
    if not demand.bound:
        return _places_of(topology, Scope.ANY, each=False)
    per_switch = demand.vfs_peak > 0 and demand.rdma is RdmaPolicy.PER_SWITCH
    scope = Scope.SWITCH if per_switch else demand.scope
    return _places_of(topology, scope, each=demand.partition is PartitionPolicy.HONOR)


@lru_cache(maxsize=1024)
def _places_of(topology: NodeTopology, scope: Scope, *, each: bool) -> Places:
    """Return the place of each card and of each PF within the scope. With `each`, every card is a separate place."""
    cards, ports = list(range(topology.cards)), [0] * (max(topology.port_of, default=-1) + 1)
    for site in sites_of(topology, scope):
        for port in site.ports:
            ports[port] = site.number
        for card in () if each else bits(site.cards):
            cards[card] = site.number
    return Places(cards, ports)


class SearchDevices:
    """Hold the devices of one node during one search: those that other pods left, and those chosen for this pod so far."""

    def __init__(self, topology: NodeTopology, cards: Sequence[Card], untouched: int, vfs: FreeVfs, places: Places) -> None:
        self.topology = topology
        self._places = places
        self.cards = cards  # usable cards, ascending by PCI address
        self._untouched = untouched  # bit mask: cards of which no other pod holds anything
        self._vfs = vfs  # VFs that no other pod holds
        self._use: dict[int, int] = {}  # VF → phases in which this pod uses it

    def state(self, wanted: Wanted, having: Sequence[Card], rank: Mapping[int, int], kinds: bool) -> DeviceMasks:
        """Return the state of the devices as the search for one container needs it. `having` are the cards on which the
        container's request fits."""
        numbers = self.topology.cards
        again = partly = busy = 0
        for card in self.cards:
            busy |= (1 << card.number) if card.busy else 0
        for card in having if busy else ():
            beyond = card.beyond(wanted)
            again |= (beyond == 0) << card.number
            partly |= (beyond == 1) << card.number
        return DeviceMasks(
            cards=sum([1 << card.number for card in having]),
            again=again,
            partly=partly,
            untouched=self._untouched & ~busy if wanted.whole else 0,
            ranks=tuple(rank.get(number, 0) for number in range(numbers)) if rank else (),
            vfs=self._vfs_for(wanted) if wanted.vfs else FreeVfs(),
            kinds=self._kinds() if kinds else (),
        )

    def put(self, chosen: Chosen, sign: int = 1) -> None:
        wanted = chosen.wanted
        for card in chosen.cards:
            card.put(wanted, sign)
        for vf in bits(chosen.vfs):  # two containers of one phase never have the same VF
            phases = self._use.pop(vf, 0) ^ wanted.mask
            if phases:
                self._use[vf] = phases

    def kind(self, card: Card) -> CardState:
        """Return a key that is equal for cards that are equivalent for the search."""
        return self._places.cards[card.number], card.state()

    def place(self, vf: int) -> int:
        return self._places.ports[self.topology.port_of[vf]]

    def signature(self) -> CardState:
        """Return a key that is equal for states of all devices that are equivalent for the search."""
        used = sorted((self.place(vf), phases) for vf, phases in self._use.items())
        return *sorted(map(self.kind, self.cards)), *used

    def _vfs_for(self, wanted: Wanted) -> FreeVfs:
        if not self._use:
            return self._vfs
        free, again, taken = self._vfs.free, 0, list(self._vfs.taken)
        for vf, phases in self._use.items():
            taken[self.topology.port_of[vf]] += 1
            if phases & wanted.mask:
                free &= ~(1 << vf)
            else:
                again |= 1 << vf
        return FreeVfs(free, again, tuple(taken), self._vfs.ports)

    def _kinds(self) -> tuple[int, ...]:
        card_states: dict[CardState, int] = {}
        kinds = [0] * self.topology.cards
        for card in self.cards:
            kinds[card.number] = card_states.setdefault(self.kind(card), len(card_states))
        return tuple(kinds)


def search_containers(
    devices: SearchDevices, demand: Demand, policy: Policy, *, steps: int, first: bool = False
) -> Sequence[Chosen] | None:
    """Return the devices of each container, in the order of the demand; None if there is no choice. `devices` is changed. Raise
    SearchEndedError after `steps` choices. With `first`, any choice is enough; it need not be the best."""
    search = _Search(devices, demand, policy, steps, first=first)
    return search.chosen if search.run(0) else None


class _Search:
    def __init__(self, devices: SearchDevices, demand: Demand, policy: Policy, steps: int, *, first: bool) -> None:
        self._first = first
        self._devices = devices
        self._demand = demand
        self._policy = policy
        self._prefer = preference(policy)
        self._steps = steps
        self._failed: set[CardState] = set()
        self._backtracked = False  # the best choice of each container does not count as a step, however long it takes
        self.chosen: list[Chosen] = []

    def run(self, depth: int) -> bool:
        if depth == len(self._demand.wanted):
            return True
        wanted = self._demand.wanted[depth]
        having = [card for card in self._devices.cards if card.takes(wanted)] if wanted.count else []
        if len(having) < wanted.count:
            return False
        if depth + 1 == len(self._demand.wanted):  # no container follows that could fail
            best = self._best(wanted, having)
            self.chosen += [best] if best else []
            return best is not None
        signature = (depth, *self._devices.signature())
        if signature in self._failed:
            return False
        for choice in self._ways(wanted, having):
            self._step()
            self._devices.put(choice)
            self.chosen.append(choice)
            if self.run(depth + 1):
                return True
            self.chosen.pop()
            self._devices.put(choice, -1)
            self._backtracked = True
        self._failed.add(signature)
        return False

    def _step(self, sets: int = 0) -> None:
        self._steps -= 1 + sets // SETS_A_STEP
        if self._steps < 0:
            raise SearchEndedError

    # ---- one container

    def _best(self, wanted: Wanted, having: Sequence[Card]) -> Chosen | None:
        if self._is_by_policy(wanted):
            cards = having if len(having) == wanted.count else self._prefer(having, wanted, wanted.count)
            return _by_policy(wanted, cards)
        query, state = self._query(wanted), self._state(wanted, having)
        if self._is_of_instances(wanted):
            state = best_instances(self._devices.topology, query, state)
        answer = find(self._devices.topology, query, state)
        if answer.ended:
            raise SearchEndedError(Missing.SETS_ENDED)
        if self._backtracked:
            self._step(answer.sets)
        return self._chosen(wanted, answer.choice) if answer.choice else None

    def _ways(self, wanted: Wanted, having: Sequence[Card]) -> Iterator[Chosen]:
        """Yield the best choice, then the other choices that are not equivalent for the following containers."""
        first = self._best(wanted, having)
        if first is None:
            return
        yield first
        if self._is_by_policy(wanted):
            yield from self._ways_by_policy(wanted, having, first)
        elif self._demand.bound or len({self._devices.kind(card) for card in having}) > 1:
            yield from self._next_best(wanted, having, first)

    def _next_best(self, wanted: Wanted, having: Sequence[Card], first: Chosen) -> Iterator[Chosen]:
        state = self._state(wanted, having, kinds=True)
        query, most = self._query(wanted), SETS_A_STEP * max(1, self._steps)
        if self._is_of_instances(wanted):
            result = self._by_kind(query, state)
        else:
            every = alternatives(self._devices.topology, query, state, most)
            if every is None:
                raise SearchEndedError
            self._step(every.sets)
            result = every.choices
        tried = {self._kind(state, first)}
        for one in result:
            choice = self._chosen(wanted, one)
            kind = self._kind(state, choice)
            if kind not in tried:
                tried.add(kind)
                yield choice

    def _by_kind(self, query: Query, state: DeviceMasks) -> Sequence[JointChoice]:
        """Return one choice for each way to divide the cards among their kinds, the best first. A choice has the cards with the
        lowest ranks of each kind, and their best VFs. MIG instances form too many sets to try each one."""
        topology = self._devices.topology
        result = []
        for site in sites_of(topology, query.scope):
            vfs = Choice(topology, site, query.rdma, query.cards, query.vfs, state.vfs)
            kinds: dict[int, list[int]] = {}
            useful = bits(state.cards & site.cards & ~vfs.useless_cards())
            for number in sorted(useful, key=lambda n: (not state.again >> n & 1, state.ranks[n], n)):
                kinds.setdefault(state.kinds[number], []).append(number)
            for counts in splits([len(kind) for kind in kinds.values()], query.cards):
                self._step()
                numbers = [number for kind, count in zip(kinds.values(), counts, strict=True) for number in kind[:count]]
                if one := with_vfs(topology, state, numbers, vfs, range(site.levels[-1] + 1)):
                    result.append(one)
        return sorted(result, key=lambda one: one.order)

    def _kind(self, state: DeviceMasks, choice: Chosen) -> CardState:
        cards = sorted(state.kinds[card.number] for card in choice.cards)
        return *cards, -1, *sorted(map(self._devices.place, bits(choice.vfs)))

    # ---- whole cards, VFs, and shares with VFs or within a scope

    def _query(self, wanted: Wanted) -> Query:
        demand = self._demand
        whole = wanted.whole and wanted.count > 0
        rdma = demand.rdma if wanted.vfs else RdmaPolicy.NEAREST
        return Query(wanted.count, wanted.vfs, rdma, demand.scope, demand.partition if whole else None, self._first)

    def _state(self, wanted: Wanted, having: Sequence[Card], *, kinds: bool = False) -> DeviceMasks:
        if self._is_of_instances(wanted):
            rank: Mapping[int, int] = instance_ranks(self._policy, having)
        else:
            rank = {} if wanted.whole else ranks(self._policy, having, wanted)
        return self._devices.state(wanted, having, rank, kinds)

    def _is_of_instances(self, wanted: Wanted) -> bool:
        return bool(self._demand.mig_profile) and wanted.count > 0

    def _chosen(self, wanted: Wanted, choice: JointChoice) -> Chosen:
        cards = [card for card in self._devices.cards if choice.cards >> card.number & 1]
        return Chosen(wanted, cards, choice.vfs, choice.distances)

    # ---- shares alone

    def _is_by_policy(self, wanted: Wanted) -> bool:
        """Return whether the policy alone decides. For several cards of a share, their links decide first, as for whole cards;
        the policy spread compares links after the first card (prefer.py)."""
        if wanted.whole or wanted.vfs:
            return False
        return wanted.count == 1 or (self._policy is Policy.SPREAD and self._demand.scope is Scope.ANY)

    def _ways_by_policy(self, wanted: Wanted, having: Sequence[Card], first: Chosen) -> Iterator[Chosen]:
        """Yield one choice for each way to divide the cards among their kinds, except for the way of `first`."""
        alike: dict[CardState, list[Card]] = {}
        for card in self._prefer(having, wanted, len(having)):
            alike.setdefault(self._devices.kind(card), []).append(card)
        tried = tuple(sum(1 for card in first.cards if card in kind) for kind in alike.values())
        for counts in splits([len(kind) for kind in alike.values()], wanted.count):
            if counts != tried:
                picks = [card for kind, count in zip(alike.values(), counts, strict=True) for card in kind[:count]]
                yield _by_policy(wanted, picks)


def _by_policy(wanted: Wanted, cards: Sequence[Card]) -> Chosen:
    worst = max((link(a.gpu, b.gpu) for a in cards for b in cards if a is not b), default=0) if len(cards) > 1 else 0
    return Chosen(wanted, sorted(cards, key=lambda card: card.address), distances=Distances(link=worst))
