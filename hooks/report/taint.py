"""Keep a taint on the node while it may not start pods with devices, so that none is placed there meanwhile.

The taint is `lading.dev/not-ready`, with the effect NoSchedule: running pods continue. Every SCAN_S the taint is compared with
the node's readiness. The Node object is read again after RENEW_S, and after a failure. A problem that ends within PATIENCE_S,
such as a restart of a daemon, sets no taint, if the node was ready since its boot (a mark on a tmpfs records that). Other
taints stay as they are: the whole list is written, with the resourceVersion of the Node from which it was read.

Rights that it needs: get and patch nodes/<name>. Source: Kubernetes "Taints and Tolerations", "API concepts" (resourceVersion).
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from hooks.report.keeping import describe, keep_scanning, wait_after
from hooks.report.reporter import BACKOFF_LIMIT_S, RENEW_S, SCAN_S
from lading.kube.backoff import Backoff
from lading.kube.errors import ConflictError
from lading.kube.objects import Object, Wire
from lading.kube.resource import NODES
from lading.log import Event, Log
from lading.vocabulary import NOT_READY

EFFECT: Final = "NoSchedule"
PATIENCE_S: Final = 2.0
_TRIES: Final = 3  # against others that write the Node: kubelet does so every few seconds
_TAINT: Final = {"key": NOT_READY, "effect": EFFECT}


class TaintApi(Protocol):
    """Declare the calls of the API server that are used here (lading.kube.client.KubeClient)."""

    async def get(self, path: str) -> bytes: ...

    async def merge(self, path: str, change: object) -> bytes: ...


class _Spec(Wire, frozen=True):
    taints: tuple[dict[str, Any], ...] = ()


class _Node(Object, frozen=True):
    spec: _Spec = _Spec()


@dataclass(slots=True)
class Tainter:
    """Set and remove the taint. Use it on the loop's thread. `sleep` and `chance` (0 to 1) are replaced in tests."""

    find_problem: Callable[[], str]  # returns why the node is not ready, or an empty text
    node_name: str
    mark: Path  # file on a tmpfs, which is created when the node is ready
    connect: Callable[[], AbstractAsyncContextManager[TaintApi]]
    log: Log
    sleep: Callable[[float], Any] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    failure: str = "the API server has not been asked yet"  # error of the last attempt, or empty
    _backoff: Backoff = field(init=False)
    _is: bool | None = None  # whether the Node has the taint; None: unknown
    _renew_at: float = float("-inf")
    _since: float | None = None  # when the problem began

    def __post_init__(self) -> None:
        self._backoff = Backoff(limit_s=BACKOFF_LIMIT_S, chance=self.chance)

    async def keep_tainted(self) -> None:
        """Compare until cancelled. Never returns."""
        await keep_scanning(self.connect, self.scan, self._failed, self.sleep)

    async def scan(self, api: TaintApi) -> float:
        """Set or remove the taint, if necessary. Return the seconds until the next check."""
        problem = self.find_problem()
        if self._may_pass(problem) or (bool(problem) is self._is and self.clock() < self._renew_at):
            return SCAN_S
        try:
            await self._set(api, bool(problem))
        except Exception as e:  # noqa: BLE001  an internal error here must not end a node's daemon
            return self._failed(e)
        if self._is is not bool(problem):
            if problem:
                self.log.warning(Event.NODE_TAINTED, problem, node=self.node_name)
            else:
                self.log.info(Event.NODE_UNTAINTED, node=self.node_name)
        if not problem:
            with contextlib.suppress(OSError):  # without it the next start taints the node for a moment
                self.mark.touch()
        self._is, self.failure = bool(problem), ""
        self._renew_at = self.clock() + RENEW_S * (0.9 + 0.2 * self.chance())
        self._backoff.succeeded()
        return SCAN_S

    def _may_pass(self, problem: str) -> bool:
        """Return whether a problem is too new to taint a node for it."""
        if not problem:
            self._since = None
            return False
        if self._since is None:
            self._since = self.clock()
        return not self._is and self.clock() - self._since < PATIENCE_S and self.mark.exists()

    async def _set(self, api: TaintApi, wanted: bool) -> None:
        path = NODES.path(name=self.node_name)
        for left in reversed(range(_TRIES)):
            node = msgspec.json.decode(await api.get(path), type=_Node)
            taints = change(node.spec.taints, wanted)
            if taints is None:
                return
            version = {"resourceVersion": node.metadata.resource_version}
            try:
                await api.merge(path, {"metadata": version, "spec": {"taints": taints}})
            except ConflictError:
                if not left:
                    raise
            else:
                return

    def _failed(self, error: Exception) -> float:
        """Return the seconds to wait. The Node's taints are unknown after the error, so the next check reads them."""
        self._is = None
        reason = describe(error)
        if reason != self.failure:
            self.log.warning(Event.NODE_TAINT_FAILED, reason, node=self.node_name)
        self.failure = reason
        return wait_after(error, self._backoff)


def change(taints: Sequence[dict[str, Any]], wanted: bool) -> list[dict[str, Any]] | None:
    """Return the taints with Lading's taint added or removed, or None if nothing has to change."""
    others = [taint for taint in taints if (taint.get("key"), taint.get("effect")) != (NOT_READY, EFFECT)]
    if wanted is (len(others) < len(taints)):
        return None
    return [*others, _TAINT] if wanted else others
