"""Keep the status of the node's NodeDevices object equal to inventory and ledger.

Twice a second the reporter compares both with its last report, in memory, and sends the changes in one server-side apply. So
many changes make one report, and no other code has to notify the reporter. The use of the cards changes all the time: it is
measured every `use_interval_s`, and reports in between repeat the last measurement. After RENEW_S, and after every failure, the
whole status is applied again. This restores fields that another client overwrote, and creates the object if it is missing.

The reporter must not disturb the node's work: every failure, also an internal error, is logged, counted and tried again. The
daemon starts, answers and stops the same without an API server. `stale_s` shows whether reports reach central.

Required rights: get nodes/<name> (for the owner reference, by which the object is deleted with its node), create nodedevices,
patch nodedevices/<name>/status. Source: Kubernetes "Server-Side Apply", "Owners and Dependents".
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from hooks.ledger.period import Past
from hooks.ledger.share_bypass import ShareBypass
from hooks.ledger.unmanaged import find_unmanaged
from hooks.ledger.use import find_use
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.node.node import Node
from hooks.report.build import build_status, coarse_use
from hooks.report.keeping import describe, keep_scanning, wait_after
from lading import __version__
from lading.errors import LadingError
from lading.kube.backoff import Backoff
from lading.kube.errors import ConflictError, NotFoundError, UnclearError, UnreachableError
from lading.kube.objects import Object
from lading.kube.resource import NODE_DEVICES, NODES
from lading.log import Event, Log
from lading.nodedevices import KIND, Status, Use
from lading.threads import in_thread
from lading.vocabulary import GpuUuid

FIELD_MANAGER: Final = "lading-hooks"
SCAN_S: Final = 0.5  # central wakes a refused pod within 2 s of a release: most of that is not ours to spend
RENEW_S: Final = 600.0  # 5,000 nodes are then some 8 applies a second
BACKOFF_LIMIT_S: Final = 30.0


if TYPE_CHECKING:
    from lading.kube.client import KubeClient


class Api(Protocol):
    """Declare the calls of the API server that are used here (lading.kube.client.KubeClient)."""

    async def get(self, path: str) -> bytes: ...

    async def create(self, path: str, body: object) -> bytes: ...

    async def apply(self, path: str, body: object, *, manager: str, force: bool) -> bytes: ...


Connect = Callable[[], AbstractAsyncContextManager[Api]]


@asynccontextmanager
async def connect(kubeconfig: str) -> AsyncIterator["KubeClient"]:
    """Connect with the kubeconfig's rights, or with those of this process's pod. Raise ConfigError if no credentials exist
    (yet)."""
    # Only on a node that reports: the two take 25 MB.
    from lading.kube.client import KubeClient  # noqa: PLC0415
    from lading.kube.config import open_access  # noqa: PLC0415

    # The kubeconfig's exec plugin may hang.
    access = await in_thread(lambda: open_access(Path(kubeconfig) if kubeconfig else None))
    async with KubeClient(access, user_agent=f"lading-hooks/{__version__}") as client:
        yield client


class _Observed(NamedTuple):
    """Hold the inputs of a status: while they are the same, the status is."""

    inventory: Inventory
    grants: tuple[Grant, ...]
    past: tuple[Past, ...]
    share_bypasses: tuple[ShareBypass, ...]
    dirty: Mapping[GpuUuid, str]
    reconciled: bool


@dataclass(slots=True)
class Reporter:
    """Create the reporter, on the loop's thread. `sleep` and `chance` (0 to 1) are replaced in tests."""

    node: Node
    node_name: str
    connect: Connect
    log: Log
    use_interval_s: float = 0.0  # 0: the use of the cards is not reported
    sleep: Callable[[float], Any] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    failures: int = 0  # since the start
    failure: str = ""  # error of the last attempt, or empty
    _backoff: Backoff = field(init=False)
    _observed: _Observed | None = None
    _built: Status = field(default_factory=Status)  # status built from `_observed`
    _use: tuple[Use, ...] = ()  # the use to report
    _used_at: int = 0
    _use_due_at: float = float("-inf")
    _applied: Status | None = None  # last applied status; None: unknown
    _applied_at: float = float("-inf")
    _renew_at: float = float("-inf")
    _behind_since: float | None = field(init=False)

    def __post_init__(self) -> None:
        self._backoff = Backoff(limit_s=BACKOFF_LIMIT_S, chance=self.chance)
        self._behind_since = self.clock()

    @property
    def age_s(self) -> float:
        """Return the seconds since the API server last took a report, infinite before the first; a quiet node reports every
        RENEW_S."""
        return self.clock() - self._applied_at

    @property
    def stale_s(self) -> float:
        """Return the seconds since the API server's status may differ from the node's; 0 while both are equal."""
        return 0.0 if self._behind_since is None else self.clock() - self._behind_since

    async def keep_reporting(self) -> None:
        """Report until cancelled. Never returns."""
        await keep_scanning(self.connect, self.scan, self._failed, self.sleep)

    async def scan(self, api: Api) -> float:
        """Report changes, and repeat a report that is older than RENEW_S. Return the seconds until the next check."""
        try:
            await self._report(api)
        except Exception as e:  # noqa: BLE001  an internal error here must not end a node's daemon
            return self._failed(e)
        return SCAN_S

    async def _report(self, api: Api) -> None:
        node = self.node
        inventory = node.inventory
        if inventory is None:
            return
        due = self.clock() >= self._renew_at
        ledger = node.ledger
        dirty = node.hand_over.not_given()
        observed = _Observed(inventory, ledger.grants(), ledger.history.past(), node.share_bypasses, dirty, node.reconciled)
        if observed != self._observed or due:
            self._built = self._build(observed)
            self._observed = observed
        self._read_use(inventory)
        status = msgspec.structs.replace(self._built, use=self._use, used_at=self._used_at)
        if not due and self._applied and status == msgspec.structs.replace(self._applied, used_at=self._used_at):
            return  # the time alone is no news
        await self._apply(api, status)
        self._succeeded(status)

    def _read_use(self, inventory: Inventory) -> None:
        if not self.use_interval_s or self.clock() < self._use_due_at:
            return
        self._use_due_at = self.clock() + self.use_interval_s * (1 + 0.2 * self.chance())
        self._use = coarse_use(inventory, find_use(self.node.host_root, inventory, self.node.ledger.grants()))
        age_s = self.node.watch.age_s if self.node.watch else 0.0
        self._used_at = max(0, int(self.node.clock() - age_s)) if self._use else 0

    def _build(self, observed: _Observed) -> Status:
        return build_status(
            observed.inventory,
            observed.grants,
            observed.past,
            unmanaged=find_unmanaged(self.node.host_root, observed.inventory, observed.grants).held,
            share_bypasses=observed.share_bypasses,
            dirty=observed.dirty,
            reconciled=observed.reconciled,
            boot_id=self.node.boot_id,
            reporter=__version__,
        )

    async def _apply(self, api: Api, status: Status) -> None:
        path = NODE_DEVICES.path(name=self.node_name, subresource="status")
        body = {**_identity(self.node_name), "status": status}
        try:
            await api.apply(path, body, manager=FIELD_MANAGER, force=True)
        except NotFoundError:
            await self._create(api)
            await api.apply(path, body, manager=FIELD_MANAGER, force=True)

    async def _create(self, api: Api) -> None:
        """Create the NodeDevices object, because a request to its subresource `status` cannot create it."""
        try:
            owner = msgspec.json.decode(await api.get(NODES.path(name=self.node_name)), type=Object)
        except NotFoundError as e:
            raise LadingError(f"cannot report: {e}", hint="is node_name the name that `kubectl get nodes` shows?") from e
        body = _identity(self.node_name)
        reference = {"apiVersion": "v1", "kind": "Node", "name": self.node_name, "uid": owner.metadata.uid}
        body["metadata"]["ownerReferences"] = [reference]
        try:
            await api.create(NODE_DEVICES.path(), body)
        except ConflictError:
            pass  # the object exists: by an earlier attempt that seemed to fail, or by another client
        except NotFoundError as e:
            raise LadingError(f"cannot report: {e}", hint="kubectl apply -f deploy/crds/nodedevices.yaml") from e

    def _succeeded(self, status: Status) -> None:
        now = self.clock()
        first = self._applied is None
        self._applied, self._applied_at, self._behind_since, self.failure = status, now, None, ""
        self._renew_at = now + RENEW_S * (0.9 + 0.2 * self.chance())  # nodes that came up together do not stay together
        self._backoff.succeeded()
        (self.log.info if first else self.log.debug)(Event.REPORT_APPLIED, node=self.node_name, grants=len(status.grants))

    def _failed(self, error: Exception) -> float:
        """Return the seconds to wait. The API server's state is unknown after an error, so the next report is complete."""
        self.failures += 1
        self._applied, self._renew_at = None, float("-inf")
        if self._behind_since is None:
            self._behind_since = self.clock()
        reason = describe(error)
        if reason != self.failure:
            passing = isinstance(error, (UnreachableError, UnclearError))
            (self.log.warning if passing else self.log.error)(Event.REPORT_FAILED, reason, node=self.node_name)
        self.failure = reason
        return wait_after(error, self._backoff)


def _identity(node_name: str) -> dict[str, Any]:
    return {"apiVersion": f"{NODE_DEVICES.group}/{NODE_DEVICES.version}", "kind": KIND, "metadata": {"name": node_name}}
