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

from central.request.networks import DNS_LABEL, UnreadableNetworks, parse_networks
from lading.errors import ConfigError
from lading.vocabulary import PciAddress

VF: Final = "{vf}"

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


def parse_vf_network(text: str) -> VfNetwork | None:
    """Parse a text such as `lading-vfs/vf-{vf}`. Return None if the text is empty. Raise ConfigError if it is invalid."""
    if not text:
        return None
    namespace, _, name = text.partition("/")
    network = VfNetwork(namespace=namespace, name=name)
    if not re.fullmatch(DNS_LABEL, namespace) or not re.fullmatch(DNS_LABEL, network.of(_ADDRESS)) or name.count(VF) > 1:
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
    there = parse_networks(own)
    if isinstance(there, UnreadableNetworks):
        return there
    others = [one for one in there if not network.names(one.get("namespace") or pod_namespace, one["name"])]
    ours = [_render(vf, interface, network) for vf, interface in vfs]
    if not ours and len(others) == len(there):
        return own
    return msgspec.json.encode([*others, *ours]).decode()


def _render(vf: PciAddress, interface: str, network: VfNetwork) -> dict[str, Any]:
    return {"name": network.of(vf), "namespace": network.namespace, "interface": interface, "deviceID": vf}
