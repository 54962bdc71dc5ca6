"""Define kube-scheduler's extender protocol as JSON (kube-scheduler/extender/v1, v1.36: no JSON tags, so keys are capitalised).

Because of `nodeCacheCapable`, requests have node names instead of Node objects. Unknown keys are ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, overload

import msgspec

from central.decide.filtered import Filtered, SameReason
from central.request import pod  # the fields are named Pod, and Python 3.14 reads their types in the class


class ExtenderArgs(msgspec.Struct, frozen=True):
    """Hold the arguments of filter and prioritize, with the node names undecoded."""

    Pod: pod.Pod
    NodeNames: msgspec.Raw = msgspec.Raw(b"null")


class BadNamesError(msgspec.ValidationError):
    """Report that the caller's NodeNames are invalid."""


class Names(Sequence[str]):
    """Hold the node names of a request as JSON, and decode them only when one is read. Mostly central only searches one of
    thousands of names, and sends all of them back. A node's name has no character that JSON would escape. Raises BadNamesError
    for a value that is not a list, and, when read, for a list of other values."""

    def __init__(self, raw: msgspec.Raw, text: bytes) -> None:
        """Do not call this; use `read`."""
        self.raw = raw
        self._text = text
        self._made: list[str] | None = None
        if not text.startswith(b"["):
            self._names()

    @classmethod
    def read(cls, raw: msgspec.Raw) -> "Names | None":
        """Read the names. Return None for null, which Go writes for a nil list."""
        text = bytes(raw)
        return None if text == b"null" else cls(raw, text)

    def __contains__(self, name: object) -> bool:
        return f'"{name}"'.encode() in self._text

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._names()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        if self._made is None:
            try:
                self._made = _NAMES.decode(self._text)
            except (msgspec.MsgspecError, ValueError) as e:
                raise BadNamesError(str(e)) from e
        return self._made


_NAMES: Final = msgspec.json.Decoder(list[str])


class FilterResult(msgspec.Struct, frozen=True, omit_defaults=True):
    NodeNames: Sequence[str] = ()
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: Mapping[str, str] = {}
    Error: str = ""


def name_nodes(filtered: Filtered) -> FilterResult:
    """Return the answer to filter. Refused nodes are in FailedNodes if an eviction might help, else in
    FailedAndUnresolvableNodes."""
    return FilterResult(NodeNames=filtered.fitting, FailedNodes=filtered.fails, FailedAndUnresolvableNodes=filtered.never)


def render_same(answer: SameReason) -> msgspec.Raw:
    """Render one reason for thousands of nodes directly from the JSON of the request's node names."""
    text = bytes(answer.names.raw) if isinstance(answer.names, Names) else b""
    reason = msgspec.json.encode(answer.text)
    if not text.startswith(b'["') or b'", ' in text:
        return msgspec.Raw(msgspec.json.encode(dict(answer)))
    pairs = b"," + text[1:-1].replace(b'",', b'":' + reason + b",") + b":" + reason
    if answer.but:
        pairs = pairs.replace(b"," + msgspec.json.encode(answer.but) + b":" + reason, b"")
    return msgspec.Raw(b"{" + pairs[1:] + b"}")


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
    Pods: list[MetaPod] | None = None  # Go's empty list may be null
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct, frozen=True):
    """Hold the arguments of preempt. With nodeCacheCapable, victims are named by uid only."""

    Pod: pod.Pod
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None


class PreemptResult(msgspec.Struct, frozen=True):
    NodeNameToMetaVictims: dict[str, MetaVictims] = {}


MAX_SCORE: Final = 10  # MaxExtenderPriority


class HostPriority(msgspec.Struct, frozen=True):
    Host: str
    Score: int


def name_winner(winner: str | None) -> list[HostPriority]:
    """Return the answer to prioritize: only the best node. kube-scheduler gives a score of 0 to other nodes; to list 5,000
    nodes would take longer than all other work."""
    return [] if winner is None else [HostPriority(Host=winner, Score=MAX_SCORE)]
