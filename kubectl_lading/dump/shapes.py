"""Define the content of a sysdump as tables of objects and fields. Anything that they do not name stays in the cluster. Pure.

Environment values, command lines, volume sources and annotations of other systems are in no table. Assignments and their
signatures are kept byte by byte: a signature only proves that central wrote the assignment, and gives no access. Secrets are
never read; the existence of a Secret shows only in the pods that mount it.

Tests: tests/unit/kubectl_lading/dump/test_redact.py
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

from central.daemon.announce import ENDPOINT_SLICES
from kubectl_lading.dump.redact import (
    REDACTED,
    REMOVED,
    Json,
    Shape,
    arguments,
    is_secret_name,
    keep,
    scrub,
    scrubbed,
    verbatim,
)
from kubectl_lading.installation.read_installation import CONFIG_MAPS, CRD_NAME, CRDS, DEPLOYMENTS, POLICIES, POLICY_BINDINGS
from lading.kube.resource import LEASES, NODES, Resource
from lading.kube.resource import NODE_DEVICES as REPORTS
from lading.vocabulary import (
    ASSIGNMENT,
    ASSIGNMENT_SIGNATURE,
    CORDON,
    PREFIX,
    RESERVED,
    is_manual,
    is_request_annotation,
)

_VERBATIM: Final = frozenset({ASSIGNMENT, ASSIGNMENT_SIGNATURE})
_OURS: Final = frozenset({CORDON, *RESERVED})


def _annotations(value: Json) -> Json:
    """Return Lading's annotations; of other annotations only the keys."""
    return {key: _annotation(key, text) for key, text in value.items()} if isinstance(value, dict) else {}


def _annotation(key: str, text: Json) -> Json:
    if key in _VERBATIM:
        return text
    ours = key in _OURS or is_manual(key) or is_request_annotation(key)
    return scrubbed(text) if ours else REMOVED


_LABELS: Final = ("kubernetes.io/", "k8s.io/", PREFIX, "nvidia.com/")


def _labels(value: Json) -> Json:
    """Return the labels of Kubernetes, NVIDIA and Lading; of other labels only the keys."""
    if not isinstance(value, dict):
        return {}
    return {key: scrubbed(text) if any(one in key for one in _LABELS) else REMOVED for key, text in value.items()}


def _names_only(value: Json) -> Json:
    """Return environment variables with their names, but without their values."""
    return [{"name": one.get("name", ""), "value": REMOVED} for one in value if isinstance(one, dict)]


def _devices(value: Json) -> Json:
    """Return the amounts of resources, each cut to 40 characters."""
    return {key: str(amount)[:40] for key, amount in value.items()} if isinstance(value, dict) else {}


def _message(value: Json) -> Json:
    """Return the scrubbed message if it mentions Lading. Other messages are removed: they may contain a command line."""
    return scrub(value) if isinstance(value, str) and "lading" in value else REMOVED


def _conditions(value: Json) -> Json:
    kept = ("type", "status", "reason", "lastTransitionTime", "observedGeneration")
    return [
        {key: one[key] for key in kept if key in one} | ({"message": _scrubbed_message(one)} if one.get("message") else {})
        for one in value
        if isinstance(one, dict)
    ]


def _scrubbed_message(condition: dict[str, Any]) -> Json:
    """Return the scrubbed message of a condition by kube-scheduler or Lading; other messages only if they mention Lading."""
    ours = condition.get("type") == "PodScheduled" or str(condition.get("type")).startswith(PREFIX)
    return scrubbed(condition["message"]) if ours else _message(condition["message"])


def _verbatim(names: str) -> dict[str, Shape]:
    """Return a shape that keeps fields unchanged. `names`: names of the fields, separated by spaces."""
    return dict.fromkeys(names.split(), verbatim)


_IDENTITY: Final = _verbatim("apiVersion kind")
META: Final[Shape] = {
    **_verbatim("name namespace uid resourceVersion generation creationTimestamp deletionTimestamp deletionGracePeriodSeconds"),
    "labels": _labels,
    "annotations": _annotations,
    "ownerReferences": (_verbatim("kind name uid controller"),),
    "managedFields": (_verbatim("manager operation subresource time"),),
}

_STATE: Final[Shape] = {
    "waiting": {"reason": verbatim, "message": _message},
    "running": {"startedAt": verbatim},
    "terminated": _verbatim("reason exitCode signal startedAt finishedAt containerID"),
}
_CONTAINER_STATUS: Final[Shape] = {
    **_verbatim("name ready started restartCount containerID"),
    "imageID": scrubbed,
    "state": _STATE,
    "lastState": _STATE,
}
_CONTAINER: Final[dict[str, Shape]] = {
    "name": verbatim,
    "image": scrubbed,
    "restartPolicy": verbatim,
    "resources": {"limits": _devices, "requests": _devices},
    "env": _names_only,
    "securityContext": _verbatim("privileged runAsUser runAsNonRoot"),
}
_POD_SPEC: Final[dict[str, Shape]] = {
    **_verbatim("nodeName schedulerName priority priorityClassName preemptionPolicy runtimeClassName"),
    **_verbatim("restartPolicy hostNetwork hostPID hostUsers"),
    "overhead": _devices,
    "resources": {"limits": _devices, "requests": _devices},
    "schedulingGates": ({"name": verbatim},),
    "terminationGracePeriodSeconds": verbatim,
    "containers": (_CONTAINER,),
    "initContainers": (_CONTAINER,),
}

POD: Final[Shape] = {
    **_IDENTITY,
    "metadata": META,
    "spec": _POD_SPEC,
    "status": {
        **_verbatim("phase reason"),
        "message": _message,
        **_verbatim("startTime qosClass nominatedNodeName"),
        "conditions": _conditions,
        "containerStatuses": (_CONTAINER_STATUS,),
        "initContainerStatuses": (_CONTAINER_STATUS,),
    },
}

NODE: Final[Shape] = {
    **_IDENTITY,
    "metadata": META,
    "spec": {"unschedulable": verbatim, "taints": (_verbatim("key effect timeAdded"),)},
    "status": {"allocatable": _devices, "capacity": _devices, "conditions": scrubbed, "nodeInfo": scrubbed},
}

NODE_DEVICES: Final[Shape] = {**_IDENTITY, "metadata": META, "status": scrubbed}

_NAMED_SOURCE: Final = _verbatim("name secretName optional defaultMode")
_OWN_CONTAINER: Final[dict[str, Shape]] = {
    **_CONTAINER,
    "command": arguments,
    "args": arguments,
    "ports": scrubbed,
    "volumeMounts": (_verbatim("name mountPath subPath readOnly"),),
}
DEPLOYMENT: Final[Shape] = {
    **_IDENTITY,
    "metadata": META,
    "spec": {
        "replicas": verbatim,
        "strategy": verbatim,
        "selector": scrubbed,
        "template": {
            "metadata": META,
            "spec": {
                **_POD_SPEC,
                "serviceAccountName": verbatim,
                "containers": (_OWN_CONTAINER,),
                "volumes": ({"name": verbatim, "configMap": _NAMED_SOURCE, "secret": _NAMED_SOURCE},),
            },
        },
    },
    "status": scrubbed,
}

# Objects of Lading's installation, such as roles and Leases, hold no secrets. They are scrubbed as a precaution.
OPEN: Final[Shape] = {
    **_IDENTITY,
    "metadata": META,
    **dict.fromkeys(("spec", "status", "rules", "roleRef", "subjects", "endpoints", "ports", "addressType"), scrubbed),
}


def config_map(value: Json) -> Json:
    """Return a ConfigMap with its files as texts, without binary data. Files with names that suggest a secret are redacted."""
    data = value.get("data") if isinstance(value, dict) else None
    kept = {key: REDACTED if is_secret_name(key) else scrub(str(text)) for key, text in (data or {}).items()}
    return keep(value, {**_IDENTITY, "metadata": META}) | {"data": kept}


_EVENT_SOURCES: Final = ("lading", "kube-scheduler")


def event(value: Json, *, ours: bool) -> Json:
    """Return a redacted Event. `ours`: it is about Lading's own namespace; in others the message may quote a command line."""
    shape: Shape = {
        **_IDENTITY,
        "metadata": META,
        "involvedObject": _verbatim("kind name namespace uid fieldPath"),
        **_verbatim("reason type count firstTimestamp lastTimestamp eventTime"),
        "source": _verbatim("component host"),
        "reportingComponent": verbatim,
        "message": scrubbed if ours or _is_relevant(value) else _message,
    }
    return keep(value, shape)


def _is_relevant(value: Mapping[str, Any]) -> bool:
    source = value.get("source") or {}
    component = f"{source.get('component', '')} {value.get('reportingComponent', '')}"
    return any(one in component for one in _EVENT_SOURCES) or value.get("reason") == "FailedScheduling"


CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterroles")
CLUSTER_ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")

_DEPLOYED: Final = "lading-"  # prefix of the names of objects in deploy/
SCHEDULER_NAME: Final = "lading"

Redact = Callable[[Json], Json | None]  # returns the redacted object; None: the object is left out


@dataclass(frozen=True, slots=True)
class Section:
    """Describe a file in the dump's folder `objects/`, with objects of one kind."""

    kind: str
    resource: Resource
    redact: Redact
    description: str  # description of the file for the dump's README
    _: KW_ONLY
    own_namespace: bool = False  # True: only objects in Lading's namespace
    name: str = ""  # name of the only object to dump; empty: all objects of the kind


def _by(shape: Any) -> Redact:
    return partial(keep, shape=shape)


def _of_deploy(one: Json) -> Json | None:
    """Return the redacted object if its name is one of deploy/; else None."""
    return _OPEN(one) if one["metadata"]["name"].startswith(_DEPLOYED) else None


_OPEN: Final = _by(OPEN)
_DEPLOYMENT_CONTENT: Final = "central and kube-scheduler; environment values and volume sources removed"
_CONFIG_CONTENT: Final = "their configuration; keys whose names say secret, token or key redacted"

SECTIONS: Final = (
    Section("nodedevices", REPORTS, _by(NODE_DEVICES), "what nodes report: devices, grants, problems"),
    Section("nodes", NODES, _by(NODE), "Nodes: versions, conditions, taints"),
    Section("crd", CRDS, _OPEN, "the resource NodeDevices", name=CRD_NAME),
    Section("policies", POLICIES, _of_deploy, "admission policies"),
    Section("policy-bindings", POLICY_BINDINGS, _of_deploy, "their bindings"),
    Section("clusterroles", CLUSTER_ROLES, _of_deploy, "rights in the cluster"),
    Section("clusterrolebindings", CLUSTER_ROLE_BINDINGS, _of_deploy, "who has them"),
    Section("roles", ROLES, _OPEN, "rights in our namespace", own_namespace=True),
    Section("rolebindings", ROLE_BINDINGS, _OPEN, "who has them", own_namespace=True),
    Section("leases", LEASES, _OPEN, "who leads", own_namespace=True),
    Section("endpointslices", ENDPOINT_SLICES, _OPEN, "where our Services point", own_namespace=True),
    Section("deployments", DEPLOYMENTS, _by(DEPLOYMENT), _DEPLOYMENT_CONTENT, own_namespace=True),
    Section("configmaps", CONFIG_MAPS, config_map, _CONFIG_CONTENT, own_namespace=True),
)
redact_pod: Final = _by(POD)


def concerns_us(pod: Json, namespace: str) -> bool:
    """Return whether the pod belongs to Lading: it runs in `namespace`, or has Lading's scheduler, annotations or resources."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if metadata.get("namespace") == namespace or spec.get("schedulerName") == SCHEDULER_NAME:
        return True
    if any(key.startswith(PREFIX) for key in metadata.get("annotations") or {}):
        return True
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    amounts = [(one.get("resources") or {}).get(kind) or {} for one in containers for kind in ("limits", "requests")]
    return any(name.startswith(PREFIX) for one in amounts for name in one)


def is_about(event: Json, uids: frozenset[str], namespace: str) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("uid") in uids or about.get("kind") == "NodeDevices" or about.get("namespace") == namespace


README: Final = """# A sysdump of Lading

Made by `kubectl lading sysdump` {version} on {at} of {context}.

**Look through it before you give it away.** It has names of nodes, namespaces, pods and images, PCI addresses and UUIDs of
devices, and the logs of lading-central and its kube-scheduler.

## What is in it

| file | |
|---|---|
{files}

## What was left out or redacted

- Objects have only the fields that a table in `kubectl_lading/dump/shapes.py` names. Gone are environment values, command lines
  (of Lading's own Deployments the names of flags stay), volume sources, probes, and other people's annotations (`[removed]`).
- Of pods only those are here that Lading bound, that have its annotations, that ask for its resources, or that run in its
  namespace; Events are about these, and their messages stay where Lading or kube-scheduler wrote them.
- Secrets were not read. That one is there shows by the pods that mount it.
- Files of ConfigMaps whose names say secret, token or key are `[redacted]`.
- In every text, logs too, credentials in URLs, tokens, private keys, and values that a name calls secret are `[redacted]`.
- Assignments and their signatures are as they were: they open nothing.
- A secret that looks like any other word cannot be known. `grep` for those that you know.

## What could not be read

{failures}
"""


def render_readme(*, version: str, at: str, context: str, files: Mapping[str, str], failures: Sequence[str]) -> str:
    rows = "\n".join(f"| `{name}` | {description} |" for name, description in files.items())
    failed = "\n".join(f"- {one}" for one in failures) or "Nothing."
    return README.format(version=version, at=at, context=context, files=rows, failures=failed)
