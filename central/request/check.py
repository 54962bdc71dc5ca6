"""Check a pod's device request as a whole, whatever dialect it is written in.

A dialect turns the pod's keys into a DeviceRequest; these rules decide whether a node could be asked for it. `Keys` has the
dialect's own names, so that each message names what the pod's author wrote.

Tests: tests/unit/central/request/test_own.py
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from central.request.amounts import BadRequestError, shown
from central.request.model import ContainerRequest, DeviceRequest, RdmaPolicy, Role, Scope
from lading.devices.identity import MIG_PROFILE_SHAPE
from lading.devices.isolation import IsolationName
from lading.sharegrant import MAX_GPUS

MAX_DEVICES: Final = 1024  # maximum devices of one container; no node has more
MAX_SHARED: Final = MAX_GPUS  # maximum cards of which one container has a share
MAX_CONTAINERS: Final = 32  # maximum containers of a pod that request devices: twice a node's number of cards
MAX_INIT_CONTAINERS: Final = 16  # maximum init containers among these: a fit checks every card in each one's phase
_MIG_PROFILE: Final = re.compile(MIG_PROFILE_SHAPE)  # the profile as the node reports it


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Name the keys by which pods of a dialect request devices. A key is empty if no pod of the dialect can need it."""

    gpus: str  # number of whole cards, or of cards in part
    share: str = ""  # amounts of a share
    vfs: str = ""
    models: str = ""
    mig_profile: str = ""
    rdma_policy: str = ""
    scope: str = ""
    partition: str = ""
    sharing: tuple[str, ...] = ()  # labels of shares, in the order of `Sharing`
    isolation: str = ""


def check_request(request: DeviceRequest, keys: Keys) -> DeviceRequest:
    """Return the request. Raise BadRequestError if no node could ever be asked for it."""
    containers = request.containers
    _check_number(containers)
    shares = [one for one in containers if one.share]
    if request.gpu_models and not any(one.gpus or one.share for one in containers):
        raise BadRequestError(f"cannot use {keys.models}: the pod asks for no GPU; add {keys.gpus}, or remove it")
    _check_places(request, keys)
    if request.partition is not None and (request.mig_profile or not any(one.gpus for one in containers)):
        raise BadRequestError(f"cannot use {keys.partition}: the pod asks for no whole GPU; add {keys.gpus}, or remove it")
    if request.mig_profile:
        _check_instances(request, keys)
    for key in _share_keys(request, keys) if not shares else ():
        raise BadRequestError(f"cannot use {key}: the pod asks for no share of a GPU; add {keys.share}, or remove it")
    for one in shares:
        _check_share(one, request, keys)
    return request


def check_profile(key: str, profile: str, written: str) -> None:
    """Raise BadRequestError if the text is no MIG profile. `written`: the text as it is in the pod."""
    if not _MIG_PROFILE.fullmatch(profile):
        raise BadRequestError(
            f"cannot use {key}: it is {shown(written)}; write the profile as the driver names it (1g.10gb, 3g.40gb), "
            "or remove it"
        )


def _check_number(containers: tuple[ContainerRequest, ...]) -> None:
    inits = sum(request.role is Role.INIT for request in containers)
    limits = (len(containers), MAX_CONTAINERS, "containers"), (inits, MAX_INIT_CONTAINERS, "init containers")
    for number, most, what in limits:
        if number > most:
            raise BadRequestError(f"cannot place {number} {what} that ask for devices; {most} is the most in one pod")


def _check_places(request: DeviceRequest, keys: Keys) -> None:
    policy, scope = request.rdma_policy, request.scope
    if policy is RdmaPolicy.PER_SWITCH:
        without = next((one.name for one in request.containers if one.vfs and not one.gpus and one.share is None), "")
        if without:
            raise BadRequestError(
                f"cannot use {keys.rdma_policy}: {shown(policy.value)} counts the switches of a container's GPUs, and "
                f"container {without} asks for none; add {keys.gpus} there, or write {RdmaPolicy.COUNT}"
            )
    if policy is RdmaPolicy.PER_PF and scope is not Scope.ANY:
        raise BadRequestError(
            f"cannot use {keys.scope}: it is {shown(str(scope))}, and {keys.rdma_policy} {shown(policy.value)} takes VFs of "
            "every PF of the node, wherever it sits; remove one of the two"
        )


def _check_instances(request: DeviceRequest, keys: Keys) -> None:
    if sharing := next((one.name for one in request.containers if one.share), ""):
        raise BadRequestError(
            f"cannot use {keys.mig_profile}: container {shown(sharing)} asks for a share of a GPU, and a MIG instance is given "
            f"whole; write {keys.gpus} there, or remove it"
        )
    if not any(one.gpus for one in request.containers):
        raise BadRequestError(f"cannot use {keys.mig_profile}: the pod asks for no GPU; add {keys.gpus}, or remove it")


def _share_keys(request: DeviceRequest, keys: Keys) -> Iterable[str]:
    """Yield the keys of the pod that only a share can have."""
    if sharing := request.sharing:
        labels = sharing.affinity, sharing.anti_affinity, sharing.exclusion
        yield from (key for key, label in zip(keys.sharing, labels, strict=True) if label)
    if request.isolation is not None:
        yield keys.isolation


def _check_share(one: ContainerRequest, request: DeviceRequest, keys: Keys) -> None:
    share = one.share
    if share is None:
        return
    if share.cards > MAX_SHARED:
        raise BadRequestError(
            f"cannot use {keys.gpus} of container {one.name}: it is {share.cards}, and the container asks for a share of "
            f"each of so many cards; write 1 to {MAX_SHARED}, or remove {keys.share}"
        )
    if share.cards > 1 and request.sharing is not None and request.sharing.affinity:
        raise BadRequestError(
            f"cannot use {keys.sharing[0]}: it puts all shares of the pod on one card, and container {one.name} asks for "
            f"shares of several; write {keys.gpus}: 1 there, or remove it"
        )
    if share.cards > 1 and request.isolation is IsolationName.MPS:
        raise BadRequestError(
            f"cannot use {keys.isolation}: by mps a container reaches one card, and container {one.name} asks for shares of "
            f"several; write {keys.gpus}: 1 there, or {IsolationName.TOKENS}"
        )
