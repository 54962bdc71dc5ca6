"""List one kind of API objects, then watch it permanently, and pass the objects to a sink in one order.

A reflector calls `replaced` with the whole list (at the start, and whenever the watch cannot continue), then `changed` and
`removed`. The list is consistent (no `resourceVersion`): it includes all that was bound before the list began. The sink is
called on the loop's thread, between two lines of the stream. An object that the sink fails to handle is set aside
(central.loop.faults). The sink gets the object's last state once more later, and its deletion at once.

An object that cannot be decoded may still hold devices. The sink gets an `Unreadable`, the log records it once, and only the
object's deletion removes it. After a line without the identity of an object the list is read again.

An *optional* kind may be unknown to the API server. This is no failure: the kind then has no objects, and is tried again every
ABSENT_S. A kind without the right to read it is tried as seldom, and the log records this once.

Source: Kubernetes "API concepts": efficient detection of changes, watch bookmarks, 410 Gone.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, NoReturn, Protocol, TypeVar

import msgspec

from central.api.cached_objects import AnyMetadata, CachedObjects, Ident
from central.api.decoded import OBJECT, Named, Unreadable, decode_object
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient, WatchEvent
from lading.kube.errors import ForbiddenError, KubeError, MalformedError, NotFoundError, UnclearError, UnreachableError
from lading.kube.objects import Metadata
from lading.kube.resource import Resource
from lading.log import Event, Log

# After this number of consecutive failed watches the list is read again, to get the current state.
WATCH_TRIES: Final = 3
AGAIN_S: Final = 1.0  # seconds between two scans of the objects that are set aside
ABSENT_S: Final = 60.0  # seconds until an absent optional kind is tried again; a cluster gets such a kind once in its life
_TOO_SHORT_S: Final = 1.0  # seconds; a watch that ends sooner without an event is a failure of the server


T = TypeVar("T", bound=Named)
T_contra = TypeVar("T_contra", bound=Named, contravariant=True)


class Sink(Protocol[T_contra]):
    def replaced(self, objects: "Sequence[T_contra | Unreadable]", version: str) -> None:
        """Replace all cached objects with these, listed at `version`. Objects that are not in the list were deleted."""

    def changed(self, obj: "T_contra | Unreadable") -> None:
        """Take in an object that is new or has changed."""

    def removed(self, deleted: Ident, version: str) -> None:
        """Remove an object that was deleted at `version` or before."""


class Sinks(Generic[T]):
    """Pass each call to several sinks, in order."""

    def __init__(self, *sinks: Sink[T]) -> None:
        self._sinks = sinks

    def replaced(self, objects: Sequence[T | Unreadable], version: str) -> None:
        for sink in self._sinks:
            sink.replaced(objects, version)

    def changed(self, obj: T | Unreadable) -> None:
        for sink in self._sinks:
            sink.changed(obj)

    def removed(self, deleted: Ident, version: str) -> None:
        for sink in self._sinks:
            sink.removed(deleted, version)


def _unknown(obj: "T | Unreadable") -> Unreadable:
    """Return an `Unreadable` for the object, so that a sink keeps its earlier state of the object. The version is empty, so
    that the object itself counts as newer."""
    whom = obj.metadata
    metadata = Metadata(name=whom.name, namespace=whom.namespace, uid=whom.uid)
    return Unreadable(metadata=metadata, why="it could not be handled")


class Reflector(Generic[T]):
    """List and watch one kind. `synced` is set once the sink has a whole list, and stays set. `absent`: the API server does not
    have the kind. `settled`: set once the kind is synced, or is optional and absent or forbidden. `failures`: the number of
    failed calls."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        kind: type[T],
        sink: Sink[T],
        *,
        log: Log,
        read: Callable[[T], T] = lambda obj: obj,
        prepare: Callable[[T], object] | None = None,
        optional: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        faults: Faults | None = None,
    ) -> None:
        """Create the reflector. `read` changes each object before the sink gets it. `prepare` does slow work for each object of
        a list, in slices, before the sink gets the list. `faults`: the process's; by default the reflector has its own."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._aside: dict[str, tuple[str, Callable[[], None]]] = {}  # an object's name and the sink's call to repeat, by uid
        self._read = read
        self._prepare = prepare
        self._clock = clock
        self.synced = asyncio.Event()
        self.settled = asyncio.Event()
        self.absent = False
        self._optional = optional
        self.failures = 0
        self._client = client
        self._resource = resource
        self._decoder = msgspec.json.Decoder(kind)
        self._sink = sink
        self._log = log
        self._sleep = sleep
        self._cached = CachedObjects()
        self._backoff = Backoff()
        self._unreadable: set[str] = set()  # uids that are already logged
        self._failing = False  # calls fail, and the failure is logged
        self._heard_at = -math.inf  # time of the last data from the API server, on the loop's clock

    @property
    def resource(self) -> str:
        """Return the kind's name; with its group if it is optional, because several groups have such a kind."""
        return f"{self._resource.plural}.{self._resource.group}" if self._optional else self._resource.plural

    @property
    def silent_s(self) -> float:
        """Return the seconds since the API server last sent a list, a change or, about every minute, a bookmark. Infinite
        before the first list."""
        return asyncio.get_running_loop().time() - self._heard_at

    async def run(self) -> NoReturn:
        """List and watch until the task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._handle_again())
            await self._read_all()

    async def _read_all(self) -> NoReturn:
        listed = False
        while True:
            try:
                if not listed:
                    await self._list()
                    listed = True
                listed = await self._follow()
            except KubeError as e:
                if self._optional and isinstance(e, NotFoundError):
                    listed = False
                    self._is_absent()
                    await self._sleep(ABSENT_S)
                    continue
                self.failures += 1
                wait_s = self._backoff.failed(at_least_s=e.retry_after_s)
                if self._optional and isinstance(e, ForbiddenError):
                    self.settled.set()
                    wait_s = ABSENT_S
                may_go_on = isinstance(e, UnclearError | UnreachableError) and self._backoff.failures < WATCH_TRIES
                listed = listed and may_go_on
                if not self._failing:
                    self._failing = True
                    self._log.warning(Event.WATCH_FAILED, str(e), resource=self.resource)
                await self._sleep(wait_s)

    def _is_absent(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._backoff.succeeded()
        if not self.absent:
            self.absent = True
            self._cached.listed((), "")
            self._sink.replaced((), "")
            self.synced.set()
            self.settled.set()

    async def _list(self) -> None:
        objects: list[T | Unreadable] = []
        version = ""
        pages = self._client.list_pages(self._resource.path())
        async with contextlib.aclosing(pages):
            async for page in pages:
                if page.first:
                    objects.clear()
                objects += map(self._parse, page.items)
                await self._prepare_all(objects[-len(page.items) :] if page.items else [])
                version = page.resource_version
        self._cached.listed((o.metadata for o in objects), version)
        present = {o.metadata.uid for o in objects if isinstance(o, Unreadable)}
        self._unreadable &= present
        self._replace(objects, version)
        self._heard_at = asyncio.get_running_loop().time()
        self.absent = False
        self.synced.set()
        self.settled.set()
        self._succeeded(f"{len(objects)} listed", always=True)

    async def _prepare_all(self, objects: "Sequence[T | Unreadable]") -> None:
        slices = Slices(self._clock)
        for one in objects:
            if self._prepare is not None and not isinstance(one, Unreadable):
                with self._faults.handling(Work.WATCH, self._name(one.metadata)):
                    self._prepare(one)
                await slices.pause()

    async def _follow(self) -> bool:
        """Follow one watch to its end. Return whether the next watch can continue; False, for a new list, if there was no
        event. A watch has no events if the kind does not change, or if the version is in the future. The latter happens when a
        store was restored from a backup and counts versions anew (tried with 1.36)."""
        loop = asyncio.get_running_loop()
        began, silent = loop.time(), True
        events = self._client.watch(self._resource.path(), resource_version=self._cached.reached)
        async with contextlib.aclosing(events):
            async for event in events:
                self._heard_at = loop.time()
                if silent:
                    silent = False
                    self._backoff.succeeded()
                    self._succeeded("watched again")
                self._take(event)
        if silent and loop.time() - began < _TOO_SHORT_S:
            raise UnclearError(f"cannot watch {self._resource.path()}: it ends at once")
        return not silent

    def _take(self, event: WatchEvent) -> None:
        if event.type == "BOOKMARK":
            self._cached.bookmark(self._whom(event).resource_version)
        elif event.type == "DELETED":
            self._notify(self._whom(event), None)
        else:
            obj = self._parse(event.object)
            if not obj.metadata.uid:
                raise MalformedError(f"cannot watch {self._resource.path()}: an event without a uid")
            self._notify(obj.metadata, obj)

    def _notify(self, metadata: AnyMetadata, obj: T | Unreadable | None) -> None:
        news = self._cached.event(metadata, deleted=obj is None)
        if (deleted := news.deleted) is not None:
            self._unreadable.discard(deleted.uid)
            self._call(deleted, lambda: self._sink.removed(deleted, metadata.resource_version), at_once=True)
        if news.there and obj is not None:
            if not isinstance(obj, Unreadable):
                self._unreadable.discard(obj.metadata.uid)
            self._pass(obj)

    # ---- calls of the sink

    def _replace(self, objects: "Sequence[T | Unreadable]", version: str) -> None:
        """Pass the list to the sink. If the sink fails, pass all objects as `Unreadable` first, and then each object by
        itself."""
        self._aside.clear()
        listed = False
        with self._faults.handling(Work.WATCH, self.resource):
            self._sink.replaced(objects, version)
            listed = True
        if not listed:
            self._sink.replaced([_unknown(obj) for obj in objects], version)
            for obj in objects:
                self._pass(obj)

    def _pass(self, obj: "T | Unreadable") -> None:
        self._call(obj.metadata, lambda: self._sink.changed(obj))

    def _call(self, whom: "AnyMetadata | Ident", call: Callable[[], None], *, at_once: bool = False) -> None:
        """Call the sink about one object, now or after its pause. A call about the object that still waits is replaced."""
        name = self._name(whom)
        self._aside[whom.uid] = name, call
        if at_once or not self._faults.sets_aside(Work.WATCH, name):
            with self._faults.handling(Work.WATCH, name):
                call()
                del self._aside[whom.uid]

    async def _handle_again(self) -> NoReturn:
        while True:
            await asyncio.sleep(AGAIN_S)
            for uid, (name, call) in [*self._aside.items()]:
                if not self._faults.sets_aside(Work.WATCH, name):
                    with self._faults.handling(Work.WATCH, name):
                        call()
                        del self._aside[uid]

    def _name(self, whom: "AnyMetadata | Ident") -> str:
        return f"{self.resource} {whom.namespace}/{whom.name}" if whom.namespace else f"{self.resource} {whom.name}"

    def _whom(self, event: WatchEvent) -> Metadata:
        try:
            return OBJECT.decode(event.object).metadata
        except msgspec.DecodeError as e:
            raise MalformedError(f"cannot watch {self._resource.path()}: {event.type} without metadata: {e}") from e

    def _parse(self, raw: msgspec.Raw) -> T | Unreadable:
        obj = decode_object(self._decoder, raw)
        if not isinstance(obj, Unreadable):
            with self._faults.handling(Work.WATCH, self._name(obj.metadata)):
                return self._read(obj)
            return _unknown(obj)
        metadata = obj.metadata
        if metadata.uid not in self._unreadable:
            self._unreadable.add(metadata.uid)
            whom = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
            self._log.error(Event.OBJECT_UNREADABLE, obj.why, resource=self.resource, **whom)
        return obj

    def _succeeded(self, message: str, *, always: bool = False) -> None:
        if self._failing or always:
            self._log.info(Event.WATCH_SYNCED, message, resource=self.resource)
        self._failing = False
