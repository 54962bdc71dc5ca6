"""Parse the pods of a manifest, as the API server would receive them. Pure.

Take YAML or JSON, with several documents and Lists. Return Pods as central reads them, each with a name: one for a Pod; for a
Deployment, ReplicaSet, StatefulSet, Job or CronJob as many as would run at one time. Keep PodGroups. Skip other kinds, but
return their names. Raise ConfigError, with the place, for text that is not YAML or documents that are no Kubernetes object.

A pod gets the priority that the API server would set, from the PriorityClasses of the cluster and of the manifests. A pod
without a class gets the global default, of several defaults the lowest; without any, priority 0. A pod is refused if its own
priority or preemption policy differs from its class, as the API server does.

Source: k8s.io/kubernetes plugin/pkg/admission/priority, as of v1.36; k8s.io/api scheduling/v1 PriorityClass.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import msgspec
import yaml

from central.request.pod import Pod
from kubectl_lading.plans.gang_objects import GangObjects, find_kind, parse_object
from lading.errors import ConfigError
from lading.kube.objects import Object, Wire

LOWER: Final = "PreemptLowerPriority"
T = TypeVar("T")
MOST_PODS: Final = 1000  # maximum pods in one manifest
_NUMBERED: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"})


class PriorityClass(Object, frozen=True):
    value: int = 0
    global_default: bool | None = False  # None: some manifests contain null
    preemption_policy: str | None = None


class Wanted(Wire, frozen=True):
    """Hold the fields of a pod's spec that determine its priority; None for an absent field."""

    priority_class_name: str | None = None
    priority: int | None = None
    preemption_policy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPod:
    pod: Pod
    why: str


NO_CLASS: Final = PriorityClass()


def admit(pod: Pod, wanted: Wanted, classes: Iterable[PriorityClass] | None) -> Pod | RefusedPod:
    """Return the pod with the priority that the API server would set, or its refusal. Of several classes with one name, the
    last counts. Without the right to read classes (None), the pod's own priority counts."""
    if classes is None:
        return _with(pod, wanted.priority or 0, wanted.preemption_policy or "")
    by_name = {one.metadata.name: one for one in classes}
    name = wanted.priority_class_name or ""
    result = by_name.get(name) if name else _default(by_name.values())
    if result is None:
        near = get_close_matches(name, by_name, n=1)
        return RefusedPod(pod=pod, why=f"there is no PriorityClass {name}" + (f"; there is {near[0]}" if near else ""))
    whose = f"PriorityClass {result.metadata.name}" if result.metadata.name else "no PriorityClass"
    policy = result.preemption_policy or LOWER
    if wanted.priority is not None and wanted.priority != result.value:
        return RefusedPod(pod=pod, why=f"priority {wanted.priority} is written in it, and with {whose} it has {result.value}")
    if wanted.preemption_policy is not None and wanted.preemption_policy != policy:
        written = wanted.preemption_policy
        return RefusedPod(pod=pod, why=f"preemptionPolicy {written} is written in it, and with {whose} it has {policy}")
    return _with(pod, result.value, policy)


def _default(classes: Iterable[PriorityClass]) -> PriorityClass:
    return min((one for one in classes if one.global_default), key=lambda one: one.value, default=NO_CLASS)


def _with(pod: Pod, priority: int, policy: str) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=priority, preemption_policy=policy))


# ---- the pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Hold a pod as written, before the API server sets its priority."""

    pod: Pod
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    pods: Sequence[Draft]
    classes: Sequence[PriorityClass] = field(default_factory=tuple)
    gang_objects: Sequence[GangObjects] = field(default_factory=tuple)
    passed_over: Sequence[str] = field(default_factory=tuple)  # skipped objects as kind/name: their number of pods is unknown


def parse_manifest(text: str, source: str, *, namespace: str) -> Manifest:
    """Parse a manifest. `namespace`: used for objects without a namespace."""
    pods: list[Draft] = []
    classes: list[PriorityClass] = []
    gang_objects: list[GangObjects] = []
    passed_over: list[str] = []
    for document in _documents(text, source):
        if document["kind"] == "PriorityClass":
            classes.append(_converted(document, PriorityClass, source, f"PriorityClass {_name(document)}"))
            continue
        if (gang_kind := find_kind(document)) is not None:
            gang_objects.append((gang_kind, [parse_object(document, source, namespace=namespace)]))
            continue
        made = list(_pods(document, source, namespace))
        if not made:
            passed_over.append("/".join(filter(None, (document["kind"], _written_name(document)))))
        pods += made
        if len(pods) > MOST_PODS:
            raise ConfigError(f"cannot simulate {source}: it has more than {MOST_PODS} pods")
    return Manifest(pods=pods, classes=tuple(classes), gang_objects=tuple(gang_objects), passed_over=tuple(passed_over))


def _documents(text: str, source: str) -> Iterator[Mapping[str, Any]]:
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.MarkedYAMLError as e:
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise ConfigError(f"cannot read {source}: no YAML{line}: {e.problem}") from e
    except yaml.YAMLError as e:
        raise ConfigError(f"cannot read {source}: no YAML: {e}") from e
    for number, document in enumerate(documents, 1):
        some = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else [document]
        for one in some if isinstance(some, list) else [some]:
            if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
                raise ConfigError(f"cannot use {source}: document {number} is no Kubernetes object: it has no kind")
            if not all(isinstance(one.get(part, {}), dict | None) for part in ("metadata", "spec")):
                raise ConfigError(f"cannot use {source}: document {number}: metadata and spec are no maps")
            yield one


def _pods(document: Mapping[str, Any], source: str, namespace: str) -> Iterator[Draft]:
    kind, metadata = document["kind"], _map(document, "metadata", source)
    namespace = str(metadata.get("namespace") or namespace)
    if kind == "Pod":
        yield _pod(document, source, _name(document), namespace)
        return
    spec = _map(document, "spec", source)
    if kind == "CronJob":
        spec = _map(_map(spec, "jobTemplate", source), "spec", source)
    if template := _map(spec, "template", source):
        for number in range(_checked(_replicas(kind, spec), source)):
            yield _pod(template, source, f"{_name(document)}-{number}", namespace)


def _replicas(kind: str, spec: Mapping[str, Any]) -> object:
    """Return the number of pods that run at one time; 0 if it depends on the nodes, or is unknown for this kind."""
    if kind in _NUMBERED:
        return _or_one(spec.get("replicas"))
    if kind in ("Job", "CronJob"):
        parallelism, completions = _or_one(spec.get("parallelism")), spec.get("completions")
        return min(parallelism, completions) if isinstance(completions, int) and isinstance(parallelism, int) else parallelism
    return 0


def _or_one(written: object) -> object:
    return 1 if written is None else written


def _checked(count: object, source: str) -> int:
    if not isinstance(count, int) or not 0 <= count <= MOST_PODS:
        raise ConfigError(f"cannot simulate {source}: {count} pods of one object; write 0 to {MOST_PODS}")
    return count


def _pod(written: Mapping[str, Any], source: str, name: str, namespace: str) -> Draft:
    metadata = _map(written, "metadata", source)
    text = {
        part: {key: value for key, value in _map(metadata, part, source).items() if value is not None}
        for part in ("annotations", "labels")
    }
    kept = {
        "metadata": {"name": name, "namespace": namespace, **text},
        "spec": dict(_map(written, "spec", source)),
    }
    wanted = _converted(kept["spec"], Wanted, source, f"pod {name}")
    for key in ("priority", "preemptionPolicy"):
        kept["spec"].pop(key, None)  # null is allowed in a manifest, but not in central's Pod
    return Draft(pod=_converted(kept, Pod, source, f"pod {name}"), wanted=wanted)


def _converted(written: Mapping[str, Any], kind: type[T], source: str, what: str) -> T:
    try:
        return msgspec.convert(written, kind)
    except msgspec.ValidationError as e:
        raise ConfigError(f"cannot use {source}: {what}: {e}") from e


def _name(document: Mapping[str, Any]) -> str:
    return _written_name(document) or "pod"


def _written_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    return str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-"))


def _map(written: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """Return the mapping at the key; empty if it is absent or null."""
    result = written.get(key)
    if result is not None and not isinstance(result, dict):
        raise ConfigError(f"cannot use {source}: {key} is no map: {result!r}")
    return result or {}
