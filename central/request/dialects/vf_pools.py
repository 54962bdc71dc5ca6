"""Read requests for VFs of the pools of the SR-IOV device plugin, and for NICs of the shared RDMA device plugin.

A resource of the setting `vf_pools` requests VFs of any PF. A resource below `rdma/` is of the shared plugin, where any amount
means the same: it becomes one VF. Other resources of the same plugin go on to be served by it, but for a misspelt pool.

Source: k8snetworkplumbingwg/sriov-network-device-plugin, Mellanox/k8s-rdma-shared-dev-plugin.

Tests: tests/golden/test_dialects.py
"""

from collections.abc import Mapping
from typing import Final

from central.request.amounts import Resource
from central.request.check import MAX_DEVICES, Keys
from central.request.dialects.dialect import ClaimedKeys, read_pod, refuse
from central.request.dialects.options import DialectName, DialectOptions
from central.request.model import ContainerRequest, DeviceRequest
from central.request.networks import UnreadableNetworks, parse_networks
from central.request.pod import Container, Pod
from lading.vocabulary import NETWORKS

_SHARED: Final = "rdma/"


class VfPools:
    name: Final = DialectName.VF_POOLS

    def __init__(self, options: DialectOptions) -> None:
        vfs = Resource(f"a whole number of VFs, 1 to {MAX_DEVICES}", MAX_DEVICES)
        self._known = dict.fromkeys(options.vf_pools, vfs)
        self.claims = ClaimedKeys(resources=self._known, prefixes=options.vf_pools)

    def parse(self, pod: Pod) -> DeviceRequest | None:
        def refine(request: DeviceRequest) -> DeviceRequest:
            networks = parse_networks(pod.metadata.annotations.get(NETWORKS, ""))
            if isinstance(networks, UnreadableNetworks):
                raise refuse(NETWORKS, networks.why.partition(": ")[2], "correct it: Multus cannot read it either")
            return request

        return read_pod(pod, self._known, self.claims, _read, refine, Keys(gpus="", vfs=next(iter(self._known), "")))


def _read(container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
    return ContainerRequest(name=container.name, vfs=sum(1 if name.startswith(_SHARED) else n for name, n in amounts.items()))
