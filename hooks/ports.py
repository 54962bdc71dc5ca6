"""Declare the interfaces that have, or will have, more than one implementation. `hooks/daemon/parts.py` lists them all.

| port | what an implementation does | folder |
|---|---|---|
| `Dialect` | parse the annotations that assign devices to a pod | `forms/` |
| `Vendor` | read a vendor's cards, give them to containers, and hide them from other containers | `vendors/` |
| `Isolation` | keep a container within its share of a card | `isolation/` |
| `Preparer` | work outside a container before it is created, and undo the work later | `attach/`, `mig/`, `mps/` |
| `NodePort` | answer a front end about sandboxes and containers of the node | `node/` |
| `FrontEnd` | translate the messages of a protocol to the values of `model/container.py`, and back | `frontends/` |

Tests: tests/unit/hooks/isolation/test_tokens.py
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hooks.model.assignment import Assignment, FormName, GrantedGpu, Refusal, Trust
from hooks.model.cdi import Spec
from hooks.model.container import Adjustment, Answer, Container, Sandbox
from hooks.model.grant import Grant, Holding
from hooks.model.inventory import CharDevice, Driver, Gpu, GpuProcess, Inventory, MigInstance, Partition
from lading.devices.isolation import IsolationName
from lading.needed import Needed
from lading.sharegrant import ShareGrant
from lading.vocabulary import GpuUuid, PodUid, SandboxId


class Dialect(Protocol):
    @property
    def forms(self) -> tuple[FormName, ...]:
        """Return the names of the dialect's forms. The setting `assignments` of hooks.toml lists the forms that a node accepts,
        and a grant records the form of its assignment."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the dialect's annotation keys. The proxy asks about each pod with such an annotation."""

    @property
    def text(self) -> str:
        """Return a description of the dialect's annotations for messages that list some of them: "written by hand"."""

    def own(self, keys: Iterable[str]) -> list[str]:
        """Return the annotation keys of a pod that belong to this dialect."""

    def parse(
        self, annotations: Mapping[str, str], keys: Sequence[str], *, pod: PodUid, node: str, trust: Trust
    ) -> Assignment | Refusal:
        """Parse the annotations of a pod. `keys`: the keys of this dialect, at least one. Refuse a form that the node does not
        accept. Pure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorInventory:
    """Hold the part of a node's inventory that one vendor's driver reports."""

    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    partitions: tuple[Partition, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Represent a granted card or MIG instance, with its current device node."""

    granted: GrantedGpu
    gpu: Gpu
    node: CharDevice
    mig: MigInstance | None

    @property
    def name(self) -> str:
        """Return the UUID by which the driver identifies the card or instance at this moment."""
        return (self.mig.made_uuid if self.mig else "") or self.granted.mig_uuid or self.granted.uuid


class Vendor(Protocol):
    @property
    def name(self) -> str:
        """Return the vendor's name, by which the inventory marks its cards and driver."""

    @property
    def hidden_env(self) -> Mapping[str, str]:
        """Return the environment that hides the vendor's cards from a container. The registration of the hook server has the
        same environment, because the proxy sets it in containers about which no hook server is asked."""

    @property
    def supplied(self) -> Mapping[str, Sequence[str]]:
        """Return the rules by which the proxy recognises devices that kubelet gave for the vendor's device plugin: the keys of
        `supplied` in a registration (docs/hook-api.md)."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """Return the prefixes of the vendor's nodes and folders in /dev. When such a file appears or disappears, the devices
        are read again."""

    @property
    def device_folders(self) -> tuple[str, ...]:
        """Return the folders in /dev that contain more of the vendor's nodes."""

    def needed(self, host_root: Path) -> Iterable[Needed]:
        """Return the files of the node that the vendor uses, each with its setting. Readiness lists the files that this process
        may not open."""

    def read(self, host_root: Path) -> VendorInventory:
        """Read the vendor's cards. The call can take seconds, and is made in a thread, one call at a time. An unreadable card
        is described in `problems`; without the vendor's driver there are no cards. Raise OSError if /proc or /sys cannot be
        read."""

    def read_processes(self, cards: Collection[GpuUuid]) -> Mapping[GpuUuid, tuple[GpuProcess, ...]]:
        """Return the processes on those of these cards that belong to this vendor, if its driver lists processes. Called in a
        thread, every second on nodes that enforce shares, also while `read` runs. Raise HostError."""

    def divide(self, host_root: Path, gpu: Gpu, granted: Collection[str]) -> Mapping[str, str]:
        """Make missing MIG instances at the granted positions of this card, and remove all other instances. `gpu`: a card whose
        instances are positions. Called in a thread; may be repeated. Return an error message for each position that failed.
        Raise HostError."""

    @property
    def restores(self) -> bool:
        """Return whether the node's configuration names settings to restore."""

    def restore(self, cards: Collection[GpuUuid]) -> Sequence[str]:
        """Reset the settings that a tenant may have changed, on those of these cards that belong to this vendor. Called in a
        thread, also while `read` runs; may be repeated. Return descriptions of the failures. Raise HostError."""

    def outdated(self) -> str:
        """Return why the daemon has to be started anew to use the vendor's driver, which was exchanged; empty if it need not.
        Called in a thread."""

    def problem(self, inventory: Inventory) -> str:
        """Return why containers with the vendor's cards are refused although the driver works; empty if they are accepted."""

    def render_specs(self, inventory: Inventory) -> tuple[Sequence[Spec], Sequence[str]]:
        """Return the CDI specs of the vendor's cards, one for each kind, and messages about devices that are missing in them.
        Return no specs if the node's configuration turns them off. Pure."""

    def inject(self, cards: Sequence[Card], inventory: Inventory, *, cdi_refusal: str) -> Adjustment | Refusal:
        """Return the adjustment that gives these cards to a container. `cdi_refusal`: why the runtime does not honour CDI
        names, or empty."""

    def hide(self, container: Container, *, coexist: bool) -> Adjustment:
        """Return the adjustment that hides the vendor's cards from a container without a grant. `coexist`: keep the devices
        that a device plugin gave to the container."""

    def supplied_by_kubelet(self, container: Container, *, coexist: bool) -> str:
        """Return the first sign of a card that kubelet gives to the container for a device plugin; empty without one.
        `coexist`: a device plugin serves the node, so that the container's environment counts too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """Hold the adjustment of a container that is kept within its shares, and the grant for the share server."""

    adjustment: Adjustment
    share: ShareGrant | None = None  # to be written for the share server before the container is created
    preloads: tuple[str, ...] = ()  # environment variables that load a library before the isolation's; for the log


class Isolation(Protocol):
    @property
    def name(self) -> IsolationName: ...

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced | Refusal:
        """Return the vendors' adjustment `given` with the changes that keep the container within its shares of these cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLists:
    """Hold the runtime's lists of sandboxes and containers for preparers. Both lists were requested after
    `Preparer.under_way` was called."""

    sandboxes: frozenset[SandboxId]  # all sandboxes
    ready: frozenset[SandboxId]
    live: frozenset[SandboxId]  # sandboxes with a container that is created or running
    stopped: Collection[PodUid]  # pods that were observed to stop, and whose grants are not released yet
    grants: Collection[Grant]
    inventory: Inventory | None
    read_again: Callable[[], Awaitable[Inventory | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardService:
    """Represent a program that a preparer runs for a card, or should run."""

    name: str  # "mps"
    card: GpuUuid
    runs: bool
    clients: int  # processes that used the card through this program when it was last asked
    fault: bool  # the program accepts no new clients until its present clients have ended
    failures: int  # failures to start, ask or stop the program, and its crashes, since lading-hooks started


class Preparer(Protocol):
    """Prepare granted devices outside a container, before it is created, and undo that work later.

    A preparer writes its work into a journal before doing it. So each method can be repeated, also after a restart of the
    daemon. Call all methods on the thread of the event loop. The methods with a body are for preparers that move devices away
    from the host.
    """

    def wants(self, answer: Answer) -> bool:
        """Return whether this answer about a container requires work of the preparer."""

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        """Do the work for this answer in a bounded time. Return an additional adjustment of the container, or a refusal."""

    def has(self, sandbox: Sandbox) -> bool:
        """Return whether work for this sandbox can be undone by `undo`. Work for devices that running containers use is undone
        by `reconcile`."""
        return False

    async def undo(self, sandbox: Sandbox) -> None:
        """Undo the work for a sandbox that is about to be stopped, in a bounded time. Raise no error: `reconcile` undoes the
        remaining work."""
        return

    def under_way(self) -> frozenset[int]:
        """Return the numbers of the work that is done or begun now, for the next call of `reconcile`."""
        return frozenset()

    async def reconcile(self, lists: RuntimeLists, under_way: frozenset[int]) -> bool:
        """Undo work whose sandbox was removed. Return whether a device came back to the host."""
        return False

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        """Return whether any work still has to be undone."""
        return False

    def held(self) -> frozenset[tuple[PodUid, str]]:
        """Return the devices that are not back on the host yet, each with its pod. A grant of such a device does not end."""
        return frozenset()

    def holdings(self) -> tuple[Holding, ...]:
        """Return the devices that are not free even if no grant names them."""
        return ()

    def shown(self, inventory: Inventory) -> Inventory:
        """Return the inventory with the moved devices, as if they were still on the host."""
        return inventory

    def moved_by_others(self, grant: Grant) -> bool:
        """Return whether another program, such as a CNI plugin, returns devices of this grant while a sandbox stops."""
        return False

    def services(self) -> tuple[CardService, ...]:
        """Return the programs that the preparer runs for cards, in the order of the cards. This may read /proc."""
        return ()

    def missing(self) -> Mapping[str, str]:
        """Return an error message for each device that another program moved away."""
        return {}


class NodePort(Protocol):
    """Answer a front end about sandboxes and containers of the node. A result that takes time is a coroutine: run it to its
    end, even if the caller of the front end has disconnected."""

    def adjust_container(self, sandbox: Sandbox, container: Container) -> Answer | Refusal | Awaitable[Answer | Refusal]:
        """Return the answer or the refusal for a container that is about to be created."""

    def refused(self, sandbox: Sandbox, container: Container, refusal: Refusal) -> None:
        """Record that the front end returns this refusal instead of the node's answer."""

    def sandbox_created(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Begin slow work for the containers that the pod's annotations name, before they are created. Return None if there is
        no such work. For front ends whose calls cannot wait; a container that is created meanwhile waits for the same work."""

    def compare_soon(self) -> None:
        """Request a comparison of the ledger with the runtime: the front end may have missed that containers were created or
        ended."""

    def stopping(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Undo the preparers' work for the sandbox, before the runtime is asked to stop it. Return None if there is nothing to
        wait for."""

    def stopped(self, sandbox: Sandbox) -> None:
        """Record that the runtime has stopped the sandbox."""

    def sandbox_removed(self, sandbox: Sandbox) -> None: ...


class FrontEnd(Protocol):
    async def start(self) -> None: ...

    def conditions(self) -> Mapping[str, str]:
        """Return the front end's conditions for the node's readiness: a message by name, empty if the condition is met."""

    async def close(self) -> None:
        """Answer the requests that were received before, and accept no more requests."""
