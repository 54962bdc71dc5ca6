"""What a sysdump has in it, as tables: which objects, by which shape, and its README. Pure.

Enters: objects as JSON, what was written and what failed. Leaves: which objects concern Lading, and the README's text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Final

from central.daemon.announce import ENDPOINT_SLICES
from kubectl_lading.dump.redact import Json, keep
from kubectl_lading.dump.shapes import DEPLOYMENT, NODE, NODE_DEVICES, OPEN, POD, config_map
from kubectl_lading.installation.read_installation import CONFIG_MAPS, CRD_NAME, CRDS, DEPLOYMENTS, POLICIES, POLICY_BINDINGS
from lading.kube.resource import LEASES, NODES, Resource
from lading.kube.resource import NODE_DEVICES as REPORTS
from lading.vocabulary import PREFIX

CLUSTER_ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterroles")
CLUSTER_ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings")

_OURS: Final = "lading-"  # prefix of the names in deploy/
SCHEDULER_NAME: Final = "lading"

Redact = Callable[[Json], Json | None]  # None: not dumped


@dataclass(frozen=True, slots=True)
class Section:
    """A file of `objects/` with objects of one kind."""

    kind: str
    resource: Resource
    redact: Redact
    says: str  # for the README
    _: KW_ONLY
    own_namespace: bool = False  # objects of Lading only
    name: str = ""  # one object


def _by(shape: Any) -> Redact:
    return partial(keep, shape=shape)


def _of_deploy(one: Json) -> Json | None:
    """Return a cluster-wide object of deploy/; None for other people's."""
    return _OPEN(one) if one["metadata"]["name"].startswith(_OURS) else None


_OPEN: Final = _by(OPEN)
_DEPLOYMENT_SAYS: Final = "central and kube-scheduler; environment values and volume sources removed"
_CONFIG_SAYS: Final = "their configuration; keys whose names say secret, token or key redacted"

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
    Section("deployments", DEPLOYMENTS, _by(DEPLOYMENT), _DEPLOYMENT_SAYS, own_namespace=True),
    Section("configmaps", CONFIG_MAPS, config_map, _CONFIG_SAYS, own_namespace=True),
)
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
