"""Parse a pod's gang membership in any dialect. Pods of one gang start together or not at all.

A *gang* has roles, each with a minimum of members; a gang without roles has a single role with an empty name. A pod names its
gang. The minimum is on the pod itself or in the gang's object (`central.api.pod_groups`).

    dialect       key that names the gang                                         minimum
    lading        annotation lading.dev/gang                                      annotation lading.dev/gang-min
    coscheduling  label scheduling.x-k8s.io/pod-group                             PodGroup scheduling.x-k8s.io
    koordinator   label pod-group.scheduling.sigs.k8s.io                          PodGroup scheduling.sigs.k8s.io
    koordinator   label …sigs.k8s.io/name or annotation gang.scheduling.koordinator.sh/name   the same prefixes, min-available
    kubernetes    spec.schedulingGroup (1.36) or spec.workloadRef (1.35)          PodGroup or Workload scheduling.k8s.io
    kueue         annotation (Kueue 0.18) or label kueue.x-k8s.io/pod-group-name  annotation …/pod-group-total-count

A group of Koordinator's gangs is one gang here, with a role for each gang of the group. The result is None for a pod without a
gang, and MalformedRequest for a pod with contradictory or unreadable gang keys.

Source: kubernetes-sigs/scheduler-plugins (coscheduling), koordinator.sh gang scheduling, KEP-4671, kueue.sigs.k8s.io.

Tests: tests/unit/central/gang/test_dialects.py
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from central.request.model import MalformedRequest
from central.request.pod import Pod
from lading.vocabulary import (
    GANG,
    GANG_ANNOTATIONS,
    GANG_MIN,
    GANG_MODE,
    GANG_PREFERRED_TOPOLOGY,
    GANG_REQUIRED_TOPOLOGY,
    GANG_ROLE,
)

MAX_MIN: Final = 4096  # maximum members of a gang that start together
MAX_ROLES: Final = 32
_LONGEST: Final = 4096  # maximum characters of a parsed value
_SHOWN: Final = 60  # maximum characters of a value in a message

_GROUPS: Final = {
    "coscheduling": "scheduling.x-k8s.io",
    "koordinator": "scheduling.sigs.k8s.io",
    "kubernetes": "scheduling.k8s.io",
}
COSCHEDULING_LABEL: Final = "scheduling.x-k8s.io/pod-group"
KOORDINATOR_LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
_LIGHT: Final = f"{KOORDINATOR_LABEL}/"
_KOORDINATOR: Final = "gang.scheduling.koordinator.sh/"
KUEUE_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
_KUEUE_TOTAL: Final = "kueue.x-k8s.io/pod-group-total-count"
_INDEX: Final = ("batch.kubernetes.io/job-completion-index", f"{_KOORDINATOR}network-topology-index")

_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NAME: Final = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,251}[a-zA-Z0-9])?")
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
_LABEL_KEY: Final = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")

# Central also reads annotations with these prefixes, which are outside lading.dev/, because they concern gangs.
FOREIGN_PREFIXES: Final = (_KOORDINATOR, _LIGHT, "kueue.x-k8s.io/", "batch.kubernetes.io/")


class GangDialect(StrEnum):
    LADING = "lading"
    COSCHEDULING = "coscheduling"
    KOORDINATOR = "koordinator"
    KUBERNETES = "kubernetes"
    KUEUE = "kueue"


class GangKey(NamedTuple):
    """Identify a gang. Two dialects may use one name without meaning the same gang."""

    dialect: GangDialect
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def text(self) -> str:
        """Return the key with its dialect. `str` is for people, and omits the dialect."""
        return f"{self.dialect}:{self.namespace}/{self.name}"


class Mode(StrEnum):
    """Decide whether bound members stay if the other members of the gang are not bound in time."""

    STRICT = "strict"  # bound members are evicted
    NON_STRICT = "non-strict"  # bound members stay


class Match(StrEnum):
    """Select the members that count for the minimum. Source: Koordinator's match-policy."""

    ONCE_SATISFIED = "once-satisfied"  # once the minimum was bound, later members are ordinary pods
    WAITING_AND_RUNNING = "waiting-and-running"
    ONLY_WAITING = "only-waiting"


NO_ROLES: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Hold the settings of a gang, from its object or from each of its members."""

    least: Mapping[str, int] = field(default_factory=lambda: NO_ROLES)  # minimum by role: members that start together
    mode: Mode = Mode.STRICT
    match: Match = Match.ONCE_SATISFIED
    wait_s: float | None = None  # seconds to wait for missing members after the first is bound; None: central's default
    required_topology: str = ""  # key of a node label; the nodes of all members have the same value
    preferred_topology: str = ""


class ObjectKey(NamedTuple):
    """Identify the object with the settings (`Terms`) of a gang, or of one role of a gang."""

    dialect: GangDialect
    namespace: str
    name: str

    @property
    def kind(self) -> str:
        return f"PodGroup {self.namespace}/{self.name} ({_GROUPS[self.dialect]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Hold a pod's gang and role, and the gang's settings or the object that has them."""

    gang: GangKey
    role: str = ""
    roles: tuple[str, ...] = ("",)  # all roles of the gang
    terms: Terms | None = None  # None: the object `source` has them
    source: ObjectKey | None = None
    rank: int | None = None  # the pod's index among the members, if any
    wrong: str = ""  # the error in the gang's object; empty: valid


class _BadGangError(Exception):
    """Report a malformed membership from within the parser; `parse_membership` returns the error as a value."""


def parse_membership(pod: Pod) -> Membership | MalformedRequest | None:
    """Return the pod's gang membership; None if the pod names no gang. A pod that names two gangs is refused."""
    try:
        result = [membership for read in _DIALECTS if (membership := read(pod)) is not None]
    except _BadGangError as e:
        return MalformedRequest(message=str(e))
    if len(result) > 1:
        first, second = (f"gang {one.gang.name} ({one.gang.dialect})" for one in result[:2])
        return MalformedRequest(message=f"cannot use {first} with {second}: a pod belongs to one gang; keep one")
    return replace(result[0], rank=_rank(pod)) if result else None


# ---- Lading's own


def _read_own(pod: Pod) -> Membership | None:
    annotations = pod.metadata.annotations
    written = sorted(GANG_ANNOTATIONS & annotations.keys())
    if not written:
        return None
    if GANG not in annotations:
        raise _BadGangError(f"cannot use {written[0]}: the pod names no gang; add {GANG}, or remove it")
    if GANG_MIN not in annotations:
        raise _BadGangError(
            f"cannot use {GANG}: {GANG_MIN} is missing; write how many members start together, 4, or ps=1,worker=4"
        )
    least = _own_least(annotations[GANG_MIN])
    role = annotations.get(GANG_ROLE, "")
    if role not in least:
        right = " or ".join(least) if any(least) else f"no {GANG_ROLE}, because {GANG_MIN} names none"
        raise _BadGangError(f"cannot use {GANG_ROLE}: it is {_shown(role)}; write {right}")
    terms = Terms(
        least=least,
        mode=_choice(annotations, GANG_MODE, Mode, Mode.STRICT),
        required_topology=_label_key(annotations, GANG_REQUIRED_TOPOLOGY),
        preferred_topology=_label_key(annotations, GANG_PREFERRED_TOPOLOGY),
    )
    key = GangKey(GangDialect.LADING, pod.metadata.namespace, _name(GANG, annotations[GANG]))
    return Membership(gang=key, role=role, roles=tuple(least), terms=terms)


def _own_least(written: str) -> Mapping[str, int]:
    """Parse the minimum of each role from a text such as `4` or `ps=1,worker=4`."""
    parts = [part.strip() for part in written[:_LONGEST].split(",")]
    if len(parts) == 1 and "=" not in parts[0]:
        return {"": _count(GANG_MIN, parts[0])}
    least: dict[str, int] = {}
    for part in parts:
        role, _, count = (one.strip() for one in part.partition("="))
        least[_name(GANG_MIN, role)] = _count(GANG_MIN, count)
    if len(least) < len(parts) or len(least) > MAX_ROLES:
        raise _BadGangError(f"cannot use {GANG_MIN}: it is {_shown(written)}; name each role once, {MAX_ROLES} at most")
    return least


# ---- other systems


def _read_coscheduling(pod: Pod) -> Membership | None:
    name = pod.metadata.labels.get(COSCHEDULING_LABEL)
    return _by_object(pod, GangDialect.COSCHEDULING, name) if name else None


def _read_koordinator(pod: Pod) -> Membership | None:
    labels, text, namespace = pod.metadata.labels, pod.metadata.annotations, pod.metadata.namespace
    if name := labels.get(KOORDINATOR_LABEL):
        return _by_object(pod, GangDialect.KOORDINATOR, name)
    name = labels.get(f"{_LIGHT}name") or text.get(f"{_KOORDINATOR}name")
    if not name:
        return None
    least = labels.get(f"{_LIGHT}min-available") or text.get(f"{_KOORDINATOR}min-available")
    if not least:
        raise _BadGangError(
            f"cannot use gang {_shown(name)}: {_KOORDINATOR}min-available is missing; write a number of members"
        )
    parsed = parse_group(namespace, _name(f"{_KOORDINATOR}name", name), text)
    if isinstance(parsed, MalformedRequest):
        raise _BadGangError(parsed.message)
    role, group = parsed
    terms = koordinator_terms(text, {role: _count(f"{_KOORDINATOR}min-available", least)})
    return Membership(gang=group_key(group), role=role, roles=group, terms=terms)


def parse_group(namespace: str, name: str, annotations: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | MalformedRequest:
    """Return the gang as `namespace/name`, and the sorted names of all gangs of its group, including the gang."""
    own, written = f"{namespace}/{name}", annotations.get(f"{_KOORDINATOR}groups", "")
    listed = _strings(written) if written else [own]
    if own not in listed or len(listed) > MAX_ROLES:
        right = f"a JSON list of namespace/gang with {own} among them, {MAX_ROLES} at most"
        return MalformedRequest(message=f"cannot use {_KOORDINATOR}groups: it is {_shown(written)}; write {right}")
    return own, tuple(sorted(set(listed)))


def group_key(group: Sequence[str]) -> GangKey:
    """Return the key of a group of Koordinator's gangs. Only gangs that list the same group have the same key."""
    namespace, _, name = group[0].partition("/")
    return GangKey(GangDialect.KOORDINATOR, namespace, ",".join((name, *group[1:])))


def koordinator_terms(annotations: Mapping[str, str], least: Mapping[str, int]) -> Terms:
    """Return the gang's settings from Koordinator's annotations. An invalid value counts as its default, as in Koordinator."""
    mode = annotations.get(f"{_KOORDINATOR}mode", "")
    match = annotations.get(f"{_KOORDINATOR}match-policy") or annotations.get(f"{_LIGHT}match-policy", "")
    waits = annotations.get(f"{_KOORDINATOR}waiting-time", "")
    return Terms(
        least=least,
        mode=Mode.NON_STRICT if mode == "NonStrict" else Mode.STRICT,
        match=Match(match) if match in set(Match) else Match.ONCE_SATISFIED,
        wait_s=_duration_s(waits),
    )


def _read_kubernetes(pod: Pod) -> Membership | None:
    if not pod.spec.gang:
        return None
    name = "/".join(pod.spec.gang)
    membership = _by_object(pod, GangDialect.KUBERNETES, name)
    if len(pod.spec.gang) == 1:
        return membership
    workload, group, _ = pod.spec.gang  # each replica key is a gang of its own, with the settings of its group
    return replace(membership, source=ObjectKey(GangDialect.KUBERNETES, pod.metadata.namespace, f"{workload}/{group}"))


def _read_kueue(pod: Pod) -> Membership | None:
    name = pod.metadata.annotations.get(KUEUE_LABEL) or pod.metadata.labels.get(KUEUE_LABEL)
    if not name:
        return None
    total = pod.metadata.annotations.get(_KUEUE_TOTAL, "")
    key = GangKey(GangDialect.KUEUE, pod.metadata.namespace, _name(KUEUE_LABEL, name))
    return Membership(gang=key, terms=Terms(least={"": _count(_KUEUE_TOTAL, total)}))


_DIALECTS: Final[Sequence[Callable[[Pod], Membership | None]]] = (
    _read_own,
    _read_coscheduling,
    _read_koordinator,
    _read_kubernetes,
    _read_kueue,
)


def _by_object(pod: Pod, dialect: GangDialect, name: str) -> Membership:
    """Return a membership that takes the gang's settings and group from an object."""
    namespace = pod.metadata.namespace
    source = ObjectKey(dialect, namespace, name)
    if dialect is GangDialect.KOORDINATOR:
        own = f"{namespace}/{name}"
        return Membership(gang=group_key([own]), role=own, roles=(own,), source=source)
    return Membership(gang=GangKey(dialect, namespace, name), source=source)


# ---- values


def _rank(pod: Pod) -> int | None:
    text = {**pod.metadata.annotations, **pod.metadata.labels}
    written = next((text[key] for key in _INDEX if key in text), "")
    return int(written) if re.fullmatch(r"[0-9]{1,9}", written) else None


def _duration_s(written: str) -> float | None:
    """Parse a Go duration such as `1h30m` or `600s` to seconds. Return None if the text is invalid or the duration zero."""
    if len(written) > _LONGEST or not re.fullmatch(r"([0-9.]+(h|ms|m|s))+", written):
        return None
    parts = re.findall(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s)", written)
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts) or None


def _name(key: str, written: str) -> str:
    if not _NAME.fullmatch(written):
        right = "1 to 253 letters, digits, dashes, underscores and dots, a letter or digit first and last"
        raise _BadGangError(f"cannot use {key}: {_shown(written)} is no name; write {right}")
    return written


def _count(key: str, written: str) -> int:
    if not _COUNT.fullmatch(written) or int(written) > MAX_MIN:
        raise _BadGangError(f"cannot use {key}: it is {_shown(written)}; write a number of members, 1 to {MAX_MIN}")
    return int(written)


def _label_key(text: Mapping[str, str], key: str) -> str:
    written = text.get(key)
    if written is not None and not _LABEL_KEY.fullmatch(written):
        raise _BadGangError(f"cannot use {key}: it is {_shown(written)}; write the key of a node label, or remove it")
    return written or ""


def _choice(text: Mapping[str, str], key: str, kind: type[Mode], otherwise: Mode) -> Mode:
    written = text.get(key, otherwise)
    if written not in set(kind):
        raise _BadGangError(f"cannot use {key}: it is {_shown(written)}; write {' or '.join(kind)}, or remove it")
    return kind(written)


def _strings(written: str) -> list[str]:
    """Parse a JSON list of strings. Return an empty list for any other text."""
    try:
        read = json.loads(written) if len(written) <= _LONGEST else None
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, list) and all(isinstance(one, str) for one in read) else []


def _shown(written: str) -> str:
    text = repr(written)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
