"""An installation of Lading at one moment, and what checks find in it: a part, what is wrong with it, why that matters, the
command that fixes it.

Each part of an installation is there (its value), not there (None), or could not be read (`Unread`, and why): the three are
never mixed up. A check is a small pure function over the installation; a table names each. What could not be read is `unknown`,
never well, and a command that found something unknown and nothing worse cannot tell.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from kubectl_lading.objects import (
    Crd,
    DaemonSet,
    Deployment,
    EndpointSlice,
    Lease,
    Node,
    Policy,
    PolicyBinding,
    Report,
    SystemPod,
    Unread,
)
from kubectl_lading.terminal.words import count, listed

T = TypeVar("T")


Maybe: TypeAlias = T | Unread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    profiles: tuple[str, ...]  # schedulerName of each
    asks_central: frozenset[str]  # resources whose extender has a filter and a bind


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The facts about the installation that the pods of the cluster show. Names are namespace/name."""

    bound: int = 0  # with an assignment, and not ended
    pending: Mapping[str, int] = field(default_factory=dict)  # by the reason of most nodes; "fits" if one node fits
    unassigned: tuple[str, ...] = ()  # request devices, and were bound without an assignment
    unhealthy: tuple[str, ...] = ()  # have the condition that one of their devices is unhealthy
    ungranted: tuple[str, ...] = ()  # run, and their node does not report what they hold
    unstarted: tuple[str, ...] = ()  # bound long ago, and still not running
    clashes: tuple[str, ...] = ()  # devices that two pods hold, as text
    unreported: tuple[str, ...] = ()  # nodes with such pods, and without a report
    problems: tuple[str, ...] = ()  # objects that cannot be read


# ---- all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The report of one replica of central."""

    version: str = ""
    leads: bool = False
    bindings_open: int | None = None  # of the one that leads
    unready: tuple[str, ...] = ()  # conditions that do not hold, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCentral:
    """A central whose URL the user gave: it need not run as the Deployment of `deploy/`."""

    url: str
    silent: str = ""  # why it did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    at: datetime  # by the clock of this machine
    cli: str  # version of this command
    namespace: str
    api_server: str
    crd: Maybe[Crd] = None
    policies: Mapping[str, Policy] | Unread = field(default_factory=dict)
    bindings: Sequence[PolicyBinding] | Unread = ()
    central: Maybe[Deployment] = None
    named: NamedCentral | None = None  # by --central
    lease: Maybe[Lease] = None
    endpoints: Maybe[EndpointSlice] = None
    scheduler: Maybe[Deployment] = None
    scheduler_config: Maybe[SchedulerConfig] = None
    system_pods: Sequence[SystemPod] | Unread = ()  # of Lading's namespace
    daemonsets: Mapping[str, DaemonSet | Unread] = field(default_factory=dict)  # those of deploy/node that are there
    node_pods: Sequence[SystemPod] | Unread = ()  # of their namespace
    replicas: Mapping[str, Replica | Unread] = field(default_factory=dict)  # of central, by pod
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)
    workload: Workload = Workload()
    target: str = ""  # the version that an upgrade is to bring

    @property
    def reporting(self) -> list[str]:
        """Return the nodes that report."""
        return sorted(self.reports.keys() & self.nodes.keys())

    @property
    def has_central(self) -> bool:
        """Report whether it runs in the namespace, as a Deployment or as other pods, or may do so if that cannot be read."""
        return self.central is not None or bool(self.replicas)

    @property
    def central_version(self) -> str:
        """Return its version as it reports it; else the tag of its image; "" where neither is known."""
        said = [one.version for one in self.replicas.values() if isinstance(one, Replica) and one.version]
        return said[0] if said else self.central.tag if isinstance(self.central, Deployment) else ""


class Part(StrEnum):
    """A part of an installation, in order of dependency; before an upgrade also its versions as a whole."""

    VERSIONS = "versions"
    API_SERVER = "API server"
    RESOURCE = "NodeDevices"
    ADMISSION = "admission"
    CENTRAL = "central"
    SCHEDULER = "scheduler"
    DAEMONSETS = "DaemonSets"
    NODES = "nodes"
    PODS = "pods"


class Level(StrEnum):
    """A severity, in rising order."""

    OK = "ok"
    NOTE = "note"  # informative; no action is needed
    UNKNOWN = "unknown"  # could not be read
    DEGRADED = "degraded"


_ORDER: Final = tuple(Level)


class CheckResult(NamedTuple):
    """The result of one check. A check that finds nothing yields nothing."""

    level: Level
    what: str
    mend: str = ""  # a command, or what to do
    why: str = ""  # it matters


class Check(NamedTuple):
    code: str
    part: Part
    decide: Callable[[Installation], Iterable[CheckResult]]


def checks(part: Part, *decide: Callable[[Installation], Iterable[CheckResult]]) -> tuple[Check, ...]:
    """Return a check for each function, with its name as code."""
    return tuple(Check(one.__name__.replace("_", "-"), part, one) for one in decide)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: Part
    check: str  # its code
    level: Level
    what: str
    why: str = ""
    mend: str = ""


def find(checks: Iterable[Check], now: Installation) -> tuple[Finding, ...]:
    """Return the findings, the worst first, and within a level in the order of the table."""
    found = [
        Finding(part=check.part, check=check.code, level=said.level, what=said.what, why=said.why, mend=said.mend)
        for check in checks
        for said in check.decide(now)
    ]
    return tuple(sorted(found, key=lambda one: -_ORDER.index(one.level)))


def worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=_ORDER.index, default=Level.OK)


def degraded(what: str, *, mend: str, why: str = "") -> CheckResult:
    return CheckResult(Level.DEGRADED, what, mend, why)


def note(what: str, *, mend: str = "", why: str = "") -> CheckResult:
    return CheckResult(Level.NOTE, what, mend, why)


def several(
    names: Sequence[str],
    one: str,
    many: str,
    what: str,
    *,
    mend: str = "",
    why: str = "",
    say: Callable[..., CheckResult] = degraded,
) -> list[CheckResult]:
    """Return one finding about all of these; none about none. `{0}` in `mend` is the first of them."""
    if not names:
        return []
    return [say(f"{count(len(names), one, many)} {what}: {listed(names)}", mend=mend.format(*names), why=why)]


def unknown(what: str, why: str) -> CheckResult:
    mend = "an administrator can bind you the rights of deploy/rbac/reader.yaml"
    return CheckResult(Level.UNKNOWN, f"cannot read {what}", mend, why)
