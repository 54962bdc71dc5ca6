"""Keep unbound pods as observed by central's watch. central decides requests by these pods, never by the caller's copy.

kube-scheduler's watch may be ahead of central's by a moment. So `find` waits for the requested pod in the requested version. If
that version does not arrive within OBSERVED_WITHIN_S, `find` returns the last observed version.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.ledger.model import version_of
from central.request.gang import FOREIGN_PREFIXES
from central.request.parse import OWN_ONLY, Dialects
from central.request.pod import Pod
from lading.vocabulary import NETWORKS, PREFIX, PodUid

OBSERVED_WITHIN_S: Final = 1.0  # maximum wait in seconds; kube-scheduler's request ends after 5 s
READ: Final = (PREFIX, NETWORKS, *FOREIGN_PREFIXES)  # prefixes of annotations that central reads of every waiting pod


class ObservedPods:
    def __init__(self, settled: Callable[[PodUid], bool], dialects: Dialects = OWN_ONLY) -> None:
        """Create the sink. `settled`: whether the pod is bound, is being deleted, has ended or was deleted, so that `find` need
        not wait. `dialects`: how pods may request devices."""
        self._read = (*READ, *dialects.annotations)
        self._settled = settled
        self._pods: dict[PodUid, Pod] = {}
        self._changed: asyncio.Event | None = None  # set by the next change; None: no request waits for it

    def __len__(self) -> int:
        return len(self._pods)

    def replaced(self, objects: Sequence[Pod | Unreadable], version: str) -> None:
        unreadable = {PodUid(one.metadata.uid) for one in objects if isinstance(one, Unreadable)}
        waiting = {one.metadata.uid: self._slim(one) for one in objects if isinstance(one, Pod) and _waits(one)}
        self._pods = {uid: pod for uid, pod in self._pods.items() if uid in unreadable} | waiting
        self._notify()

    def changed(self, obj: Pod | Unreadable) -> None:
        if isinstance(obj, Unreadable):
            return
        if _waits(obj):
            self._pods[obj.metadata.uid] = self._slim(obj)
        else:
            self._pods.pop(obj.metadata.uid, None)
        self._notify()

    def removed(self, deleted: Ident, version: str) -> None:
        self._pods.pop(PodUid(deleted.uid), None)
        self._notify()

    def get(self, uid: PodUid) -> Pod | None:
        return self._pods.get(uid)

    async def find(self, sent: Pod) -> Pod | None:
        """Return the pod as observed by the watch; None if it does not wait, or does not exist."""
        uid, version = sent.metadata.uid, version_of(sent.metadata.resource_version)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OBSERVED_WITHIN_S):
                while not (self._has(uid, version) or self._settled(uid)):
                    self._changed = self._changed or asyncio.Event()
                    await self._changed.wait()
        return self._pods.get(uid)

    def _has(self, uid: PodUid, version: int) -> bool:
        pod = self._pods.get(uid)
        return pod is not None and version_of(pod.metadata.resource_version) >= version

    def _slim(self, pod: Pod) -> Pod:
        """Drop annotations that central does not read: a pod may have 256 KiB of them."""
        read = {key: value for key, value in pod.metadata.annotations.items() if key.startswith(self._read)}
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=read))

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.metadata.deletion_timestamp)
