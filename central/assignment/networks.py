"""Write a pod's VFs as Multus' networks, for a cluster whose CNI (Multus with sriov-cni, or host-device) moves them into pods.

CNI runs before the node makes any container, and Multus reads the pod at the API server: so which VFs a pod has must be in its
annotations when it is bound, and the Binding writes both at once. It takes the pod's `k8s.v1.cni.cncf.io/networks`, its VFs
with their names in the pod, and the configured NetworkAttachmentDefinition. It returns the annotation, with the pod's other
networks unchanged, before those that central adds. An entry of the pod for the configured definition is left out: only central
decides which VF that is. An annotation that Multus could not read either is refused.

`deviceID` reaches a plugin with the capability of that name (host-device) as `runtimeConfig.deviceID`. sriov-cni takes it from
its configuration alone: there each VF has a definition of its own, and `{vf}` in its name is replaced by the VF.

Source: Kubernetes Network Custom Resource Definition De-facto Standard v1.3, §4.1; Multus 4 (types.NetworkSelectionElement).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from lading.errors import ConfigError
from lading.vocabulary import NETWORKS, PciAddress

VF: Final = "{vf}"

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_LISTED: Final = re.compile(rf"(?:(?P<namespace>{_LABEL})/)?(?P<name>{_LABEL})(?:@(?P<interface>[^\s/@]{{1,15}}))?")
_KEYS: Final = frozenset({"name", "namespace"})
_ADDRESS: Final = PciAddress("10000:00:00.0")  # as long as they come


@dataclass(frozen=True, slots=True, kw_only=True)
class VfNetwork:
    """Name the definition of a VF's network."""

    namespace: str
    name: str  # `{vf}` in it: each VF has its own

    def of(self, vf: PciAddress) -> str:
        return self.name.replace(VF, re.sub("[:.]", "-", vf))

    def names(self, namespace: str, name: str) -> bool:
        """Return whether it is a definition of this network."""
        parts = map(re.escape, self.name.split(VF))
        return namespace == self.namespace and re.fullmatch("[-0-9a-f]+".join(parts), name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Say why the pod's annotation cannot be read, for its events."""

    why: str


def parse_vf_network(text: str) -> VfNetwork | None:
    """Parse a text such as `lading-vfs/vf-{vf}`. Return None if it is empty. Raise ConfigError."""
    if not text:
        return None
    namespace, _, name = text.partition("/")
    network = VfNetwork(namespace=namespace, name=name)
    if not re.fullmatch(_LABEL, namespace) or not re.fullmatch(_LABEL, network.of(_ADDRESS)) or name.count(VF) > 1:
        raise ConfigError(
            f"cni_network: {text!r} is no NetworkAttachmentDefinition",
            hint='cni_network = "lading-vfs/vf-{vf}", a namespace/name',
        )
    return network


def add_networks(own: str, pod_namespace: str, vfs: Iterable[tuple[PciAddress, str]], network: VfNetwork) -> str | Unreadable:
    """Return the new annotation: `own`, unchanged, if there is nothing to add or to leave out. `vfs` come with their names in
    the pod. The same arguments give the same text."""
    there = _parse(own)
    if isinstance(there, Unreadable):
        return there
    others = [one for one in there if not network.names(one.get("namespace") or pod_namespace, one["name"])]
    ours = [_render(vf, interface, network) for vf, interface in vfs]
    if not ours and len(others) == len(there):
        return own
    return msgspec.json.encode([*others, *ours]).decode()


def _render(vf: PciAddress, interface: str, network: VfNetwork) -> dict[str, Any]:
    return {"name": network.of(vf), "namespace": network.namespace, "interface": interface, "deviceID": vf}


def _parse(text: str) -> list[dict[str, Any]] | Unreadable:
    """Parse either form: JSON if the text has a character of JSON, else names separated by commas."""
    if not text:
        return []
    if not set(text) & set('[{"'):
        return _parse_list(text)
    try:
        found = msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        return Unreadable(why=f"cannot add VFs to the pod's {NETWORKS}: {e}")
    for i, one in enumerate(found):
        if not isinstance(one.get("name"), str) or not isinstance(one.get("namespace", ""), str | None):
            return Unreadable(why=f"cannot add VFs to the pod's {NETWORKS}: [{i}] has no name")
        # Go takes `Name` for `name`, whichever comes last: which network it is must not be a matter of who reads it.
        if alike := [key for key in one if key not in _KEYS and key.casefold() in _KEYS]:
            return Unreadable(why=f"cannot add VFs to the pod's {NETWORKS}: [{i}] has {alike[0]!r:.80}: write it in lower case")
    return found


def _parse_list(text: str) -> list[dict[str, Any]] | Unreadable:
    found = []
    for item in text.split(","):
        said = _LISTED.fullmatch(item.strip())
        if said is None:
            return Unreadable(why=f"cannot add VFs to the pod's {NETWORKS}: {item.strip()!r:.80} is no network as ns/name@eth1")
        found.append({key: value for key, value in said.groupdict().items() if value is not None})
    return found
