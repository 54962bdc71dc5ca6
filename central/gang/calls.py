"""Record kube-scheduler's calls about gang members: for each pod the nodes that were named, in each domain that was tried.

Tests: tests/unit/central/gang/test_trials.py
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from central.gang.node_names import NodeNames, Numbered
from lading.vocabulary import PodUid

EVERYWHERE: Final = ""  # the domain of a call about nodes of several domains, or without any
_NO_CALLS: Final[Mapping[str, Collection[str]]] = MappingProxyType({})


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
        """Forget all calls about these pods."""
        for uid in uids:
            self._named.pop(uid, None)
            self._guessed.discard(uid)
