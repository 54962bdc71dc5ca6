"""VFs that a container holds → what has to be brought into its pod's network namespace before it is created.

Whether a VF's network device goes there, and how it is set, the assignment's entry says; what it leaves open, the node's
configuration. The answer names every VF of a node that attaches, also one whose network device stays: in exclusive mode its
RDMA device goes alone, and the mode is the kernel's to know. Nothing is named for a pod in the host's own namespace.

Refused: a network device for such a pod; settings that nobody here would carry out; a MAC, VLAN or the like of an InfiniBand
VF.
Source: ip-link(8) "vf": InfiniBand's PFs have GUIDs and partitions instead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

from hooks.forms.netdev import settings_conflict
from hooks.model.assignment import ContainerRequest, Devices, GrantedVf, Refusal, VfRequest
from hooks.model.attachment import VfConfig, VfSettings, WantedVf
from hooks.model.inventory import INFINIBAND, Inventory, Vf
from lading.reasons import Reason
from protos.hook.v1 import hook_pb2

# What a PF can say of an InfiniBand VF.
_OF_BOTH: Final = frozenset({"link_state", "trust"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NetdevPolicy:
    """What the node's configuration says."""

    attaches: bool = False  # we bring devices into pods; False: nobody does, or a CNI plugin
    by_cni: bool = False  # a CNI plugin does
    by_default: bool = False  # the network device of a VF whose assignment does not say
    settings: VfSettings = field(default_factory=VfSettings)  # where its assignment does not say

    @property
    def expected(self) -> bool:
        """A network device that is not the host's is in a pod by us, or by nobody who would say so."""
        return self.attaches and self.by_default


def decide_netdevs(
    sandbox: hook_pb2.PodSandbox,
    request: ContainerRequest,
    devices: Devices,
    inventory: Inventory,
    policy: NetdevPolicy,
) -> tuple[WantedVf, ...] | Refusal:
    """In the order of the VFs. The caller knows that each of them is there, or refuses it itself."""
    by_bdf = {vf.bdf: vf for vf in inventory.vfs}
    wanted = []
    for granted, asked in _with_request(devices.vfs, request):
        vf = by_bdf.get(granted.bdf)
        if vf is None:
            continue
        one = _wanted(vf, granted, asked, policy)
        refusal = _check(sandbox, one, asked, policy)
        if refusal is not None:
            return refusal
        wanted.append(one)
    return () if sandbox.host_network or not policy.attaches else tuple(wanted)


def _with_request(vfs: tuple[GrantedVf, ...], request: ContainerRequest) -> Iterator[tuple[GrantedVf, VfRequest]]:
    """Those asked for by name stand first, in the order in which they were asked for; the rest was asked for by number."""
    for i, granted in enumerate(vfs):
        yield granted, request.vfs[i] if i < len(request.vfs) else VfRequest(name=granted.bdf)


def _wanted(vf: Vf, granted: GrantedVf, asked: VfRequest, policy: NetdevPolicy) -> WantedVf:
    netdev = policy.by_default if asked.netdev is None else asked.netdev
    settings = merge_settings(asked.settings, _for_link(vf, policy.settings))
    return WantedVf(vf=vf, ifname=granted.ifname, settings=settings, netdev=netdev and policy.attaches)


def _for_link(vf: Vf, settings: VfSettings) -> VfSettings:
    """The node's settings are for all of its VFs; of an InfiniBand one, what it can have."""
    if vf.link_layer != INFINIBAND:
        return settings
    return VfSettings(config=VfConfig(link_state=settings.config.link_state, trust=settings.config.trust), mtu=settings.mtu)


def merge_settings(own: VfSettings, default: VfSettings) -> VfSettings:
    """Field by field: what `own` does not say is as `default` says."""
    config: dict[str, Any] = {
        f.name: _first(getattr(own.config, f.name), getattr(default.config, f.name)) for f in fields(VfConfig)
    }
    return VfSettings(
        config=VfConfig(**config),
        mtu=_first(own.mtu, default.mtu),
        addresses=own.addresses or default.addresses,
        routes=own.routes or default.routes,
    )


def _first(own: Any, default: Any) -> Any:
    return default if own is None else own


def _check(sandbox: hook_pb2.PodSandbox, one: WantedVf, asked: VfRequest, policy: NetdevPolicy) -> Refusal | None:
    words = f"VF {one.vf.bdf}"
    said = list(_named(asked.settings))
    ipoib = one.vf.link_layer != INFINIBAND or one.vf.netdev  # without it there is nothing to bring
    if sandbox.host_network and one.netdev and (ipoib or said):
        return Refusal(
            reason=Reason.HOST_NETWORK,
            message=f"cannot give the network device of {words} to a pod with hostNetwork: true: it is in the host's network "
            'already; remove hostNetwork; or, for RDMA devices alone, netdev = false in the node\'s hooks.toml, or "netdev": '
            "false in the assignment",
        )
    if asked.netdev and not policy.attaches:
        return _not_here(f"cannot give the network device of {words} to a pod")
    if said and not one.netdev:
        return _not_here(f"cannot set {', '.join(said)} of {words}")
    ethernet = [name for name in _named(VfSettings(config=asked.settings.config)) if name not in _OF_BOTH]
    if ethernet and one.vf.link_layer == INFINIBAND:
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot set {', '.join(ethernet)} of {words}: its link is InfiniBand, which has none of these",
        )
    if one.netdev and (conflict := settings_conflict(one.settings)):
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot set {words}: {conflict}; what the assignment leaves open is of [vf] in the node's hooks.toml",
        )
    return None


def _not_here(what: str) -> Refusal:
    return Refusal(
        reason=Reason.ATTACH_FAILED,
        message=f"{what}: this node's lading-hooks leaves the network devices of VFs where they are (netdev and attach in its "
        "hooks.toml)",
    )


def _named(settings: VfSettings) -> Iterable[str]:
    """The keys that are said."""
    yield from (f.name for f in fields(VfConfig) if getattr(settings.config, f.name) is not None)
    yield from (name for name in ("mtu", "addresses", "routes") if getattr(settings, name))
