"""Decide which of a container's VFs have to be moved into its pod's network namespace before it is created.

The assignment's entry says whether a VF's network device goes there, and with which settings; the node's configuration supplies
what is missing. On a node that attaches, the answer names every VF, also one whose network device stays: in exclusive mode its
RDMA device goes alone, and only the kernel knows the mode. Nothing is named for a pod in the host's own namespace.

Refused: a network device for such a pod; settings that nothing on this node would apply; a MAC, VLAN or the like of an
InfiniBand VF.
Source: ip-link(8) "vf": InfiniBand's PFs have GUIDs and partitions instead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from hooks.forms.netdev import settings_conflict
from hooks.model.assignment import ContainerRequest, GrantedDevices, GrantedVf, Refusal, VfRequest
from hooks.model.attachment import NetdevPolicy, VfConfig, VfSettings, WantedVf
from hooks.model.container import Sandbox
from hooks.model.inventory import INFINIBAND, Inventory, Vf
from lading.reasons import Reason

# A PF can set these two settings for an InfiniBand VF.
_OF_BOTH: Final = frozenset({"link_state", "trust"})


def decide_netdevs(
    sandbox: Sandbox,
    request: ContainerRequest,
    devices: GrantedDevices,
    inventory: Inventory,
    policy: NetdevPolicy,
) -> tuple[WantedVf, ...] | Refusal:
    """Return the VFs to attach, in their order. The caller checks that each of them exists, or refuses it itself."""
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
    """Yield each VF with its request. VFs requested by name come first, in the order of the request; the others were requested
    by number."""
    for i, granted in enumerate(vfs):
        yield granted, request.vfs[i] if i < len(request.vfs) else VfRequest(name=granted.bdf)


def _wanted(vf: Vf, granted: GrantedVf, asked: VfRequest, policy: NetdevPolicy) -> WantedVf:
    netdev = policy.by_default if asked.netdev is None else asked.netdev
    settings = merge_settings(asked.settings, _for_link(vf, policy.settings))
    return WantedVf(vf=vf, ifname=granted.ifname, settings=settings, netdev=netdev and policy.attaches)


def _for_link(vf: Vf, settings: VfSettings) -> VfSettings:
    """Return the settings that apply to this VF. The node's settings are for all of its VFs; an InfiniBand VF gets those that
    it can have."""
    if vf.link_layer != INFINIBAND:
        return settings
    return VfSettings(config=VfConfig(link_state=settings.config.link_state, trust=settings.config.trust), mtu=settings.mtu)


def merge_settings(own: VfSettings, default: VfSettings) -> VfSettings:
    """Merge field by field: `default` supplies what `own` does not set."""
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


def _check(sandbox: Sandbox, one: WantedVf, asked: VfRequest, policy: NetdevPolicy) -> Refusal | None:
    message = f"VF {one.vf.bdf}"
    text = list(_named(asked.settings))
    ipoib = one.vf.link_layer != INFINIBAND or one.vf.netdev  # an InfiniBand VF may have no network device
    if sandbox.host_network and one.netdev and (ipoib or text):
        return Refusal(
            reason=Reason.HOST_NETWORK,
            message=f"cannot give the network device of {message} to a pod with hostNetwork: true: it is in the host's network "
            'already; remove hostNetwork; or, for RDMA devices alone, netdev = false in the node\'s hooks.toml, or "netdev": '
            "false in the assignment",
        )
    if asked.netdev and not policy.attaches:
        return _not_here(f"cannot give the network device of {message} to a pod")
    if text and not one.netdev:
        return _not_here(f"cannot set {', '.join(text)} of {message}")
    ethernet = [name for name in _named(VfSettings(config=asked.settings.config)) if name not in _OF_BOTH]
    if ethernet and one.vf.link_layer == INFINIBAND:
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot set {', '.join(ethernet)} of {message}: its link is InfiniBand, which has none of these",
        )
    if one.netdev and (conflict := settings_conflict(one.settings)):
        return Refusal(
            reason=Reason.ANNOTATION_MALFORMED,
            message=f"cannot set {message}: {conflict}; settings that the assignment does not have come from [vf] in the "
            "node's hooks.toml",
        )
    return None


def _not_here(what: str) -> Refusal:
    return Refusal(
        reason=Reason.ATTACH_FAILED,
        message=f"{what}: this node's lading-hooks leaves the network devices of VFs where they are (netdev and attach in its "
        "hooks.toml)",
    )


def _named(settings: VfSettings) -> Iterable[str]:
    yield from settings.config.values
    yield from (name for name in ("mtu", "addresses", "routes") if getattr(settings, name))
