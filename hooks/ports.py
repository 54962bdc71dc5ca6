"""Declare the interfaces that have, or will have, more than one implementation. `hooks/daemon/parts.py` lists them all.

| port | what it is | folder |
|---|---|---|
| `Dialect` | how the annotations of a pod say what it was given | `forms/` |
| `Vendor` | a maker of cards: how they are read, given to containers, and hidden from others | `vendors/` |
| `Isolation` | what keeps a container within its share of a card | `isolation/` |
| `Preparer` | work outside a container, before it is created, that is undone later | `attach/`, `mig/`, `mps/` |
| `NodePort` | what a front end asks of the node | `node/` |
| `FrontEnd` | a way in: its protocol's messages as the values of `model/container.py`, and back | `frontends/` |

Tests: tests/unit/hooks/isolation/test_tokens.py
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hooks.model.answer import Answer
from hooks.model.assignment import Assignment, FormName, GrantedGpu, Refusal
from hooks.model.cdi import Spec
from hooks.model.container import Adjustment, Container, Sandbox
from hooks.model.grant import Grant
from hooks.model.holding import Holding
from hooks.model.inventory import CharDevice, Driver, Gpu, GpuProcess, Inventory, MigInstance, Partition
from hooks.model.trust import Trust
from lading.devices.isolation import IsolationName
from lading.needed import Needed
from lading.sharegrant import ShareGrant
from lading.vocabulary import GpuUuid, PodUid, SandboxId


class Dialect(Protocol):
    @property
    def forms(self) -> tuple[FormName, ...]:
        """Return the names of its assignments: `assignments` in hooks.toml says which a node accepts, and grants keep them."""
        ...

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Return how its annotations begin. The proxy asks about each pod with such an annotation."""
        ...

    @property
    def words(self) -> str:
        """Return what its annotations are, for a message that lists some: "written by hand"."""
        ...

    def own(self, keys: Iterable[str]) -> list[str]:
        """Return those of a pod's keys that are of this dialect."""
        ...

    def parse(
        self, annotations: Mapping[str, str], keys: Sequence[str], *, pod: PodUid, node: str, trust: Trust
    ) -> Assignment | Refusal:
        """Parse the annotations of a pod; `keys` are its own among them, at least one. Pure. Refuse a form that the node does
        not accept."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorInventory:
    """Hold the inventory that one vendor's driver shows of a node."""

    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    partitions: tuple[Partition, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Represent a granted card or MIG instance, as the node has it at this moment."""

    granted: GrantedGpu
    gpu: Gpu
    node: CharDevice
    mig: MigInstance | None

    @property
    def name(self) -> str:
        """Return its UUID, as the driver knows it at this moment."""
        return (self.mig.made_uuid if self.mig else "") or self.granted.mig_uuid or self.granted.uuid


class Vendor(Protocol):
    @property
    def name(self) -> str:
        """Return the name that its cards and driver have in the inventory."""
        ...

    @property
    def hidden_env(self) -> Mapping[str, str]:
        """Return the environment that hides its cards from a container. It is in the registration of the hook server too,
        because the proxy sets it for containers about which no hook server is asked."""
        ...

    @property
    def supplied(self) -> Mapping[str, Sequence[str]]:
        """Return how the proxy recognises what its device plugin supplied by way of kubelet: the keys of `supplied` in a
        registration (docs/hook-api.md)."""
        ...

    @property
    def device_names(self) -> tuple[str, ...]:
        """Return how the names of its nodes and folders in /dev begin: when one comes or goes, the devices are read again."""
        ...

    @property
    def device_folders(self) -> tuple[str, ...]:
        """Return the folders in /dev that have more of its nodes."""
        ...

    def needed(self, host_root: Path) -> Iterable[Needed]:
        """Return the files of the node that it uses, each named by its setting: readiness shows those that it may not open."""
        ...

    def read(self, host_root: Path) -> VendorInventory:
        """Read its cards. It can take seconds, and is called in a thread, one call at a time. What cannot be read is a problem
        in words; without its driver there are no cards. Raise OSError if /proc or /sys cannot be read."""
        ...

    def read_processes(self, cards: Collection[GpuUuid]) -> Mapping[GpuUuid, tuple[GpuProcess, ...]]:
        """Return the processes on these cards, as far as they are of this vendor and its driver lists processes. Called in a
        thread, every second where shares are enforced, also while `read` runs. Raise HostError."""
        ...

    def divide(self, host_root: Path, gpu: Gpu, granted: Collection[str]) -> Mapping[str, str]:
        """Make the instances at these positions of one of its cards, unless they are there, and remove the others. `gpu`: one
        whose instances are positions. It is called in a thread, and may be repeated. Return what could not be done, in words,
        by position. Raise HostError."""
        ...

    @property
    def restores(self) -> bool:
        """Return whether there is something to restore, by the node's configuration."""
        ...

    def restore(self, cards: Collection[GpuUuid]) -> Sequence[str]:
        """Reset the settings that a tenant may have changed on these cards, as far as they are of this vendor. Called in a
        thread, also while `read` runs; may be repeated. Return descriptions of the failures. Raise HostError."""
        ...

    def problem(self, inventory: Inventory) -> str:
        """Return why containers with its cards are refused although the driver works; empty if they are not."""
        ...

    def render_specs(self, inventory: Inventory) -> tuple[Sequence[Spec], Sequence[str]]:
        """Return the CDI specs of its cards, each of another kind, and what is left out of them, in words; nothing if by the
        node's configuration it writes none. Pure."""
        ...

    def inject(self, cards: Sequence[Card], inventory: Inventory, *, cdi_refusal: str) -> Adjustment | Refusal:
        """Return what gives these cards to a container. `cdi_refusal`: why the runtime does not honour CDI names, or empty."""
        ...

    def hide(self, container: Container, *, coexist: bool) -> Adjustment:
        """Return what hides its cards from a container that was given none. `coexist`: what a device plugin gave it stays."""
        ...

    def supplied_by_kubelet(self, container: Container, *, coexist: bool) -> str:
        """Return the first sign of a card that kubelet gives to the container for a device plugin; empty without one.
        `coexist`: a device plugin serves the node, so that the container's environment counts too."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """Hold the adjustment of a container that keeps to its shares, and what the share server has to know."""

    adjustment: Adjustment
    share: ShareGrant | None = None  # for the share server, before the container is created
    preloads: tuple[str, ...] = ()  # the pod's variables that load a library before the isolation's; for the log


class Isolation(Protocol):
    @property
    def name(self) -> IsolationName: ...

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced | Refusal:
        """Return what vendors give to a container with these cards, changed so that it keeps to its shares of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLists:
    """Hold the runtime's lists, as preparers need them: both were requested after `Preparer.under_way` was called."""

    sandboxes: frozenset[SandboxId]  # all
    ready: frozenset[SandboxId]
    live: frozenset[SandboxId]  # with a container that is created or running
    stopped: Collection[PodUid]  # seen to stop, and not released yet
    grants: Collection[Grant]
    inventory: Inventory | None
    read_again: Callable[[], Awaitable[Inventory | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardService:
    """Represent a program that a preparer runs for a card, or should run."""

    name: str  # "mps"
    card: GpuUuid
    runs: bool
    clients: int  # processes that use the card by it, when it was last asked
    fault: bool  # it takes no more clients before those that it has have ended
    failures: int  # since the start of the daemon: it could not be started, asked or stopped, or it died


class Preparer(Protocol):
    """Work outside a container for what it was granted. It is in a journal before it is done: each method can be repeated, also
    by the next instance of the daemon. Call all methods on the loop's thread. The methods with a body are for preparers that
    take devices out of the host's sight."""

    def wants(self, answer: Answer) -> bool:
        """Return whether there is something to do for this container."""
        ...

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        """Do it, in a bounded time. Return what the container gets besides."""
        ...

    def has(self, sandbox: Sandbox) -> bool:
        """Return whether there is something to undo for this sandbox. Its containers may still run: what they use is undone by
        `reconcile`."""
        return False

    async def undo(self, sandbox: Sandbox) -> None:
        """Undo it while the sandbox, which is about to be stopped, exists; in a bounded time, without an error. What is not
        undone then is undone by `reconcile`."""
        return

    def under_way(self) -> frozenset[int]:
        """Return numbers of what is done or begun now, for the `reconcile` that follows."""
        return frozenset()

    async def reconcile(self, seen: RuntimeLists, under_way: frozenset[int]) -> bool:
        """Undo what has lost its sandbox. Return whether a device came back."""
        return False

    def ending(self, is_stopped: Callable[[SandboxId], bool], grants: Collection[Grant]) -> bool:
        """Return whether something has to be undone that is not undone yet."""
        return False

    def held(self) -> frozenset[tuple[PodUid, str]]:
        """Return the devices that are not back yet, with their pods: until then no grant of them ends."""
        return frozenset()

    def holdings(self) -> tuple[Holding, ...]:
        """Return the devices that are not free, whatever grants say."""
        return ()

    def shown(self, inventory: Inventory) -> Inventory:
        """Return the inventory with the devices that were moved, as if they were still in their places."""
        return inventory

    def moved_by_others(self, grant: Grant) -> bool:
        """Return whether another program gives devices of this grant back while a sandbox stops."""
        return False

    def services(self) -> tuple[CardService, ...]:
        """Return the programs that it runs for cards, in the order of the cards. It may look into /proc."""
        return ()

    def missing(self) -> Mapping[str, str]:
        """Return devices that another program took, and what is wrong, in words."""
        return {}


class NodePort(Protocol):
    """Declare the node, as a front end sees it. A result that takes time is a coroutine: run it to its end, also if the caller
    of the front end is gone."""

    def adjust_container(self, sandbox: Sandbox, container: Container) -> Answer | Refusal | Awaitable[Answer | Refusal]:
        """Return what a container gets that is about to be created."""
        ...

    def refused(self, sandbox: Sandbox, container: Container, refusal: Refusal) -> None:
        """Record that the front end answers this refusal, in place of the node's answer."""
        ...

    def sandbox_created(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Begin what takes time for the containers that the pod's annotations name, before they are created. None if there is
        nothing. For front ends whose calls cannot wait; a container that is created meanwhile waits for the same work."""
        ...

    def compare_soon(self) -> None:
        """Have the ledger compared with the runtime: containers may have been created, or have ended, without the front end."""
        ...

    def stopping(self, sandbox: Sandbox) -> Awaitable[None] | None:
        """Undo what was prepared, before the runtime is asked to stop the sandbox. None if there is nothing to wait for."""
        ...

    def stopped(self, sandbox: Sandbox) -> None:
        """Record that the runtime has stopped the sandbox."""
        ...

    def sandbox_removed(self, sandbox: Sandbox) -> None: ...


class FrontEnd(Protocol):
    async def start(self) -> None: ...

    def conditions(self) -> Mapping[str, str]:
        """Return what has to be right with it for the node to be ready: names of conditions, and what is wrong, or nothing."""
        ...

    async def close(self) -> None:
        """Answer the requests that came before, and accept no more."""
        ...
