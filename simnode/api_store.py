"""Keep the state of an API server: objects with versions, and the log of every change. Pure: a call in, status and body out.

The store follows the rules on which clients depend. One counter gives all versions; every change is an event; a list in pages
is a snapshot. A write with an old version or another uid, and a Binding of a bound pod, is a conflict. A subresource cannot
create its object. A running pod ends in two steps: it is deleted, then its node confirms (`gracePeriodSeconds: 0`). A new pod
gets the priority of its class, which must exist. Not simulated are schemas, rights and other admission. The log is kept until
`compact`.

Objects are stored as rendered JSON: 100,000 pods are as many strings, not millions of dicts.

Source: Kubernetes "API concepts"; RFC 7396; k8s.io/api core/v1 Binding, policy/v1 Eviction, metav1 DeleteOptions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn
from uuid import uuid4

import msgspec

from lading.kube.resource import Resource

Object = dict[str, Any]

_DEPTH: Final = {"api": 2, "apis": 3}  # parts of a path before the namespace or the plural: group and version
VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io", "v1", "priorityclasses")
SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_DONE: Final = {"kind": "Status", "status": "Success"}
_BY_TYPE: Final = {"conditions": "type"}
_GRANULAR: Final = "/apis/kueue.x-k8s.io/"  # kinds of which an apply changes single fields and entries
_MAPS: Final = {**_BY_TYPE, "admissionChecks": "name"}
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    content_type: str = ""
    body: Any = None


class RefusedError(Exception):
    """Answer a call with a failure: an HTTP status and Kubernetes' reason."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.message = message or reason


class Place(NamedTuple):
    """Hold a parsed path of the API; it is a collection if `name` is empty."""

    collection: str
    name: str
    subresource: str

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"


def not_found(place: Place) -> RefusedError:
    plural = place.collection.rpartition("/")[2]
    return RefusedError(404, "NotFound", f'{plural} "{place.name}" not found')


def parse_path(path: str) -> Place:
    parts = path.strip("/").split("/")
    head = _DEPTH.get(parts[0], 0)
    if len(parts) >= head + 3 and parts[head] == "namespaces":
        head += 2
    if not head or not 0 < len(parts) - head <= 3:
        raise RefusedError(404, "NotFound", "the server could not find the requested resource")
    plural, name, subresource = (*parts[head:], "", "")[:3]
    return Place("/" + "/".join([*parts[:head], plural]), name, subresource)


class Objects(MutableMapping[str, Object]):
    """Hold all objects by path. A write to this mapping changes an object without an event."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, bytes]] = {}  # collection → name → the object as JSON

    def __getitem__(self, path: str) -> Object:
        result: Object = msgspec.json.decode(self.rendered(path))
        return result

    def __setitem__(self, path: str, obj: Object) -> None:
        self.keep(path, _encode(obj))

    def __delitem__(self, path: str) -> None:
        collection, _, name = path.rpartition("/")
        del self._kept[collection][name]

    def __contains__(self, path: object) -> bool:
        collection, _, name = str(path).rpartition("/")
        return name in self._kept.get(collection, ())

    def __iter__(self) -> Iterator[str]:
        return (f"{collection}/{name}" for collection, kept in self._kept.items() for name in kept)

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, path: str, rendered: bytes) -> None:
        collection, _, name = path.rpartition("/")
        self._kept.setdefault(collection, {})[name] = rendered

    def rendered(self, path: str) -> bytes:
        collection, _, name = path.rpartition("/")
        return self._kept[collection][name]

    def within(self, collection: str) -> list[bytes]:
        """Return the rendered objects of a collection, sorted by namespace and name, as a real server's store sorts them."""
        inside = sorted(one for one in self._kept if is_within(one, collection))
        return [kept[name] for kept in map(self._kept.__getitem__, inside) for name in sorted(kept)]


class Change(NamedTuple):
    version: int
    collection: str
    line: bytes  # the line that a watch sends


class Store:
    """Hold the objects and the log of their changes. `changed` is called after each change."""

    def __init__(self, *, first_version: int = 101, changed: Callable[[], None] = lambda: None) -> None:
        self.objects = Objects()
        self.log: list[Change] = []
        self.last = first_version - 1
        self.compacted = 0
        self.evictable = True  # False: a disruption budget that allows no eviction
        self.graceful = True  # False: a running pod is also deleted at once
        self._changed = changed
        self._pages: dict[str, tuple[int, list[bytes]]] = {}
        self._owners: dict[str, str] = {}

    # ---- changes without a call

    def load(self, path: str, obj: Object) -> None:
        """Load an object from before the first version: no event reports it. It may have its own uid and version."""
        self.objects[path] = _identified(path, obj, {"uid": str(uuid4()), "resourceVersion": str(self.last)})

    def put(self, path: str, obj: Object) -> Object:
        """Make or replace an object as another client would; its uid stays unless the object has another one."""
        before = self.objects.get(path)
        uid = before["metadata"]["uid"] if before else str(uuid4())
        if before and obj.get("metadata", {}).get("uid", uid) != uid:
            self.remove(path)
            before = None
        return self._keep(path, _identified(path, obj, {"uid": uid}), "MODIFIED" if before else "ADDED")

    def remove(self, path: str) -> Object:
        removed = self.objects.pop(path)
        return self._keep(path, removed, "DELETED")

    def compact(self) -> None:
        """Discard all versions and lists so far."""
        self.compacted = self.last
        self._pages.clear()

    # ---- calls

    def answer(self, call: Call) -> tuple[int, bytes]:
        """Answer a call. Raises RefusedError. For a watch see `changes`."""
        if call.path == "/version":
            return 200, _encode(VERSION)
        place = parse_path(call.path)
        match call.method, place.subresource:
            case "GET", "" if not place.name:
                return 200, self._list(place.collection, call)
            case "POST", "" if not place.name:
                return 201, _encode(self._create(place.collection, call.body))
            case _ if not place.name:
                raise RefusedError(405, "MethodNotAllowed")
            case "GET", "" | "status" if place.path in self.objects:
                return 200, self.objects.rendered(place.path)
            case "PATCH", "" | "status":
                return 200, _encode(self._patch(place, call))
            case "POST", "binding":
                return 201, _encode(self._bind(place.path, call.body))
            case "POST", "eviction":
                return 201, _encode(self._evict(place.path, call))
            case "DELETE", "":
                return 200, _encode(self._delete(place.path, call.body or {}))
        raise not_found(place)

    def changes(self, collection: str, version: int) -> "Changes":
        """Return the changes of a collection since a version. Raise RefusedError if the log no longer has them."""
        if version < self.compacted:
            raise RefusedError(410, "Expired")
        return Changes(self.log, collection, version)

    def _create(self, collection: str, body: Object) -> Object:
        obj = merge({}, body)  # null means absent
        path = f"{collection}/{obj['metadata']['name']}"
        if path in self.objects:
            raise RefusedError(409, "AlreadyExists")
        for given in ("uid", "resourceVersion", "creationTimestamp"):
            obj["metadata"].pop(given, None)
        if collection.endswith("/pods"):
            obj = self._admit_pod(obj)
        return self.put(path, obj)

    def _admit_pod(self, pod: Object) -> Object:
        """Return the pod with the priority of its class, and its first status. Raise RefusedError for a class that is missing.

        Source: Kubernetes 1.36, plugin/pkg/admission/priority/admission.go; PrepareForCreate of pkg/registry/core/pod.
        """
        spec = pod.get("spec", {})
        priority, name = 0, spec.get("priorityClassName", "")
        if name and name not in SYSTEM_PRIORITIES and PRIORITY_CLASSES.path(name=name) not in self.objects:
            self._forbid(pod, f"no PriorityClass with name {name} was found")
        if name:
            priority = SYSTEM_PRIORITIES.get(name) or self.objects[PRIORITY_CLASSES.path(name=name)]["value"]
        if spec.get("priority", priority) != priority:
            given = f"the integer value of priority ({spec['priority']}) must not be provided in pod spec"
            self._forbid(pod, f"{given}; priority admission controller computed {priority} from the given PriorityClass name")
        return {**pod, "spec": {**spec, "priority": priority}, "status": {"phase": "Pending"}}

    def _forbid(self, pod: Object, reason: str) -> NoReturn:
        raise RefusedError(403, "Forbidden", f'pods "{pod["metadata"]["name"]}" is forbidden: {reason}')

    def _patch(self, place: Place, call: Call) -> Object:
        path, change = place.path, call.body
        before = self.objects.get(path)
        applied = "apply-patch" in call.content_type
        if before is None and (not applied or place.subresource):
            raise not_found(place)
        if before is not None:
            _check_preconditions(before, change.get("metadata", {}))
        if applied:
            self._own(call)
        if place.subresource:
            change = {key: value for key, value in change.items() if key == place.subresource}
        after: Object
        if applied and place.collection.startswith(_GRANULAR):
            after = merge(before, change, keys=_MAPS)
        elif applied:  # each field of an apply is one value here, as NodeDevices' status is by its CRD
            after = {**(before or {}), **change, "metadata": merge((before or {}).get("metadata"), change.get("metadata", {}))}
        else:
            after = merge(before, change, keys=_BY_TYPE if "strategic" in call.content_type else {})
        return before if before == after else self.put(path, after)

    def _own(self, call: Call) -> None:
        manager = call.query["fieldManager"]
        if self._owners.get(call.path, manager) != manager and call.query.get("force") != "true":
            raise RefusedError(409, "Conflict")
        self._owners[call.path] = manager

    def _bind(self, path: str, binding: Object) -> Object:
        pod = self._existing(path, binding["metadata"])
        if pod.get("spec", {}).get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            raise RefusedError(409, "Conflict")
        annotations = binding["metadata"].get("annotations", {})
        bound = merge(pod, {"metadata": {"annotations": annotations}, "spec": {"nodeName": binding["target"]["name"]}})
        self._keep(path, bound, "MODIFIED")
        return _DONE

    def _evict(self, path: str, call: Call) -> Object:
        options = call.body.get("deleteOptions", {})
        pod = self._existing(path, options.get("preconditions", {}))
        budgets = [] if pod["metadata"].get("deletionTimestamp") else list(self._budgets_of(pod))
        if len(budgets) > 1:
            return {"kind": "Status", "status": "Failure", "code": 500, "message": "more than one PodDisruptionBudget"}
        if not self.evictable or any(self.objects[budget]["status"]["disruptionsAllowed"] < 1 for budget in budgets):
            raise RefusedError(429, "TooManyRequests")
        if call.query.get("dryRun") == "All":
            return _DONE
        for budget in budgets:
            before = self.objects[budget]
            left = before["status"]["disruptionsAllowed"] - 1
            self._keep(budget, merge(before, {"status": {"disruptionsAllowed": left}}), "MODIFIED")
        self._end(path, options)
        return _DONE

    def _budgets_of(self, pod: Object) -> Iterator[str]:
        """Yield the paths of the disruption budgets that cover the pod by `matchLabels`; other selectors are not supported."""
        collection = f"/apis/policy/v1/namespaces/{pod['metadata'].get('namespace')}/poddisruptionbudgets"
        for budget in map(msgspec.json.decode, self.objects.within(collection)):
            if budget["spec"]["selector"]["matchLabels"].items() <= pod["metadata"].get("labels", {}).items():
                yield f"{collection}/{budget['metadata']['name']}"

    def _delete(self, path: str, options: Object) -> Object:
        self._existing(path, options.get("preconditions", {}))
        return self._end(path, options)

    def _end(self, path: str, options: Object) -> Object:
        """Delete a pod. A pod that runs on a node is only marked: its node removes it, by a deletion without grace period."""
        obj = self.objects[path]
        runs = bool(obj.get("spec", {}).get("nodeName"))
        if not (runs and self.graceful) or options.get("gracePeriodSeconds") == 0:
            return self.remove(path)
        if obj["metadata"].get("deletionTimestamp"):
            return obj
        return self._keep(path, merge(obj, {"metadata": {"deletionTimestamp": _now()}}), "MODIFIED")

    def _existing(self, path: str, preconditions: Object) -> Object:
        if path not in self.objects:
            raise not_found(parse_path(path))
        obj = self.objects[path]
        _check_preconditions(obj, preconditions)
        return obj

    def _list(self, collection: str, call: Call) -> bytes:
        token = call.query.get("continue", "")
        if token and token not in self._pages:
            raise RefusedError(410, "Expired")
        version, rest = self._pages.pop(token) if token else (self.last, self._selected(collection, call))
        limit = int(call.query.get("limit", "0")) or len(rest)
        page, rest = rest[:limit], rest[limit:]
        token = f"from-{version}-{len(rest)}" if rest else ""
        if rest:
            self._pages[token] = version, rest
        metadata: Object = {"resourceVersion": str(version), "continue": token}
        metadata |= {"remainingItemCount": len(rest)} if rest else {}
        head = _encode({"metadata": metadata})
        return head[:-1] + b',"items":[' + b",".join(page) + b"]}"

    def _selected(self, collection: str, call: Call) -> list[bytes]:
        """Return the objects with the labels of `labelSelector`. Refuse all but equality, which the real server knows too."""
        objects = self.objects.within(collection)
        terms = [term.partition("=") for term in call.query.get("labelSelector", "").split(",") if term]
        if any(not equals or not key.strip() or set("!()= ") & set(key + value) for key, equals, value in terms):
            raise RefusedError(400, "BadRequest", "unable to parse requirement")
        wanted = {key: value for key, _, value in terms}
        return (
            [one for one in objects if wanted.items() <= msgspec.json.decode(one)["metadata"].get("labels", {}).items()]
            if wanted
            else objects
        )

    def _keep(self, path: str, obj: Object, type_: str) -> Object:
        self.last += 1
        obj["metadata"]["resourceVersion"] = str(self.last)
        rendered = _encode(obj)
        if type_ != "DELETED":
            self.objects.keep(path, rendered)
        line = b'{"type":"%s","object":%s}\n' % (type_.encode(), rendered)
        self.log.append(Change(self.last, path.rpartition("/")[0], line))
        self._changed()
        return obj


class Changes:
    """Read the changes of one collection from the log, as one watch does."""

    def __init__(self, log: list[Change], collection: str, version: int) -> None:
        self._log = log
        self._collection = collection
        self._next = next((n for n in range(len(log) - 1, -1, -1) if log[n].version <= version), -1) + 1

    @property
    def more(self) -> bool:
        return self._next < len(self._log)

    def take(self) -> bytes:
        """Return the lines since the last call."""
        new = self._log[self._next :]
        self._next += len(new)
        return b"".join(change.line for change in new if is_within(change.collection, self._collection))


def is_within(one: str, collection: str) -> bool:
    """Report whether the first place lies within the second, which may span all namespaces."""
    head, _, plural = collection.rpartition("/")
    return one == collection or (one.startswith(f"{head}/namespaces/") and one.endswith(f"/{plural}"))


def merge(target: Any, change: Any, *, keys: Mapping[str, str] = {}) -> Any:
    """Merge a patch by RFC 7396. `keys`: lists that are merged by a key of their entries, as a strategic merge patch merges
    conditions, and a server-side apply merges every list that is a map by its schema."""
    if not isinstance(change, dict):
        return change
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        elif key in keys:
            out[key] = _by_key(out.get(key, ()), value, keys[key])
        else:
            out[key] = merge(out.get(key), value, keys=keys)
    return out


def _by_key(entries: Iterable[Object], changed: Iterable[Object], key: str) -> list[Object]:
    merged = {one[key]: one for one in entries}
    for one in changed:
        merged[one[key]] = merge(merged.get(one[key]), one)
    return list(merged.values())


def _check_preconditions(obj: Object, expected: Object) -> None:
    for key in ("uid", "resourceVersion"):
        if expected.get(key) and expected[key] != obj["metadata"][key]:
            raise RefusedError(409, "Conflict")


def _identified(path: str, obj: Object, defaults: Object) -> Object:
    collection, _, name = path.rpartition("/")
    parts = collection.split("/")
    if "namespaces" in parts[:-1]:
        defaults["namespace"] = parts[parts.index("namespaces") + 1]
    return {**obj, "metadata": {"name": name, "creationTimestamp": _now(), **defaults, **obj.get("metadata", {})}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
