"""An installation of Lading as it was read once: what `status` and `preflight` decide about, as values.

Each part is there (its value), not there (None), or could not be read (`Unread`, and why): the three are never mixed up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias, TypeVar

from kubectl_lading.installation.objects import (
    Crd,
    Deployment,
    EndpointSlice,
    Lease,
    Node,
    Policy,
    PolicyBinding,
    Report,
    SystemPod,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    why: str


Maybe: TypeAlias = T | Unread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    profiles: tuple[str, ...]  # schedulerName of each
    asks_central: frozenset[str]  # resources whose extender has a filter and a bind


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the pods of the cluster show of the installation. Names are namespace/name."""

    bound: int = 0  # with an assignment, and not ended
    pending: Mapping[str, int] = field(default_factory=dict)  # by the reason of most nodes; "fits" where one does
    unassigned: tuple[str, ...] = ()  # ask for devices, and were bound without an assignment
    unhealthy: tuple[str, ...] = ()  # were told that a device of theirs is ill
    ungranted: tuple[str, ...] = ()  # run, and their node does not report what they hold
    unstarted: tuple[str, ...] = ()  # bound long ago, and still not running
    clashes: tuple[str, ...] = ()  # devices that two pods hold, in words
    unreported: tuple[str, ...] = ()  # nodes with such pods, and without a report
    problems: tuple[str, ...] = ()  # objects that can not be understood


# ---- all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What one replica of central says of itself."""

    version: str = ""
    leads: bool = False
    bindings_open: int | None = None  # of the one that leads
    unready: tuple[str, ...] = ()  # conditions that do not hold, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCentral:
    """A central of which a person said where it answers: it need not run as the Deployment of `deploy/`."""

    url: str
    silent: str = ""  # why it did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    at: datetime  # by the clock of this machine
    cli: str  # our own version
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

    @property
    def has_central(self) -> bool:
        """It runs in the namespace, as a Deployment or as some other pods, or may do so as far as anybody can see."""
        return self.central is not None or bool(self.replicas)

    @property
    def central_version(self) -> str:
        """As it says itself; else as its image is called; "" where neither is known."""
        said = [one.version for one in self.replicas.values() if isinstance(one, Replica) and one.version]
        return said[0] if said else self.central.tag if isinstance(self.central, Deployment) else ""
