"""What a sysdump has in it, as tables: which objects, by which shape, and its README. Pure.

Enters: objects as JSON, what was written and what failed. Leaves: which objects concern Lading, and the README's text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from central.daemon.announce import ENDPOINT_SLICES
from kubectl_lading.dump.redact import Json, keep
from kubectl_lading.dump.shapes import DEPLOYMENT, NODE, NODE_DEVICES, OPEN, POD, config_map
from kubectl_lading.installation.read_installation import CONFIG_MAPS, CRD_NAME, CRDS, DEPLOYMENTS, POLICIES, POLICY_BINDINGS
from lading.kube import resource
from lading.kube.resource import LEASES, NODES, Resource
from lading.vocabulary import PREFIX

CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterroles")
CLUSTER_ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")

OURS: Final = "lading-"  # prefix of the names in deploy/
SCHEDULER_NAME: Final = "lading"

Redact = Callable[[Json], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A file with objects of one kind."""

    file: str
    resource: Resource
    redact: Redact
    says: str  # for the README
    own_namespace: bool = False  # objects of Lading only
    name: str = ""  # one object
    named_ours: bool = False  # of the cluster-wide objects, those of deploy/


def _by(shape: Any) -> Redact:
    return partial(keep, shape=shape)


SECTIONS: Final = (
    Section(
        file="objects/nodedevices.json",
        resource=resource.NODE_DEVICES,
        redact=_by(NODE_DEVICES),
        says="what nodes report: devices, grants, problems",
    ),
    Section(file="objects/nodes.json", resource=NODES, redact=_by(NODE), says="Nodes: versions, conditions, taints"),
    Section(file="objects/crd.json", resource=CRDS, redact=_by(OPEN), name=CRD_NAME, says="the resource NodeDevices"),
    Section(
        file="objects/policies.json",
        resource=POLICIES,
        redact=_by(OPEN),
        named_ours=True,
        says="admission policies",
    ),
    Section(
        file="objects/policy-bindings.json",
        resource=POLICY_BINDINGS,
        redact=_by(OPEN),
        named_ours=True,
        says="their bindings",
    ),
    Section(
        file="objects/clusterroles.json",
        resource=CLUSTER_ROLES,
        redact=_by(OPEN),
        named_ours=True,
        says="rights in the cluster",
    ),
    Section(
        file="objects/clusterrolebindings.json",
        resource=CLUSTER_ROLE_BINDINGS,
        redact=_by(OPEN),
        named_ours=True,
        says="who has them",
    ),
    Section(file="objects/roles.json", resource=ROLES, redact=_by(OPEN), own_namespace=True, says="rights in our namespace"),
    Section(
        file="objects/rolebindings.json", resource=ROLE_BINDINGS, redact=_by(OPEN), own_namespace=True, says="who has them"
    ),
    Section(file="objects/leases.json", resource=LEASES, redact=_by(OPEN), own_namespace=True, says="who leads"),
    Section(
        file="objects/endpointslices.json",
        resource=ENDPOINT_SLICES,
        redact=_by(OPEN),
        own_namespace=True,
        says="where our Services point",
    ),
    Section(
        file="objects/deployments.json",
        resource=DEPLOYMENTS,
        redact=_by(DEPLOYMENT),
        own_namespace=True,
        says="central and kube-scheduler; environment values and volume sources removed",
    ),
    Section(
        file="objects/configmaps.json",
        resource=CONFIG_MAPS,
        redact=config_map,
        own_namespace=True,
        says="their configuration; keys whose names say secret, token or key redacted",
    ),
)
PODS_FILE: Final = "objects/pods.json"
EVENTS_FILE: Final = "objects/events.json"
redact_pod: Final = _by(POD)


def concerns_us(pod: Json, namespace: str) -> bool:
    """Report whether the object belongs to Lading, has its annotations, or requests its resources."""
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
    rows = "\n".join(f"| `{name}` | {says} |" for name, says in files.items())
    failed = "\n".join(f"- {one}" for one in failures) or "Nothing."
    return README.format(version=version, at=at, context=context, files=rows, failures=failed)
