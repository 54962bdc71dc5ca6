"""Decide which devices a container gets, by its pod's annotations, the node, and the holders of devices.

The input is the container, the node's rules (configuration) and a view of the node at this moment. The output is an adjustment,
with the grant that must be in the ledger before the answer is sent; or a refusal.

An existing grant wins: a restarted container gets the devices it had, an annotation that changed since is refused, and an
assignment older than what the pod was granted is stale. If a device became unhealthy meanwhile, the container gets it when it
is healthy again, or another device, by the node's configuration. The grant does not win over another pod's grant of the same
device: one of both grants was adopted from a container's annotations, which a checkpoint can contain, and may be wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hooks.forms.annotations import parse_assignment
from hooks.grant.cards import UnassignedPolicy, adjust_cards, find_cards, hide_cards
from hooks.grant.choose import choose
from hooks.grant.dirty import Cleanness, CleanRule, HostProcess
from hooks.grant.netdev import decide_netdevs
from hooks.grant.pod import PodPolicy, check_pod
from hooks.grant.rdma import RdmaInjection, adjust_vfs
from hooks.grant.unhealthy import Unhealthy, choose_again, find_unhealthy
from hooks.ledger.reconcile import both_hold
from hooks.model.assignment import Assignment, ContainerRequest, GrantedDevices, Refusal, Trust
from hooks.model.attachment import NetdevPolicy
from hooks.model.container import Adjustment, Answer, Container, Sandbox, merge
from hooks.model.grant import Grant, Holding, holding_of, render_annotation
from hooks.model.inventory import Inventory
from hooks.ports import Isolation, Vendor
from lading.reasons import Reason
from lading.vocabulary import GRANT, NOTHING, GpuUuid, PodUid, SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    node_name: str
    trust: Trust
    pod: PodPolicy
    unassigned: UnassignedPolicy
    vendors: Sequence[Vendor]
    isolations: Sequence[Isolation]
    rdma: RdmaInjection
    cdi_refusal: str = ""  # why the runtime does not honour CDI names, or empty
    netdev: NetdevPolicy = field(default_factory=NetdevPolicy)
    unhealthy: Unhealthy = Unhealthy.KEEP
    clean: CleanRule = field(default_factory=CleanRule)
    max_age_s: float = math.inf  # maximum age of an inventory from which a new grant is made


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Hold the node at the moment of the decision."""

    inventory: Inventory  # with what is away in pods (attach.overlay)
    age_s: float = 0.0  # age of the inventory
    own: Grant | None = None  # grant that this container holds already
    pod_gen: int = 0  # the newest assignment that any container of this pod was granted
    held: Sequence[Holding] = ()  # holdings of all other containers, and VFs that have not returned from their pods
    unmanaged: Mapping[GpuUuid, str] = field(default_factory=dict)  # cards in use without a grant, by whom
    host_processes: Mapping[GpuUuid, Sequence[HostProcess]] = field(default_factory=dict)
    waits: Mapping[GpuUuid, str] = field(default_factory=dict)  # cards that are being handed over, and what is missing
    dirty_since: Mapping[GpuUuid, int] = field(default_factory=dict)  # Unix time
    stopped: bool = False  # the sandbox was stopped, or is being stopped
    may_grant: bool = True  # the ledger was reconciled with the runtime
    now: int = 0  # Unix time, seconds
    boot_id: str = ""


def decide(sandbox: Sandbox, container: Container, rules: Rules, view: View) -> Answer | Refusal:
    pod = PodUid(sandbox.uid)
    assignment = parse_assignment(sandbox.annotations, pod=pod, node=rules.node_name, trust=rules.trust)
    if isinstance(assignment, Refusal):
        return assignment
    request = assignment.for_container(container.name) if assignment else ContainerRequest()
    if view.own and request != view.own.request:
        return _changed(view.own)
    if assignment is None or request.empty:
        return _answer_nothing(sandbox, container, rules, view)
    refusal = (
        _check_names(sandbox, container)
        or _check_moment(assignment, view)
        or _check_inventory(rules, view)
        or check_pod(sandbox, container, request, rules.pod, rules.vendors)
    )
    if refusal:
        return refusal
    grant = _grant(sandbox, container, assignment, request, rules, view)
    if isinstance(grant, Refusal):
        return grant
    return _adjust(sandbox, container, grant, rules, view, key_id=assignment.key_id)


def _answer_nothing(sandbox: Sandbox, container: Container, rules: Rules, view: View) -> Answer:
    """Write an empty grant, so that the container differs from a container that was created without Lading's answer."""
    hidden = hide_cards(sandbox, container, view.inventory, GrantedDevices(), rules.vendors, rules.unassigned)
    return Answer(adjustment=replace(hidden, annotations={GRANT: NOTHING}))


def _check_names(sandbox: Sandbox, container: Container) -> Refusal | None:
    """Refuse a container without a name or a pod without a uid: grants are kept by these."""
    if sandbox.uid and container.name:
        return None
    return Refusal(
        reason=Reason.CONTAINER_UNNAMED,
        message="cannot give devices to a container without a name, or of a pod without a uid: set both in the CRI request",
    )


def _check_moment(assignment: Assignment, view: View) -> Refusal | None:
    if view.stopped:
        return Refusal(reason=Reason.SANDBOX_STOPPED, message="cannot give devices in a sandbox that is stopped")
    if assignment.pod is not None and assignment.gen < view.pod_gen:
        return Refusal(
            reason=Reason.ASSIGNMENT_STALE,
            message=f"cannot use the assignment: it has gen {assignment.gen}, and the pod was granted gen {view.pod_gen}",
        )
    if view.own is None and not view.may_grant:
        return Refusal(
            reason=Reason.NOT_RECONCILED,
            message="cannot give devices yet: who holds what has not been compared with the container runtime since the start; "
            "this is retried automatically",
        )
    return None


def _check_inventory(rules: Rules, view: View) -> Refusal | None:
    """Refuse to decide from an inventory that may no longer be true."""
    if view.own is not None or view.age_s <= rules.max_age_s:
        return None
    return Refusal(
        reason=Reason.INVENTORY_UNAVAILABLE,
        message=f"cannot give devices yet: the devices were last read {view.age_s:.0f} s ago; does the driver hang?",
        transient=True,
    )


def _changed(own: Grant) -> Refusal:
    return Refusal(
        reason=Reason.ASSIGNMENT_CHANGED,
        message=f"cannot change the devices of container {own.container}: it was granted {', '.join(own.devices.names)}, and "
        "the pod's annotations say otherwise since; recreate the pod",
    )


def _grant(
    sandbox: Sandbox,
    container: Container,
    assignment: Assignment,
    request: ContainerRequest,
    rules: Rules,
    view: View,
) -> Grant | Refusal:
    pod = PodUid(sandbox.uid)
    if view.own:
        twice = _held_twice(view.own, view.held)
        return twice or _again(replace(view.own, sandbox=SandboxId(sandbox.id), gen=assignment.gen), rules, view)
    cleanness = Cleanness(rule=rules.clean, processes=view.host_processes, waits=view.waits, since=view.dirty_since)
    devices = choose(request, view.inventory, pod=pod, held=view.held, unmanaged=view.unmanaged, cleanness=cleanness)
    if isinstance(devices, Refusal):
        return devices
    return Grant(
        pod=pod,
        container=container.name,
        namespace=sandbox.namespace,
        pod_name=sandbox.name,
        sandbox=SandboxId(sandbox.id),
        form=assignment.form,
        gen=assignment.gen,
        request=request,
        devices=devices,
        granted_at=view.now,
        boot_id=view.boot_id,
    )


def _again(own: Grant, rules: Rules, view: View) -> Grant | Refusal:
    """Return the devices that the container holds, or other devices if the node replaces unhealthy devices."""
    if rules.unhealthy is Unhealthy.KEEP or not (unhealthy := find_unhealthy(own.devices, view.inventory)):
        return own
    devices = choose_again(holding_of(own), own.request, unhealthy, view.inventory, view.held)
    if isinstance(devices, Refusal):
        return devices
    return replace(own, devices=devices, granted_at=view.now, boot_id=view.boot_id, containers=())


def _held_twice(own: Grant, held: Sequence[Holding]) -> Refusal | None:
    for other in held:
        for device in both_hold(own.devices, other.devices) if other.pod != own.pod else ():
            return Refusal(
                reason=Reason.DEVICE_HELD,
                message=f"cannot give {device} again: two grants have it, this container's and another: {other.holds('it')}; "
                "delete the pod that should not have it",
            )
    return None


def _adjust(sandbox: Sandbox, container: Container, grant: Grant, rules: Rules, view: View, *, key_id: str) -> Answer | Refusal:
    devices, inventory = grant.devices, view.inventory
    result = find_cards(devices, inventory)
    if isinstance(result, Refusal):
        return result
    if undivided := {card.gpu.uuid: card.gpu for card in result if card.mig and not card.mig.is_made}:
        return Answer(adjustment=Adjustment(), grant=grant, undivided=tuple(undivided.values()), key_id=key_id)
    cards = adjust_cards(
        result,
        inventory,
        sandbox,
        container,
        vendors=rules.vendors,
        isolations=rules.isolations,
        cdi_refusal=rules.cdi_refusal,
    )
    if isinstance(cards, Refusal):
        return cards
    vfs = adjust_vfs(devices, inventory, rules.rdma, {env.name for env in container.env})
    if isinstance(vfs, Refusal):
        return vfs
    attach = decide_netdevs(sandbox, grant.request, devices, inventory, rules.netdev)
    if isinstance(attach, Refusal):
        return attach
    hidden = hide_cards(sandbox, container, inventory, devices, rules.vendors, rules.unassigned)
    annotation = Adjustment(annotations={GRANT: render_annotation(grant)})
    reused = view.own is not None and view.own.devices == devices
    adjustment = merge((cards.adjustment, vfs, hidden, annotation))
    return Answer(
        adjustment=adjustment,
        grant=grant,
        share=cards.share,
        preloads=cards.preloads,
        attach=attach,
        reused=reused,
        key_id=key_id,
    )
