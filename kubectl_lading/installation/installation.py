"""Represent an installation of Lading at one moment, and write checks of it.

Each part of an installation is either present (its value), absent (None), or could not be read (`Unread` with the reason). A
check is a small pure function over the installation, listed in a table. A part that could not be read gets the verdict
`unknown`, never `ok`; if that is the worst verdict, the command reports that it cannot tell.

Tests: tests/unit/kubectl_lading/installation/test_status_view.py
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar

from central.request.parse import OWN_ONLY, Dialects
from kubectl_lading.objects import (
    Crd,
    DaemonSet,
    Deployment,
    EndpointSlice,
    FullPod,
    Lease,
    Node,
    Policy,
    PolicyBinding,
    Report,
    Unread,
)
from kubectl_lading.terminal.format import listed
from lading.checks.model import Check, Finding, degraded, unknown

T = TypeVar("T")

_CHOICE: Final = re.compile(r"\(([^()|]*)\|([^()|]*)\)")  # a text for one object, and for several

Maybe: TypeAlias = T | Unread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    profiles: tuple[str, ...]  # schedulerName of each profile
    asks_central: frozenset[str]  # names of resources with an extender that has a filter and a bind
    asks_all: bool = False  # such an extender is called for all pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Hold the facts about the installation that follow from the pods of the cluster. Pods are written as namespace/name."""

    bound: int = 0  # number of running or starting pods with an assignment
    pending: Mapping[str, int] = field(default_factory=dict)  # number of waiting pods by the reason of most nodes, or "fits"
    unassigned: tuple[str, ...] = ()  # pods that request devices and were bound without an assignment
    unhealthy: tuple[str, ...] = ()  # pods with the condition that one of their devices is unhealthy
    ungranted: tuple[str, ...] = ()  # running pods without a grant in their node's report
    unstarted: tuple[str, ...] = ()  # pods that were bound long ago and still do not run
    clashes: tuple[str, ...] = ()  # devices that two pods hold, as text
    unreported: tuple[str, ...] = ()  # nodes without a report that have pods with an assignment
    problems: tuple[str, ...] = ()  # messages about objects that cannot be read


# ---- all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Hold the /metrics and /readyz of one replica of central."""

    version: str = ""
    leads: bool = False
    bindings_open: int | None = None  # number of Bindings in progress; None: not reported, as by a replica that does not lead
    unready: tuple[str, ...] = ()  # readiness conditions that do not hold, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCentral:
    """Represent a central at a URL that the user gave. It need not run as the Deployment of `deploy/`."""

    url: str
    silent: str = ""  # error text if central did not answer; empty: it answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    at: datetime  # time of reading, by the clock of this machine
    cli: str  # version of this command
    namespace: str
    api_server: str
    crd: Maybe[Crd] = None
    policies: Mapping[str, Policy] | Unread = field(default_factory=dict)
    bindings: Sequence[PolicyBinding] | Unread = ()
    central: Maybe[Deployment] = None
    named: NamedCentral | None = None  # central at the URL in --central; None without that flag
    lease: Maybe[Lease] = None
    endpoints: Maybe[EndpointSlice] = None
    scheduler: Maybe[Deployment] = None
    scheduler_config: Maybe[SchedulerConfig] = None
    system_pods: Sequence[FullPod] | Unread = ()  # pods in Lading's namespace
    daemonsets: Mapping[str, DaemonSet | Unread] = field(default_factory=dict)  # existing DaemonSets of deploy/node, by name
    node_pods: Sequence[FullPod] | Unread = ()  # pods in the namespace of these DaemonSets
    replicas: Mapping[str, Replica | Unread] = field(default_factory=dict)  # replicas of central, by name of the pod
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)
    workload: Workload = Workload()
    dialects: Dialects = OWN_ONLY  # how pods may request devices
    target: str = ""  # version after a planned upgrade; empty: no upgrade is planned

    @property
    def reporting(self) -> list[str]:
        """Return the names of the existing nodes with a report."""
        return sorted(self.reports.keys() & self.nodes.keys())

    @property
    def has_central(self) -> bool:
        """Return whether central runs in Lading's namespace, as a Deployment or as other pods. True also if the Deployment
        cannot be read."""
        return self.central is not None or bool(self.replicas)

    @property
    def central_version(self) -> str:
        """Return central's version as a replica reports it, else the tag of its image; "" if neither is known."""
        text = [one.version for one in self.replicas.values() if isinstance(one, Replica) and one.version]
        return text[0] if text else self.central.tag if isinstance(self.central, Deployment) else ""


class Part(StrEnum):
    """Name a part of an installation. Each part depends on the parts before it. VERSIONS is for checks before an upgrade."""

    VERSIONS = "versions"
    API_SERVER = "API server"
    RESOURCE = "NodeDevices"
    ADMISSION = "admission"
    CENTRAL = "central"
    SCHEDULER = "scheduler"
    DAEMONSETS = "DaemonSets"
    NODES = "nodes"
    PODS = "pods"


def checks(part: Part, *decide: Callable[[Installation], Iterable[Finding]]) -> tuple[Check[Installation], ...]:
    """Return a check for each function. Its name is the function's with hyphens: `central-leads`."""
    return tuple(Check(name=one.__name__.replace("_", "-"), group=part, decide=one) for one in decide)


def several(
    names: Sequence[str], what: str, *, mend: str = "", reason: str = "", finding: Callable[..., Finding] = degraded
) -> list[Finding]:
    """Return one finding about all of `names`; none without names. "(node is|nodes are) not reachable" becomes "2 nodes are not
    reachable: n1, n2". `{0}` in `mend` stands for the first name."""
    if not names:
        return []
    numbered = _CHOICE.sub(lambda result: result[1] if len(names) == 1 else result[2], what)
    return [finding(f"{len(names)} {numbered}: {listed(names)}", mend=mend.format(*names), reason=reason)]


def unreadable(what: str, reason: str) -> Finding:
    mend = "an administrator can bind you the rights of deploy/rbac/reader.yaml"
    return unknown(f"cannot read {what}", mend=mend, reason=reason)
