"""A policy that decides as another one does, and records what it was told and what it chose."""

from collections.abc import Collection
from typing import NamedTuple

from shares.policy.model import Next, NotBefore, Policy, Share


class Turn(NamedTuple):
    """A time for which the card was a container's."""

    name: str
    began_ns: int
    ended_ns: int


class Choice(NamedTuple):
    waiting: frozenset[str]
    name: str
    used_ns: dict[str, int]  # the card's time that every container has used until then


class End(NamedTuple):
    """A container neither wants nor has the card from now on."""

    name: str
    at_ns: int


class Count(NamedTuple):
    turns: int
    choices: int
    ends: int


class Seen(NamedTuple):
    turns: list[Turn]
    choices: list[Choice]
    ends: list[End]


def _of(folder: str) -> str:
    """Return the container's name of a folder of `lading.sharegrant.folder_name`, by which the server calls it."""
    return folder.rpartition("_")[2]


class Recorded:
    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.shares: dict[str, Share] = {}
        self.used_ns: dict[str, int] = {}
        self.turns: list[Turn] = []
        self.choices: list[Choice] = []
        self.ends: list[End] = []

    def count(self) -> Count:
        return Count(len(self.turns), len(self.choices), len(self.ends))

    def since(self, before: Count) -> Seen:
        return Seen(self.turns[before.turns :], self.choices[before.choices :], self.ends[before.ends :])

    def join(self, name: str, share: Share, now_ns: int) -> None:
        self.shares[_of(name)], self.used_ns[_of(name)] = share, 0
        self._inner.join(name, share, now_ns)

    def leave(self, name: str) -> None:
        self._inner.leave(name)

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        self._inner.begin(name, estimate_ns, now_ns)

    def end(self, name: str, now_ns: int) -> None:
        self.ends.append(End(_of(name), now_ns))
        self._inner.end(name, now_ns)

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        last = self.turns[-1] if self.turns else None
        if last is not None and (last.name, last.ended_ns) == (_of(name), began_ns):
            self.turns[-1] = last._replace(ended_ns=ended_ns)
        else:
            self.turns.append(Turn(_of(name), began_ns, ended_ns))
        self.used_ns[_of(name)] += ended_ns - began_ns
        self._inner.charge(name, began_ns, ended_ns)

    def choose(self, waiting: Collection[str], now_ns: int) -> Next | NotBefore:
        choice = self._inner.choose(waiting, now_ns)
        if isinstance(choice, Next):
            self.choices.append(Choice(frozenset(map(_of, waiting)), _of(choice.name), dict(self.used_ns)))
        return choice

    def longest(self, name: str, now_ns: int) -> int | None:
        return self._inner.longest(name, now_ns)

    def is_due(self, waiting: Collection[str], holder: str, now_ns: int) -> bool:
        return self._inner.is_due(waiting, holder, now_ns)

    def forgive(self, now_ns: int) -> None:
        self._inner.forgive(now_ns)
