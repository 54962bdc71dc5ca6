"""An installation of Lading at one moment: the values that `status` and `preflight` check.

Each part is there (its value), not there (None), or could not be read (`Unread`, and why): the three are never mixed up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias, TypeVar

from kubectl_lading.objects import (
    Crd,
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

T = TypeVar("T")


Maybe: TypeAlias = T | Unread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    profiles: tuple[str, ...]  # schedulerName of each
    asks_central: frozenset[str]  # resources whose extender has a filter and a bind


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the pods of the cluster show about the installation. Names are namespace/name."""

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
    """What one replica of central reports."""

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
    system_pods: Sequence[SystemPod] | Unread = ()
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
