"""Write a pod's VFs as Multus' networks, for a cluster whose CNI (Multus with sriov-cni, or host-device) moves them into pods.

CNI runs before the node creates any container, and Multus reads the pod from the API server. So a pod's VFs must be in its
annotations when the pod is bound, and the Binding writes both at once.

Take the pod's `k8s.v1.cni.cncf.io/networks`, its VFs with their names in the pod, and the configured
NetworkAttachmentDefinition. Return the annotation: the pod's other networks unchanged, then the networks that central adds. The
pod's own entries for the configured definition are removed, because only central chooses VFs. An annotation that Multus cannot
read either is refused.

A plugin with the capability `deviceID` (host-device) gets it as `runtimeConfig.deviceID`. sriov-cni reads the device only from
its configuration. Each VF then has its own definition, and `{vf}` in the definition's name stands for the VF's address.

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
_ADDRESS: Final = PciAddress("10000:00:00.0")  # the longest form of a PCI address


@dataclass(frozen=True, slots=True, kw_only=True)
class VfNetwork:
    """Hold namespace and name of the NetworkAttachmentDefinition for VFs."""

    namespace: str
    name: str  # if it contains `{vf}`, each VF has its own definition

    def of(self, vf: PciAddress) -> str:
        return self.name.replace(VF, re.sub("[:.]", "-", vf))

    def names(self, namespace: str, name: str) -> bool:
        """Return whether this namespace and name belong to a definition of the network."""
        parts = map(re.escape, self.name.split(VF))
        return namespace == self.namespace and re.fullmatch("[-0-9a-f]+".join(parts), name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableNetworks:
    """Hold the reason why the pod's annotation cannot be read, for the pod's events."""

    why: str


def parse_vf_network(text: str) -> VfNetwork | None:
    """Parse a text such as `lading-vfs/vf-{vf}`. Return None if the text is empty. Raise ConfigError if it is invalid."""
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


def add_networks(
    own: str, pod_namespace: str, vfs: Iterable[tuple[PciAddress, str]], network: VfNetwork
) -> str | UnreadableNetworks:
    """Return the new annotation; `own` unchanged if no network is added or removed. `vfs`: each VF with its name in the pod.
    The same arguments give the same text."""
    there = _parse(own)
    if isinstance(there, UnreadableNetworks):
        return there
    others = [one for one in there if not network.names(one.get("namespace") or pod_namespace, one["name"])]
    ours = [_render(vf, interface, network) for vf, interface in vfs]
    if not ours and len(others) == len(there):
        return own
    return msgspec.json.encode([*others, *ours]).decode()


def _render(vf: PciAddress, interface: str, network: VfNetwork) -> dict[str, Any]:
    return {"name": network.of(vf), "namespace": network.namespace, "interface": interface, "deviceID": vf}


def _parse(text: str) -> list[dict[str, Any]] | UnreadableNetworks:
    """Parse the annotation: as JSON if it has one of the characters `[{"`, else as names separated by commas."""
    if not text:
        return []
    if not set(text) & set('[{"'):
        return _parse_list(text)
    try:
        result = msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:  # ValueError: half of a surrogate pair
        return UnreadableNetworks(why=f"cannot add VFs to the pod's {NETWORKS}: {e}")
    for i, one in enumerate(result):
        if not isinstance(one.get("name"), str) or not isinstance(one.get("namespace", ""), str | None):
            return UnreadableNetworks(why=f"cannot add VFs to the pod's {NETWORKS}: [{i}] has no name")
        # Go also reads `Name` as `name`, and the last key wins. Such keys are refused, so that all readers see one network.
        if alike := [key for key in one if key not in _KEYS and key.casefold() in _KEYS]:
            return UnreadableNetworks(
                why=f"cannot add VFs to the pod's {NETWORKS}: [{i}] has {alike[0]!r:.80}: write it in lower case"
            )
    return result


def _parse_list(text: str) -> list[dict[str, Any]] | UnreadableNetworks:
    result = []
    for item in text.split(","):
        match = _LISTED.fullmatch(item.strip())
        if match is None:
            return UnreadableNetworks(
                why=f"cannot add VFs to the pod's {NETWORKS}: {item.strip()!r:.80} is no network as ns/name@eth1"
            )
        result.append({key: value for key, value in match.groupdict().items() if value is not None})
    return result
