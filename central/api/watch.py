"""List one kind of objects of the API server, then watch it permanently, and pass the objects to a sink in one order.

It reads the API server's list and watch. It calls `replaced` with everything (at the start, and whenever the watch cannot be
taken up again), then `changed` and `removed`. The list is consistent (no `resourceVersion`): what was bound before it began is
in it. The sink is called on the loop's thread, between two lines. An object that the sink fails to handle is set aside
(central.loop.faults): the sink gets what is known of it then once more later, and its deletion at once.

An object that cannot be decoded exists nevertheless, and may hold devices: the sink gets an `Unreadable` for it, the log has it
once, and only its deletion removes it. After a line without the identity of an object the list is read again.

An *optional* kind may be unknown to the API server: then there are no objects of it, which is no failure, and it is asked for
again now and then. Without the right to read it, it is asked for as seldom; the log says that once.

Source: Kubernetes "API concepts": efficient detection of changes, watch bookmarks, 410 Gone.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NoReturn, Protocol, TypeVar

import msgspec

from central.api.known import Ident, Known
from central.api.known import Metadata as AnyMetadata
from central.api.objects import Metadata
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient, WatchEvent
from lading.kube.errors import ForbiddenError, KubeError, MalformedError, NotFoundError, UnclearError, UnreachableError
from lading.kube.resource import Resource
from lading.log import Event, Log

# Watches that fail one after the other, before a list at least says how things are now.
WATCH_TRIES: Final = 3
AGAIN_S: Final = 1.0  # between two looks at the objects that are set aside
ABSENT_S: Final = 60.0  # until an optional kind is asked for again; a cluster gets one once in its life
_TOO_SHORT_S: Final = 1.0  # a watch that ends sooner, without a word, is a server in trouble


class Named(Protocol):
    @property
    def metadata(self) -> AnyMetadata: ...


T = TypeVar("T", bound=Named)
T_contra = TypeVar("T_contra", bound=Named, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Identify an object that exists and cannot be decoded. It has no name if even that cannot be read."""

    metadata: Metadata
    why: str


class Sink(Protocol[T_contra]):
    def replaced(self, objects: "Sequence[T_contra | Unreadable]", version: str) -> None:
        """Replace all known objects with these, listed at `version`. An object that is not among them is gone."""

    def changed(self, obj: "T_contra | Unreadable") -> None:
        """Take in an object that is new or has changed."""

    def removed(self, gone: Ident, version: str) -> None:
        """Remove an object. It was gone by that version at the latest."""


class Sinks(Generic[T]):
    """Pass everything to these sinks, in order."""

    def __init__(self, *sinks: Sink[T]) -> None:
        self._sinks = sinks

    def replaced(self, objects: Sequence[T | Unreadable], version: str) -> None:
        for sink in self._sinks:
            sink.replaced(objects, version)

    def changed(self, obj: T | Unreadable) -> None:
        for sink in self._sinks:
            sink.changed(obj)

    def removed(self, gone: Ident, version: str) -> None:
        for sink in self._sinks:
            sink.removed(gone, version)


class _Bare(msgspec.Struct):
    """Decode only the identity of an object: for a bookmark, a deletion, or an object that cannot be decoded otherwise."""

    metadata: Metadata = Metadata()


_BARE: Final = msgspec.json.Decoder(_Bare)
# Half of a surrogate pair is a ValueError, and an object of a thousand levels a RecursionError.
_UNDECODABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


def decode_object(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw) -> T | Unreadable:
    """Decode one object. One that cannot be decoded exists all the same, and may hold devices."""
    try:
        return decoder.decode(raw)
    except _UNDECODABLE as e:
        why = str(e)
    try:
        metadata = _BARE.decode(raw).metadata
    except _UNDECODABLE:
        metadata = Metadata()
    return Unreadable(metadata=metadata, why=why)


def _unknown(obj: "T | Unreadable") -> Unreadable:
    """Return the object as one that cannot be decoded: for a sink, all that it knew of the object stays. It has no version, so
    that the object itself counts as newer."""
    whom = obj.metadata
    metadata = Metadata(name=whom.name, namespace=whom.namespace, uid=whom.uid)
    return Unreadable(metadata=metadata, why="it could not be handled")


class Reflector(Generic[T]):
    """List and watch one kind. `synced` is set once the sink has a whole list, and stays set. `absent`: the API
    server does not know the kind. `settled`: it is synced, or the kind is optional and absent. `failures`: failed calls, each
    counted once."""

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
        a list, in slices, before the sink gets the list. `faults`: of the process; by default of this reflector alone."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._aside: dict[str, tuple[str, Callable[[], None]]] = {}  # by uid: calls of the sink that are made again, and names
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
        self._known = Known()
        self._backoff = Backoff()
        self._unreadable: set[str] = set()  # uids that the log names already
        self._failing = False  # and the log says so already
        self._heard_at = -math.inf  # on the loop's clock

    @property
    def resource(self) -> str:
        """Return the kind's name; with its group if it is optional, because several groups have such a kind."""
        return f"{self._resource.plural}.{self._resource.group}" if self._optional else self._resource.plural

    @property
    def silent_s(self) -> float:
        """Return the seconds since the API server last sent anything: a list, a change, or, about every minute, a bookmark.
        Infinite before that."""
        return asyncio.get_running_loop().time() - self._heard_at

    async def run(self) -> NoReturn:
        """Run until it is cancelled."""
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
            self._known.listed((), "")
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
        self._known.listed((o.metadata for o in objects), version)
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
        """Follow one watch to its end. Return whether the next watch can go on from there. A watch without any event watches
        either a kind that does not change, or a version in the future: after a store was restored from a backup, it counts
        versions anew, and such a watch is silent (tried with 1.36). In both cases a list is right."""
        loop = asyncio.get_running_loop()
        began, silent = loop.time(), True
        events = self._client.watch(self._resource.path(), resource_version=self._known.reached)
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
            self._known.bookmark(self._whom(event).resource_version)
        elif event.type == "DELETED":
            self._tell(self._whom(event), None)
        else:
            obj = self._parse(event.object)
            if not obj.metadata.uid:
                raise MalformedError(f"cannot watch {self._resource.path()}: an event without a uid")
            self._tell(obj.metadata, obj)

    def _tell(self, metadata: AnyMetadata, obj: T | Unreadable | None) -> None:
        news = self._known.event(metadata, deleted=obj is None)
        if (gone := news.gone) is not None:
            self._unreadable.discard(gone.uid)
            self._call(gone, lambda: self._sink.removed(gone, metadata.resource_version), at_once=True)
        if news.there and obj is not None:
            if not isinstance(obj, Unreadable):
                self._unreadable.discard(obj.metadata.uid)
            self._pass(obj)

    # ---- calls of the sink

    def _replace(self, objects: "Sequence[T | Unreadable]", version: str) -> None:
        """Pass the list to the sink. If that fails, pass it as objects of which nothing is known, and then each by itself."""
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
        """Call the sink about one object, now or when its time has come. What waited for that already is out of date."""
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
            return _BARE.decode(event.object).metadata
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
