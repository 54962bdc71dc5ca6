"""kube-scheduler's extender protocol as JSON (k8s.io/kube-scheduler/extender/v1, v1.36: no JSON tags, so keys are capitalised).

With `nodeCacheCapable` requests carry node names and no Node objects. Unknown keys are ignored. Names are decoded into a set:
their order means nothing, and what is done with them is set arithmetic over thousands.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from central.ask.pod import Pod


class ExtenderArgs(msgspec.Struct, frozen=True):
    """filter and prioritize."""

    Pod: Pod
    NodeNames: set[str] | None = None


class FilterResult(msgspec.Struct, frozen=True, omit_defaults=True):
    NodeNames: Iterable[str] = ()
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class BindArgs(msgspec.Struct, frozen=True):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class BindResult(msgspec.Struct, frozen=True, omit_defaults=True):
    Error: str = ""


class MetaPod(msgspec.Struct, frozen=True):
    UID: str


class MetaVictims(msgspec.Struct, frozen=True):
    Pods: list[MetaPod] = []
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True):
    """With nodeCacheCapable, victims are named by uid only."""

    Pod: Pod
    NodeNameToMetaVictims: dict[str, MetaVictims] = {}


class PreemptResult(msgspec.Struct, frozen=True):
    NodeNameToMetaVictims: dict[str, MetaVictims] = {}


MAX_SCORE: Final = 10  # MaxExtenderPriority


class Priorities:
    """The answer to prioritize: one node named, all others equal. Written by hand: it is the same for each node but one, and a
    typed encoder would make an object for each."""

    def __init__(self) -> None:
        self._others: dict[str, bytes] = {}  # by name; node names come and go slowly

    def render(self, names: Iterable[str], winner: str | None) -> bytes:
        others = self._others
        for name in names - others.keys() if isinstance(names, set) else set(names) - others.keys():
            others[name] = b'{"Host":' + msgspec.json.encode(name) + b',"Score":0}'
        parts = [others[name] for name in names if name != winner]
        if winner is not None:
            parts.append(b'{"Host":' + msgspec.json.encode(winner) + b',"Score":%d}' % MAX_SCORE)
        return b"[" + b",".join(parts) + b"]"
