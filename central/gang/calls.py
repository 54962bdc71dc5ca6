"""Record kube-scheduler's calls about gang members: for each pod the nodes that were named, in each domain that was tried.

Tests: tests/unit/central/gang/test_looks.py
Tests: tests/unit/central/gang/test_trials.py
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from lading.vocabulary import PodUid

EVERYWHERE: Final = ""  # the domain of a call about nodes of several domains, or without any
_NO_CALLS: Final[Mapping[str, Collection[str]]] = MappingProxyType({})
MOST_NAMES: Final = 1 << 16  # maximum numbered names; beyond it numbering restarts, because deleted nodes keep their numbers


class NodeNames(Collection[str]):
    """Hold a set of node names as bits, by the names' numbers: kube-scheduler names thousands of nodes for each pending gang
    member. 5,000 names take 173 KB for each pod as text, and 625 bytes as bits, however the sets differ."""

    __slots__ = ("_bits", "_names")

    def __init__(self, names: list[str], bits: bytes) -> None:
        """Do not call this; use `Numbered.of`."""
        self._names = names
        self._bits = bits

    def __iter__(self) -> Iterator[str]:
        numbers = np.unpackbits(np.frombuffer(self._bits, np.uint8)).nonzero()[0]
        return map(self._names.__getitem__, numbers.tolist())

    def __len__(self) -> int:
        return int.from_bytes(self._bits, "big").bit_count()

    def __contains__(self, name: object) -> bool:
        return any(one == name for one in self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeNames) and self._names is other._names and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)


class Numbered:
    def __init__(self) -> None:
        self._names: list[str] = []
        self._number_of: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> NodeNames:
        """Return these names as a set of bits. 5,000 names take about 0.5 ms."""
        listed = [*names]
        if len(self._names) > MOST_NAMES:
            self._names, self._number_of = [], {}
        for name in listed:
            if name not in self._number_of:
                self._number_of[name] = len(self._names)
                self._names.append(name)
        there = np.zeros(len(self._names), np.bool_)
        there[[self._number_of[name] for name in listed]] = True
        return NodeNames(self._names, np.packbits(there).tobytes().rstrip(b"\0"))


class Calls:
    def __init__(self) -> None:
        self._named: dict[PodUid, dict[str, Collection[str]]] = {}
        self._guessed: set[PodUid] = set()  # pods whose last call was about a single node, other than the planned node
        self._numbered = Numbered()

    def record(self, uid: PodUid, domain: str, names: Collection[str]) -> None:
        """Record a call about these nodes of a domain, or of EVERYWHERE."""
        named = self._named.setdefault(uid, {})
        if domain == EVERYWHERE or EVERYWHERE in named:
            named.clear()
        named[domain] = names

    def names(self, uid: PodUid) -> Mapping[str, Collection[str]]:
        """Return the nodes of the last call about the pod, or of the last call in each domain; empty before the first call."""
        return self._named.get(uid, _NO_CALLS)

    def count(self, uids: Iterable[PodUid]) -> int:
        """Return the number of these pods with a call, counted once for each domain."""
        return sum(len(self.names(uid)) for uid in uids)

    def are_trials(self, uids: Iterable[PodUid]) -> bool:
        """Return whether kube-scheduler tries these pods in one domain after the other."""
        return any(named and EVERYWHERE not in named for named in map(self.names, uids))

    def has_guessed(self, uid: PodUid) -> bool:
        """Return whether the last call about the pod was about a single node, other than the planned node."""
        return uid in self._guessed

    def guess(self, uid: PodUid, *, guessed: bool) -> None:
        """Record whether the last call was about a single node, other than the planned node."""
        (self._guessed.add if guessed else self._guessed.discard)(uid)

    def compress(self, uid: PodUid) -> None:
        """Compress the node names of the last calls about the pod."""
        named = self._named.get(uid, {})
        for domain, names in named.items():
            if not isinstance(names, NodeNames):
                named[domain] = self._numbered.of(names)

    def forget(self, uids: Iterable[PodUid]) -> None:
        for uid in uids:
            self._named.pop(uid, None)
            self._guessed.discard(uid)
