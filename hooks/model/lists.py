"""Define the sandboxes and containers of a node, as the runtime lists them. `hooks/host/lists.py` reads them.

They are structs of msgspec: hundreds are made at each comparison, and making a frozen dataclass takes ten times longer.

Source: CRI PodSandbox, Container and ContainerState, of which these are the parts that a decision uses.

Tests: tests/unit/hooks/node/test_release_decision.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import msgspec

from hooks.model.grant import GrantKey, HeldBy
from lading.vocabulary import ContainerId, PodUid, SandboxId


class ContainerState(Enum):
    CREATED = auto()
    RUNNING = auto()
    EXITED = auto()
    UNKNOWN = auto()  # it may run


_LIVE: Final = (ContainerState.CREATED, ContainerState.RUNNING)


class ListedSandbox(msgspec.Struct, frozen=True, kw_only=True):
    id: SandboxId
    pod: PodUid
    namespace: str
    pod_name: str
    ready: bool
    annotations: Mapping[str, str] = {}


class ListedContainer(msgspec.Struct, frozen=True, kw_only=True):
    id: ContainerId
    sandbox: SandboxId
    key: GrantKey  # with the pod of its sandbox; by kubelet's label if that sandbox is not in the list (any more)
    state: ContainerState
    created_at: int  # Unix time, nanoseconds
    grant: str | None = None  # annotation of the grant, which may be empty
    attachments: str = ""  # annotation of the attachments

    @property
    def pod(self) -> PodUid:
        return self.key.pod

    @property
    def name(self) -> str:
        return self.key.container

    @property
    def held_by(self) -> HeldBy:
        return HeldBy(id=self.id, sandbox=self.sandbox)

    @property
    def live(self) -> bool:
        return self.state in _LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    sandboxes: Sequence[ListedSandbox] = ()
    containers: Sequence[ListedContainer] = ()  # listed after the sandboxes

    @property
    def ready(self) -> frozenset[PodUid]:
        """Return the pods that have a sandbox which is ready."""
        return frozenset(sandbox.pod for sandbox in self.sandboxes if sandbox.ready)
