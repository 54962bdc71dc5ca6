"""Bind a pod: reserve its devices, send one Binding with annotation and signature, and find out its outcome.

    reserve ─▶ Binding ─┬─ done ──────▶ confirm
                        ├─ refused ───▶ release
                        └─ unclear ───▶ the reservation stays ─▶ settle: touch the pod, and read whether it is bound

The API server sets the annotations and `spec.nodeName` in one update, so a pod never has only one of both. A Binding names the
pod's uid and resourceVersion. After an unclear answer the pod is *touched* (a condition of its status is patched), and the
answer shows whether it is bound. If not, a lost Binding that arrives later has an old resourceVersion and fails. Only then are
the devices free.

A pod has only one Binding at a time: kube-scheduler repeats a request after its own timeout, and gets the same answer. No lock
is held across a call, and Bindings of different pods run in parallel, also on one node.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from central.assignment.networks import VfNetwork, add_networks
from central.decide.scheduler import Bound, NotBound, Reservation, Scheduler
from central.loop.faults import Faults, Work
from central.request.networks import UnreadableNetworks
from central.request.pod import Pod
from central.request.reasons import OfBinding, OfPod
from central.state.counts import BindOutcome
from central.state.pending import Pending
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError, RefusedError, UnreachableError
from lading.kube.resource import PODS
from lading.log import Event, Log
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, NETWORKS, PodUid

# Calls of kube-scheduler and of central must both be over before a new leader assigns (central.daemon.lease).
BIND_TIMEOUT_S: Final = 4.0
# kube-scheduler may change the pod's status meanwhile: then the Binding is sent again, with the new resourceVersion.
TRIES: Final = 4
# A large gang sends hundreds of Bindings at once, and an overloaded API server handles fewer of them.
AT_ONCE: Final = 16

_PODS: Final = msgspec.json.Decoder(Pod)


class Binder:
    def __init__(
        self,
        scheduler: Scheduler,
        client: KubeClient,
        sign: Callable[[str], str] | None,
        *,
        touch: Callable[[Pending], Awaitable[bytes]],
        leads: Callable[[], bool],
        log: Log,
        network: VfNetwork | None = None,
        faults: Faults | None = None,
    ) -> None:
        """Create the binder. `touch` changes the pod's status, and so its resourceVersion, and returns the pod's new state as
        JSON. Without `sign` assignments are not signed; nodes with `unsigned` accept these. `leads` is called
        directly before a Binding is sent, in the same turn of the event loop. Without a `network` pods get their VFs' network
        devices from the node, or none."""
        self._faults = Faults(clock=time.monotonic, log=log) if faults is None else faults
        self._scheduler = scheduler
        self._client = client
        self._sign = sign
        self._touch = touch
        self._leads = leads
        self._log = log
        self._network = network
        self._outcomes = scheduler.counts.bound
        self._binding: dict[tuple[PodUid, str], asyncio.Task[str]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._settling: set[asyncio.Task[None]] = set()
        self._closed = False

    async def bind(self, uid: PodUid, node: str) -> str:
        """Bind a pod. Return an empty text, or the reason for a refusal. The Binding continues if the caller gives up."""
        key = uid, node
        task = self._binding.get(key)
        if task is None:
            task = self._binding[key] = asyncio.create_task(self._bind(*key))
            task.add_done_callback(lambda _: self._binding.pop(key, None))
        await asyncio.wait([task])
        return OfBinding.NOT_LEADING.shown if task.cancelled() else task.result()

    async def bind_plainly(self, pod: Pod, node: str) -> str:
        """Bind a pod that requests no device, without an assignment. Return an empty text, or the reason for a refusal. Nothing
        is reserved, so that an unclear outcome needs no further calls."""
        metadata = pod.metadata
        try:
            async with self._slots:
                if not self._leads():
                    return OfBinding.NOT_LEADING.shown
                await self._client.bind(
                    namespace=metadata.namespace,
                    name=metadata.name,
                    uid=metadata.uid,
                    resource_version="",  # any version, because no devices were chosen for its requests
                    node=node,
                    annotations={},
                    timeout_s=BIND_TIMEOUT_S,
                )
        except KubeError as e:
            return OfBinding.BINDING_REFUSED.about(str(e))
        return ""

    @property
    def unclear(self) -> int:
        """Return the number of Bindings with an unknown outcome."""
        return len(self._settling)

    async def close(self) -> bool:
        """Stop binding. Return whether every outcome is known. The next leader reads unknown ones from the API server."""
        self._closed = True
        tasks = [*self._binding.values(), *self._settling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return not tasks

    async def _bind(self, uid: PodUid, node: str) -> str:
        reserved = self._scheduler.reserve(uid, node)
        match reserved:
            case Bound():
                return ""
            case NotBound(why=reason):
                self._log.info(Event.BIND_REFUSED, reason, pod_uid=uid, node=node)
                self._outcomes[BindOutcome.REFUSED] += 1
                return reason
        try:
            reason = await self._send(reserved)
        except (RefusedError, UnreachableError) as e:
            self._scheduler.release(reserved)
            self._outcomes[BindOutcome.REFUSED] += 1
            self._log_outcome(Event.BIND_REFUSED, reserved, str(e))
            return OfBinding.BINDING_REFUSED.about(str(e))
        except BaseException as e:
            # After an unclear or malformed answer, a bug in central or a cancellation, the pod may be bound.
            self._settle_later(reserved)
            self._outcomes[BindOutcome.UNCLEAR] += 1
            self._log_outcome(Event.BIND_UNCLEAR, reserved, f"{type(e).__name__}: {e}")
            if not isinstance(e, KubeError):
                raise
            return OfBinding.BINDING_UNCLEAR.about(f"{e}; its devices stay reserved until it is known whether the pod is bound")
        if reason:
            self._outcomes[BindOutcome.REFUSED] += 1
            return reason
        self._scheduler.confirm(reserved)
        self._outcomes[BindOutcome.BOUND] += 1
        self._log_outcome(Event.BIND_CONFIRMED, reserved)
        return ""

    async def _send(self, reserved: Reservation) -> str:
        async with self._slots:
            return await self._send_now(reserved)

    async def _send_now(self, reserved: Reservation) -> str:
        pod = reserved.pod
        newest = self._scheduler.pending.get(pod.uid) or pod  # kube-scheduler may have changed the pod's status meanwhile
        version, networks = newest.resource_version, newest.networks
        for _ in range(TRIES):
            annotations = self._annotations(reserved, networks)
            if isinstance(annotations, UnreadableNetworks):
                self._scheduler.release(reserved)
                self._log_outcome(Event.BIND_REFUSED, reserved, annotations.why)
                return OfPod.REQUEST_MALFORMED.about(annotations.why)
            if not self._leads():
                raise UnreachableError("another replica leads now")
            try:
                await self._client.bind(
                    namespace=pod.namespace,
                    name=pod.name,
                    uid=pod.uid,
                    resource_version=version,
                    node=reserved.node,
                    annotations=annotations,
                    timeout_s=BIND_TIMEOUT_S,
                )
            except ConflictError as conflict:
                now = _PODS.decode(await self._client.get(PODS.path(pod.namespace, pod.name), timeout_s=BIND_TIMEOUT_S))
                if now.metadata.uid != pod.uid:
                    raise
                if now.spec.node_name:
                    return self._bound_meanwhile(reserved, now)
                if now.metadata.deletion_timestamp or now.metadata.resource_version == version:
                    raise
                version, refused = now.metadata.resource_version, conflict
                networks = now.metadata.annotations.get(NETWORKS, "")
            else:
                return ""
        raise refused

    def _annotations(self, reserved: Reservation, networks: str) -> dict[str, str] | UnreadableNetworks:
        """Return the annotations that the API server merges into the pod's. `networks`: the pod's annotation in the version
        that is bound."""
        annotations = {ASSIGNMENT: reserved.assignment}
        if self._sign:
            annotations[ASSIGNMENT_SIGNATURE] = self._sign(reserved.assignment)
        if self._network:
            wanted = add_networks(networks, reserved.pod.namespace, reserved.vfs, self._network)
            if isinstance(wanted, UnreadableNetworks):
                return wanted
            if wanted != networks:
                annotations[NETWORKS] = wanted
        return annotations

    def _bound_meanwhile(self, reserved: Reservation, now: Pod) -> str:
        if is_bound_by(reserved, now):
            return ""
        self._scheduler.release(reserved)
        self._log_outcome(Event.BIND_REFUSED, reserved, f"another scheduler bound it to {now.spec.node_name}")
        return OfPod.BOUND_ELSEWHERE.about(f"another scheduler bound the pod to {now.spec.node_name}")

    # ---- Bindings with an unknown outcome

    def _settle_later(self, reserved: Reservation) -> None:
        if self._closed:
            return
        settling = self._faults.keep(Work.BINDINGS, partial(self._settle, reserved), name=reserved.pod.shown)
        task = asyncio.get_running_loop().create_task(settling)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, reserved: Reservation) -> None:
        """Settle the reservation: find out whether the pod is bound, and count the outcome."""
        result = await self._find_out(reserved)
        if result is not None:
            self._outcomes[result] += 1

    async def _find_out(self, reserved: Reservation) -> BindOutcome | None:
        """Return the outcome; None if the watch showed first that the pod is bound, has ended or was deleted."""
        backoff = Backoff()
        while self._scheduler.is_open(reserved):
            with contextlib.suppress(msgspec.DecodeError):
                try:
                    now = _PODS.decode(await self._touch(reserved.pod))
                except NotFoundError:
                    self._scheduler.release(reserved)
                    self._log_outcome(Event.BIND_REFUSED, reserved, "the pod is gone")
                    return BindOutcome.FOUND_NOT_BOUND
                except ConflictError:
                    self._scheduler.release(reserved)
                    self._log_outcome(Event.BIND_REFUSED, reserved, "another pod has its name")
                    return BindOutcome.FOUND_NOT_BOUND
                except KubeError as e:
                    self._log_outcome(Event.BIND_UNCLEAR, reserved, f"still: {e}")
                    await asyncio.sleep(backoff.failed(at_least_s=e.retry_after_s))
                    continue
                if is_bound_by(reserved, now):
                    self._scheduler.confirm(reserved)
                    self._log_outcome(Event.BIND_CONFIRMED, reserved, "found bound")
                    return BindOutcome.FOUND_BOUND
                self._scheduler.release(reserved)
                self._log_outcome(Event.BIND_REFUSED, reserved, "found not bound")
                return BindOutcome.FOUND_NOT_BOUND
            await asyncio.sleep(backoff.failed())
        return None

    def _log_outcome(self, event: Event, reserved: Reservation, message: str = "") -> None:
        pod = reserved.pod
        fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid, "node": reserved.node, "gen": reserved.gen}
        write = self._log.info if event is Event.BIND_CONFIRMED else self._log.warning
        write(event, message, **fields)


def is_bound_by(reserved: Reservation, now: Pod) -> bool:
    """Return whether this Binding bound the pod. An earlier leader's Binding of the pod has another assignment."""
    return (
        now.metadata.uid == reserved.pod.uid
        and now.spec.node_name == reserved.node
        and now.metadata.annotations.get(ASSIGNMENT) == reserved.assignment
    )
