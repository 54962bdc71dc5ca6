"""The pods of a manifest, as the API server would receive them. Pure.

Enters: YAML or JSON, several documents, Lists. Leaves: Pods as central reads them, with a name each: a Pod is one; of
a Deployment, ReplicaSet, StatefulSet, Job or CronJob as many as would run at one time. PriorityClasses are kept too, for what
becomes of a pod's priority (priority.py). Other kinds are named, and passed over.
Refuses, as ConfigError, what is no YAML or no Kubernetes object, with the place.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import yaml

from central.ask.pod import Pod
from kubectl_lading.plans.priority import PriorityClass, Wanted
from lading.errors import ConfigError

T = TypeVar("T")

MOST_PODS: Final = 1000  # of one manifest
_NUMBERED: Final = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A pod as written, without the priority that the API server sets."""

    pod: Pod
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    pods: Sequence[Draft]
    classes: Sequence[PriorityClass] = field(default_factory=tuple)
    passed_over: Sequence[str] = field(default_factory=tuple)  # kind/name of objects without a known number of pods


def parse_manifest(text: str, source: str, *, namespace: str) -> Manifest:
    """Parse a manifest. `namespace`: for objects without one."""
    pods: list[Draft] = []
    classes: list[PriorityClass] = []
    passed_over: list[str] = []
    for document in _documents(text, source):
        if document["kind"] == "PriorityClass":
            classes.append(_converted(document, PriorityClass, source, f"PriorityClass {_name(document)}"))
            continue
        made = list(_pods(document, source, namespace))
        if not made:
            passed_over.append("/".join(filter(None, (document["kind"], _written_name(document)))))
        pods += made
        if len(pods) > MOST_PODS:
            raise ConfigError(f"cannot simulate {source}: it has more than {MOST_PODS} pods")
    return Manifest(pods=pods, classes=tuple(classes), passed_over=tuple(passed_over))


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
    """Return the replicas at one time; 0 where the number depends on the nodes, or cannot be known here."""
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
    written_there = _map(_map(written, "metadata", source), "annotations", source)
    annotations = {key: value for key, value in written_there.items() if value is not None}
    kept = {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": dict(_map(written, "spec", source)),
    }
    wanted = _converted(kept["spec"], Wanted, source, f"pod {name}")
    for key in ("priority", "preemptionPolicy"):
        kept["spec"].pop(key, None)  # may be null
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
    """Return the mapping; empty if nothing is written there."""
    found = written.get(key)
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"cannot use {source}: {key} is no map: {found!r}")
    return found or {}
