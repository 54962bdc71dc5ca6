"""Build the answer to filter from the verdicts about the nodes that kube-scheduler named.

Take node names, the nodes that fit, and the reasons of the other nodes. Return a `Filtered`. An answer has thousands of nodes
for every pod, so each name is looked up once, by functions that loop in C.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from types import MappingProxyType
from typing import Final

from central.request.reasons import Coded, OfPod
from central.search.placement import BY_SHOWN, MAY_FIT_LATER

NO_REASONS: Final[Mapping[str, str]] = MappingProxyType({})
_CODES: Final[Mapping[str, Coded]] = {**BY_SHOWN, **{code.shown: code for code in OfPod}}


class SameReason(Mapping[str, str]):
    """Refuse all of these nodes, except `but`, for one reason. The mapping is built only when it is read."""

    def __init__(self, names: Sequence[str], text: str, but: str = "") -> None:
        self.names = names
        self.text = text
        self.but = but
        self._made: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._made is None:
            self._made = dict.fromkeys(self.names, self.text)
            self._made.pop(self.but, None)
        return self._made

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """Hold the nodes on which a pod fits, and the reason for each other node."""

    fitting: Sequence[str] = ()
    fails: dict[str, str] = field(default_factory=dict)  # reasons that an eviction might remove, by node
    never: Mapping[str, str] = field(default_factory=dict)
    reason: Coded | None = None  # common reason of all nodes, if there is one


def sort_nodes(
    names: Sequence[str],
    *,
    fits: Collection[str] = (),
    reasons: Mapping[str, str] = NO_REASONS,
    otherwise: str,
    fits_too: Collection[str] = (),
) -> Filtered:
    """Sort the nodes by whether the pod fits, might fit after an eviction, or cannot fit. `reasons`: shown texts by node;
    `otherwise`: the text for nodes without a reason. `fits_too`: nodes that fit despite their reason, because devices are held
    there for this pod."""
    fit = list(map(fits.__contains__, names))
    failing = fit.count(False)
    if not failing:
        return Filtered(fitting=names)
    fails: dict[str, str] = {}
    never: dict[str, str] = {}
    at = -1
    for _ in range(failing):  # mostly few nodes fail
        at = fit.index(False, at + 1)
        reason = reasons.get(names[at]) or otherwise
        (fails if reason in MAY_FIT_LATER else never)[names[at]] = reason
    fitting = list(compress(names, fit))
    fitting += [name for name in fits_too if fails.pop(name, "") or never.pop(name, "")]
    return Filtered(fitting=fitting, fails=fails, never=never)


def refuse_everywhere(names: Sequence[str], reason: Coded, message: str) -> Filtered:
    """Refuse the pod on all nodes, for a reason that does not depend on the node."""
    return Filtered(never=SameReason(names, reason.about(message)), reason=reason)


def only(name: str, names: Sequence[str], otherwise: str) -> Filtered:
    """Accept the pod on this node, and refuse the pod on all other nodes."""
    return Filtered(fitting=[name], never=SameReason(names, otherwise, but=name))


def main_reason(answer: Filtered) -> Coded | None:
    """Return the most frequent reason if the pod fits on no node; None if it fits, or there are no nodes."""
    if answer.fitting or answer.reason:
        return answer.reason
    counts = Counter(answer.fails.values())
    counts.update(answer.never.values())
    if not counts:
        return None
    (most, _), *_ = counts.most_common(1)
    return _CODES.get(most, OfPod.REQUEST_MALFORMED)  # a malformed request has a text of its own
