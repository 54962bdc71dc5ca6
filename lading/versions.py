"""Decide which versions are compatible: Lading's parts with each other, and with the Kubernetes and the container runtime under
them.

Versions are texts as programs write them ("0.1.0", "v1.36.2+k3s1", "containerd://1.7.28"). Pure. A text that is not a version
is compatible only with itself, and is reported as unknown, never as compatible.

Lading's rule: proxy, hooks and central, and the command line that reads them, are at most MAX_MINOR_DISTANCE minor versions
apart and of one major version; tests run adjacent versions together. So an upgrade goes one minor version at a time, part by
part. The custom resource (deploy/crds) comes before the nodes that report with it; other parts in any order. Each limit on
other programs is next to its source.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Final, NamedTuple

MAX_MINOR_DISTANCE: Final = 1

# ValidatingAdmissionPolicy v1, which deploy/admission is made of, is served from 1.30 on.
OLDEST_API_SERVER: Final = (1, 30)
# kubelet is never newer than the API server, and at most three minor versions older (Kubernetes "Version Skew Policy").
KUBELET_BEHIND: Final = 3
# kube-scheduler is at most one minor version older than the API server (Kubernetes "Version Skew Policy").
SCHEDULER_BEHIND: Final = 1
# containerd serves CRI `runtime.v1`, which the node's daemons call, from 1.6 on.
OLDEST_CONTAINERD: Final = (1, 6, 0)
# containerd honours CDI devices of a request from 1.7.2 on; 1.7.0 and 1.7.1 read annotations only, 1.6 nothing.
CDI_CONTAINERD: Final = (1, 7, 2)

_SHAPE: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![\d.])", re.ASCII)


class Version(NamedTuple):
    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class Support(StrEnum):
    FULL = "full"
    LIMITED = "limited"  # the program runs, without a function that `why` names
    NONE = "none"
    UNKNOWN = "unknown"  # not tested, or not a readable version


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    support: Support
    why: str = ""  # reason, if the support is not full
    via: str = ""  # the minor version to go to first, if the step is too long


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Represent two parts whose versions are not compatible."""

    parts: tuple[str, str]
    versions: tuple[str, str]

    @property
    def why(self) -> str:
        (one, other), (its, others) = self.parts, self.versions
        return f"{one} {its} and {other} {others} are more than {MAX_MINOR_DISTANCE} minor version apart"


def parse_version(text: str) -> Version | None:
    """Parse a version; return None for other text. Text after the numbers is a build's name and does not count."""
    match = _SHAPE.match(text)
    return Version(*(int(number or 0) for number in match.groups())) if match else None


def go_together(one: str, other: str) -> bool:
    """Return whether two versions of Lading's parts are compatible."""
    a, b = parse_version(one), parse_version(other)
    if a is None or b is None:
        return one == other
    return a.major == b.major and abs(a.minor - b.minor) <= MAX_MINOR_DISTANCE


def find_skews(running: Mapping[str, str]) -> tuple[Skew, ...]:
    """Return the incompatible pairs of Lading's parts. `running`: version by part; unknown versions ("") are left out."""
    known = [(part, version) for part, version in running.items() if version]
    return tuple(
        Skew(parts=(one, other), versions=(its, others))
        for (one, its), (other, others) in combinations(known, 2)
        if not go_together(its, others)
    )


def judge_step(running: str, target: str) -> Judgement:
    """Judge whether a running part may be replaced by version `target`, while the other parts are not changed."""
    now, then = parse_version(running), parse_version(target)
    if now is None or then is None:
        return Judgement(support=Support.UNKNOWN, why=f"{target if now else running} is not a version that can be compared")
    if now.major != then.major or abs(then.minor - now.minor) > MAX_MINOR_DISTANCE:
        via = f"{now.major}.{now.minor + (1 if then > now else -1)}.0" if now.major == then.major else ""
        reason = f"{running} to {target} is more than {MAX_MINOR_DISTANCE} minor version"
        return Judgement(support=Support.NONE, why=reason, via=via)
    if then < now:
        reason = f"{target} is older than {running}: a node's ledger that the newer one changed is refused by the older one"
        return Judgement(support=Support.LIMITED, why=reason)
    return Judgement(support=Support.FULL)


def judge_api_server(text: str) -> Judgement:
    version = parse_version(text)
    if version is None:
        return _unreadable("API server", text)
    if version[:2] < OLDEST_API_SERVER:
        oldest = ".".join(map(str, OLDEST_API_SERVER))
        return Judgement(support=Support.NONE, why=f"{text} is older than {oldest}: it has no ValidatingAdmissionPolicy v1")
    return Judgement(support=Support.FULL)


def judge_kubelet(text: str, *, api_server: str) -> Judgement:
    return _judge_behind("kubelet", text, api_server, KUBELET_BEHIND)


def judge_scheduler(text: str, *, api_server: str) -> Judgement:
    return _judge_behind("kube-scheduler", text, api_server, SCHEDULER_BEHIND)


def judge_runtime(text: str) -> Judgement:
    """Judge a runtime, as a Node's status writes it: `containerd://1.7.28`."""
    name, _, version_text = text.partition("://")
    version = parse_version(version_text)
    if name != "containerd":
        return Judgement(support=Support.UNKNOWN, why=f"{text or 'a runtime without a name'} was not tested; containerd was")
    if version is None:
        return _unreadable("containerd", text)
    if version < OLDEST_CONTAINERD:
        return Judgement(support=Support.NONE, why=f"containerd {version} does not speak CRI v1; 1.6 and newer does")
    if version < CDI_CONTAINERD:
        reason = f"containerd {version} ignores CDI devices: gpu_mode = cdi is refused there; 1.7.2 and newer honours them"
        return Judgement(support=Support.LIMITED, why=reason)
    return Judgement(support=Support.FULL)


def _judge_behind(part: str, text: str, api_server: str, behind: int) -> Judgement:
    version, server = parse_version(text), parse_version(api_server)
    if version is None:
        return _unreadable(part, text)
    if server is None:
        return _unreadable("API server", api_server)
    if version[:2] > server[:2]:
        return Judgement(support=Support.NONE, why=f"{part} {text} is newer than the API server, {api_server}")
    if version.major != server.major or server.minor - version.minor > behind:
        reason = (
            f"{part} {text} is more than {behind} minor version{'s' * (behind > 1)} older than the API server, {api_server}"
        )
        return Judgement(support=Support.NONE, why=reason)
    return Judgement(support=Support.FULL)


def _unreadable(part: str, text: str) -> Judgement:
    return Judgement(support=Support.UNKNOWN, why=f"the version of {part} cannot be read: {text!r}")
